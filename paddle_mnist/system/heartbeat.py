"""Heartbeats of this process for the one that started it, and the guard that ends it.

A process that starts others (`paddle_mnist.system.children`) gives each a pipe, to which every
heartbeat writes a byte. In the child one thread, the guard, ends the process when its parent is
gone, so that no orphan is left, or when no heartbeat has come for too long. A process that Paddle's
launch started has no pipe, but a guard.

The trainer beats at every step, the evaluator at every batch, an exchange between processes when it
begins.
"""

import atexit
import contextlib
import ctypes
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Optional

log = logging.getLogger("paddle_mnist")

# Added to hang_timeout before the first heartbeat, for imports and reading data: on a busy machine,
# importing Paddle alone can take a minute.
START_SECONDS = 180
GRACE_SECONDS = 10  # for the current step and a checkpoint, before a process is killed
POLL_SECONDS = 0.5  # between two looks of the guard
VARIABLE = "PADDLE_MNIST_HEARTBEAT"  # "PARENT DESCRIPTOR": set for a child, not for its children
BEAT, EXCHANGE, REST = b".", b">", b"_"  # what a heartbeat writes, and `pause`
PR_SET_PDEATHSIG = 1  # of prctl(2): the signal that a process gets when its parent dies


class _State:
    """The parent, the pipe and the guard of this process, and when its next heartbeat is due."""

    parent: Optional[int] = None  # its process id, once `start` was called
    pipe: Optional[int] = None  # the descriptor for heartbeats, if the parent reads them
    guard: Optional[threading.Thread] = None
    timeout = math.inf  # seconds without a heartbeat
    seconds_left = math.inf  # until the guard ends this process
    has_ended = False  # whether training has: then neither a hang nor a heartbeat is expected


_state = _State()
listeners: list[Callable[[], None]] = []  # called at every heartbeat


def start() -> None:
    """Note which process started this one, and guard this one if that process watches it.

    Commands call it before anything else, since the parent may die while Paddle is imported.
    """
    if _state.parent is None:
        parent, pipe = os.environ.pop(VARIABLE, f"{os.getppid()} ").split(" ")
        _state.parent = int(parent)
        if pipe:
            _state.pipe = int(pipe)
            # A wrapper, which had the variable, started this process, and may have closed the pipe.
            if _state.parent != os.getppid() and os.path.exists(f"/proc/{parent}/fd/{pipe}"):
                _state.parent = os.getppid()
                _state.pipe = os.open(f"/proc/{parent}/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
            atexit.register(begin)  # a process that hangs at its exit hangs
            guard()


def guard(timeout: float = math.inf) -> None:
    """End this process once its parent is gone, or after `timeout` seconds without a heartbeat.

    A later call sets another timeout. Only time in which the process runs counts, not time in
    which it is suspended.
    """
    start()
    _state.timeout = _state.seconds_left = timeout
    if _state.guard is None:
        _state.guard = threading.Thread(target=_guard, daemon=True)
        _state.guard.start()


def _guard() -> None:
    while _state.seconds_left > 0:
        if os.getppid() != _state.parent:
            log.warning("the process that started this one is gone; stopping")
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(GRACE_SECONDS)
            os._exit(128 + signal.SIGTERM)
        time.sleep(POLL_SECONDS)
        _state.seconds_left -= POLL_SECONDS
    log.error("no heartbeat for %g s: this process or another one hangs; exiting", _state.timeout)
    os._exit(1)


def pause() -> None:
    """Expect no heartbeats, here and in the parent, until the next one: another process works."""
    _state.seconds_left = math.inf
    _write(REST)


def begin() -> None:
    """Expect heartbeats: training begins."""
    _state.has_ended = False
    beat()


def end() -> None:
    """Expect no more heartbeats: code that runs after training, such as a user's, may be slow."""
    pause()
    _state.has_ended = True


def is_supervised() -> bool:
    """Return whether the process that started this one waits for heartbeats."""
    start()
    return _state.pipe is not None


def beat(exchanging: bool = False) -> None:
    """Send a heartbeat. exchanging: this process may now have to wait for another one."""
    start()
    for listener in listeners:
        listener()
    if not _state.has_ended:
        _state.seconds_left = _state.timeout
        _write(EXCHANGE if exchanging else BEAT)


def _write(data: bytes) -> None:
    if _state.pipe is not None:
        try:
            os.write(_state.pipe, data)
        except BlockingIOError:
            pass  # the parent has not read the last ones yet
        except BrokenPipeError:
            _state.parent = 0  # nobody reads: the guard ends this process


def report(message: bytes) -> None:
    """Tell the parent how this process ends; no heartbeat follows. message: begins with `{`."""
    pipe, _state.pipe = _state.pipe, None
    assert pipe is not None
    os.set_blocking(pipe, True)
    with contextlib.suppress(BrokenPipeError), open(pipe, "wb", closefd=False) as file:
        file.write(message)


def die_with(parent: int) -> None:
    """Have the system (Linux) kill this process when its parent ends, even where no Python runs.

    parent: its process id. Where it has ended already, this process exits.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
