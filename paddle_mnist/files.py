"""Writing files so that a crash leaves the old one or the new one, never half of either."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from paddle_mnist.errors import OutputError


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the operating system says against writing `path` into an OutputError."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path}: cannot write ({error.strerror or error}); free space, or choose another "
            "--output, and run the same command again"
        ) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write under a temporary name, force it to the disk, rename. Raises OutputError."""
    part = path.with_name(f".{path.name}.part")
    with writing(path):
        try:
            with open(part, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


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
