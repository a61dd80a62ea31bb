"""Locks: of a file, and of a folder in which one process at a time may write.

The system drops the lock of a file when its holder dies (`locked`). The lock of a folder
(`locked_folder`) is that of a file in it, with a record beside it that says who the holder is: its
process, its host, and when it last showed a sign of life. Where the file system has no locks, the
record is the lock: only one process can create it, and that of a process which is seen to have
ended is taken over.

Nobody can see whether a process on another machine has ended: it may be suspended, or the network
may be down. Its lock is broken only after a time that the user has chosen. Then there may be two
that believe to hold it, so each asks `FolderLock.require` before it writes what counts.

filelock is used only where there is no flock, on Windows: it does not let go when its holder dies
while workers that it has forked live, nor notice that the lock was broken, and on file systems
without flock it raises an error.
"""

import contextlib
import dataclasses
import errno
import json
import logging
import os
import platform
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from paddle_mnist.errors import OutputError, RunLockedError
from paddle_mnist.system import heartbeat
from paddle_mnist.system.files import NOT_SUPPORTED, PART, warn_once, write_atomically, writing

try:
    import fcntl

    HAS_FCNTL = True
except ImportError:  # not POSIX
    HAS_FCNTL = False

log = logging.getLogger("paddle_mnist")

LOCK = ".lock"
RECORD = ".lock.json"
POLL_SECONDS = 0.05
SIGN_SECONDS = 10.0  # between signs of life
WRITE_SECONDS = 2.0  # for the contents of a record that has just been created
NO_LOCKS = NOT_SUPPORTED | {errno.ENOLCK}
HELD = {errno.EAGAIN, errno.EACCES}  # by another process; EACCES on some network file systems
ENDED = "ZX"  # states of Linux: a process that has ended, and one whose parent has not asked yet


# ------------------------------------------------------------------ of a file

_descriptors: set[int] = set()  # of locks


def _close_in_child() -> None:
    """Close the descriptors of locks: a worker that outlives its trainer must not keep them."""
    while _descriptors:
        os.close(_descriptors.pop())


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_close_in_child)


@contextlib.contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a file, which is created if need be.

    A file system without locks costs a warning, and nothing is held. Raises BlockingIOError if
    another process holds the lock and `wait` is False, OSError if the file cannot be opened.
    """
    with _flock(path, wait) as refusal:
        if refusal:
            warn_once(
                os.stat(path).st_dev,
                "%s: the file system has no locks (%s), so nothing prevents two processes from "
                "writing there at the same time; start one only",
                path.parent,
                refusal.strerror,
            )
        yield


@contextlib.contextmanager
def _flock(path: Path, wait: bool) -> Iterator[Optional[OSError]]:
    """Hold the lock of a file. The value is the error of a file system without locks, or None."""
    if not HAS_FCNTL:
        from filelock import FileLock, Timeout

        try:
            held = FileLock(path).acquire(timeout=-1 if wait else 0)
        except Timeout as error:
            raise _held_elsewhere(path) from error
        with held:
            yield None
        return
    descriptor, refusal = _acquire(path, wait)
    try:
        yield refusal
    finally:
        _close(descriptor)


def _acquire(path: Path, wait: bool) -> tuple[int, Optional[OSError]]:
    """Open a file and lock it; return its descriptor, and the error where there are no locks."""
    while True:
        descriptor, refusal = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), None
        _descriptors.add(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            refusal = error
        if (not refusal or refusal.errno in NO_LOCKS) and _is_at(descriptor, path):
            return descriptor, refusal
        _close(descriptor)  # held by another process; or it was broken meanwhile, and is another's
        if refusal and refusal.errno not in HELD | NO_LOCKS:
            raise refusal
        if refusal and refusal.errno in HELD:
            if not wait:
                raise _held_elsewhere(path)
            time.sleep(POLL_SECONDS)


def _held_elsewhere(path: Path) -> BlockingIOError:
    return BlockingIOError(errno.EAGAIN, "another process holds the lock", str(path))


def _close(descriptor: int) -> None:
    """Drop a lock, unless this process was forked meanwhile, and has closed it."""
    if descriptor in _descriptors:
        _descriptors.discard(descriptor)
        with contextlib.suppress(OSError):  # a process that is being forked still has it
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one of that path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


# ------------------------------------------------------------------ of a folder


@dataclass(frozen=True)
class Holder:
    """The process that holds the lock of a folder, as its record says.

    system: the start of its machine, and its namespace of process ids, which each container has.
    started: when it was; both are empty where the system does not tell. has_flock: whether it
    holds the lock of the file, too. since: seconds since 1970, by its clock.
    """

    pid: int
    host: str
    system: str
    started: str
    has_flock: bool
    since: float

    def encode(self) -> bytes:
        return (json.dumps(dataclasses.asdict(self), indent=1) + "\n").encode()

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}"

    @property
    def is_seen_from_here(self) -> bool:
        """Whether this process would see that one, so that not seeing it proves its end."""
        return (self.host, self.system) == (platform.node(), _this_system())

    @property
    def has_ended(self) -> bool:
        """Whether it is sure that the process has ended."""
        if os.name != "posix" or not self.is_seen_from_here:
            return False
        with contextlib.suppress(PermissionError):  # it is another user's
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return True
        state, started = _state_and_start(self.pid)
        return bool(state) and (state in ENDED or started != self.started)


def this_process(has_flock: bool) -> Holder:
    """Return this process as the holder of another lock."""
    return Holder(
        pid=os.getpid(),
        host=platform.node(),
        system=_this_system(),
        started=_state_and_start(os.getpid())[1],
        has_flock=has_flock,
        since=time.time(),
    )


def _this_system() -> str:
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return f"{_read('/proc/sys/kernel/random/boot_id')} {namespace}"


def _state_and_start(pid: int) -> tuple[str, str]:
    """Return the state of a process and the tick at which it started; empty if not told."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()  # the name may hold anything
    return (fields[0], fields[19]) if fields else ("", "")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _read_holder(path: Path) -> Optional[Holder]:
    """Return the holder in a record; None if there is no record, or it is not complete."""
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
        return Holder(**json.loads(path.read_bytes()))
    return None


