"""SIGTERM and SIGINT, held back while a step or a save is under way.

Inside `handled` and `held` they only leave a note, and what is under way goes on. Inside
`interruptible`, for work that may be broken off anywhere (fetching a batch, evaluation), they raise
StoppedError: at once, or when it begins. One of several processes waits until all know of it.
Signals belong to a process, and so does this module. Python runs signal handlers in the main
thread, so `held` and `interruptible` work there; in other threads they change nothing.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

from paddle_mnist.errors import StoppedError

STOPPING = (signal.SIGTERM, signal.SIGINT)


class _Note:
    """What has come in, and who may be told."""

    owner: Optional[int] = None  # the process that handles signals
    taken: Sequence[int] = ()
    signum: Optional[int] = None  # the first that came
    raising = False
    together = False  # one of several processes: what ends one ends all, at the same place
    agreed: Optional[int] = None  # what they have told one another


_note = _Note()


@contextlib.contextmanager
def handled(last: bool = False) -> Iterator[None]:
    """Take SIGTERM and SIGINT. Inside another, or not in the main thread: changes nothing.

    last: the process ends with this; signals that come while it does change nothing.
    """
    if _note.owner == os.getpid() or not _in_main_thread():
        yield
        return
    _note.owner, _note.signum, _note.raising = os.getpid(), None, False
    _note.together, _note.agreed = False, None
    before = {number: signal.getsignal(number) for number in STOPPING}
    _note.taken = [number for number in STOPPING if before[number] is not signal.SIG_IGN]  # nohup
    take()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if last else handler)
        _note.owner = None


def take() -> None:
    """Take the signals again, after a library has put handlers of its own in place of ours.

    Importing Paddle does, unseen by Python: until this is called SIGTERM ends the process at once,
    with C++ frames. (Blocking the signals for so long does not help: NumPy's threads get them.)
    """
    if _note.owner == os.getpid():
        for number in _note.taken:
            signal.signal(number, _keep)


def _keep(signum: int, frame) -> None:
    if os.getpid() != _note.owner:  # a forked worker has nothing to save: it ends as it would have
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
        return
    if _note.signum is None:  # later ones change nothing: what the first asked for is under way
        _note.signum = signum
        if _note.raising and not _note.together:
            raise StoppedError(signum)


def asked() -> Optional[int]:
    """The signal that came to this process, if one has."""
    return _note.signum if _note.owner == os.getpid() else None


def pending() -> Optional[int]:
    """The signal that is to end this process: that it got, or that its processes agreed on."""
    return _note.agreed if _note.together else asked()


def together() -> None:
    """From here on a signal ends this process only when all of them know of it."""
    _note.together = True


def agree(signums: Iterable[Optional[int]]) -> None:
    """What every one of several processes knows of now: the first signal there is, if any."""
    if _note.agreed is None:
        _note.agreed = next((signum for signum in signums if signum is not None), None)


def answered() -> None:
    """What the signal asked for is done: it ends nothing more."""
    _note.signum = _note.agreed = None


def _check() -> None:
    """Raises StoppedError if a signal has asked for the end."""
    signum = pending()
    if signum is not None:
        raise StoppedError(signum)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def held() -> Iterator[None]:
    """What stands inside is not broken off, whatever stands around it."""
    if not _in_main_thread():
        yield
        return
    before, _note.raising = _note.raising, False
    try:
        yield
    finally:
        _note.raising = before


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """What stands inside may be broken off anywhere by a StoppedError."""
    if not _in_main_thread():
        yield
        return
    before = _note.raising
    try:
        _note.raising = True
        _check()  # one that came before
        yield
        _check()  # one whose error was swallowed inside
    finally:
        _note.raising = before


def named(code: int) -> str:
    """What a shell's exit code stands for: a signal's name, or the number."""
    if code > 128 and code - 128 in {number.value for number in signal.Signals}:
        return signal.Signals(code - 128).name
    return f"exit code {code}"
