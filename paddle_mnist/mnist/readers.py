"""Opens files of images, and reads IDX, CSV and npz files and the embedded digits.

A file is read as a stream and never trusted: its unpacked size is limited, so that a small file
cannot fill the memory. Every fault is a DataError that names the file, the place, the value found
and what was expected. `json_reader` reads JSON files.
"""

import contextlib
import gzip
import importlib.util
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
from paddle_mnist.mnist.splits import CLASSES, SIZE, Split, divide, make_split
from paddle_mnist.system.regular_files import open_to_read

MAX_IMAGES = 1_000_000  # in a file; MNIST has 60,000
MAX_TEXT = 1 << 30  # bytes that a text may unpack to; the AI Studio file has 0.34e9

# Their real types: ISA-L's stubs declare an instance of the error, and no types for `open`.
UNPACKING_ERROR = cast(type[Exception], isal_zlib.error)
_open_gzip: Callable[[BinaryIO], contextlib.AbstractContextManager[BinaryIO]] = igzip_threaded.open


@contextlib.contextmanager
def open_unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a file, unpacked if it is gzip. Read errors in the context become DataErrors."""
    try:
        with open_to_read(path) as file:
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
        warnings.simplefilter("error", DeprecationWarning)  # NumPy 1 warns, and reads 0.5 as 0
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
                text = line.removeprefix(b"\xef\xbb\xbf")
                is_header = number == 1 and text.lstrip(b' "').lower().startswith(b"label")
                if not (is_header or text.isspace()):
                    yield text

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


# ------------------------------------------------------------------ npz files

NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")
MAX_ARRAY = 256 << 20  # bytes; MNIST's training images have 47e6

# Of zipfile and struct, which fail in many ways where an archive is damaged.
NPZ_ERRORS = (
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
        except NPZ_ERRORS as error:
            raise DataError(f"{path}: damaged file ({error}); fetch it again") from error
    training = make_split(arrays["x_train"], arrays["y_train"], 256, f"{path}: x_train")
    test = make_split(arrays["x_test"], arrays["y_test"], 256, f"{path}: x_test")
    return {**divide(training, str(path)), "eval": test}


def _read_member(where: str, file: BinaryIO, info: zipfile.ZipInfo) -> np.ndarray:
    """Read x, uint8 [N, 28, 28], or y, whole numbers [N], by ISA-L (see `open_unpacked`).

    Nothing is ever unpickled.
    """
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
    try:
        array = _read_array(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # NumPy's parser fails in many ways where a header is damaged
        message = str(error).partition("\n")[0]
        raise DataError(f"{where}: not an array of numbers ({message}); expected one") from error
    is_image = info.filename.startswith("x")
    if is_image and (array.dtype != np.uint8 or array.shape[1:] != (SIZE, SIZE)):
        expected = f"uint8 [N, {SIZE}, {SIZE}]"
    elif not is_image and (array.dtype.kind not in "iu" or array.ndim != 1):
        expected = "whole numbers [N]"
    else:
        return np.ascontiguousarray(array)
    raise DataError(f"{where} is {array.dtype} {list(array.shape)}; expected {expected}")


# ------------------------------------------------------------------ scikit-learn's digits

HELD_OUT = 300  # images each in valid and in eval; 1,197 remain to train on


def read_embedded_digits() -> dict[str, Split]:
    """Read scikit-learn's `digits`: 1,797 handwritten digits of 8x8 pixels, real but not MNIST.

    From the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak,
    UCI, 1998). Each is scaled to 20x20 in the middle of 28x28 pixels, as MNIST's digits are.
    The splits are fixed: sorted by label, about every sixth image is held out for valid and every
    sixth for eval. Each is in a fixed random order, as MNIST's are, so that the first images of a
    split show all ten digits.
    """
    small, labels = _read_small_digits()
    # Linear interpolation between pixel centres, in integers, so that every machine rounds alike:
    # weights are tenths, so levels 0..16 become 0..1600.
    centres = np.clip((np.arange(20) + 0.5) * 8 / 20 - 0.5, 0, 7)
    tenths = np.rint(10 * np.maximum(0, 1 - abs(centres - np.arange(8)[:, None]))).astype(np.int64)
    large = tenths.T @ small @ tenths
    margin = (SIZE - 20) // 2
    images = np.zeros((len(labels), SIZE, SIZE), np.uint8)
    images[:, margin:-margin, margin:-margin] = (large * 255 + 800) // 1600

    spacing = len(labels) / HELD_OUT
    valid, test = (((np.arange(HELD_OUT) + phase) * spacing).astype(int) for phase in (0.25, 0.75))
    train = np.setdiff1d(np.arange(len(labels)), np.concatenate([valid, test]))
    digits = Split(images, labels, 256)
    # RandomState, not Generator: NumPy promises its stream never changes (NEP 19).
    random = np.random.RandomState(0)
    indices = {"train": train, "valid": valid, "eval": test}
    return {mode: digits.take(random.permutation(index)) for mode, index in indices.items()}


def _read_small_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the images, 0..16 [N, 8, 8], and labels of scikit-learn's file, sorted by label.

    Without scikit-learn itself, which takes a second to import and unpacks with zlib (see
    `open_unpacked`).
    """
    spec = importlib.util.find_spec("sklearn")
    if not spec or not spec.submodule_search_locations:
        raise DataError(
            "scikit-learn, which contains the digits, is not installed; install the package again"
        )
    path = Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    with open_unpacked(path) as stream:
        rows = np.loadtxt(stream, delimiter=",", dtype=np.int64)
    rows = rows[np.argsort(rows[:, -1], kind="stable")]
    return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.uint8)
