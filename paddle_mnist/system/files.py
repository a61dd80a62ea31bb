"""Write files so that a crash leaves the old contents or the new, never half of either.

Everything that changes the disk is one call of a function of `os`, so that a test can kill the
process at any of these calls, or let any of them fail.
"""

import contextlib
import errno
import fnmatch
import hashlib
import itertools
import logging
import os
import secrets
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, Optional, Union

from paddle_mnist.errors import OutputError
from paddle_mnist.system.regular_files import open_own

log = logging.getLogger("paddle_mnist")

PART = ".part"  # suffix of temporary files, whose names begin with a dot

Buffer = Union[bytes, bytearray, memoryview]  # memoryviews are of bytes, too

_BUFFER = 8 * 2**20  # bytes that a `PendingFile` collects
_WRITE = os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0)

# The errors of a file system that does not implement a call, on a descriptor that is good.
NOT_SUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF}

REMEDIES = {  # by the name of the error's number; not all systems have all of them
    "ENOSPC": "free some space, and inodes (df -i)",
    "EDQUOT": "your quota is used up: delete some of your files, or ask for a larger one",
    "EROFS": "the file system is read-only: choose another place",
    "EACCES": "ask for permission, or choose another place",
    "EPERM": "ask for permission, or choose another place",
    "ENAMETOOLONG": "choose a shorter name",
    "EFBIG": "a file may not grow so large: raise the limit (ulimit -f), or choose another disk",
    "ENOTDIR": "a file is where a folder should be: move it away, or choose another place",
    "EEXIST": "something of that name is there: move it away, or choose another place",
    "EISDIR": "a folder is where a file should be: move it away, or choose another place",
    "ELOOP": "a link is where a file should be: remove it",
    "ENOENT": "a folder of the path is gone, or a link leads nowhere: create it",
    "EMFILE": "this process has too many files open: raise the limit (ulimit -n)",
}


def cache_folder() -> Path:
    """Return `~/.cache/paddle_mnist`, or the folder that PADDLE_MNIST_CACHE names."""
    return in_home(os.environ.get("PADDLE_MNIST_CACHE") or "~/.cache/paddle_mnist")


def in_home(path: str) -> Path:
    """Replace `~` by the user's home; without one, return a path that cannot exist."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(os.devnull, path)


def remedy(error: OSError) -> str:
    """Return the remedy for an error in writing, for users."""
    name = errno.errorcode.get(error.errno or 0, "")
    return REMEDIES.get(name, "choose another place")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into an OutputError that names `path`."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path}: cannot write ({error.strerror or error}); {remedy(error)}"
        ) from error


_warned_of: set[tuple[Hashable, str]] = set()


def warn_once(key: Hashable, message: str, *args: Any) -> None:
    """Log a warning, unless this process has logged the same message for this key."""
    if (key, message) not in _warned_of:
        _warned_of.add((key, message))
        log.warning(message, *args)


class PendingFile:
    """A file that is written under a temporary name, and moved to `path` by `publish`.

    A context manager: at its end an unpublished file is deleted. The temporary name is unique, so
    that of two writers of one path each publishes its own bytes, and the later rename wins.
    Raises OutputError.
    """

    def __init__(self, path: Path):
        self.path = path
        self._part = path.with_name(f".{path.name}.{secrets.token_hex(8)}{PART}")
        self._descriptor: Optional[int] = None
        self._buffer = bytearray()
        self._published = False
        self._size, self._sha256 = 0, hashlib.sha256()

    def __enter__(self) -> "PendingFile":
        with writing(self.path):
            self._descriptor = open_own(self._part, _WRITE | os.O_EXCL)
        return self

    def write(self, data: Buffer) -> int:
        """Append bytes; small pieces are collected, and written together."""
        if len(self._buffer) + len(data) > _BUFFER:
            self._write(data)
        else:
            self._buffer += data
        return len(data)

    def finish(self) -> dict[str, Any]:
        """Force what was written to the disk, and close the file; return its size and SHA-256."""
        self._write()
        with writing(self.path):
            assert self._descriptor is not None
            os.fsync(self._descriptor)
            descriptor, self._descriptor = self._descriptor, None  # not closed twice
            os.close(descriptor)
        return {"size": self._size, "sha256": self._sha256.hexdigest()}

    def publish(self) -> None:
        """Move the file to its path, after `finish`."""
        with writing(self.path):
            os.replace(self._part, self.path)
        self._published = True

    def __exit__(self, *_error: object) -> None:
        with contextlib.suppress(OSError):  # the first error is the one to raise
            if self._descriptor is not None:
                os.close(self._descriptor)
        if not self._published:
            with contextlib.suppress(OSError):
                os.unlink(self._part)

    def _write(self, data: Buffer = b"") -> None:
        """Write what was collected, and more."""
        assert self._descriptor is not None
        collected, self._buffer = self._buffer, bytearray()
        for piece in (collected, data):
            self._sha256.update(piece)
            self._size += len(piece)
            unwritten = memoryview(piece)
            with writing(self.path):
                while unwritten:  # a disk that fills up takes a part, and refuses the next
                    unwritten = unwritten[os.write(self._descriptor, unwritten) :]


def write_atomically(path: Path, data: Buffer) -> None:
    """Write a temporary file, force it to the disk, and rename it to `path`. Raises OutputError."""
    with PendingFile(path) as file:
        file.write(data)
        file.finish()
        file.publish()


def sync_folder(folder: Path) -> None:
    """Force renames in a folder to the disk, where the system can (POSIX). Raises OutputError.

    A file system that cannot, such as some network file systems, costs one warning.
    """
    if os.name != "posix":
        return
    with writing(folder):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in NOT_SUPPORTED:
                raise
            warn_once(
                os.fstat(descriptor).st_dev,
                "%s: the file system cannot fsync a directory (%s); a power failure may "
                "cost the newest files there, such as the last checkpoint",
                folder,
                error.strerror,
            )
        finally:
            os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, and force them to the disk. Raises OutputError.

    A folder that exists may be one that an earlier call made but failed to force to the disk, so
    this call does; its parents were forced before it was made. The folder that a link leads to is
    made, too, but not its parents: a disk may not be mounted.
    """
    with writing(folder):
        place = Path(os.path.realpath(folder)) if folder.is_symlink() else folder
        if not folder.is_dir():
            if place is folder:
                make_folder(folder.parent)
            with contextlib.suppress(FileExistsError):  # another process was quicker
                os.mkdir(place)
            if not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if os.access(place.parent, os.R_OK):
            sync_folder(place.parent)


