"""Files to arrays. Every fault is a DataError that names file, place, found and expected.

A file is read as a stream and never trusted: what it unpacks to is bounded, so a small file
cannot fill the memory.
"""

import contextlib
import gzip
import importlib.util
import json
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Optional

import numpy as np
import simdjson
from isal import igzip_threaded, isal_zlib

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.arrays import CLASSES, MODES, SIZE, Split

PIXELS = SIZE * SIZE
BLOCK = 4 << 20  # bytes of text a step; 1, 2 and 8 MiB were measured slower
MAX_TEXT = 1 << 30  # bytes a file may unpack to; the AI Studio file has 0.34e9
MAX_ROW = 64 << 10  # bytes of text a row of 784 numbers may have
MAX_IMAGES = 1_000_000  # an IDX file may announce; MNIST has 60,000
IDX_VALID = 10_000  # of 60,000 training images: MNIST's valid split, as in the JSON file
MAX_NAME = 40  # characters of a class's name

JSON_FORM = "[[images, labels], ...] for train, valid, eval, with rows of 784 numbers"


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes in a file, unpacked if it is gzip. What goes wrong on the way is a DataError."""
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if packed:
                # Not Python's gzip: Paddle 2.6.2 brings zlib functions of its own along, and once
                # it is imported Python's unpacking crashes. ISA-L is three times faster besides,
                # and in a thread of its own, while this one parses.
                with igzip_threaded.open(file) as unpacked:
                    yield unpacked
            elif path.suffix == ".gz":
                raise DataError(f"{path}: not a gzip file; expected one by its name")
            else:
                yield file
    except (EOFError, isal_zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; expected a readable file") from error


# ------------------------------------------------------------------ the AI Studio file


class _Text:
    """The text of a JSON file, read a block at a time; `rest` is what is not used up yet."""

    def __init__(self, path: Path, stream: BinaryIO):
        self.path = path
        self.stream = stream
        self.rest = b""
        self.read = 0  # bytes read so far

    def more(self) -> bool:
        """Read on; False at the end of the file."""
        block = self.stream.read(BLOCK)
        self.rest += block
        self.read += len(block)
        if self.read > MAX_TEXT:
            raise DataError(
                f"{self.path}: unpacks to more than {MAX_TEXT} bytes; "
                "expected the AI Studio file, which unpacks to 339 MB"
            )
        return bool(block)

    def peek(self) -> bytes:
        """The next byte that is not white space; nothing at the end of the file."""
        while True:
            self.rest = self.rest.lstrip(b" \t\r\n")
            if self.rest or not self.more():
                return self.rest[:1]

    def expect(self, byte: bytes, where: str) -> None:
        found = self.peek()
        if found != byte:
            what = f"{found.decode('latin1')!r}" if found else "the end of the file"
            wanted = f"{byte.decode()!r}" if byte else "the end of the file"
            raise DataError(
                f"{self.path}: {what} at byte {self.read - len(self.rest)} ({where}); "
                f"expected {wanted}: {JSON_FORM}"
            )
        self.rest = self.rest[1:]

    def until(self, pattern: re.Pattern, limit: int, where: str) -> bytes:
        """All up to the first match's start; the match itself is used up."""
        while not (match := pattern.search(self.rest)):
            if len(self.rest) > limit or not self.more():
                raise DataError(f"{self.path}: {where} does not end; expected ']': {JSON_FORM}")
        found = self.rest[: match.start()]
        self.rest = self.rest[match.end() :]
        return found

    def row_blocks(self, where: str) -> Iterator[bytes]:
        """The rows of a list of lists, as many at a time as a block holds, without the commas."""
        self.expect(b"[", where)
        while self.peek() != b"]":
            end = _LIST_END.search(self.rest)
            cut = end.start() + 1 if end else self.rest.rfind(b"]") + 1
            if cut:
                yield self.rest[:cut]
                self.rest = self.rest[cut:]
                if self.peek() == b",":
                    self.rest = self.rest[1:]
            elif len(self.rest) > MAX_ROW or not self.more():
                raise DataError(
                    f"{self.path}: {where}: a row of {len(self.rest)} bytes does not end; "
                    f"expected {PIXELS} numbers"
                )
        self.expect(b"]", where)


