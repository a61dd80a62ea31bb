"""Reads the AI Studio file, `mnist.json.gz`: 339 MB of JSON text, as a stream."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Optional

import numpy as np
import simdjson

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.arrays import CLASSES, SIZE, SPLIT_NAMES, Split
from paddle_mnist.mnist.readers import check_splits, open_unpacked

PIXELS = SIZE * SIZE
BLOCK = 4 << 20  # bytes of text per read; 1, 2 and 8 MiB were measured to be slower
MAX_TEXT = 1 << 30  # bytes that a file may unpack to; the AI Studio file has 0.34e9
MAX_ROW = 64 << 10  # bytes of text in a row of 784 numbers
MAX_LABELS = 8_000_000  # bytes of text in a list of labels

JSON_FORM = "[[images, labels], ...] for train, valid, eval, with rows of 784 numbers"


class _Text:
    """The text of a JSON file, read block by block.

    rest: what was read and not consumed yet.
    """

    def __init__(self, path: Path, stream: BinaryIO):
        self.path = path
        self.stream = stream
        self.rest = b""
        self.bytes_read = 0

    def read_block(self) -> bool:
        """Read the next block; return False at the end of the file."""
        block = self.stream.read(BLOCK)
        self.rest += block
        self.bytes_read += len(block)
        if self.bytes_read > MAX_TEXT:
            raise DataError(
                f"{self.path}: unpacks to more than {MAX_TEXT} bytes; "
                "expected the AI Studio file, which unpacks to 339 MB"
            )
        return bool(block)

    def peek(self) -> bytes:
        """Return the next byte that is not white space; b"" at the end of the file."""
        while True:
            self.rest = self.rest.lstrip(b" \t\r\n")
            if self.rest or not self.read_block():
                return self.rest[:1]

    def expect(self, byte: bytes, where: str) -> None:
        """Consume the next byte that is not white space; b"" is the end of the file.

        Raises DataError if it is another one.
        """
        next_byte = self.peek()
        if next_byte != byte:
            actual = f"{next_byte.decode('latin1')!r}" if next_byte else "the end of the file"
            expected = f"{byte.decode()!r}" if byte else "the end of the file"
            raise DataError(
                f"{self.path}: {actual} at byte {self.bytes_read - len(self.rest)} ({where}); "
                f"expected {expected}: {JSON_FORM}"
            )
        self.rest = self.rest[1:]

    def read_list(self, where: str) -> bytes:
        """Return the text of a list of numbers, with its brackets, and consume it."""
        self.expect(b"[", where)
        while b"]" not in self.rest:
            if len(self.rest) > MAX_LABELS or not self.read_block():
                raise DataError(f"{self.path}: {where} does not end; expected ']': {JSON_FORM}")
        numbers, _, self.rest = self.rest.partition(b"]")
        return b"[" + numbers + b"]"

    def row_blocks(self, where: str) -> Iterator[bytes]:
        """Yield the rows of a list of lists, as many at a time as a block holds."""
        self.expect(b"[", where)
        while self.peek() != b"]":
            list_end = _LIST_END.search(self.rest)
            rows_end = list_end.start() + 1 if list_end else self.rest.rfind(b"]") + 1
            if rows_end:
                yield self.rest[:rows_end]
                self.rest = self.rest[rows_end:]
                if self.peek() == b",":
                    self.rest = self.rest[1:]
            elif len(self.rest) > MAX_ROW or not self.read_block():
                raise DataError(
                    f"{self.path}: {where}: a row of {len(self.rest)} bytes does not end; "
                    f"expected {PIXELS} numbers"
                )
        self.expect(b"]", where)


_LIST_END = re.compile(rb"\][ \t\r\n]*\]")


def read_json(path: Path) -> dict[str, Split]:
    """Read the AI Studio file, `mnist.json.gz`: [[images, labels], ...] for train, valid and eval.

    Images are rows of 784 numbers in 0..1. They are kept as uint8 if all pixels of the file are
    k/256 or all are k/255, else as float32.
    """
    with open_unpacked(path) as stream:
        text = _Text(path, stream)
        blocks, labels = {}, {}
        text.expect(b"[", "start")
        for mode in SPLIT_NAMES:
            if mode != SPLIT_NAMES[0]:
                text.expect(b",", f"before {mode}")
            text.expect(b"[", mode)
            blocks[mode] = list(_read_image_blocks(text, mode))
            text.expect(b",", f"{mode}, after the images")
            labels[mode] = _read_labels(text, mode)
            text.expect(b"]", f"{mode}, after the labels")
        text.expect(b"]", "after eval")
        text.expect(b"", "after the last bracket")

    divisors = {divisor for mode in SPLIT_NAMES for _, divisor in blocks[mode]}
    divisor = divisors.pop() if len(divisors) == 1 else None
    splits = {}
    for mode in SPLIT_NAMES:
        rows = [
            block
            if block_divisor == divisor
            else block.astype(np.float32) / np.float32(block_divisor)
            for block, block_divisor in blocks.pop(mode)
        ]
        images = np.concatenate(rows) if rows else np.empty((0, PIXELS), np.uint8)
        splits[mode] = Split(images.reshape(-1, SIZE, SIZE), labels[mode], divisor)
    return check_splits(splits, path)


def _read_image_blocks(text: _Text, mode: str) -> Iterator[tuple[np.ndarray, Optional[int]]]:
    """Yield blocks of rows, each as ([n, 784] uint8, divisor) or ([n, 784] float32, None)."""
    parser = simdjson.Parser()
    first = 0
    for block in text.row_blocks(f"{mode} images"):
        try:
            rows: Any = parser.parse(b"[" + block + b"]")
            if any(len(row) != PIXELS for row in rows) or block.count(b"[") != len(rows):
                raise ValueError("rows that are not 784 numbers")
            values = np.frombuffer(rows.as_buffer(of_type="d")).reshape(-1, PIXELS)
            if values.min() < 0 or values.max() > 1:
                raise ValueError("pixels outside 0..1")
        except (ValueError, TypeError, RuntimeError) as error:  # the last for numbers of 20 digits
            raise _explain_bad_row(f"{text.path}: {mode} images", block, first, error) from error
        count = len(values)
        del rows  # the parser can be reused only when nothing refers to its last document
        yield _to_uint8(values)
        first += count


def _to_uint8(values: np.ndarray) -> tuple[np.ndarray, Optional[int]]:
    """Return (uint8, divisor) if that gives the same float32s back, else (float32, None)."""
    for divisor, exact in ((256, np.float64), (255, np.float32)):
        # k/256 is written exactly, with few digits; k/255 was rounded, to float32 at best
        levels = np.minimum(np.rint(values * divisor), 255).astype(np.uint8)
        if np.array_equal(levels.astype(exact) / exact(divisor), values.astype(exact, copy=False)):
            return levels, divisor
    return values.astype(np.float32), None


def _explain_bad_row(where: str, block: bytes, first: int, error: Exception) -> DataError:
    """Return an error that explains the first bad row of a block."""
    try:
        rows = json.loads(b"[" + block + b"]")
    except ValueError:
        return DataError(f"{where}, after row {first}: not JSON ({error}); {JSON_FORM}")
    for number, row in enumerate(rows, first):
        if not isinstance(row, list):
            return DataError(f"{where}, row {number}: {row!r:.40}; expected {PIXELS} numbers")
        if len(row) != PIXELS:
            return DataError(f"{where}, row {number}: {len(row)} values; expected {PIXELS}")
        for column, value in enumerate(row):
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= 1:
                return DataError(
                    f"{where}, row {number}, value {column}: {value!r:.40}; "
                    "expected a number in 0..1"
                )
    return DataError(f"{where}, after row {first}: {error}; {JSON_FORM}")


def _read_labels(text: _Text, mode: str) -> np.ndarray:
    where = f"{mode} labels"
    try:
        labels = json.loads(text.read_list(where))
    except ValueError as error:
        raise DataError(f"{text.path}: {where}: not JSON ({error}); {JSON_FORM}") from error
    for number, label in enumerate(labels):
        if type(label) is not int or not 0 <= label < CLASSES:
            raise DataError(
                f"{text.path}: {where}, number {number}: {label!r:.40}; "
                f"expected a whole number in 0..{CLASSES - 1}"
            )
    return np.array(labels, np.uint8)