class FolderLock:
    """The lock of a folder, from `locked_folder`. holder: None if its record was not written."""

    def __init__(self, folder: Path, holder: Optional[Holder]):
        self.path = folder / RECORD
        self.holder = holder
        self._next_sign = 0.0

    def _is_held_by(self, found: Optional[Holder]) -> bool:
        return self.holder is None or found == self.holder

    def require(self) -> None:
        """Raise RunLockedError if another process has broken the lock, OutputError if unknown."""
        with writing(self.path):
            found = _read_holder(self.path)
        if not self._is_held_by(found):
            by = f": {found} has it now" if found else ""
            raise RunLockedError(
                f"{self.path}: this process has lost its lock{by}; expected to be alone; it stops "
                "and saves nothing more: see that no other process trains there, and run again"
            )

    def show_sign(self) -> None:
        """Show a sign of life, at most one in SIGN_SECONDS; called at every heartbeat."""
        now = time.monotonic()
        if now >= self._next_sign:
            self._next_sign = now + SIGN_SECONDS
            with contextlib.suppress(OSError):  # the next one may be seen
                if self.holder and self._is_held_by(_read_holder(self.path)):
                    os.utime(self.path)

    def release(self) -> None:
        """Remove the record, unless another process has the lock now."""
        with contextlib.suppress(OSError):  # a server that is gone: the record then stays
            if self.holder and self._is_held_by(_read_holder(self.path)):
                os.unlink(self.path)


