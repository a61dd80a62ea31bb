"""Locks for a file, and for a folder in which only one process at a time may write.

The system drops the lock of a file when its holder dies (`locked`). The lock of a folder
(`locked_folder`) is that of a file in it, with a record beside it that names the holder: its
process, its host, and, as the time of the file, its last heartbeat. On a file system without locks
the record is the lock; that of a process of this machine that has ended is replaced.

Nobody can see whether a process on another machine has ended: it may be suspended, or the network
may be down. Its lock is broken only after a time that the user has chosen. Then two processes may
believe that they hold it, so each calls `FolderLock.require` before it writes a checkpoint.

filelock is used only where there is no flock, on Windows: while workers that a dead holder has
forked still live, it keeps the lock; it does not notice that the lock was broken; and on file
systems without flock it raises an error.
"""

import contextlib
import dataclasses
import errno
import json
import logging
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from paddle_mnist.errors import OutputError, RunLockedError
from paddle_mnist.system import heartbeat
from paddle_mnist.system.files import NOT_SUPPORTED, remove, warn_once, write_atomically, writing
from paddle_mnist.system.regular_files import MAX_JSON, open_own, parse_json, read_bytes

try:
    import fcntl

    HAS_FCNTL = True
except ImportError:  # not POSIX
    HAS_FCNTL = False

log = logging.getLogger("paddle_mnist")

LOCK = ".lock"
RECORD = ".lock.json"
POLL_SECONDS = 0.05
HEARTBEAT_SECONDS = 10.0  # between two heartbeats in the record
SETTLE_SECONDS = 1.0  # in which other processes that replace the same record have done so
NO_LOCKS = NOT_SUPPORTED | {errno.ENOLCK}
LOCK_HELD = {errno.EAGAIN, errno.EACCES}  # by another process; EACCES on some network file systems


# ------------------------------------------------------------------ of a file

_descriptors: set[int] = set()  # of locks


def _close_in_child() -> None:
    """Close the descriptors of locks: a worker that outlives its trainer must not keep them."""
    while _descriptors:
        os.close(_descriptors.pop())


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_close_in_child)


