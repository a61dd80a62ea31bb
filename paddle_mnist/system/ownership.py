"""One owner of a folder at a time, also where the file system has no locks.

The owner holds the lock of a file (`locks`), which the system drops when it dies. A record beside
it says who that is: its process, host and when it last showed a sign of life. Where the file system
has no locks, the record is the lock: only one process can create it, and that of a process which is
seen to have ended is taken over.

Nobody can see whether a process on another machine has ended: it may be suspended, or the network
may be down. Its lock is broken only after a time that the user has chosen. Then there may be two
that believe to be the owner, so each asks `Owner.require` before it writes what counts.
"""

import contextlib
import dataclasses
import errno
import json
import logging
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from paddle_mnist.errors import OutputError, RunLockedError
from paddle_mnist.system import heartbeat
from paddle_mnist.system.files import PART, warn_once, write_atomically, writing
from paddle_mnist.system.locks import NoLocksError, locked
from paddle_mnist.system.processes import ProcessId, this_process

log = logging.getLogger("paddle_mnist")

LOCK = ".lock"
RECORD = ".lock.json"
SIGN_SECONDS = 10.0  # between signs of life
WRITE_SECONDS = 2.0  # for the contents of a record that has just been created


@dataclass(frozen=True)
class Record:
    """The owner of a folder, as its file says.

    token: of this ownership alone. has_lock: whether the owner holds the lock of the file, too.
    since: in seconds since 1970, by the owner's clock.
    """

    process: ProcessId
    token: str
    has_lock: bool
    since: float

    def encode(self) -> bytes:
        return (json.dumps(dataclasses.asdict(self), indent=1) + "\n").encode()


def read_record(path: Path) -> Optional[Record]:
    """Return the record at a path; None if there is none, or it is not complete."""
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError, KeyError):
        values = json.loads(path.read_bytes())
        return Record(**{**values, "process": ProcessId(**values["process"])})
    return None


def _token(record: Optional[Record]) -> Optional[str]:
    return record.token if record else None


class Owner:
    """The ownership of a folder, from `owned`. record: None where none could be written."""

    def __init__(self, folder: Path, record: Optional[Record]):
        self.folder = folder
        self.record = record
        self._next_sign = 0.0

    @property
    def path(self) -> Path:
        return self.folder / RECORD

    def _owns(self, found: Optional[Record]) -> bool:
        return self.record is None or _token(found) == self.record.token

    def require(self) -> None:
        """Raise RunLockedError if another process has broken the lock, OutputError if unknown."""
        with writing(self.path):
            found = read_record(self.path)
        if not self._owns(found):
            by = f": {_described(found)} has it now" if found else ""
            raise RunLockedError(
                f"{self.path}: this process has lost its lock{by}; expected to be alone; it stops "
                "and saves nothing more: see that no other process trains there, and run again"
            )

    def show_sign(self, exchanging: bool = False) -> None:
        """Show a sign of life, at most one in SIGN_SECONDS. For `heartbeat.add_listener`."""
        now = time.monotonic()
        if now >= self._next_sign:
            self._next_sign = now + SIGN_SECONDS
            with contextlib.suppress(OSError):  # the next one may be seen
                if self.record and self._owns(read_record(self.path)):
                    os.utime(self.path)

    def release(self) -> None:
        """Remove the record, unless another process has the lock now."""
        with contextlib.suppress(OSError):  # a server that is gone: the record then stays
            if self.record and self._owns(read_record(self.path)):
                os.unlink(self.path)


@contextlib.contextmanager
def owned(
    folder: Path, break_after: Optional[float] = None, elsewhere: str = "another output"
) -> Iterator[Owner]:
    """Own a folder. The context's value checks that this is still so.

    break_after: seconds without a sign of life after which the lock of a process that cannot be
        seen from here is broken. elsewhere: what to choose instead.
    Raises RunLockedError if another process owns the folder, OSError if it cannot be written.
    """
    with contextlib.ExitStack() as stack:
        while not (owner := _try_to_own(folder, break_after, elsewhere, stack)):
            stack.close()
        pid = os.getpid()
        heartbeat.add_listener(owner.show_sign)
        try:
            yield owner
        finally:
            if os.getpid() == pid:  # not in a process forked meanwhile, which leaves this, too
                heartbeat.remove_listener(owner.show_sign)
                owner.release()


