"""Reads image files of the IDX format and the names of the classes.

A file is read as a stream and never trusted: how much it may unpack to is bounded, so that a small
file cannot fill the memory. Every fault is a DataError that names file, place, the value found and
what was expected. `json_reader`, `npz_reader`, `csv_reader` and `embedded_digits` read the other
sources.
"""

import contextlib
import gzip
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Optional, Union, cast

import numpy as np
from isal import igzip_threaded, isal_zlib

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.arrays import CLASSES, SIZE, Split
from paddle_mnist.system.text import decode

MAX_IMAGES = 1_000_000  # that an IDX file may announce; MNIST has 60,000
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
        raise DataError(f"{path}: damaged gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; expected a readable file") from error


def check_splits(splits: Mapping[str, Split], path: Path) -> dict[str, Split]:
    """Raise DataError for a split that is empty, or has not as many labels as images."""
    for mode, split in splits.items():
        if len(split.images) != len(split.labels):
            raise DataError(
                f"{path}: {mode} has {len(split.images)} images and {len(split.labels)} labels; "
                "expected the same number"
            )
        if not len(split):
            raise DataError(f"{path}: {mode} is empty; expected at least one image")
    return dict(splits)


def split_training(images: np.ndarray, labels: np.ndarray, where: str) -> dict[str, Split]:
    """Divide training images, pixels k/256, into the splits train and valid.

    The valid split is the last 10,000 of 60,000 or more images, as in MNIST; of fewer, every sixth
    of each class, so that files sorted by label work too.
    where: of the images, for errors. Raises DataError for too few of them.
    """
    if len(images) != len(labels):
        raise DataError(
            f"{where}: {len(images)} training images, but {len(labels)} labels; expected the same "
            "number"
        )
    train: Union[slice, np.ndarray]
    valid: Union[slice, np.ndarray]
    if len(images) >= 6 * VALID:
        train, valid = slice(-VALID), slice(-VALID, None)
    elif len(images) >= 6:
        valid = np.sort(np.argsort(labels, kind="stable")[5::6])
        train = np.setdiff1d(np.arange(len(labels)), valid)
    else:
        raise DataError(
            f"{where}: {len(images)} images; expected at least 6, of which every sixth is in the "
            "valid split"
        )
    return {
        "train": Split(images[train], labels[train], 256),
        "valid": Split(images[valid], labels[valid], 256),
    }


def check_labels(labels: np.ndarray, where: str) -> np.ndarray:
    """Return labels as uint8 [N]. Raises DataError for one outside 0..9."""
    invalid = np.flatnonzero((labels < 0) | (labels >= CLASSES))
    if len(invalid):
        first = invalid[0]
        raise DataError(f"{where}: label {first} is {labels[first]}; expected 0..{CLASSES - 1}")
    return labels.astype(np.uint8, copy=False)


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
    train_images, train_labels, eval_images, eval_labels = paths
    images, labels = _read_idx_images(train_images), _read_idx_labels(train_labels)
    splits = {
        **split_training(images, labels, str(train_images)),
        "eval": Split(_read_idx_images(eval_images), _read_idx_labels(eval_labels), 256),
    }
    return check_splits(splits, eval_images)


def _read_idx_images(path: Path) -> np.ndarray:
    return _read_idx_file(path, magic=2051, row_shape=(SIZE, SIZE))


def _read_idx_labels(path: Path) -> np.ndarray:
    return check_labels(_read_idx_file(path, magic=2049, row_shape=()), str(path))


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
    if path is None:
        return ()
    try:
        with open(path, "rb") as file:
            content = file.read(4096)  # more than ten names can take
        lines = decode(content).rstrip().splitlines()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; expected a readable file") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: {error.reason}; expected {CLASSES} lines, the name of a class in each; save "
            "it as UTF-8"
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
