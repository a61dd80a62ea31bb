"""Opens files of images, and reads IDX, CSV and npz files.

A file is read as a stream and never trusted: how much it may unpack to is bounded, so that a small
file cannot fill the memory. Every fault is a DataError that names file, place, the value found and
what was expected. `json_reader` and `embedded_digits` read the other sources.
"""

import contextlib
import gzip
import io
import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Optional, cast

import numpy as np
from isal import igzip_threaded, isal_zlib

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.arrays import CLASSES, SIZE, Split

MAX_IMAGES = 1_000_000  # in a file; MNIST has 60,000
MAX_TEXT = 1 << 30  # bytes that a text may unpack to; the AI Studio file has 0.34e9
VALID = 10_000  # of 60,000 training images: MNIST's valid split, as in the JSON file

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


# ------------------------------------------------------------------ CSV files

CSV_COLUMNS = 1 + SIZE * SIZE
MAX_LINE = 64 << 10  # bytes

CSV_FORM = f"a label, 0..{CLASSES - 1}, and {SIZE * SIZE} pixels, 0..255, in each line"


def count_columns(path: Path) -> int:
    """Return the number of values in the first line of a CSV file. Raises DataError."""
    with open_unpacked(path) as stream:
        return stream.readline(MAX_LINE).count(b",") + 1


def read_csv(train: Path, test: Optional[Path] = None) -> dict[str, Split]:
    """Read the training images, and the eval split if its labels are known; a pixel k is k/256.

    Without a test file with labels, the training file is divided into all three splits, 5 to 1
    to 1, as in MNIST.
    """
    training = _read_csv_file(train)
    if test:
        return {**divide(training, str(train)), "eval": _read_csv_file(test)}
    return divide(training, str(train), ("valid", "eval"))


def _read_csv_file(path: Path) -> Split:
    with open_unpacked(path) as stream, warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # NumPy 1 warns, and takes 0.5 for 0
        warnings.simplefilter("ignore", UserWarning)  # of an empty file
        number = 0  # of the line that was read last

        def lines() -> Iterator[bytes]:
            nonlocal number
            size = 0
            # A longer line counts as several, and so has the wrong number of columns.
            for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE), b""), 1):
                size += len(line)
                if size > MAX_TEXT:
                    raise ValueError(f"unpacks to more than {MAX_TEXT} bytes")
                if not (line.isspace() or (number == 1 and _is_csv_header(line))):
                    yield line.removeprefix(b"\xef\xbb\xbf")

        try:
            rows = np.loadtxt(lines(), np.uint8, delimiter=",", comments=None, ndmin=2)
            if rows.size == 0 or rows.shape[1] != CSV_COLUMNS:
                raise ValueError(f"{rows.shape[1] if rows.size else 0} columns")
        except (ValueError, DeprecationWarning) as error:
            # NumPy counts rows from 0, without the header.
            message = re.sub(r" at row \d+(; .*)?", "", str(error)).rstrip(".")
            raise DataError(f"{path}, line {number}: {message}; expected {CSV_FORM}") from error
    images = np.ascontiguousarray(rows[:, 1:]).reshape(-1, SIZE, SIZE)
    return make_split(images, rows[:, 0].copy(), 256, str(path))


def _is_csv_header(line: bytes) -> bool:
    """Return whether a line names the columns. Raises ValueError if a label is not the first."""
    names = [name.strip(b" \r\n\"'") for name in line.removeprefix(b"\xef\xbb\xbf").split(b",")]
    if names[0].isdigit():
        return False
    if names[0].lower() != b"label" or len(names) != CSV_COLUMNS:
        first = names[0].decode("latin1")
        raise ValueError(f"{len(names)} columns, the first of them {first!r:.40}")
    return True


# ------------------------------------------------------------------ npz files

NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")
MAX_ARRAY = 256 << 20  # bytes; MNIST's training images have 47e6

# Of a damaged archive.
_NPZ_ERRORS = (
    zipfile.BadZipFile,
    struct.error,
    ValueError,  # an offset before the beginning, for example
    OverflowError,
    NotImplementedError,  # of zipfile, for a version of the format that it does not know
)
_read_array: Callable[..., np.ndarray] = np.lib.format.read_array


def read_npz(path: Path) -> dict[str, Split]:
    """Read Keras's `mnist.npz`: NumPy arrays in a zip archive; a pixel k is k/256."""
    with open_unpacked(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if not set(NPZ_KEYS) <= set(members):
                raise DataError(
                    f"{path}: {', '.join(members) or 'no arrays'}; expected {', '.join(NPZ_KEYS)}"
                )
            arrays = {key: _read_member(f"{path}: {key}", file, members[key]) for key in NPZ_KEYS}
        # Of zipfile and struct, which fail in many ways where a file is damaged.
        except (
            zipfile.BadZipFile,
            struct.error,
            ValueError,
            OverflowError,
            NotImplementedError,
        ) as error:
            raise DataError(f"{path}: damaged file ({error}); fetch it again") from error
    training = make_split(arrays["x_train"], arrays["y_train"], 256, f"{path}: x_train")
    test = make_split(arrays["x_test"], arrays["y_test"], 256, f"{path}: x_test")
    return {**divide(training, str(path)), "eval": test}


def _read_member(where: str, file: BinaryIO, info: zipfile.ZipInfo) -> np.ndarray:
    """Read x, uint8 [N, 28, 28], or y, whole numbers [N]. Nothing is ever unpickled."""
    content = io.BytesIO(_unpack_member(where, file, info))
    try:
        array = _read_array(content, allow_pickle=False)
    except Exception as error:  # NumPy's parser fails in many ways where a header is damaged
        message = str(error).partition("\n")[0]
        raise DataError(f"{where}: not an array of numbers ({message}); expected one") from error
    if content.read(1):
        raise DataError(f"{where}: more than the {array.nbytes} bytes that its header announces")
    is_image = info.filename.startswith("x")
    if is_image and (array.dtype != np.uint8 or array.shape[1:] != (SIZE, SIZE)):
        expected = f"uint8 [N, {SIZE}, {SIZE}]"
    elif not is_image and (array.dtype.kind not in "iu" or array.ndim != 1):
        expected = "whole numbers [N]"
    else:
        return np.ascontiguousarray(array)
    raise DataError(f"{where} is {array.dtype} {list(array.shape)}; expected {expected}")


def _unpack_member(where: str, file: BinaryIO, info: zipfile.ZipInfo) -> bytes:
    """Return the content of a member of the archive, by ISA-L (see `open_unpacked`)."""
    if info.file_size > MAX_ARRAY:
        raise DataError(f"{where}: {info.file_size} bytes; expected at most {MAX_ARRAY}")
    file.seek(info.header_offset)
    header = file.read(30)
    name_size, extra_size = struct.unpack("<HH", header[26:])
    file.seek(name_size + extra_size, io.SEEK_CUR)
    content = file.read(min(info.compress_size, MAX_ARRAY))
    if info.compress_type == zipfile.ZIP_DEFLATED:
        content = isal_zlib.decompressobj(wbits=-15).decompress(content, info.file_size + 1)
    if len(content) != info.file_size or isal_zlib.crc32(content) != info.CRC:
        raise DataError(
            f"{where}: damaged, encrypted, or compressed by method {info.compress_type}; expected "
            "what numpy.savez writes"
        )
    return content