_LIST_END = re.compile(rb"\][ \t\r\n]*\]")
_CLOSE = re.compile(rb"\]")


def read_json(path: Path) -> dict[str, Split]:
    """The AI Studio file, `mnist.json.gz`: [[images, labels], ...] for train, valid and eval.

    Images are rows of 784 numbers in 0..1. They are kept as uint8 where all of a file are
    k/256 or all are k/255, else as float32.
    """
    with _opened(path) as stream:
        text = _Text(path, stream)
        blocks, labels = {}, {}
        text.expect(b"[", "start")
        for mode in MODES:
            if mode != MODES[0]:
                text.expect(b",", f"before {mode}")
            text.expect(b"[", mode)
            blocks[mode] = list(_image_blocks(text, mode))
            text.expect(b",", f"{mode}, after the images")
            labels[mode] = _json_labels(text, mode)
            text.expect(b"]", f"{mode}, after the labels")
        text.expect(b"]", "after eval")
        text.expect(b"", "after the last bracket")

    divisors = {divisor for mode in MODES for _, divisor in blocks[mode]}
    divisor = divisors.pop() if len(divisors) == 1 else None
    splits = {}
    for mode in MODES:
        rows = [
            block if own == divisor else block.astype(np.float32) / np.float32(own)
            for block, own in blocks.pop(mode)
        ]
        images = np.concatenate(rows) if rows else np.empty((0, PIXELS), np.uint8)
        splits[mode] = Split(images.reshape(-1, SIZE, SIZE), labels[mode], divisor)
    return _checked(splits, path)


def _image_blocks(text: _Text, mode: str) -> Iterator[tuple[np.ndarray, Optional[int]]]:
    """Blocks of rows, each as ([n, 784] uint8, its divisor) or ([n, 784] float32, None)."""
    parser = simdjson.Parser()
    first = 0
    for block in text.row_blocks(f"{mode} images"):
        try:
            rows = parser.parse(b"[" + block + b"]")
            if any(len(row) != PIXELS for row in rows) or block.count(b"[") != len(rows):
                raise ValueError("rows that are not 784 numbers")
            values = np.frombuffer(rows.as_buffer(of_type="d")).reshape(-1, PIXELS)
            if values.min() < 0 or values.max() > 1:
                raise ValueError("pixels outside 0..1")
        except (ValueError, TypeError) as error:
            raise _bad_row(f"{text.path}: {mode} images", block, first, error) from error
        count = len(values)
        del rows  # the parser may be used again only when nothing refers to its last document
        yield _compact(values)
        first += count


def _compact(values: np.ndarray) -> tuple[np.ndarray, Optional[int]]:
    """Values as (uint8, divisor) if that gives the same float32s back, else (float32, None)."""
    for divisor, exact in ((256, np.float64), (255, np.float32)):
        # k/256 has few digits and is in a text as it is; k/255 was rounded, to float32 at best
        levels = np.minimum(np.rint(values * divisor), 255).astype(np.uint8)
        if np.array_equal(levels.astype(exact) / exact(divisor), values.astype(exact, copy=False)):
            return levels, divisor
    return values.astype(np.float32), None


def _bad_row(where: str, block: bytes, first: int, error: Exception) -> DataError:
    """What is wrong with the first bad row of a block, in words. Only ever used on a bad file."""
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
            number_like = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number_like or not 0 <= value <= 1:
                return DataError(
                    f"{where}, row {number}, value {column}: {value!r:.40}; "
                    "expected a number in 0..1"
                )
    return DataError(f"{where}, after row {first}: {error}; {JSON_FORM}")


