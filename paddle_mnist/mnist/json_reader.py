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
ROWS = 1000  # that are parsed at a time
BLOCK = 1 << 20  # bytes of text per read
MAX_LIST = 8_000_000  # bytes of text in a list of numbers
MAX_ROW = 64 << 10  # bytes of text in a row of 784 numbers; a longer one is parsed at once

JSON_FORM = "[[images, labels], ...] for train, valid, eval, with rows of 784 numbers"

# What stands between two lists of numbers, without white space.
STARTS = (b"[[[[", b"],[[[", b"],[[[")  # before the first row of each split
NEXT_ROW, LABELS, END = b",[", b"],[", b"]] (the end of the file)"

_ROW = msgspec.json.Decoder(
    Annotated[
        list[Annotated[float, msgspec.Meta(ge=0, le=1)]],
        msgspec.Meta(min_length=PIXELS, max_length=PIXELS),
    ]
)
_LABELS = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(ge=0, le=CLASSES - 1)]])

Rows = tuple[np.ndarray, Optional[int]]  # uint8 [n, 784] and divisor, or float32 and None


def read_json(path: Path) -> dict[str, Split]:
    """Read the AI Studio file, `mnist.json.gz`: [[images, labels], ...] for train, valid and eval.

    Images are rows of 784 numbers in 0..1. They are kept as uint8 if all pixels of the file are
    k/256 or all are k/255, else as float32.
    """
    with open_unpacked(path) as stream:
        lists = _lists_of_numbers(path, stream)
        splits = {
            mode: _read_split(lists, start, f"{path}: {mode}")
            for mode, start in zip(SPLIT_NAMES, STARTS)
        }
        _expect(END, next(lists)[0], f"{path}: at the end")
    divisors = {divisor for blocks, _ in splits.values() for _, divisor in blocks}
    divisor = divisors.pop() if len(divisors) == 1 else None
    return {
        mode: make_split(_join(blocks, divisor), labels, divisor, f"{path}: {mode}")
        for mode, (blocks, labels) in splits.items()
    }


def _lists_of_numbers(path: Path, stream: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    """Yield the text of each list without a list in it, after what stands before it.

    `[[[[1], [2]], [7, 8]]]` gives `[[[[` and `1`, `,[` and `2`, `],[` and `7, 8`, and last `]]` and
    a note that this is the end of the file.
    """
    size, rest = 0, b""
    before: list[bytes] = []
    while block := stream.read(BLOCK):
        size += len(block)
        if size > MAX_TEXT:
            raise DataError(f"{path}: unpacks to more than {MAX_TEXT} bytes; expected {JSON_FORM}")
        *pieces, rest = (rest + block).split(b"]")
        for piece in pieces:
            opening, bracket, numbers = piece.rpartition(b"[")
            if bracket:
                yield _without_space([*before, opening, bracket]), numbers
                before = []
            else:
                before += piece, b"]"
        if len(rest) > MAX_LIST or len(before) > MAX_ROW:
            raise DataError(f"{path}: a list of over {MAX_LIST} bytes; expected {JSON_FORM}")
    yield _without_space([*before, rest]) + b" (the end of the file)", b""


def _without_space(pieces: list[bytes]) -> bytes:
    return b"".join(b"".join(pieces).split())


def _expect(expected: bytes, found: bytes, where: str) -> None:
    if found != expected:
        raise DataError(
            f"{where}: {found.decode('latin1')!r:.60}; expected {expected.decode()!r}: {JSON_FORM}"
        )


def _read_split(
    lists: Iterator[tuple[bytes, bytes]], start: bytes, where: str
) -> tuple[list[Rows], np.ndarray]:
    """Read the images of a split, in blocks, and its labels."""
    parser = simdjson.Parser()  # it keeps its memory: a new one for each block takes longer
    before, numbers = next(lists)
    _expect(start, before, f"{where} images")
    blocks: list[Rows] = []
    rows: list[bytes] = []
    number, before = 0, NEXT_ROW
    while before == NEXT_ROW:
        rows.append(numbers)
        number += 1
        before, numbers = next(lists)
        if len(rows) == ROWS or len(rows[-1]) > MAX_ROW or before != NEXT_ROW:
            values = _parse(parser, rows, number - len(rows), f"{where} images")
            blocks.append(_to_uint8(values))
            rows = []
    _expect(LABELS, before, f"{where}, after the images")
    try:
        labels = _LABELS.decode(b"[" + numbers + b"]")
    except msgspec.DecodeError as error:
        raise DataError(f"{where} labels: {_explain(error, numbers)}") from error
    return blocks, np.array(labels, np.uint8)


def _parse(parser: simdjson.Parser, rows: list[bytes], first: int, where: str) -> np.ndarray:
    """Return the numbers of rows, float64 [n, 784]. first: the number of the first row."""
    try:
        # Not msgspec, which makes an object of each number: that takes twice the time.
        document: Any = parser.parse(b"[[" + b"],[".join(rows) + b"]]")
        values = np.frombuffer(document.as_buffer(of_type="d"))
        if all(len(row) == PIXELS for row in document) and 0 <= values.min() <= values.max() <= 1:
            return values.reshape(-1, PIXELS)
    except (ValueError, TypeError, RuntimeError):  # the last for numbers of 20 digits
        pass
    for number, row in enumerate(rows, first):
        try:
            _ROW.decode(b"[" + row + b"]")
        except msgspec.DecodeError as error:
            raise DataError(f"{where}, row {number}: {_explain(error, row)}") from error
    raise DataError(f"{where}, after row {first}: not numbers; expected {JSON_FORM}")


def _explain(error: msgspec.DecodeError, text: bytes) -> str:
    """Return the message of msgspec with what is at the place that it names."""
    message = str(error)
    if index := re.search(r"\$\[(\d+)\]", message):
        found = text.split(b",")[int(index[1])].strip()
    elif byte := re.search(r"\(byte (\d+)\)", message):
        found = text[int(byte[1]) - 1 :]  # it counts the bracket before the text
    else:
        found = b"%d values" % (text.count(b",") + 1)
    return f"{message}; found {found.decode('latin1')!r:.40}"


def _to_uint8(values: np.ndarray) -> Rows:
    """Return (uint8, divisor) if that gives the same float32s back, else (float32, None)."""
    for divisor, exact in ((256, np.float64), (255, np.float32)):
        # k/256 is written exactly, with few digits; k/255 was rounded, to float32 at best
        levels = np.minimum(np.rint(values * divisor), 255).astype(np.uint8)
        if np.array_equal(levels.astype(exact) / exact(divisor), values.astype(exact, copy=False)):
            return levels, divisor
    return values.astype(np.float32), None


def _join(blocks: list[Rows], divisor: Optional[int]) -> np.ndarray:
    """Return the images of a split, [N, 28, 28]; float32 unless all have the same divisor."""
    rows = [
        block if block_divisor == divisor else block.astype(np.float32) / np.float32(block_divisor)
        for block, block_divisor in blocks
    ]
    images: np.ndarray = np.concatenate(rows).reshape(-1, SIZE, SIZE)
    return images
