"""Handling of SIGTERM and SIGINT: a training stops between steps, and saves before it exits.

`handlers_installed` installs handlers that only record the signal. Where it takes effect depends on
the code that runs: inside `deferred` nothing is interrupted; inside `interruptible`, for work that
may stop anywhere (waiting for a batch, evaluation), the handler raises StoppedError, at once or on
entry if the signal came earlier. Among several processes StoppedError waits until all of them know
of the signal (`require_agreement`), so that they stop at the same step.

The way of SIGTERM: `handlers_installed` records it; the wait for the next batch, which is
`interruptible` (`data.loader.epoch_batches`), raises StoppedError; `Trainer.train` catches it and
calls its checkpointer's `after_error`, which saves a breakpoint; `commands._run` ends the process
with the error's exit code, 143.

Signals are delivered to a process, so the state is the module's. Python runs signal handlers in the
main thread: in other threads `deferred` and `interruptible` do nothing.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Optional

from paddle_mnist.errors import StoppedError

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Exit codes of a process that such a signal stopped, after it had saved.
STOP_EXIT_CODES = tuple(StoppedError(signum).exit_code for signum in STOP_SIGNALS)


class _SignalState:
    """Which signal this process has received, and what the handlers do with the next one."""

    owner_pid: Optional[int] = None  # the process whose handlers are installed
    handled: Sequence[int] = ()
    received: Optional[int] = None  # the first signal; later ones are ignored
    raising = False  # whether the handler raises StoppedError
    needs_agreement = False  # one of several processes, which stop at the same step
    agreed: Optional[int] = None  # the signal that all of these processes know of


_state = _SignalState()


@contextlib.contextmanager
def handlers_installed(ignore_afterwards: bool = False) -> Iterator[None]:
    """Handle SIGTERM and SIGINT inside; a nested use, or one in another thread, does nothing.

    ignore_afterwards: for a process that exits next: signals during its exit change nothing.
    """
    if _state.owner_pid == os.getpid() or not _in_main_thread():
        yield
        return
    _state.owner_pid, _state.received, _state.raising = os.getpid(), None, False
    _state.needs_agreement, _state.agreed = False, None
    before = {signum: signal.getsignal(signum) for signum in STOP_SIGNALS}
    # Under nohup, or in a shell's background job, signals that are ignored stay ignored.
    _state.handled = [signum for signum in STOP_SIGNALS if before[signum] is not signal.SIG_IGN]
    reinstall_handlers()
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, signal.SIG_IGN if ignore_afterwards else handler)
        _state.owner_pid = None


def reinstall_handlers() -> None:
    """Install the handlers again after a library has replaced them with its own.

    Importing Paddle does, unseen by Python: until this is called SIGTERM ends the process at once,
    with C++ frames. (Blocking the signals for so long does not help: NumPy's threads get them.)
    """
    if _state.owner_pid == os.getpid():
        for signum in _state.handled:
            signal.signal(signum, _record)


def _record(signum: int, frame: Optional[FrameType]) -> None:
    if os.getpid() != _state.owner_pid:  # a forked worker has nothing to save: it just ends
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
        return
    if _state.received is None:
        _state.received = signum
        if _state.raising and not _state.needs_agreement:
            raise StoppedError(signum)


def received() -> Optional[int]:
    """Return the signal that this process has received, or None."""
    return _state.received if _state.owner_pid == os.getpid() else None


def pending() -> Optional[int]:
    """Return the signal that is to stop this process, or None.

    Among several processes it is the one that they have agreed on.
    """
    return _state.agreed if _state.needs_agreement else received()


def require_agreement() -> None:
    """From now on stop only for signals that all processes of the training know of."""
    _state.needs_agreement = True


def agree_on(signums: Iterable[Optional[int]]) -> None:
    """Take the first signal, if there is one, as the one that stops every process.

    signums: those received by all processes, which every one of them passes in the same order.
    """
    if _state.agreed is None:
        _state.agreed = next((signum for signum in signums if signum is not None), None)


def wait() -> None:
    """Wait for the signal that is to stop this process, and forget it.

    Handlers are installed again all the while: what other threads import may replace them.
    """
    while pending() is None:
        time.sleep(0.1)
        reinstall_handlers()
    clear()


def clear() -> None:
    """Forget the signal: what it asked for is done."""
    _state.received = _state.agreed = None


def _raise_if_pending() -> None:
    signum = pending()
    if signum is not None:
        raise StoppedError(signum)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Let nothing inside be interrupted, also within an outer `interruptible`."""
    if not _in_main_thread():
        yield
        return
    before, _state.raising = _state.raising, False
    try:
        yield
    finally:
        _state.raising = before


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let signals interrupt what is inside, anywhere, with a StoppedError."""
    if not _in_main_thread():
        yield
        return
    before = _state.raising
    try:
        _state.raising = True
        _raise_if_pending()  # one that came before
        yield
        _raise_if_pending()  # one whose error was swallowed inside
    finally:
        _state.raising = before


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """Let signals end this process at once, for a call into C++ that may wait for ever.

    Python runs its handlers only when such a call returns. Only for work that leaves nothing to
    save or to clean up.
    """
    if _state.owner_pid != os.getpid() or not _in_main_thread():
        yield
        return
    for signum in _state.handled:
        signal.signal(signum, signal.SIG_DFL)
    try:
        if _state.received is not None:
            raise StoppedError(_state.received)
        yield
    finally:
        reinstall_handlers()


def describe_exit(code: int) -> str:
    """Return what a shell's exit code says: the name of a signal, or "exit code N"."""
    if code > 128 and code - 128 in {signum.value for signum in signal.Signals}:
        return signal.Signals(code - 128).name
    return f"exit code {code}"