def _try_to_own(
    folder: Path, break_after: Optional[float], elsewhere: str, stack: contextlib.ExitStack
) -> Optional[Owner]:
    """Return the ownership of a folder, or None once what was in the way is gone.

    stack: holds the lock of the file, if there are locks.
    """
    lock, path = folder / LOCK, folder / RECORD
    try:
        stack.enter_context(locked(lock, wait=False, required=True))
        has_lock = True
    except NoLocksError as error:
        has_lock = False
        warn_once(
            os.stat(folder).st_dev,
            "%s: the file system has no locks (%s), so %s says that a process trains here; if its "
            "machine dies, the file stays",
            folder,
            error.strerror,
            RECORD,
        )
    except BlockingIOError:
        found = read_record(path)
        _refuse_or_break(folder, found, break_after, elsewhere)
        if _token(read_record(path)) == _token(found):  # else another process broke it first
            with contextlib.suppress(FileNotFoundError):
                os.unlink(lock)
        return None
    record = Record(this_process(), secrets.token_hex(8), has_lock, time.time())
    found = _read_settled(path)
    if found and not ((has_lock and found.has_lock) or found.process.has_ended()):
        _refuse_or_break(folder, found, break_after, elsewhere)
    if has_lock:
        return Owner(folder, record if _was_written(path, record) else None)
    _take_away(path, found)
    return Owner(folder, record) if _create(path, record) else None


def _was_written(path: Path, record: Record) -> bool:
    """Write the record of an owner that holds the lock; return whether the disk took it.

    A full disk does not: the lock holds without it, but cannot be broken.
    """
    try:
        write_atomically(path, record.encode())
        return True
    except OutputError as error:
        if getattr(error.__cause__, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
            raise
        log.warning("%s; until then others do not learn which process trains there", error)
        return False


def _create(path: Path, record: Record) -> bool:
    """Create a record; return False if another process was quicker."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return False
    try:
        unwritten = record.encode()
        while unwritten:  # a disk that fills up takes a part, and refuses the next
            unwritten = unwritten[os.write(descriptor, unwritten) :]
        os.fsync(descriptor)
    except OSError:  # a full disk
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)
    found = read_record(path)  # this process may have been suspended before it wrote
    return found is not None and found.token == record.token


def _read_settled(path: Path) -> Optional[Record]:
    """Return the record at a path. One that stays empty is that of a process that was killed."""
    deadline = time.monotonic() + WRITE_SECONDS
    while not (record := read_record(path)) and path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return record


def _take_away(path: Path, seen: Optional[Record]) -> None:
    """Remove the record that was seen, but not one that another process has created meanwhile."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PART}")
    with contextlib.suppress(FileNotFoundError):
        os.replace(path, aside)
        found = read_record(aside)
        if found and _token(found) != _token(seen):
            _create(path, found)
        os.unlink(aside)


def _refuse_or_break(
    folder: Path, found: Optional[Record], break_after: Optional[float], elsewhere: str
) -> None:
    """Raise RunLockedError, unless the lock is to be broken, which is logged."""
    about = remedy = ""
    if found:
        age = _seconds_since_sign(folder)
        about = f" ({_described(found)}, for {_duration(time.time() - found.since)}; last sign of "
        about += f"life {_duration(age)} ago)"
        if not found.process.is_seen_from_here():
            if break_after is not None and age >= break_after:
                log.warning("%s: breaking the lock of %s%s", folder, _described(found), about)
                return
            remedy = (
                f"; whether it still runs cannot be seen from here: if not, set break_lock_after, "
                f"or delete {folder / RECORD}" + (f" and {folder / LOCK}" if found.has_lock else "")
            )
    raise RunLockedError(
        f"{folder}: another process is training there{about}; wait for it, or choose {elsewhere}"
        f"{remedy}"
    )


def _described(record: Record) -> str:
    return f"process {record.process.pid} on host {record.process.host}"


def _seconds_since_sign(folder: Path) -> float:
    """Return the age of the record. Both times are those of the file system, not of two hosts."""
    try:
        os.utime(folder / LOCK)
        return max(0.0, os.stat(folder / LOCK).st_mtime - os.stat(folder / RECORD).st_mtime)
    except FileNotFoundError:  # its owner has just ended
        return 0.0


def _duration(seconds: float) -> str:
    """Return a duration in words, such as "3 h 12 min"."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{hours} h"
