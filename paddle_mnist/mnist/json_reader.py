"""Reads the AI Studio file, `mnist.json.gz`: 339 MB of JSON text, as a stream."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Optional

import numpy as np
import simdjson

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.readers import MAX_TEXT, open_unpacked
from paddle_mnist.mnist.splits import CLASSES, SIZE, SPLIT_NAMES, Split, make_split

PIXELS = SIZE * SIZE
BLOCK_BYTES = 4 << 20  # bytes of text per read; the rows in it are parsed at once
MAX_LIST = 8_000_000  # bytes of text in a list of numbers

JSON_FORM = f"[[images, labels], ...] for train, valid, eval, with rows of {PIXELS} numbers"

_START = re.compile(rb"\s*[\[,]\s*\[\s*\[\s*")  # of a split
_IMAGES_END = re.compile(rb"\]\s*\]")
_LABELS = re.compile(rb"\s*,\s*(\[[^]]*\])\s*\]")
_END = re.compile(rb"\s*\]")

_Rows = tuple[np.ndarray, Optional[int]]  # uint8 [n, 784] and divisor, or float32 and None


def read_json(path: Path) -> dict[str, Split]:
    """Read the AI Studio file, `mnist.json.gz`: [[images, labels], ...] for train, valid and eval.

    Images are rows of 784 numbers in 0..1. They are kept as uint8 if all pixels of the file are
    k/256 or all are k/255, else as float32.
    """
    blocks: dict[str, list[_Rows]] = {}
    labels = {}
    parser = simdjson.Parser()  # reuses its memory, which is faster than a new one per block
    with open_unpacked(path) as stream:
        text = _Text(path, stream)
        for mode in SPLIT_NAMES:
            where, count = f"{path}: {mode} images", 0
            text.take(_START, where)
            blocks[mode] = []
            for rows in text.rows(where):
                values = _parse(parser, rows, count, where)
                blocks[mode].append(_to_uint8(values))
                count += len(values)
            where = f"{path}: {mode} labels"
            labels[mode] = _numbers(text.take(_LABELS, where)[1], (int,), CLASSES - 1, where)
        text.take(_END, str(path))
        if (text.unread + stream.read(BLOCK_BYTES)).strip():
            raise text.error(str(path))
    divisors = {divisor for rows in blocks.values() for _, divisor in rows}
    divisor = divisors.pop() if len(divisors) == 1 else None
    return {
        mode: make_split(
            _join(rows, divisor), np.array(labels[mode], np.uint8), divisor, f"{path}: {mode}"
        )
        for mode, rows in blocks.items()
    }


class _Text:
    """The text of a file, taken piece by piece. unread: the part that has not been taken yet."""

    def __init__(self, path: Path, stream: BinaryIO):
        self.path, self.stream = path, stream
        self.unread = b""
        self._size = 0

    def take(self, pattern: "re.Pattern[bytes]", where: str) -> "re.Match[bytes]":
        """Take what a pattern matches. Raises DataError if something else follows."""
        while not (match := pattern.match(self.unread)):
            self._read_more(where)
        self.unread = self.unread[match.end() :]
        return match

    def rows(self, where: str) -> Iterator[bytes]:
        """Take the rows of a split and the bracket after them, and yield them by the block."""
        while not (end := _IMAGES_END.search(self.unread)):
            last = self.unread.rfind(b"[")  # that row may continue in the next block
            if last > 0:
                yield self.unread[:last].rstrip(b", \t\r\n")
                self.unread = self.unread[last:]
            self._read_more(where)
        yield self.unread[: end.start() + 1]
        self.unread = self.unread[end.end() :]

    def error(self, where: str) -> DataError:
        excerpt = self.unread[:40].decode("latin1") or "the end of the file"
        return DataError(f"{where}: {excerpt!r}; expected {JSON_FORM}")

    def _read_more(self, where: str) -> None:
        """Read a block. Raises DataError at the end of the file, and for endless text."""
        block = self.stream.read(BLOCK_BYTES)
        if not block or len(self.unread) > MAX_LIST:
            raise self.error(where)
        self.unread += block
        self._size += len(block)
        if self._size > MAX_TEXT:
            raise DataError(f"{self.path}: unpacks to more than {MAX_TEXT} bytes")


def _parse(parser: simdjson.Parser, rows: bytes, first: int, where: str) -> np.ndarray:
    """Return the numbers of rows, float64 [n, 784]. first: the number of the first row."""
    try:
        # Not Python's or msgspec's parser, which make an object of each number.
        document: Any = parser.parse(b"[%b]" % rows)
        values = np.frombuffer(document.as_buffer(of_type="d"))
        if all(len(row) == PIXELS for row in document) and 0 <= values.min() <= values.max() <= 1:
            return values.reshape(-1, PIXELS)
    except (ValueError, TypeError, RuntimeError):  # the last for numbers of 20 digits
        pass
    for number, row in enumerate(re.findall(rb"\[[^]]*\]?", rows), first):
        place = f"{where}, row {number}"
        count = len(_numbers(row, (int, float), 1, place))
        if count != PIXELS:
            raise DataError(f"{place}: {count} values; expected {PIXELS}")
    raise DataError(f"{where}, after row {first}: not numbers; expected {JSON_FORM}")


def _numbers(text: bytes, types: tuple[type, ...], most: int, where: str) -> list[Any]:
    """Return a list of numbers from 0 to `most`. Raises DataError that names another value's place.

    types: those that the numbers may have.
    """
    try:
        values: list[Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: {error}; expected {JSON_FORM}") from error
    for index, value in enumerate(values):
        if type(value) not in types or not 0 <= value <= most:
            raise DataError(f"{where}: [{index}] is {value!r:.40}; expected 0..{most}")
    return values


def _to_uint8(values: np.ndarray) -> _Rows:
    """Return (uint8, divisor) if that gives the same float32s back, else (float32, None)."""
    for divisor, exact in ((256, np.float64), (255, np.float32)):
        # k/256 is written exactly, with few digits; k/255 was rounded, to float32 at best
        levels = np.minimum(np.rint(values * divisor), 255).astype(np.uint8)
        if np.array_equal(levels.astype(exact) / exact(divisor), values.astype(exact, copy=False)):
            return levels, divisor
    return values.astype(np.float32), None


def _join(blocks: list[_Rows], divisor: Optional[int]) -> np.ndarray:
    """Return the images of a split, [N, 28, 28]; float32 unless all have the same divisor."""
    rows = [
        block if block_divisor == divisor else block.astype(np.float32) / np.float32(block_divisor)
        for block, block_divisor in blocks
    ]
    images: np.ndarray = np.concatenate(rows).reshape(-1, SIZE, SIZE)
    return images
