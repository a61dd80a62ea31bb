"""Handle SIGTERM and its like: training stops between steps, and saves before it exits.

`fit` runs inside `handlers_installed`, whose handlers only record the signal: SIGTERM, SIGINT,
those that schedulers send before they kill, and what the user adds. Only inside `interruptible`,
for work that may stop anywhere (waiting for a batch, evaluation), a handler raises StoppedError, at
once or on entry if the signal came earlier. Among several processes StoppedError waits until all of
them know of the signal (`require_agreement`), so that they stop at the same step. A signal that
nothing has raised by the end, such as one that comes while callbacks close, is raised when `fit`
returns. Outside `fit` a signal ends a command at once, where nothing is lost.

The path of SIGTERM: a handler records it; the wait for the next batch, which is `interruptible`
(`data.loader.interruptible_batches`), raises StoppedError; `TrainingLoop.train` catches it and
calls its checkpointer's `after_error`, which saves a breakpoint; `commands.cli` ends the process
with the error's exit code, 143.

A second signal has no effect, except that it ends the wait for a mirror at the end of training.

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
from typing import Any, Optional

from paddle_mnist.errors import StoppedError

log = logging.getLogger("paddle_mnist")

ALWAYS_STOPPING = (signal.SIGTERM, signal.SIGINT)
# Sent by schedulers, and by a terminal that closes; Windows has none of them. If a program has its
# own handler for one of these, that handler stays.
SCHEDULER_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGUSR1", "SIGHUP", "SIGXCPU") if hasattr(signal, name)
)
# Signals that a process cannot handle, or that report faults, its own or its children's.
NO_STOP_SIGNALS = "KILL STOP CONT CHLD SEGV BUS FPE ILL ABRT TRAP SYS PIPE".split()
SAME_SECONDS = 1.0  # a signal that comes again so soon is the same one, forwarded


def parse_names(value: object) -> list[str]:
    """Return the names of signals: of `USR2`, `SIGUSR2`, or 12. Raises ValueError."""
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(words, (list, tuple, set, frozenset)):
        raise ValueError("expected a list of signals")
    return [_signal_name(word) for word in words]


def _signal_name(word: object) -> str:
    known = {text: s.name for s in signal.Signals for text in (s.name, s.name[3:], str(int(s)))}
    name = known.get(str(word).upper(), "")
    if not name or name[3:] in NO_STOP_SIGNALS:
        raise ValueError(f"{word!r} cannot stop training; expected a signal such as USR2")
    return name


@dataclass
class _State:
    """The signals that this process has received, and how its handlers treat the next one.

    owner_pid: the process that installed the handlers. stopping: the signals that stop training.
    raising: whether the first one raises StoppedError. needs_agreement: whether this is one of
    several processes, which stop at the same step. agreed: the signal that all of them know of.
    arrivals: each signal received, and when.
    """

    owner_pid: Optional[int] = None
    stopping: Sequence[int] = (*ALWAYS_STOPPING, *SCHEDULER_SIGNALS)
    raising: bool = False
    needs_agreement: bool = False
    agreed: Optional[int] = None
    arrivals: list[tuple[int, float]] = field(default_factory=list)


_state = _State()


@contextlib.contextmanager
def handlers_installed(more: Sequence[str] = ()) -> Iterator[None]:
    """Record the signals that stop training; outside `interruptible` they interrupt nothing.

    Raises StoppedError at the end if one came, even after the last `interruptible`. Does nothing
    inside another such context, or in a thread that is not the main one.
    more: names of further signals.
    """
    global _state
    if not _in_main_thread() or _state.owner_pid == os.getpid():
        yield
        return
    stopping = dict.fromkeys((*_State.stopping, *(signal.Signals[name] for name in more)))
    taken = [signum for signum in stopping if _may_take(signum)]
    for name in more:
        if signal.Signals[name] not in taken:
            log.warning(
                "stop_signals: this program ignores %s or has a handler of its own for it, which "
                "stays, so this signal does not stop training",
                name,
            )
    _state = _State(os.getpid(), [*stopping])
    try:
        with _handled_by(_record, taken):
            yield
        if came := received():  # asked once the former handlers are back, so that none is lost
            raise StoppedError(came, is_finished=True)
    finally:
        _state = _State()


@contextlib.contextmanager
def _handled_by(handler: Any, signums: Iterable[int]) -> Iterator[None]:
    """Install a handler of signals inside the context, in the main thread."""
    before = {signum: signal.getsignal(signum) for signum in signums if _in_main_thread()}
    for signum in before:
        signal.signal(signum, handler)
    try:
        yield
    finally:
        for signum, old_handler in before.items():
            signal.signal(signum, old_handler)


def _may_take(signum: int) -> bool:
    """Return whether a signal is handled here.

    Under nohup, or in a shell's background job, signals that are ignored stay ignored.
    """
    handler = signal.getsignal(signum)
    if signum in ALWAYS_STOPPING:
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
    """Return the signals that stop training, which are the same in all of its processes."""
    return _state.stopping


def stopped_by(exit_code: int) -> Optional[int]:
    """Return the signal that stopped a process after it had saved; None if it ended otherwise."""
    signum = exit_code - 128
    return signum if signum in _state.stopping else None


def received() -> Optional[int]:
    """Return the first signal that this process has received, or None."""
    return next(iter(all_received()), None)


def all_received() -> list[int]:
    """Return all signals that this process has received, to forward them to others."""
    return [signum for signum, _ in _state.arrivals if _state.owner_pid == os.getpid()]


def repeated(since: float) -> Optional[int]:
    """Return a signal that came since a time of `time.monotonic`, after another one; or None.

    A signal within SAME_SECONDS of the first is the same one: a terminal or a scheduler may send it
    both to this process and to its parent, which forwards it.
    """
    if received() is None:
        return None
    after = max(since, _state.arrivals[0][1] + SAME_SECONDS)
    return next((signum for signum, at in _state.arrivals if at > after), None)


def require_agreement() -> None:
    """From now on stop only for signals that all processes of the training know of."""
    _state.needs_agreement = True


def agree_on(signums: Iterable[Optional[int]]) -> None:
    """Let the first signal, if there is one, stop every process.

    signums: those that all processes have received; each process passes them in the same order.
    """
    if _state.agreed is None:
        _state.agreed = next((signum for signum in signums if signum is not None), None)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let signals interrupt the code inside, anywhere, with a StoppedError."""
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
    handlers = {signum: signal.getsignal(signum) for signum in stop_signals()}
    signums = [
        signum
        for signum, handler in handlers.items()
        if callable(handler) and (signum in ALWAYS_STOPPING or handler is _record)
    ]
    with _handled_by(signal.SIG_DFL, signums):
        if came := received():  # before the context: nothing else would raise it in time
            raise StoppedError(came)
        yield


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Delay SIGTERM and SIGINT to the end of the context, which imports modules.

    Python drops an exception that a handler raises in a callback of importlib. Importing Paddle
    replaces the handler of SIGTERM without Python's knowledge; afterwards it is set again.
    """
    came: list[int] = []
    signums = [signum for signum in ALWAYS_STOPPING if callable(signal.getsignal(signum))]
    try:
        with _handled_by(lambda signum, frame: came.append(signum), signums):
            yield
    finally:
        if came:
            signal.raise_signal(came[0])


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Block the signals that stop training in a process started inside, until its `unblock`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _state.stopping)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock() -> None:
    """Accept signals again; one that has come since this process started ends it at once."""
    for signum in ALWAYS_STOPPING:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def describe_exit(code: int) -> str:
    """Describe a shell's exit code: the name of a signal, or "exit code N"."""
    if code > 128 and code - 128 in {signum.value for signum in signal.Signals}:
        return signal.Signals(code - 128).name
    return f"exit code {code}"
