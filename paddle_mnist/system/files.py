"""Writing files so that a crash leaves the old contents or the new, never half of either.

Everything that changes the disk is one call of a function of `os`, so that a test can kill the
process at any of these calls, or let any of them fail.
"""

import contextlib
import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import yaml

from paddle_mnist.errors import ConfigError, OutputError

log = logging.getLogger("paddle_mnist")

PART = ".part"  # suffix of temporary files, whose names begin with a dot

_WRITE = os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0)


def cache_folder() -> Path:
    """Return `~/.cache/paddle_mnist`, or the folder that PADDLE_MNIST_CACHE names."""
    return in_home(os.environ.get("PADDLE_MNIST_CACHE") or "~/.cache/paddle_mnist")


def in_home(path: str) -> Path:
    """Replace `~` by the user's home; without one, return a path at which nothing can be."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(os.devnull, path)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into an OutputError that names `path`."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path}: cannot write ({error.strerror or error}); free space, or choose another "
            "--output, and run the same command again"
        ) from error


@contextlib.contextmanager
def utf8_folder(folder: Path) -> Iterator[Path]:
    """Give a folder a path that is UTF-8 inside the context, as code in C++ wants it.

    Names that are not UTF-8 exist on Linux only, which has another path for any open folder.
    """
    if not any("\udc80" <= character <= "\udcff" for character in str(folder)):
        yield folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a temporary file, force it to the disk, and rename it to `path`. Raises OutputError.

    Its name is unique, so that of two writers of one path each publishes its own bytes, and the
    later rename wins.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}{PART}")
    with writing(path):
        try:
            descriptor = os.open(part, _WRITE | os.O_EXCL, 0o666)
            try:
                unwritten = data
                while unwritten:  # a disk that fills up takes a part, and refuses the next
                    unwritten = unwritten[os.write(descriptor, unwritten) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(part, path)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to raise
                os.unlink(part)
            raise


def sync_folder(folder: Path) -> None:
    """Force renames in a folder to the disk, where the system can (POSIX). Raises OutputError."""
    if os.name != "posix":
        return
    with writing(folder):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, and force them to the disk. Raises OutputError.

    A folder that exists may be one that an earlier call made but could not force to the disk any
    more, so this call does; its parents were forced before it was made.
    """
    with writing(folder):
        if not folder.is_dir():
            make_folder(folder.parent)
            with contextlib.suppress(FileExistsError):  # another process was quicker
                os.mkdir(folder)
            if not folder.is_dir():
                raise NotADirectoryError(20, "Not a directory")
        if os.access(folder.parent, os.R_OK):
            sync_folder(folder.parent)


def remove(path: Path) -> None:
    """Delete a file if it is there. Raises OutputError."""
    with writing(path), contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_temporary(folder: Path, prefix: str = "") -> None:
    """Delete the temporary files that killed writers left in a folder. Raises OutputError.

    Only for a folder with one writer: it would delete what another one is about to rename.
    prefix: only those of files whose names begin with it.
    """
    for path in sorted(folder.glob(f".{prefix}*{PART}")):
        remove(path)


class Journal:
    """A text file that lines are appended to, and that survives a full disk.

    What the disk does not take is kept in memory, with one warning, and written with the next line.
    Raises OutputError if the file cannot be opened, and from `close` if something is still
    unwritten then.
    """

    def __init__(self, path: Path):
        self.path = path
        with writing(path):
            self._descriptor: Optional[int] = os.open(path, _WRITE | os.O_APPEND, 0o666)
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
                    "until they can be written; free some space",
                    self.path,
                    error.strerror,
                )

    def _write(self) -> None:
        while self._unwritten:
            self._unwritten = self._unwritten[os.write(self._descriptor, self._unwritten) :]
        self._failing = False

    def close(self) -> None:
        if self._descriptor is None:
            return
        with writing(self.path):
            try:
                self._write()
            finally:
                os.close(self._descriptor)
                self._descriptor = None


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the names and values in a YAML file. Raises ConfigError."""
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; expected a YAML file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{path}: not YAML ({reason}); expected lines of 'field: value'"
        ) from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path}: found a {type(values).__name__}; expected a mapping, lines of 'field: value'"
        )
    return values
