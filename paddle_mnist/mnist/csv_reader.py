"""Reads CSV files as Kaggle has them: a label and 784 pixels, 0 to 255, in each line."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Optional

import numpy as np
import simdjson

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.arrays import CLASSES, SIZE, Split
from paddle_mnist.mnist.readers import check_splits, open_unpacked, split_training
from paddle_mnist.system.text import decode

PIXELS = SIZE * SIZE
COLUMNS = 1 + PIXELS
BLOCK = 4 << 20  # bytes of text that are read at a time
MAX_TEXT = 1 << 30  # bytes that a file may unpack to; 60,000 rows have 0.11e9
MAX_ROW = 64 << 10  # bytes of text in a row

CSV_FORM = f"a label, 0..{CLASSES - 1}, and {PIXELS} pixels, 0..255, in each line"
_WHOLE_NUMBER = re.compile(rb"\s*(0|[1-9][0-9]{0,4})\s*")


def read_csv(train: Path, test: Optional[Path] = None) -> dict[str, Split]:
    """Read the training images, and the eval split if its labels are known; a pixel k is k/256.

    The valid split is made as of IDX files (`split_training`). Without a test file with labels,
    every seventh image of each class is in valid, and every seventh in eval: 5 to 1 to 1, as in
    MNIST.
    """
    images, labels = _read_rows(train)
    if test:
        splits = split_training(images, labels, str(train))
        return check_splits({**splits, "eval": Split(*_read_rows(test), 256)}, test)
    if len(labels) < 7:
        raise DataError(
            f"{train}: {len(labels)} images; expected at least 7, of which every seventh is in the "
            "valid split, and every seventh in the eval split"
        )
    by_class = np.argsort(labels, kind="stable")
    turn = np.arange(len(labels)) % 7
    parts = {"train": turn < 5, "valid": turn == 5, "eval": turn == 6}
    indices = {mode: np.sort(by_class[part]) for mode, part in parts.items()}
    return {mode: Split(images[index], labels[index], 256) for mode, index in indices.items()}


def count_columns(path: Path) -> int:
    """Return the number of values in the first line of a CSV file. Raises DataError."""
    with open_unpacked(path) as stream:
        return stream.read(MAX_ROW).partition(b"\n")[0].count(b",") + 1


def is_labelled(path: Path) -> bool:
    """Return whether the first line of a file has a label and 784 pixels, or names them."""
    return count_columns(path) == COLUMNS


def find_test_file(train: Path) -> Optional[Path]:
    """Return the file of the eval split beside a training file: `mnist_test.csv`.

    None if there is none, or if it has no labels, as Kaggle's `test.csv`.
    """
    test = _counterpart(train, "train", "test")
    return test if test and count_columns(test) != PIXELS else None


def find_training_file(test: Path) -> Optional[Path]:
    """Return the training file beside a test file: `mnist_train.csv`; None if there is none."""
    return _counterpart(test, "test", "train")


def _counterpart(path: Path, old: str, new: str) -> Optional[Path]:
    """Return the file beside `path` with another word in its name, plain or gzip."""
    name = path.name
    for change in (str.lower, str.title, str.upper):
        name = name.replace(change(old), change(new))
    for other in (name, name.removesuffix(".gz"), f"{name}.gz"):
        if name != path.name and path.with_name(other).is_file():
            return path.with_name(other)
    return None


def _read_rows(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read the images, uint8 [N, 28, 28], and labels, uint8 [N], of one file."""
    with open_unpacked(path) as stream:
        parser = simdjson.Parser()
        blocks = [
            _parse(parser, path, first, text) for first, text in _line_blocks(path, stream) if text
        ]
    rows = np.concatenate(blocks) if blocks else np.empty((0, COLUMNS), np.uint8)
    return np.ascontiguousarray(rows[:, 1:]).reshape(-1, SIZE, SIZE), rows[:, 0].copy()


def _line_blocks(path: Path, stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines, as many as a block holds, with the number of the first one.

    The header and blank lines at the end are left out.
    """
    number, total, rest = 1, 0, b""
    while block := stream.read(BLOCK):
        total += len(block)
        if total > MAX_TEXT:
            raise DataError(f"{path}: unpacks to more than {MAX_TEXT} bytes; expected {CSV_FORM}")
        text = rest + block
        end = text.rfind(b"\n", 0, len(text.rstrip()))  # the last line may go on
        rest = text[end + 1 :]
        if len(rest) > MAX_ROW:
            raise DataError(f"{path}: a line of over {MAX_ROW} bytes; expected {CSV_FORM}")
        if end >= 0:
            yield _without_header(path, number, text[:end])
            number += text.count(b"\n", 0, end + 1)
    yield _without_header(path, number, rest.rstrip())


def _without_header(path: Path, number: int, text: bytes) -> tuple[int, bytes]:
    """Return the number of the first line and the lines, without the file's header.

    Raises DataError for a header that does not name a label and 784 pixels, in this order.
    """
    if number > 1:
        return number, text
    first, _, others = text.partition(b"\n")
    try:
        names = decode(first).split(",")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: {error.reason}; save it as UTF-8") from error
    names = [name.strip().strip("\"'") for name in names]
    if names[0].lstrip("+-").replace(".", "").isdecimal() or not text:
        return 1, text.removeprefix(b"\xef\xbb\xbf")
    if names[0].lower() != "label" or len(names) != COLUMNS:
        raise DataError(
            f"{path}, line 1: {len(names)} columns, the first of them {names[0]!r:.40}; expected "
            f"{COLUMNS}, of which the first is label, or a line of numbers: {CSV_FORM}"
        )
    return 2, others


def _parse(parser: simdjson.Parser, path: Path, first: int, text: bytes) -> np.ndarray:
    """Return the values of whole lines: uint8 [n, 785]. first: the number of the first line."""
    try:
        if text.translate(None, b"0123456789, \r\n"):
            raise ValueError("characters of no whole number")
        rows: Any = parser.parse(b"[[" + text.replace(b"\n", b"],[") + b"]]")
        if any(len(row) != COLUMNS for row in rows):
            raise ValueError(f"lines that are not {COLUMNS} numbers")
        values = np.frombuffer(rows.as_buffer(of_type="u"), np.uint64).reshape(-1, COLUMNS)
        if values.max() > 255 or values[:, 0].max() >= CLASSES:
            raise ValueError("pixels above 255, or labels above 9")
    except (ValueError, TypeError, RuntimeError) as error:  # the last for numbers of 20 digits
        raise _explain_bad_line(path, first, text) from error
    return values.astype(np.uint8)


def _explain_bad_line(path: Path, first: int, text: bytes) -> DataError:
    """Return an error that explains the first bad line."""
    for number, line in enumerate(text.split(b"\n"), first):
        values = line.split(b",") if line.strip() else []
        if len(values) != COLUMNS:
            return DataError(
                f"{path}, line {number}: {len(values)} values; expected {COLUMNS}: {CSV_FORM}"
            )
        for column, value in enumerate(values):
            limit = 255 if column else CLASSES - 1
            if not _WHOLE_NUMBER.fullmatch(value) or int(value) > limit:
                what = f"pixel {column}" if column else "the label"
                return DataError(
                    f"{path}, line {number}: {what} is {value.strip().decode('latin1')!r:.40}; "
                    f"expected a whole number in 0..{limit}"
                )
    return DataError(f"{path}, after line {first}: not comma-separated numbers; {CSV_FORM}")
