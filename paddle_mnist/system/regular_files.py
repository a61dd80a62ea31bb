"""Open the files of runs, checkpoints, exports and caches, which others may have made.

A pipe, a socket or a device in the place of a file would block forever or never end, so only
regular files are opened. Files may be read through links, but not written, since a link may lead
anywhere. JSON is read into declared types, and only if it is not nested deeply.
"""

import errno
import json
import math
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, Union

import msgspec

MAX_JSON = 64 * 2**20  # bytes of a file of JSON or YAML that describes others
MAX_LEVELS = 100  # of nested JSON

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)  # not on Windows
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)

Value = TypeVar("Value")


class UnusableFileError(OSError):
    """Something other than a regular file, or a larger one than expected."""


def open_regular(path: Union[str, Path], flags: int) -> int:
    """Open a regular file without waiting, and return its descriptor; an `opener` of `open`.

    Raises UnusableFileError for anything else, with its kind as `strerror`, and OSError.
    """
    try:
        descriptor = os.open(path, flags | _NO_WAIT, 0o666)
        kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if kind != stat.S_IFREG:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.EISDIR):  # a socket, or a pipe without a reader
            raise
        kind = stat.S_IFMT(os.stat(path).st_mode)
    if kind != stat.S_IFREG:
        reason = f"{KINDS.get(kind, 'unknown')}, not a regular file"
        code = errno.EISDIR if kind == stat.S_IFDIR else errno.EEXIST
        raise UnusableFileError(code, reason, str(path))
    return descriptor


def open_own(path: Union[str, Path], flags: int) -> int:
    """Open a file of a run to write it; like `open_regular`, but raises OSError for a link, too."""
    return open_regular(path, flags | _NO_LINK)


def open_to_read(path: Union[str, Path]) -> BinaryIO:
    """Open a regular file, or a link to one, to read it. Raises OSError."""
    return open(path, "rb", opener=open_regular)


def read_bytes(path: Union[str, Path], most: float = math.inf) -> bytes:
    """Return the contents of a regular file.

    Raises OSError, and UnusableFileError for more than `most` bytes.
    """
    with open_to_read(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise UnusableFileError(errno.EFBIG, f"{size:,} bytes; at most {most:,}", str(path))
        return file.read()


def parse_json(data: bytes, kind: "type[Value]") -> Value:
    """Return the value in JSON, of a declared type. Raises ValueError for anything else.

    kind: a type that msgspec converts to, such as a `TypedDict`.
    """
    try:
        value = json.loads(data.decode())
        _require_shallow(value, MAX_LEVELS)
        return msgspec.convert(value, kind)
    except (RecursionError, msgspec.ValidationError) as error:
        raise ValueError(str(error)) from error


def _require_shallow(value: Any, levels: int) -> None:
    """Raise ValueError for containers nested deeper than some levels."""
    if isinstance(value, (dict, list)):
        if not levels:
            raise ValueError(f"nested deeper than {MAX_LEVELS} levels")
        for item in value.values() if isinstance(value, dict) else value:
            _require_shallow(item, levels - 1)
