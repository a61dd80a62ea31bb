"""Signs of life for a supervisor, if there is one.

It names in the environment the writing end of a pipe; a byte goes there for every batch. A pipe
needs no disk, and it breaks when the supervisor is gone: then the training stops as if by SIGTERM,
or is ended if it hangs, so that no orphan is left. (One that is itself stopped, by SIGSTOP, cannot
notice before it is continued.)
"""

import contextlib
import functools
import logging
import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Optional

log = logging.getLogger("paddle_mnist")

START_SECONDS = 60  # more than hang_timeout until the first sign of life: imports, reading data
GRACE_SECONDS = 10  # for the step in work and a checkpoint, before a process that hangs is ended
VARIABLE = "PADDLE_MNIST_HEARTBEAT"


def _taken() -> Optional[int]:
    """The descriptor, taken out of the environment: it is this process's, not its children's."""
    value = os.environ.pop(VARIABLE, None)
    return int(value) if value else None


_descriptor = _taken()
_listeners: list[Callable[[bool], None]] = []
_left = [math.inf]  # seconds that a sign of life may still take
_parent = os.getppid()  # now, before Paddle is imported: it may be gone by then


def watched() -> bool:
    """Whether a supervisor waits for signs of life."""
    return _descriptor is not None


def tell(listener: Callable[[bool], None]) -> None:
    """Have every sign of life told to one more listener, and whether it is of an exchange."""
    _listeners.append(listener)


def beat(exchanging: bool = False) -> None:
    """Give a sign of life. exchanging: this process has come to where it may wait for another."""
    for listener in _listeners:
        listener(exchanging)
    if _descriptor is not None:
        # full: the supervisor has plenty to read yet; broken: the thread below sees to it
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(_descriptor, b".")


def _end_with_the_supervisor(descriptor: int) -> None:
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


def orphaned() -> bool:
    """Whether the process that started this one is gone."""
    return os.getppid() != _parent


@functools.cache  # once is enough
def end_with_the_parent() -> None:
    """Stop this process as if by SIGTERM when the one that started it is gone."""

    def watch() -> None:
        while not orphaned():
            time.sleep(0.5)
        _stop("the process that started this one is gone; stopping")

    threading.Thread(target=watch, daemon=True).start()


@functools.cache
def end_without_progress(seconds: float) -> None:
    """End this process after so many seconds without a sign of life.

    Counted in turns of a thread, so that time in which the process was stopped does not count, nor
    does that from `rest` to the next sign of life.
    """
    _left[0] = seconds

    def reset(exchanging: bool) -> None:
        _left[0] = seconds

    def watch() -> None:
        while _left[0] > 0:
            time.sleep(1)
            _left[0] -= 1
        log.error("no sign of life for %g s; ending: another process stalls, or this one", seconds)
        os._exit(1)

    tell(reset)
    threading.Thread(target=watch, daemon=True).start()


def rest() -> None:
    """The work is done: from here on no sign of life is owed."""
    _left[0] = math.inf


if _descriptor is not None:
    threading.Thread(target=_end_with_the_supervisor, args=[_descriptor], daemon=True).start()
