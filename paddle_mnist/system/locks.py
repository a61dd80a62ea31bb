"""Locks of files, which the system drops when their holder dies."""

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

from paddle_mnist.system.files import NOT_SUPPORTED, warn_once

try:
    import fcntl

    HAS_FCNTL = True
except ImportError:  # not POSIX
    HAS_FCNTL = False

POLL_SECONDS = 0.05
NO_LOCKS = NOT_SUPPORTED | {errno.ENOLCK}
HELD = {errno.EAGAIN, errno.EACCES}  # by another process; EACCES on some network file systems


class NoLocksError(OSError):
    """The file system has no locks."""


_held: set[int] = set()  # the descriptors of locks


def _close_in_child() -> None:
    """Close the descriptors of locks: a worker that outlives its trainer must not keep them."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_close_in_child)


@contextlib.contextmanager
def locked(path: Path, wait: bool = True, required: bool = False) -> Iterator[None]:
    """Hold the lock of a file, which is created if need be.

    A file system without locks costs a warning, and nothing is held; if the lock is `required`, it
    raises NoLocksError instead. Raises BlockingIOError if another process holds the lock and `wait`
    is False, OSError if the file cannot be opened.
    """
    if not HAS_FCNTL:
        with _held_by_filelock(path, wait):
            yield
        return
    descriptor = _open(path)
    try:
        while True:
            acquired = _acquire(descriptor, path, required)
            if not _is_at(descriptor, path):  # it was broken meanwhile: see `ownership`
                _close(descriptor)
                descriptor = _open(path)
            elif acquired:
                break
            elif wait:
                time.sleep(POLL_SECONDS)
            else:
                raise BlockingIOError(errno.EAGAIN, "another process holds the lock", str(path))
        holder = os.getpid()
        try:
            yield
        finally:  # a process forked meanwhile has the descriptor too: it would keep the lock
            if os.getpid() == holder:  # and must not drop it
                with contextlib.suppress(OSError):  # of a file system without locks
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        _close(descriptor)


def _open(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    _held.add(descriptor)
    return descriptor


def _close(descriptor: int) -> None:
    if descriptor in _held:  # else this is a process that was forked meanwhile
        _held.discard(descriptor)
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one of that path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _acquire(descriptor: int, path: Path, required: bool) -> bool:
    """Return whether this process may go on: it has the lock, or there are none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in HELD:
            return False
        if error.errno not in NO_LOCKS:
            raise
        if required:
            raise NoLocksError(error.errno, error.strerror, str(path)) from error
        warn_once(
            os.fstat(descriptor).st_dev,
            "%s: the file system has no locks (%s), so nothing prevents two processes from writing "
            "there at the same time; start one only",
            path.parent,
            error.strerror,
        )
    return True


@contextlib.contextmanager
def _held_by_filelock(path: Path, wait: bool) -> Iterator[None]:
    from filelock import FileLock, Timeout

    try:
        held = FileLock(path).acquire(timeout=-1 if wait else 0)
    except Timeout as error:
        raise BlockingIOError(errno.EAGAIN, "another process holds the lock", str(path)) from error
    with held:
        yield
