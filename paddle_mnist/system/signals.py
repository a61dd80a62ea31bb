"""Handling of SIGTERM and its like: a training stops between steps, and saves before it exits.

`handlers_installed` installs handlers that only record the signal: SIGTERM, SIGINT, those that
schedulers send before they kill, and what the user adds. Only inside `interruptible`, for work that
may stop anywhere (waiting for a batch, evaluation), the handler raises StoppedError, at once or on
entry if the signal came earlier. Among several processes StoppedError waits until all of them know
of the signal (`require_agreement`), so that they stop at the same step.

The way of SIGTERM: `handlers_installed` records it; the wait for the next batch, which is
`interruptible` (`data.loader.interruptible_batches`), raises StoppedError; `Trainer.train` catches
it and calls its checkpointer's `after_error`, which saves a breakpoint; `commands._run` ends the
process with the error's exit code, 143.

A second signal changes nothing until the training waits for its mirror: that wait it ends.

Signals are delivered to a process, so the state is the module's. Python runs signal handlers in the
main thread: in other threads the contexts of this module do nothing.
"""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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


@dataclass
class _State:
    """The signals that this process has received, and what its handlers do with the next one.

    owner_pid: the process whose handlers are installed. stopping: the signals that stop a training.
    handled: those of them that have handlers. raising: whether the first one raises StoppedError.
    needs_agreement: whether this is one of several processes, which stop at the same step; agreed:
    the signal that all of them know of. arrivals: each signal received, and when.
    """

    owner_pid: Optional[int] = None
    stopping: Sequence[int] = (*ALWAYS, *OF_SCHEDULERS)
    handled: Sequence[int] = ()
    raising: bool = False
    needs_agreement: bool = False
    agreed: Optional[int] = None
    arrivals: list[tuple[int, float]] = field(default_factory=list)


_state = _State()


@contextlib.contextmanager
def handlers_installed(more: Sequence[str] = (), ignore_afterwards: bool = False) -> Iterator[None]:
    """Record the signals that stop a training, which interrupt nothing outside `interruptible`.

    A nested use adds the signals that are `more`, by name.
    ignore_afterwards: for a process that exits next: signals during its exit change nothing.
    """
    global _state
    if not _in_main_thread():
        yield
        return
    if is_outermost := _state.owner_pid != os.getpid():
        _state = _State(os.getpid())
    stopping, handled = _state.stopping, _state.handled
    added = [signal.Signals[name] for name in more if signal.Signals[name] not in stopping]
    handlers = {signum: signal.getsignal(signum) for signum in (*stopping, *added)}
    before = {s: old for s, old in handlers.items() if s not in handled and _may_take(s, old)}
    for unavailable in (one.name for one in added if one not in before):
        log.warning(
            "stop_signals: this program ignores %s, or has a handler of its own for it, which "
            "stays, so it stops no training",
            unavailable,
        )
    _state.stopping, _state.handled = (*stopping, *added), (*handled, *before)
    _install_handlers()
    try:
        with _raising(False):
            yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, signal.SIG_IGN if ignore_afterwards else handler)
        _state.stopping, _state.handled = stopping, handled
        if is_outermost:
            _state = _State()


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


def _install_handlers() -> None:
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
    """Return the first signal that this process has received, or None."""
    return next(iter(all_received()), None)


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
        _install_handlers()
    clear()


def clear() -> None:
    """Forget the signal: what it asked for is done."""
    _state.arrivals.clear()
    _state.agreed = None


def _raise_if_pending() -> None:
    if signum := pending():
        raise StoppedError(signum)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def _raising(value: bool) -> Iterator[None]:
    """Have handlers raise StoppedError inside, or only record the signal."""
    before, _state.raising = _state.raising, value
    try:
        yield
    finally:
        _state.raising = before


@contextlib.contextmanager
def importing_paddle() -> Iterator[None]:
    """Let no signal interrupt the import of Paddle, and install the handlers again after it.

    The import replaces them unseen by Python: in the meantime SIGTERM ends the process at once,
    with C++ frames. (Blocking the signals for so long does not help: NumPy's threads get them.)
    """
    if not _in_main_thread():
        yield
        return
    with _raising(False):
        yield
    _install_handlers()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let signals interrupt what is inside, anywhere, with a StoppedError."""
    if not _in_main_thread():
        yield
        return
    with _raising(True):
        _raise_if_pending()  # one that came before
        yield
        _raise_if_pending()  # one whose error was swallowed inside


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Have the signals that stop a training wait in a process started inside, until `unblock`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _state.stopping)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock() -> None:
    """Take the signals that have come since this process was started; it has handlers now."""
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
        if came := received():
            raise StoppedError(came)
        yield
    finally:
        _install_handlers()


def describe_exit(code: int) -> str:
    """Return what a shell's exit code says: the name of a signal, or "exit code N"."""
    if code > 128 and code - 128 in {signum.value for signum in signal.Signals}:
        return signal.Signals(code - 128).name
    return f"exit code {code}"
