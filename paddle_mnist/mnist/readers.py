"""Opens files of images, and reads those of the IDX format and the names of the classes.

A file is read as a stream and never trusted: how much it may unpack to is bounded, so that a small
file cannot fill the memory. Every fault is a DataError that names file, place, the value found and
what was expected. `json_reader`, `npz_reader`, `csv_reader` and `embedded_digits` read the other
sources.
"""

import contextlib
import gzip
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Optional, cast

import numpy as np
from isal import igzip_threaded, isal_zlib

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.arrays import CLASSES, SIZE, Split
from paddle_mnist.system.text import decode

MAX_IMAGES = 1_000_000  # in a file; MNIST has 60,000
MAX_TEXT = 1 << 30  # bytes that a text may unpack to; the AI Studio file has 0.34e9
VALID = 10_000  # of 60,000 training images: MNIST's valid split, as in the JSON file
MAX_NAME = 40  # characters in the name of a class

# As they are: ISA-L declares an instance of the error, and no types of `open`.
UNPACKING_ERROR = cast(type[Exception], isal_zlib.error)
_open_gzip: Callable[[BinaryIO], contextlib.AbstractContextManager[BinaryIO]] = igzip_threaded.open


@contextlib.contextmanager
def open_unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a file, unpacked if it is gzip. Errors of reading in the context become DataErrors."""
    try:
        with open(path, "rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if is_gzip:
                # Not Python's gzip: Paddle 2.6.2 exports zlib functions of its own, with which
                # Python's unpacking crashes. Besides, ISA-L is three times faster and works in
                # another thread while this one parses.
                with _open_gzip(file) as unpacked:
                    yield unpacked
            elif path.suffix == ".gz":
                raise DataError(f"{path}: not a gzip file, although its name ends in .gz")
            else:
                yield file
    except (EOFError, UNPACKING_ERROR, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged file ({error}); fetch it again") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}; expected a readable file") from error


def read_head(path: Path) -> bytes:
    """Return a file's first bytes, unpacked if it is gzip. Raises DataError."""
    with open_unpacked(path) as stream:
        return stream.read(64)


def make_split(images: np.ndarray, labels: np.ndarray, divisor: Optional[int], where: str) -> Split:
    """Return images and labels as a split. where: of the images, for errors.

    Raises DataError if there are none, not as many labels, or labels outside 0..9.
    """
    if len(images) != len(labels):
        raise DataError(
            f"{where}: {len(images)} images and {len(labels)} labels; expected the same number"
        )
    if not len(images):
        raise DataError(f"{where}: no images; expected at least one")
    invalid = np.flatnonzero((labels < 0) | (labels >= CLASSES))
    if len(invalid):
        first = invalid[0]
        raise DataError(f"{where}: label {first} is {labels[first]}; expected 0..{CLASSES - 1}")
    return Split(images, labels.astype(np.uint8, copy=False), divisor)


def divide(training: Split, where: str, held_out: tuple[str, ...] = ("valid",)) -> dict[str, Split]:
    """Divide training images into train and the splits that are held out, one or two.

    Of 60,000 or more images the valid split alone is the last 10,000, as in MNIST. Else each split
    that is held out gets a fifth as many images as train, of every class, so that files sorted by
    label work too. Raises DataError for too few images.
    """
    if len(training) >= 6 * VALID and held_out == ("valid",):
        return {"train": training.take(slice(-VALID)), "valid": training.take(slice(-VALID, None))}
    turns = 5 + len(held_out)
    if len(training) < turns:
        raise DataError(
            f"{where}: {len(training)} images; expected at least {turns}, to divide them into "
            f"train, {', '.join(held_out)}"
        )
    turn = np.empty(len(training), int)
    turn[np.argsort(training.labels, kind="stable")] = np.arange(len(training)) % turns
    splits = {"train": training.take(turn < 5)}
    for number, mode in enumerate(held_out, 5):
        splits[mode] = training.take(turn == number)
    return splits


# ------------------------------------------------------------------ IDX files

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def read_idx(paths: tuple[Path, ...]) -> dict[str, Split]:
    """Read four IDX files (in the order of IDX_FILES), plain or gzip; a pixel k is k/256.

    The format is described at http://yann.lecun.com/exdb/mnist/ (archived).
    """
    training, test = (
        make_split(
            _read_idx_file(images, magic=2051, row_shape=(SIZE, SIZE)),
            _read_idx_file(labels, magic=2049, row_shape=()),
            256,
            str(images),
        )
        for images, labels in (paths[:2], paths[2:])
    )
    return {**divide(training, str(paths[0])), "eval": test}


def _read_idx_file(path: Path, magic: int, row_shape: tuple[int, ...]) -> np.ndarray:
    with open_unpacked(path) as stream:
        header = stream.read(8 + 4 * len(row_shape))
        if len(header) < 8 + 4 * len(row_shape):
            raise DataError(f"{path}: {len(header)} bytes; expected an IDX file's header")
        actual_magic, count, *shape = struct.unpack(f">{2 + len(row_shape)}I", header)
        if actual_magic != magic:
            raise DataError(f"{path}: magic number {actual_magic}; expected {magic}")
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
    """Read a `classes.txt`: a name per line for the labels 0 to 9; () if there is no file.

    Blank lines at the end are ignored. Raises DataError for anything but ten different names.
    """
    if path is None or not path.exists():
        return ()
    with open_unpacked(path) as file:
        content = file.read(4096)  # more than ten names can take
    try:
        names = [line.strip() for line in decode(content).rstrip().splitlines()]
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: {error.reason}; expected text in UTF-8") from error
    invalid = [name for name in names if not 0 < len(name) <= MAX_NAME or not name.isprintable()]
    if len(set(names)) != CLASSES or len(names) != CLASSES or invalid:
        found = f"{invalid[0]!r:.60}" if invalid else f"{len(set(names))} names"
        raise DataError(
            f"{path}: {found} in {len(names)} lines; expected {CLASSES} lines, a different name of "
            f"1 to {MAX_NAME} printable characters in each; if the file belongs to something else, "
            "move it out of this folder"
        )
    return tuple(names)
