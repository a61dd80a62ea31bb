"""The size and SHA-256 of files, taken while they are read or written."""

import hashlib
from typing import Any, BinaryIO, Union

from paddle_mnist.checkpoint.saved_state import Output, SavedState
from paddle_mnist.system.files import Buffer, PendingFile

_PIECE = 2**20  # bytes that are read at once


class Fingerprint:
    """The size and SHA-256 of a file's contents, which may come in pieces."""

    def __init__(self) -> None:
        self._size, self._sha256 = 0, hashlib.sha256()

    def add(self, data: Buffer) -> None:
        self._size += len(data)
        self._sha256.update(data)

    def entry(self) -> dict[str, Any]:
        """Return them as a manifest lists them."""
        return {"size": self._size, "sha256": self._sha256.hexdigest()}


class HashedInput:
    """Reads a file, and takes its fingerprint. size: of the file, in bytes."""

    def __init__(self, file: BinaryIO, size: int):
        self._file, self.size = file, size
        self._fingerprint = Fingerprint()
        self.tell = file.tell

    def read(self, size: int, /) -> bytes:
        return self._add(self._file.read(size))

    def readline(self) -> bytes:
        return self._add(self._file.readline())

    def fingerprint_of_all(self) -> dict[str, Any]:
        """Read the rest, and return the file's entry in a manifest."""
        while self.read(_PIECE):
            pass
        return self._fingerprint.entry()

    def _add(self, data: bytes) -> bytes:
        self._fingerprint.add(data)
        return data


class HashedOutput:
    """Passes on what is written to it, and takes its fingerprint."""

    def __init__(self, output: Output):
        self._output = output
        self.fingerprint = Fingerprint()

    def write(self, data: Buffer) -> int:
        self._output.write(data)
        self.fingerprint.add(data)
        return len(data)


def write_and_hash(file: PendingFile, contents: Union[SavedState, bytes]) -> dict[str, Any]:
    """Write a file, which is not published yet; return its entry in the manifest."""
    output = HashedOutput(file)
    if isinstance(contents, bytes):
        output.write(contents)
    else:
        contents.write_to(output)
    file.finish()
    return output.fingerprint.entry()