def _json_labels(text: _Text, mode: str) -> np.ndarray:
    where = f"{mode} labels"
    text.expect(b"[", where)
    listed = b"[" + text.until(_CLOSE, limit=MAX_IMAGES * 8, where=where) + b"]"
    try:
        labels = json.loads(listed)
    except ValueError as error:
        raise DataError(f"{text.path}: {where}: not JSON ({error}); {JSON_FORM}") from error
    for number, label in enumerate(labels):
        if type(label) is not int or not 0 <= label < CLASSES:
            raise DataError(
                f"{text.path}: {where}, number {number}: {label!r:.40}; "
                f"expected a whole number in 0..{CLASSES - 1}"
            )
    return np.array(labels, np.uint8)


# ------------------------------------------------------------------ IDX files

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def read_idx(paths: tuple[Path, ...]) -> dict[str, Split]:
    """Four IDX files (order as IDX_FILES), plain or gzip; pixels k are k/256.

    The valid split is the last 10,000 of 60,000 or more training images; of fewer it is every
    sixth of each class, so that files which are sorted by label serve too.
    The form is described at http://yann.lecun.com/exdb/mnist/ (archived).
    """
    train_images, train_labels, eval_images, eval_labels = paths
    images, labels = _idx_images(train_images), _idx_labels(train_labels)
    if len(images) != len(labels):
        raise DataError(
            f"{train_images}: {len(images)} images, but {train_labels.name} holds "
            f"{len(labels)} labels; expected as many"
        )
    if len(images) >= 6 * IDX_VALID:
        train, valid = slice(-IDX_VALID), slice(-IDX_VALID, None)
    elif len(images) >= 6:
        valid = np.sort(np.argsort(labels, kind="stable")[5::6])
        train = np.setdiff1d(np.arange(len(labels)), valid)
    else:
        raise DataError(
            f"{train_images}: {len(images)} images; expected at least 6, of which every sixth is "
            "in the valid split"
        )
    splits = {
        "train": Split(images[train], labels[train], 256),
        "valid": Split(images[valid], labels[valid], 256),
        "eval": Split(_idx_images(eval_images), _idx_labels(eval_labels), 256),
    }
    return _checked(splits, eval_images)


def _idx_images(path: Path) -> np.ndarray:
    return _idx(path, magic=2051, row_shape=(SIZE, SIZE))


def _idx_labels(path: Path) -> np.ndarray:
    labels = _idx(path, magic=2049, row_shape=())
    bad = np.flatnonzero(labels >= CLASSES)
    if len(bad):
        raise DataError(f"{path}: label {bad[0]} is {labels[bad[0]]}; expected 0..{CLASSES - 1}")
    return labels


def _idx(path: Path, magic: int, row_shape: tuple[int, ...]) -> np.ndarray:
    with _opened(path) as stream:
        header = stream.read(8 + 4 * len(row_shape))
        if len(header) < 8 + 4 * len(row_shape):
            raise DataError(f"{path}: {len(header)} bytes; expected an IDX file's header")
        found, count, *shape = struct.unpack(f">{2 + len(row_shape)}I", header)
        if found != magic:
            raise DataError(f"{path}: magic number {found}; expected {magic}")
        if tuple(shape) != row_shape:
            raise DataError(f"{path}: images of {shape[0]}x{shape[1]}; expected {SIZE}x{SIZE}")
        if not 0 < count <= MAX_IMAGES:
            raise DataError(f"{path}: announces {count} items; expected 1..{MAX_IMAGES}")
        size = count * int(np.prod(row_shape, dtype=int))
        body = stream.read(size)
        if len(body) < size:
            raise DataError(f"{path}: truncated, {len(body)} bytes of items; expected {size}")
        if stream.read(1):
            raise DataError(f"{path}: more than the {count} items that its header announces")
    return np.frombuffer(body, np.uint8).reshape(count, *row_shape)


# ------------------------------------------------------------------ names of the classes