@contextlib.contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of a file, which is created if need be.

    The value is False on a file system without locks, where nothing is held.
    Raises BlockingIOError if another process holds the lock and `wait` is False, OSError if the
    file cannot be opened.
    """
    if not HAS_FCNTL:
        from filelock import FileLock, Timeout

        try:
            held = FileLock(path).acquire(timeout=-1 if wait else 0)
        except Timeout as error:
            raise BlockingIOError(errno.EAGAIN, str(error), str(path)) from error
        with held:
            yield True
        return
    while not (opened := _try_to_lock(path)):
        if not wait:
            raise BlockingIOError(errno.EAGAIN, "another process holds the lock", str(path))
        time.sleep(POLL_SECONDS)
    descriptor, is_held = opened
    try:
        yield is_held
    finally:
        _close(descriptor)


def _try_to_lock(path: Path) -> Optional[tuple[int, bool]]:
    """Open a file and lock it; None if another process holds the lock.

    Returns its descriptor, and whether it is locked: it is not where there are no locks.
    """
    descriptor, is_held = open_own(path, os.O_RDWR | os.O_CREAT), True
    _descriptors.add(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        is_held = False
        if error.errno not in NO_LOCKS:
            _close(descriptor)
            if error.errno not in LOCK_HELD:
                raise
            return None
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return descriptor, is_held
    _close(descriptor)  # the lock was broken, and the file is another's
    return _try_to_lock(path)


def _close(descriptor: int) -> None:
    """Drop a lock, unless this process was forked meanwhile, and has closed it."""
    if descriptor in _descriptors:
        _descriptors.discard(descriptor)
        with contextlib.suppress(OSError):  # a process that is being forked still has it
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


# ------------------------------------------------------------------ of a folder


@dataclass(frozen=True)
class Holder:
    """The process that holds the lock of a folder, as its record describes it.

    system: the boot id of its machine, and its namespace of process ids, one for each container.
    started: the tick at which it started; empty if the system does not tell. since: seconds since
    1970, by its clock.
    """

    pid: int
    host: str
    system: str
    started: str
    since: float

    def encode(self) -> bytes:
        return (json.dumps(dataclasses.asdict(self), indent=1) + "\n").encode()

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}"

    @property
    def is_seen_from_here(self) -> bool:
        """Whether the holder is visible to this process, so that its absence proves its end."""
        return bool(self.started) and (self.host, self.system) == (platform.node(), _this_system())

    @property
    def has_ended(self) -> bool:
        """Whether the process has certainly ended."""
        if not self.is_seen_from_here:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # another user's, which /proc may hide
            return _start_of(self.pid) not in ("", self.started)
        return _start_of(self.pid) != self.started


def this_process() -> Holder:
    """Return this process as the holder of another lock."""
    pid = os.getpid()
    return Holder(pid, platform.node(), _this_system(), _start_of(pid), time.time())


def _this_system() -> str:
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return f"{_read('/proc/sys/kernel/random/boot_id')} {namespace}"


def _start_of(pid: int) -> str:
    """Return the tick at which a process started, on Linux; empty if it has ended."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()  # the name may hold anything
    return fields[19] if fields and fields[0] not in "ZX" else ""  # a zombie, or dead


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _read_holder(path: Path) -> Optional[Holder]:
    """Return the holder in a record; None without a record, or for a damaged one."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return parse_json(read_bytes(path, MAX_JSON), Holder)
    return None


class FolderLock:
    """The lock of a folder, from `locked_folder`. holder: None if its record was not written."""

    def __init__(self, folder: Path, holder: Optional[Holder]):
        self.path = folder / RECORD
        self.holder = holder
        self._next_heartbeat = 0.0

    def require(self) -> None:
        """Raise RunLockedError if another process has broken the lock, OutputError if unknown."""
        with writing(self.path):
            current = _read_holder(self.path)
        if self.holder and current != self.holder:
            raise RunLockedError(
                f"{self.path}: the process has lost its lock{f' to {current}' if current else ''}; "
                "stopping without saving; check that no other process trains there, and run again"
                if self.path.parent.exists()
                else f"{self.path.parent}: renamed or deleted during training; stopping without "
                "saving; give the folder its name back, and run again"
            )

    def record_heartbeat(self) -> None:
        """Set the time of the record, at most once in HEARTBEAT_SECONDS."""
        now = time.monotonic()
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT_SECONDS
            with contextlib.suppress(OSError):  # the next one may be seen
                if _read_holder(self.path) == self.holder:
                    os.utime(self.path)

    def release(self) -> None:
        """Remove the record, unless another process has the lock now."""
        with contextlib.suppress(OSError):  # a server that is gone: the record then stays
            if _read_holder(self.path) == self.holder:
                os.unlink(self.path)


@contextlib.contextmanager
def locked_folder(
    folder: Path, break_after: Optional[float] = None, elsewhere: str = "another output"
) -> Iterator[FolderLock]:
    """Hold the lock of a folder; the context's value can check that it still holds.

    break_after: seconds without a heartbeat after which the lock of a process that cannot be
        seen from here is broken. elsewhere: the alternative, for the error.
    Raises RunLockedError if another process holds it, OSError if the folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        is_held = None
        while is_held is None:
            holder = _read_holder(folder / RECORD)
            try:
                is_held = stack.enter_context(locked(folder / LOCK, wait=False))
            except BlockingIOError:
                _refuse_or_break(folder, holder, break_after, elsewhere)
                if _read_holder(folder / RECORD) == holder:  # else another process broke it first
                    remove(folder / LOCK)
        if not is_held:
            warn_once(
                os.stat(folder).st_dev,
                "%s: the file system has no locks, so .lock.json is the lock; start one process at "
                "a time",
                folder,
            )
        if holder and not is_held and not holder.has_ended:
            _refuse_or_break(folder, holder, break_after, elsewhere)
        lock = FolderLock(folder, _write_record(folder, is_held))
        if not is_held:
            time.sleep(SETTLE_SECONDS)
            lock.require()
        pid = os.getpid()
        heartbeat.listeners.append(lock.record_heartbeat)
        try:
            yield lock
        finally:
            if os.getpid() == pid:  # not in a forked process, which also leaves the context
                heartbeat.listeners.remove(lock.record_heartbeat)
                lock.release()


def _write_record(folder: Path, is_held: bool) -> Optional[Holder]:
    """Write the record of this process; None if the disk is full but the file system has locks.

    Then the lock holds, but it cannot be broken.
    """
    holder = this_process()
    try:
        write_atomically(folder / RECORD, holder.encode())
    except OutputError as error:
        if not is_held:
            raise
        log.warning("%s; other processes cannot see which process trains there", error)
        return None
    return holder


def _refuse_or_break(
    folder: Path, holder: Optional[Holder], break_after: Optional[float], elsewhere: str
) -> None:
    """Raise RunLockedError, unless the lock is to be broken, which is logged."""
    about = remedy = ""
    if holder:
        age = _seconds_since_heartbeat(folder)
        about = f" ({holder}; last heartbeat {_duration(age)} ago)"
        if not holder.is_seen_from_here:
            if break_after is not None and age >= break_after:
                log.warning("%s: breaking the lock of %s%s", folder, holder, about)
                return
            remedy = (
                "; this process cannot see whether that one still runs; if it does not, set "
                f"break_lock_after, or delete {folder / RECORD} and {folder / LOCK}"
            )
    raise RunLockedError(
        f"{folder}: another process is training there{about}; wait for it, or choose {elsewhere}"
        f"{remedy}"
    )


def _seconds_since_heartbeat(folder: Path) -> float:
    """Return the age of the record by the clock of the file system, not by those of two hosts."""
    try:
        os.utime(folder / LOCK)
        return max(0.0, os.stat(folder / LOCK).st_mtime - os.stat(folder / RECORD).st_mtime)
    except FileNotFoundError:  # its holder has just ended
        return 0.0


def _duration(seconds: float) -> str:
    """Return a duration as text, such as "45 s", "5 min" or "3 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