@contextlib.contextmanager
def locked_folder(
    folder: Path, break_after: Optional[float] = None, elsewhere: str = "another output"
) -> Iterator[FolderLock]:
    """Hold the lock of a folder. The context's value checks that this is still so.

    break_after: seconds without a sign of life after which the lock of a process that cannot be
        seen from here is broken. elsewhere: what to choose instead.
    Raises RunLockedError if another process holds it, OSError if the folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        while not (lock := _try_to_lock(folder, break_after, elsewhere, stack)):
            stack.close()
        pid = os.getpid()
        heartbeat.listeners.append(lock.show_sign)
        try:
            yield lock
        finally:
            if os.getpid() == pid:  # not in a process forked meanwhile, which leaves this, too
                heartbeat.listeners.remove(lock.show_sign)
                lock.release()


def _try_to_lock(
    folder: Path, break_after: Optional[float], elsewhere: str, stack: contextlib.ExitStack
) -> Optional[FolderLock]:
    """Return the lock of a folder, or None once what was in the way is gone.

    stack: holds the lock of the file, if there are locks.
    """
    file, path = folder / LOCK, folder / RECORD
    try:
        refusal = stack.enter_context(_flock(file, wait=False))
    except BlockingIOError:
        found = _read_holder(path)
        _refuse_or_break(folder, found, break_after, elsewhere)
        if _read_holder(path) == found:  # else another process broke it first
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file)
        return None
    if refusal:
        warn_once(
            os.stat(folder).st_dev,
            "%s: the file system has no locks (%s), so %s says that a process trains here; if its "
            "machine dies, the file stays",
            folder,
            refusal.strerror,
            RECORD,
        )
    holder = this_process(has_flock=not refusal)
    found = _read_settled(path)
    if found and not ((holder.has_flock and found.has_flock) or found.has_ended):
        _refuse_or_break(folder, found, break_after, elsewhere)
    if holder.has_flock:
        return FolderLock(folder, holder if _was_written(path, holder) else None)
    _take_away(path, found)
    return FolderLock(folder, holder) if _create(path, holder) else None


def _was_written(path: Path, holder: Holder) -> bool:
    """Write the record of a holder of the file's lock; return whether the disk took it.

    A full disk does not: the lock holds without it, but cannot be broken.
    """
    try:
        write_atomically(path, holder.encode())
        return True
    except OutputError as error:
        if getattr(error.__cause__, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
            raise
        log.warning("%s; until then others do not learn which process trains there", error)
        return False


def _create(path: Path, holder: Holder) -> bool:
    """Create a record; return False if another process was quicker."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return False
    try:
        unwritten = holder.encode()
        while unwritten:  # a disk that fills up takes a part, and refuses the next
            unwritten = unwritten[os.write(descriptor, unwritten) :]
        os.fsync(descriptor)
    except OSError:  # a full disk
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)
    return _read_holder(path) == holder  # this process may have been suspended before it wrote


def _read_settled(path: Path) -> Optional[Holder]:
    """Return the holder in a record. One that stays empty is that of a process that was killed."""
    deadline = time.monotonic() + WRITE_SECONDS
    while not (holder := _read_holder(path)) and path.exists() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return holder


def _take_away(path: Path, seen: Optional[Holder]) -> None:
    """Remove the record that was seen, but not one that another process has created meanwhile."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PART}")
    with contextlib.suppress(FileNotFoundError):
        os.replace(path, aside)
        found = _read_holder(aside)
        if found and found != seen:
            _create(path, found)
        os.unlink(aside)


def _refuse_or_break(
    folder: Path, found: Optional[Holder], break_after: Optional[float], elsewhere: str
) -> None:
    """Raise RunLockedError, unless the lock is to be broken, which is logged."""
    about = remedy = ""
    if found:
        age = _seconds_since_sign(folder)
        about = f" ({found}, for {_duration(time.time() - found.since)}; last sign of life "
        about += f"{_duration(age)} ago)"
        if not found.is_seen_from_here:
            if break_after is not None and age >= break_after:
                log.warning("%s: breaking the lock of %s%s", folder, found, about)
                return
            remedy = (
                "; whether it still runs cannot be seen from here: if not, set break_lock_after, "
                f"or delete {folder / RECORD}"
                + (f" and {folder / LOCK}" if found.has_flock else "")
            )
    raise RunLockedError(
        f"{folder}: another process is training there{about}; wait for it, or choose {elsewhere}"
        f"{remedy}"
    )


def _seconds_since_sign(folder: Path) -> float:
    """Return the age of the record. Both times are those of the file system, not of two hosts."""
    try:
        os.utime(folder / LOCK)
        return max(0.0, os.stat(folder / LOCK).st_mtime - os.stat(folder / RECORD).st_mtime)
    except FileNotFoundError:  # its holder has just ended
        return 0.0


def _duration(seconds: float) -> str:
    """Return a duration in words, such as "3 h 12 min"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