def read_class_names(path: Optional[Path]) -> tuple[str, ...]:
    """The names in a `classes.txt`, one a line, for the labels 0 to 9; () where there is no file.

    Blank lines at the end do not count. Raises DataError for anything but ten different names.
    """
    if path is None:
        return ()
    try:
        with open(path, "rb") as file:
            content = file.read(4096)  # more than ten names can have
        lines = content.decode("utf-8-sig").rstrip().splitlines()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; expected a readable file") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 ({error.reason} at byte {error.start}); expected {CLASSES} lines "
            "of text, the name of a class in each"
        ) from error
    names = [line.strip() for line in lines]
    if len(names) != CLASSES:
        raise DataError(
            f"{path}: {len(names)} lines; expected {CLASSES}, the name of a class in each; if the "
            "file belongs to something else, move it out of this folder"
        )
    for number, name in enumerate(names, 1):
        if not 0 < len(name) <= MAX_NAME or not name.isprintable():
            raise DataError(
                f"{path}, line {number}: {name!r:.60}; expected a name of 1 to {MAX_NAME} "
                "printable characters"
            )
        if name in names[: number - 1]:
            raise DataError(
                f"{path}, line {number}: {name!r} is line {names.index(name) + 1} already; "
                "expected different names"
            )
    return tuple(names)


# ------------------------------------------------------------------ the embedded source

DIGITS_HELD_OUT = 300  # images in valid, and as many in eval; 1,197 remain to train on


def read_digits() -> dict[str, Split]:
    """scikit-learn's `digits`: 1,797 handwritten digits of 8x8 pixels, real but not MNIST.

    From the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak,
    UCI, 1998). Each is scaled to 20x20 in the middle of 28x28 pixels, as MNIST's digits are.
    The splits are fixed and stratified, and each is in a fixed random order, as MNIST's are: the
    first images of a split show all ten digits.
    """
    # RandomState, not Generator: NumPy promises its stream never changes (NEP 19).
    random = np.random.RandomState(0)
    shuffled = {}
    for mode, split in digits_by_label().items():
        order = random.permutation(len(split))
        shuffled[mode] = Split(split.images[order], split.labels[order], split.divisor)
    return shuffled


def digits_by_label() -> dict[str, Split]:
    """The splits of `read_digits`, each sorted by label.

    Sorted by label, every sixth image or so is held out, which makes the splits stratified.
    Read from the file in scikit-learn: to import its loader takes a second, and unpacks with zlib.
    """
    spec = importlib.util.find_spec("sklearn")
    path = Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    with _opened(path) as stream:
        rows = np.loadtxt(stream, delimiter=",", dtype=np.int64)
    labels = rows[:, -1].astype(np.uint8)
    order = np.argsort(labels, kind="stable")
    labels, small = labels[order], rows[order, :-1].reshape(-1, 8, 8)

    # Linear interpolation between pixel centres, in whole tenths, so that every machine rounds
    # alike: levels 0..16, by 10 x 10 tenths, are 0..1600.
    centres = np.clip((np.arange(20) + 0.5) * 8 / 20 - 0.5, 0, 7)
    tenths = np.rint(10 * np.maximum(0, 1 - abs(centres - np.arange(8)[:, None]))).astype(np.int64)
    large = tenths.T @ small @ tenths
    margin = (SIZE - 20) // 2
    images = np.zeros((len(order), SIZE, SIZE), np.uint8)
    images[:, margin:-margin, margin:-margin] = (large * 255 + 800) // 1600

    spacing = len(order) / DIGITS_HELD_OUT
    at = lambda phase: ((np.arange(DIGITS_HELD_OUT) + phase) * spacing).astype(int)  # noqa: E731
    held_out = {"valid": at(0.25), "eval": at(0.75)}
    rest = np.setdiff1d(np.arange(len(order)), np.concatenate(list(held_out.values())))
    return {
        mode: Split(images[index], labels[index], 256)
        for mode, index in {"train": rest, **held_out}.items()
    }


def _checked(splits: Mapping[str, Split], path: Path) -> dict[str, Split]:
    for mode, split in splits.items():
        if len(split.images) != len(split.labels):
            raise DataError(
                f"{path}: {mode} has {len(split.images)} images and {len(split.labels)} labels; "
                "expected as many"
            )
        if not len(split):
            raise DataError(f"{path}: {mode} is empty; expected at least one image")
    return dict(splits)
