"""Heartbeats: signs of life for whoever watches this process, and what happens when they stop.

A supervisor (`paddle_mnist.system.supervisor`) names the writing end of a pipe in the environment;
each heartbeat writes a byte to it. A pipe needs no disk, and it breaks when the supervisor dies:
then this process stops as if by SIGTERM, and exits if it hangs, so that no orphan is left. (A
supervisor that is itself stopped, by SIGSTOP, does not notice before it is continued.)

The trainer beats at every step, the evaluator at every batch, an exchange between processes when it
begins.
"""

import contextlib
import ctypes
import functools
import logging
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Optional

log = logging.getLogger("paddle_mnist")

START_SECONDS = 60  # more than hang_timeout until the first heartbeat: imports, reading data
GRACE_SECONDS = 10  # for the step in work and a checkpoint, before a process that hangs is ended
VARIABLE = "PADDLE_MNIST_HEARTBEAT"
PR_SET_PDEATHSIG = 1  # of prctl(2): the signal that a process gets when its parent dies

_listeners: list[Callable[[bool], None]] = []
_watchdog_left = [math.inf]  # seconds until the watchdog ends this process


@functools.cache
def start() -> Optional[int]:
    """Connect to the supervisor, if there is one, and note which process started this one.

    Commands call it before anything else: the supervisor, or the parent, may die while Paddle is
    imported, and a child must not inherit the pipe. Without that, the first use does it.
    Returns the descriptor of the pipe, or None without a supervisor.
    """
    parent_pid()
    value = os.environ.pop(VARIABLE, None)  # it is this process's, not its children's
    if value is None:
        return None
    descriptor = int(value)
    threading.Thread(target=_exit_with_supervisor, args=[descriptor], daemon=True).start()
    return descriptor


@functools.cache
def parent_pid() -> int:
    """Return the process that started this one, also after its death."""
    return os.getppid()


def is_supervised() -> bool:
    """Return whether a supervisor waits for heartbeats."""
    return start() is not None


def add_listener(listener: Callable[[bool], None]) -> None:
    """Call `listener(exchanging)` at every heartbeat."""
    _listeners.append(listener)


def remove_listener(listener: Callable[[bool], None]) -> None:
    """Undo `add_listener`."""
    _listeners.remove(listener)


def beat(exchanging: bool = False) -> None:
    """Send a heartbeat. exchanging: this process may now have to wait for another one."""
    for listener in _listeners:
        listener(exchanging)
    descriptor = start()
    if descriptor is not None:
        # full: the supervisor has plenty to read yet; broken: the thread below sees to it
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(descriptor, b".")


def _exit_with_supervisor(descriptor: int) -> None:
    """Wait until nobody holds the reading end, then stop this process."""
    poll = select.poll()
    poll.register(descriptor, 0)  # only for the error that a pipe without a reader is
    poll.poll()
    _stop("the supervisor is gone; stopping")


def _stop(reason: str) -> None:
    log.warning("%s", reason)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(128 + signal.SIGTERM)


def die_with(parent: int) -> None:
    """Have the system (Linux) kill this process when its parent ends, even where no Python runs.

    parent: its process id. Where it has ended already, this process exits.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


@functools.cache  # once is enough
def exit_with_parent() -> None:
    """Stop this process as if by SIGTERM when the one that started it is gone."""
    parent_pid()

    def watch() -> None:
        while os.getppid() == parent_pid():
            time.sleep(0.5)
        _stop("the process that started this one is gone; stopping")

    threading.Thread(target=watch, daemon=True).start()


@functools.cache
def start_watchdog(seconds: float) -> None:
    """End this process, with exit code 1, after `seconds` without a heartbeat.

    Counted in turns of a thread, so that time in which the process was stopped does not count.
    """
    _watchdog_left[0] = seconds

    def reset(exchanging: bool) -> None:
        _watchdog_left[0] = seconds

    def watch() -> None:
        while _watchdog_left[0] > 0:
            time.sleep(1)
            _watchdog_left[0] -= 1
        log.error("no heartbeat for %g s; ending: another process stalls, or this one", seconds)
        os._exit(1)

    add_listener(reset)
    threading.Thread(target=watch, daemon=True).start()


def pause_watchdog() -> None:
    """Expect no heartbeats until the next one: the work is done, or waits for rank 0."""
    _watchdog_left[0] = math.inf