def remove(path: Path) -> None:
    """Delete a file if it is there. Raises OutputError."""
    with writing(path), contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def matching(folder: Path, pattern: str) -> list[Path]:
    """Return the paths in a folder whose names match a pattern, sorted; [] without the folder.

    Raises OSError if it cannot be listed, which `Path.glob` may take for an empty folder.
    """
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(folder / name for name in fnmatch.filter(names, pattern))


def first_free(path: Path) -> Path:
    """Return a path with the first number, from 1, that names nothing, not even a broken link."""
    numbered = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
    return next(free for free in numbered if not os.path.lexists(free))


def remove_temporary(folder: Path, pattern: str = "") -> None:
    """Delete the temporary files that killed writers left in a folder. Raises OutputError.

    Only for a folder with one writer: it would delete files that another one is about to rename.
    pattern: a glob pattern with which the names of the files begin; by default any.
    """
    with writing(folder):
        paths = matching(folder, f".{pattern}*{PART}")
    for path in paths:
        remove(path)


class Journal:
    """A text file that lines are appended to, and that survives a full disk.

    Lines that the disk does not take stay in memory, with one warning, until the next line.
    Raises OutputError if the file cannot be opened, and from `close` if something is still
    unwritten then.

    lines: (attribute) the number of lines that it has written.
    """

    def __init__(self, path: Path):
        self.path = path
        self.lines = 0
        with writing(path):
            self._descriptor: Optional[int] = open_own(path, _WRITE | os.O_APPEND)
        self._unwritten = b""
        self._failing = False

    def append(self, text: str) -> None:
        self._unwritten += text.encode(errors="backslashreplace")  # a path need not be UTF-8
        try:
            self._write()
        except OSError as error:
            if not self._failing:
                self._failing = True  # first, for the warning may come back here
                log.warning(
                    "%s: cannot write (%s); training continues and keeps the data in memory "
                    "until they can be written; %s",
                    self.path,
                    error.strerror,
                    remedy(error),
                )

    def sync(self) -> None:
        """Force the lines that the disk takes to it. Raises OutputError."""
        self.append("")
        with writing(self.path):
            os.fsync(self._descriptor or 0)

    def _write(self) -> None:
        if self._descriptor is None:
            raise ValueError(f"{self.path}: the journal is closed; expected an open one")
        while self._unwritten:
            size = os.write(self._descriptor, self._unwritten)
            self.lines += self._unwritten.count(b"\n", 0, size)
            self._unwritten = self._unwritten[size:]
        self._failing = False

    def close(self) -> None:
        if self._descriptor is None:
            return
        with writing(self.path):
            try:
                self._write()
            finally:  # closing may fail, and must not be tried again
                descriptor, self._descriptor = self._descriptor, None
                os.close(descriptor)
