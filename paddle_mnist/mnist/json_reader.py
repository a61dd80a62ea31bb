"""Reads the AI Studio file, `mnist.json.gz`: 339 MB of JSON text, as a stream."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Optional

import msgspec
import numpy as np
import simdjson

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.arrays import CLASSES, SIZE, SPLIT_NAMES, Split
from paddle_mnist.mnist.readers import MAX_TEXT, make_split, open_unpacked

PIXELS = SIZE * SIZE
BLOCK = 4 << 20  # bytes of text per read; the rows in it are parsed at once
MAX_LIST = 8_000_000  # bytes of text in a list of numbers

JSON_FORM = "[[images, labels], ...] for train, valid, eval, with rows of 784 numbers"

# What stands before the first row of each split, and after its last.
_STARTS = [re.compile(rb"\s*\[\s*\[\s*\[\s*")] + 2 * [re.compile(rb"\s*,\s*\[\s*\[\s*")]
_IMAGES_END = re.compile(rb"\]\s*\]")
_LABELS = re.compile(rb"\s*,\s*(\[[^]]*\])\s*\]")
_END = re.compile(rb"\s*\]\s*")

_Row = Annotated[
    list[Annotated[float, msgspec.Meta(ge=0, le=1)]],
    msgspec.Meta(min_length=PIXELS, max_length=PIXELS),
]
_Labels = list[Annotated[int, msgspec.Meta(ge=0, le=CLASSES - 1)]]
_Rows = tuple[np.ndarray, Optional[int]]  # uint8 [n, 784] and divisor, or float32 and None


def read_json(path: Path) -> dict[str, Split]:
    """Read the AI Studio file, `mnist.json.gz`: [[images, labels], ...] for train, valid and eval.

    Images are rows of 784 numbers in 0..1. They are kept as uint8 if all pixels of the file are
    k/256 or all are k/255, else as float32.
    """
    blocks: dict[str, list[_Rows]] = {}
    labels = {}
    parser = simdjson.Parser()  # it keeps its memory: a new one for each block takes longer
    with open_unpacked(path) as stream:
        text = _Text(path, stream)
        for mode, start in zip(SPLIT_NAMES, _STARTS):
            where, count = f"{path}: {mode} images", 0
            text.take(start, where)
            blocks[mode] = []
            for rows in text.rows(where):
                values = _parse(parser, rows, count, where)
                blocks[mode].append(_to_uint8(values))
                count += len(values)
            where = f"{path}: {mode} labels"
            labels[mode] = _decode(text.take(_LABELS, where)[1], _Labels, where)
        text.take(_END, path)
        if text.read() or text.unread:
            raise text.error(path)
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

    def read(self) -> bool:
        """Read more of the file; return whether there was more. Raises DataError."""
        block = self.stream.read(BLOCK)
        self._size += len(block)
        if self._size > MAX_TEXT:
            raise DataError(f"{self.path}: unpacks to more than {MAX_TEXT} bytes")
        self.unread += block
        return bool(block)

    def error(self, where: object) -> DataError:
        found = self.unread[:40].decode("latin1") or "the end of the file"
        return DataError(f"{where}: {found!r}; expected {JSON_FORM}")

    def take(self, pattern: "re.Pattern[bytes]", where: object) -> "re.Match[bytes]":
        """Take what a pattern matches. Raises DataError if something else follows."""
        while not (match := pattern.match(self.unread)):
            if len(self.unread) > MAX_LIST or not self.read():
                raise self.error(where)
        self.unread = self.unread[match.end() :]
        return match

    def rows(self, where: str) -> Iterator[bytes]:
        """Take the rows of a split, and the bracket after them; yield those of a block together."""
        while not (end := _IMAGES_END.search(self.unread)):
            last = self.unread.rfind(b"[")  # that row may continue in the next block
            if last > 0:
                yield self.unread[:last].rstrip(b", \t\r\n")
                self.unread = self.unread[last:]
            if len(self.unread) > MAX_LIST or not self.read():
                raise self.error(where)
        yield self.unread[: end.start() + 1]
        self.unread = self.unread[end.end() :]


def _parse(parser: simdjson.Parser, rows: bytes, first: int, where: str) -> np.ndarray:
    """Return the numbers of rows, float64 [n, 784]. first: the number of the first row."""
    text = b"[%b]" % rows
    try:
        # Not msgspec, which makes an object of each number: that takes twice the time.
        document: Any = parser.parse(text)
        values = np.frombuffer(document.as_buffer(of_type="d"))
        if all(len(row) == PIXELS for row in document) and 0 <= values.min() <= values.max() <= 1:
            return values.reshape(-1, PIXELS)
    except (ValueError, TypeError, RuntimeError):  # the last for numbers of 20 digits
        pass
    for number, row in enumerate(re.findall(rb"\[[^]]*\]?", rows), first):
        _decode(row, _Row, f"{where}, row {number}")
    raise DataError(f"{where}, after row {first}: not numbers; expected {JSON_FORM}")


def _decode(text: bytes, kind: Any, where: str) -> Any:
    """Return a list of numbers. Raises DataError with the place, and the value that is there."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        message = str(error)
        if index := re.search(r"\$\[(\d+)\]", message):
            found = text.strip(b"[]").split(b",")[int(index[1])].strip()
        elif byte := re.search(r"\(byte (\d+)\)", message):
            found = text[int(byte[1]) :]
        else:
            found = b"%d values" % (text.count(b",") + 1)
        shown = found.decode("latin1")
        raise DataError(f"{where}: {message}; found {shown!r:.40}") from error


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
