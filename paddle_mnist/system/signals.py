"""Handle SIGTERM and its like: training stops between steps, and saves before it exits.

`fit` runs inside `handlers_installed`, whose handlers only record the signal: SIGTERM, SIGINT,
those that schedulers send before they kill, and what the user adds. Only inside `interruptible`,
for work that may stop anywhere (waiting for a batch, evaluation), a handler raises StoppedError, at
once or on entry if the signal came earlier. Among several processes StoppedError waits until all of
them know of the signal (`require_agreement`), so that they stop at the same step. Outside `fit` a
signal ends a command at once, where nothing is lost.

The way of SIGTERM: a handler records it; the wait for the next batch, which is `interruptible`
(`data.loader.interruptible_batches`), raises StoppedError; `TrainingLoop.train` catches it and
calls its checkpointer's `after_error`, which saves a breakpoint; `commands.cli` ends the process
with the error's exit code, 143.

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
        raise ValueError(f"{word!r} cannot stop training; expected a signal such as USR2")
    return name


@dataclass
class _State:
    """The signals that this process has received, and what its handlers do with the next one.

    owner_pid: the process whose handlers are installed. stopping: the signals that stop training.
    raising: whether the first one raises StoppedError.
    needs_agreement: whether this is one of several processes, which stop at the same step; agreed:
    the signal that all of them know of. arrivals: each signal received, and when.
    """

    owner_pid: Optional[int] = None
    stopping: Sequence[int] = (*ALWAYS, *OF_SCHEDULERS)
    raising: bool = False
    needs_agreement: bool = False
    agreed: Optional[int] = None
    arrivals: list[tuple[int, float]] = field(default_factory=list)


_state = _State()


@contextlib.contextmanager
def handlers_installed(more: Sequence[str] = ()) -> Iterator[None]:
    """Record the signals that stop training, which interrupt nothing outside `interruptible`.

    Inside another such context, as in a thread that is not the main one, it does nothing.
    more: names of further signals.
    """
    global _state
    if not _in_main_thread() or _state.owner_pid == os.getpid():
        yield
        return
    stopping = dict.fromkeys((*ALWAYS, *OF_SCHEDULERS, *(signal.Signals[name] for name in more)))
    handlers = {signum: signal.getsignal(signum) for signum in stopping}
    before = {signum: old for signum, old in handlers.items() if _may_take(signum, old)}
    for name in more:
        if signal.Signals[name] not in before:
            log.warning(
                "stop_signals: this program ignores %s or has a handler of its own for it, which "
                "stays, so this signal does not stop training",
                name,
            )
    _state = _State(os.getpid(), [*stopping])
    for signum in before:
        signal.signal(signum, _record)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        _state = _State()


def _may_take(signum: int, handler: object) -> bool:
    """Return whether a signal is handled here. handler: the one that there is.

    Under nohup, or in a shell's background job, signals that are ignored stay ignored.
    """
    if signum in ALWAYS:
        return handler is not signal.SIG_IGN
    return handler in (signal.SIG_DFL, _record)  # ours: in a process that was forked


def _record(signum: int, frame: Optional[FrameType]) -> None:
    if os.getpid() != _state.owner_pid:  # a forked worker has nothing to save: it just ends
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
        return
    _state.arrivals.append((signum, time.monotonic()))
    if len(_state.arrivals) == 1 and _state.raising and not _state.needs_agreement:
        raise StoppedError(signum)


def ignore() -> None:
    """Ignore the signals that stop training from now on, in a process that exits next."""
    for signum in stop_signals():
        signal.signal(signum, signal.SIG_IGN)


def stop_signals() -> Sequence[int]:
    """Return the signals that stop training, the same in all of its processes."""
    return _state.stopping


def stopped_by(exit_code: Optional[int]) -> Optional[int]:
    """Return the signal that stopped a process after it had saved; None if it ended otherwise."""
    return next((one for one in _state.stopping if exit_code == StoppedError(one).exit_code), None)


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


def require_agreement() -> None:
    """From now on stop only for signals that all processes of the training know of."""
    _state.needs_agreement = True


def agree_on(signums: Iterable[Optional[int]]) -> None:
    """Take the first signal, if there is one, as the one that stops every process.

    signums: those received by all processes, which every one of them passes in the same order.
    """
    if _state.agreed is None:
        _state.agreed = next((signum for signum in signums if signum is not None), None)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let signals interrupt what is inside, anywhere, with a StoppedError."""
    if not _in_main_thread():
        yield
        return
    before, _state.raising = _state.raising, True
    try:
        _raise_if_pending()  # one that came before
        yield
        _raise_if_pending()  # one whose error was swallowed inside
    finally:
        _state.raising = before


def _raise_if_pending() -> None:
    if signum := _state.agreed if _state.needs_agreement else received():
        raise StoppedError(signum)


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """Let the signals that stop training end this process at once, inside the context.

    For a call into C++ that may wait for minutes: Python runs handlers only when it returns.
    """
    if not _in_main_thread():
        yield
        return
    before = {signum: signal.getsignal(signum) for signum in stop_signals()}
    handlers = {
        signum: handler
        for signum, handler in before.items()
        if callable(handler) and (signum in ALWAYS or handler is _record)
    }
    for signum in handlers:
        signal.signal(signum, signal.SIG_DFL)
    try:
        if came := received():  # recorded before, and nothing else would raise it in time
            raise StoppedError(came)
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Have SIGTERM and SIGINT wait for the end of the context, where Paddle is imported.

    The import replaces the handler of SIGTERM unseen by Python; afterwards it is set again.
    """
    came: list[int] = []
    before = {signum: signal.getsignal(signum) for signum in ALWAYS if _in_main_thread()}
    handlers = {signum: handler for signum, handler in before.items() if callable(handler)}
    for signum in handlers:
        signal.signal(signum, lambda signum, frame: came.append(signum))
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        if came:
            signal.raise_signal(came[0])


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Have the signals that stop training wait in a process started inside, until `unblock`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _state.stopping)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock() -> None:
    """Take the signals that have come since this process was started: they end it at once."""
    for signum in ALWAYS:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def describe_exit(code: int) -> str:
    """Return what a shell's exit code says: the name of a signal, or "exit code N"."""
    if code > 128 and code - 128 in {signum.value for signum in signal.Signals}:
        return signal.Signals(code - 128).name
    return f"exit code {code}"
