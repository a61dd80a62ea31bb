"""Handling of SIGTERM and its like: a training stops between steps, and saves before it exits.

`handlers_installed` installs handlers that only record the signal: SIGTERM, SIGINT, those that
schedulers send before they kill, and what the user adds. Where it takes effect depends on
the code that runs: inside `deferred` nothing is interrupted; inside `interruptible`, for work that
may stop anywhere (waiting for a batch, evaluation), the handler raises StoppedError, at once or on
entry if the signal came earlier. Among several processes StoppedError waits until all of them know
of the signal (`require_agreement`), so that they stop at the same step.

The way of SIGTERM: `handlers_installed` records it; the wait for the next batch, which is
`interruptible` (`data.loader.interruptible_batches`), raises StoppedError; `Trainer.train` catches
it and calls its checkpointer's `after_error`, which saves a breakpoint; `commands._run` ends the
process with the error's exit code, 143.

A second signal changes nothing until the training waits for its mirror: that wait it ends.

Signals are delivered to a process, so the state is the module's. Python runs signal handlers in the
main thread: in other threads `deferred` and `interruptible` do nothing.
"""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Optional

from paddle_mnist.errors import StoppedError

log = logging.getLogger("paddle_mnist")

ALWAYS = (signal.SIGTERM, signal.SIGINT)
# Sent by schedulers, and by a terminal that closes; Windows has none of them. A program that has a
# handler of its own for one of these keeps it.
OF_SCHEDULERS = tuple(
    getattr(signal, name) for name in ("SIGUSR1", "SIGHUP", "SIGXCPU") if hasattr(signal, name)
)
# Those that a process cannot handle, or that report its own faults and those of its children.
NO_STOP_SIGNALS = "KILL STOP CONT CHLD SEGV BUS FPE ILL ABRT TRAP SYS PIPE".split()
SAME_SECONDS = 1.0  # in which a signal that comes again is the first one


def parse_names(value: object) -> list[str]:
    """Return the names of signals: of `USR2`, `SIGUSR2`, or 12. Raises ValueError."""
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(words, (list, tuple, set, frozenset)):
        raise ValueError("expected a list of signals")
    return [_signal_name(word) for word in words]


def _signal_name(word: object) -> str:
    known = {signum.name: signum for signum in signal.Signals}
    text = str(word).upper()
    name = next((n for n, signum in known.items() if text == str(int(signum))), text)
    name = name if name.startswith("SIG") else f"SIG{name}"
    if name not in known or name[3:] in NO_STOP_SIGNALS:
        raise ValueError(f"{word!r} is no signal that can stop a training; expected such as USR2")
    return name


class _SignalState:
    """The signals that this process has received, and the handlers' way with the next one."""

    owner_pid: Optional[int] = None  # the process whose handlers are installed
    stopping: Sequence[int] = (*ALWAYS, *OF_SCHEDULERS)  # those that stop a training
    handled: Sequence[int] = ()  # those of them whose handlers are installed
    raising = False  # whether the handler raises StoppedError
    needs_agreement = False  # one of several processes, which stop at the same step
    agreed: Optional[int] = None  # the signal that all of these processes know of

    def __init__(self) -> None:
        self.arrivals: list[tuple[int, float]] = []  # each signal received, and when

    @property
    def received(self) -> Optional[int]:
        """The first signal: the one that stops the training."""
        return self.arrivals[0][0] if self.arrivals else None


_state = _SignalState()


@contextlib.contextmanager
def handlers_installed(more: Sequence[str] = (), ignore_afterwards: bool = False) -> Iterator[None]:
    """Handle the signals that stop a training; in another thread, do nothing.

    A nested use adds the signals that are `more`, by name.
    ignore_afterwards: for a process that exits next: signals during its exit change nothing.
    """
    if not _in_main_thread():
        yield
        return
    is_outermost = _state.owner_pid != os.getpid()
    if is_outermost:
        _state.owner_pid, _state.raising = os.getpid(), False
        _state.arrivals.clear()
        _state.needs_agreement, _state.agreed, _state.handled = False, None, ()
    stopping_before, handled_before = _state.stopping, _state.handled
    added = [signal.Signals[name] for name in more if signal.Signals[name] not in stopping_before]
    _state.stopping = (*stopping_before, *added)
    before = {
        signum: signal.getsignal(signum) for signum in (_state.stopping if is_outermost else added)
    }
    taken = [signum for signum, handler in before.items() if _may_take(signum, handler)]
    for unavailable in (one.name for one in added if one not in taken):
        log.warning(
            "stop_signals: this program ignores %s, or has a handler of its own for it, which "
            "stays, so it stops no training",
            unavailable,
        )
    _state.handled = (*handled_before, *taken)
    reinstall_handlers()
    try:
        yield
    finally:
        for signum in taken:
            signal.signal(signum, signal.SIG_IGN if ignore_afterwards else before[signum])
        _state.stopping, _state.handled = stopping_before, handled_before
        if is_outermost:
            _state.owner_pid = None


def _may_take(signum: int, handler: object) -> bool:
    """Return whether a signal is handled here. handler: the one that there is.

    Under nohup, or in a shell's background job, signals that are ignored stay ignored.
    """
    if signum in ALWAYS:
        return handler is not signal.SIG_IGN
    return handler in (signal.SIG_DFL, _record)  # ours: in a process that was forked


def stop_signals() -> Sequence[int]:
    """Return the signals that stop a training, the same in all of its processes."""
    return _state.stopping


def stopped_by(exit_code: Optional[int]) -> Optional[int]:
    """Return the signal that stopped a process after it had saved; None if it ended otherwise."""
    return next((one for one in _state.stopping if exit_code == StoppedError(one).exit_code), None)


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
    _state.arrivals.append((signum, time.monotonic()))
    if len(_state.arrivals) == 1 and _state.raising and not _state.needs_agreement:
        raise StoppedError(signum)


def received() -> Optional[int]:
    """Return the signal that this process has received, or None."""
    return _state.received if _state.owner_pid == os.getpid() else None


def all_received() -> list[int]:
    """Return all signals that this process has received, for those to whom it forwards them."""
    return [signum for signum, _ in _state.arrivals if _state.owner_pid == os.getpid()]


def repeated(since: float) -> Optional[int]:
    """Return a signal that came since a time of `time.monotonic`, after another one; or None.

    What comes within SAME_SECONDS is the first one again: a terminal or a scheduler may send it to
    a process to which its parent forwards it.
    """
    if received() is None:
        return None
    after = max(since, _state.arrivals[0][1] + SAME_SECONDS)
    return next((signum for signum, at in _state.arrivals if at > after), None)


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
    _state.arrivals.clear()
    _state.agreed = None


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
def blocked() -> Iterator[None]:
    """Let the signals that stop a training wait; a process that is started inside begins so.

    They come once it has handlers and calls `unblock`.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _state.stopping)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock() -> None:
    """Take the signals that have come since this process was started inside `blocked`."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


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
