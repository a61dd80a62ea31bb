"""Reads CSV files as Kaggle has them: a label and 784 pixels, 0 to 255, in each line."""

import itertools
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Optional

import numpy as np

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.arrays import CLASSES, SIZE, Split
from paddle_mnist.mnist.readers import MAX_TEXT, divide, make_split, open_unpacked

COLUMNS = 1 + SIZE * SIZE
MAX_LINE = 64 << 10  # bytes

CSV_FORM = f"a label, 0..{CLASSES - 1}, and {COLUMNS - 1} pixels, 0..255, in each line"


def read_csv(train: Path, test: Optional[Path] = None) -> dict[str, Split]:
    """Read the training images, and the eval split if its labels are known; a pixel k is k/256.

    Without a test file with labels, the training file is divided into all three splits, 5 to 1
    to 1, as in MNIST.
    """
    training = _read_split(train)
    if test:
        return {**divide(training, str(train)), "eval": _read_split(test)}
    return divide(training, str(train), ("valid", "eval"))


def count_columns(path: Path) -> int:
    """Return the number of values in the first line of a CSV file. Raises DataError."""
    with open_unpacked(path) as stream:
        return stream.readline(MAX_LINE).count(b",") + 1


def counterpart(path: Path, old: str, new: str) -> Optional[Path]:
    """Return the file beside `path` that has `new` for `old` in its name; None without one."""
    other = path.with_name(path.name.replace(old, new))
    return other if other != path and other.is_file() else None


class _Lines:
    """The lines of a file that are not blank. number: of the line that was read last."""

    def __init__(self, path: Path, stream: BinaryIO):
        self.path, self.stream, self.number = path, stream, 0

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        while line := self.stream.readline(MAX_LINE + 1):
            self.number += 1
            size += len(line)
            if len(line) > MAX_LINE:
                raise self.error(f"over {MAX_LINE} bytes")
            if size > MAX_TEXT:
                raise self.error(f"unpacks to more than {MAX_TEXT} bytes")
            if not line.isspace():
                yield line

    def error(self, found: str) -> DataError:
        return DataError(f"{self.path}, line {self.number}: {found}; expected {CSV_FORM}")


def _read_split(path: Path) -> Split:
    """Read the images and labels of one file."""
    with open_unpacked(path) as stream, warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # NumPy 1 warns, and takes 0.5 for 0
        warnings.simplefilter("ignore", UserWarning)  # of an empty file
        lines = _Lines(path, stream)
        try:
            rows = np.loadtxt(
                _without_header(lines), np.uint8, delimiter=",", comments=None, ndmin=2
            )
        except (ValueError, DeprecationWarning) as error:
            # NumPy counts rows from 0, without the header.
            message = re.sub(r" at row \d+(; .*)?", "", str(error))
            raise lines.error(message.rstrip(".")) from error
        if rows.size == 0 or rows.shape[1] != COLUMNS:
            raise lines.error(f"{rows.shape[1] if rows.size else 0} columns")
    images = np.ascontiguousarray(rows[:, 1:]).reshape(-1, SIZE, SIZE)
    return make_split(images, rows[:, 0].copy(), 256, str(path))


def _without_header(lines: _Lines) -> Iterator[bytes]:
    """Yield the lines of numbers; raise DataError for a header that does not name a label first."""
    every = iter(lines)
    first = next(every, b"").removeprefix(b"\xef\xbb\xbf")
    name, *others = (name.strip(b" \r\n\"'") for name in first.split(b","))
    if first and not name.isdigit():
        if name.lower() != b"label" or len(others) != COLUMNS - 1:
            raise lines.error(
                f"{1 + len(others)} columns, the first of them {name.decode('latin1')!r:.40}"
            )
        first = b""
    return itertools.chain([first], every)
