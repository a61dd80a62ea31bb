"""Reads `mnist.npz` of Keras: four NumPy arrays in a zip archive.

They are unpacked no further than their headers announce, and nothing is ever unpickled.
"""

import re
import struct
import zipfile
from pathlib import Path
from typing import IO, Literal

import numpy as np
from isal import isal_zlib

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.arrays import SIZE, Split
from paddle_mnist.mnist.readers import (
    MAX_IMAGES,
    UNPACKING_ERROR,
    check_labels,
    check_splits,
    split_training,
)

Order = Literal["C", "F"]

KEYS = ("x_train", "y_train", "x_test", "y_test")
MAX_HEADER = 10_240  # bytes before an array's items; NumPy writes 128

# L: as Python 2 wrote whole numbers.
_HEADER = re.compile(
    rb"\{'descr': '([<>=|]?\w+)', 'fortran_order': (True|False), 'shape': \(([\dL, ]*)\),? ?\}\s*"
)
_EXPECTED = {
    "x": f"uint8 [N, {SIZE}, {SIZE}]",
    "y": "whole numbers [N]",
}


def read_npz(path: Path) -> dict[str, Split]:
    """Read an npz file with x_train, y_train, x_test and y_test; a pixel k is k/256.

    The valid split is made as of IDX files (`split_training`).
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if missing := [key for key in KEYS if key not in members]:
                raise DataError(
                    f"{path}: no {', '.join(missing)} among its arrays "
                    f"({', '.join(members) or 'none'}); expected {', '.join(KEYS)}"
                )
            arrays = {key: _read_array(f"{path}: {key}", archive, members[key]) for key in KEYS}
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}; expected a readable file") from error
    except (
        zipfile.BadZipFile,
        UNPACKING_ERROR,
        EOFError,
        struct.error,
        ValueError,  # an offset before the beginning, say
        OverflowError,
        NotImplementedError,  # of zipfile, for a version of the format that it does not know
    ) as error:
        raise DataError(f"{path}: damaged npz file ({error}); fetch it again") from error
    for key in ("y_train", "y_test"):
        arrays[key] = check_labels(arrays[key], f"{path}: {key}")
    return check_splits(
        {
            **split_training(arrays["x_train"], arrays["y_train"], str(path)),
            "eval": Split(arrays["x_test"], arrays["y_test"], 256),
        },
        path,
    )


def _read_array(where: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """Read one array of the archive; its header decides how much is unpacked."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(
            f"{where}: compressed by method {info.compress_type}; expected numpy.savez or "
            "numpy.savez_compressed to have written it"
        )
    if info.flag_bits & 1:
        raise DataError(f"{where}: encrypted; expected a file without a password")
    with archive.open(info) as member:
        # Not Python's zlib, for the reason that `open_unpacked` gives.
        vars(member)["_decompressor"] = isal_zlib.decompressobj(wbits=-15)
        return _read_member(where, member)


def _read_member(where: str, member: IO[bytes]) -> np.ndarray:
    start = member.read(MAX_HEADER)
    try:
        dtype, order, shape, header_size = _parse_header(start)
    except (ValueError, TypeError) as error:
        raise DataError(f"{where}: not an array of numbers ({error}); expected one") from error
    kind = where.rpartition(" ")[2][0]
    is_right = (
        dtype == np.uint8 and shape[1:] == (SIZE, SIZE)
        if kind == "x"
        else dtype.kind in "iu" and len(shape) == 1
    )
    if not (is_right and 0 < shape[0] <= MAX_IMAGES):
        pickled = ", which would have to be unpickled" if dtype.hasobject else ""
        raise DataError(
            f"{where} is {dtype} {list(shape)}{pickled}; expected {_EXPECTED[kind]}, with N from 1 "
            f"to {MAX_IMAGES}"
        )
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    body = start[header_size:]
    body += member.read(size - len(body))
    if len(body) != size or member.read(1):  # which also checks the checksum
        found = "more" if len(body) >= size else f"{len(body)} bytes"
        raise DataError(f"{where}: {found} instead of the {size} bytes that its header announces")
    return np.ascontiguousarray(np.frombuffer(body, dtype).reshape(shape, order=order))


def _parse_header(start: bytes) -> tuple[np.dtype, Order, tuple[int, ...], int]:
    """Return the dtype, the order ("C" or "F"), the shape, and the number of bytes of a header.

    NumPy's own parser evaluates a header as Python, and fails in many ways where it is damaged.
    Raises ValueError, or TypeError for a dtype that does not exist.
    """
    width = 2 if start[6:7] == b"\x01" else 4  # of the length, by the version of the format
    end = 8 + width + int.from_bytes(start[8 : 8 + width], "little")
    match = _HEADER.fullmatch(start[8 + width : end])
    if not start.startswith(b"\x93NUMPY") or not match:
        raise ValueError("it has no header that NumPy writes")
    shape = tuple(int(size.strip(b" L")) for size in match[3].split(b",") if size.strip())
    order: Order = "F" if match[2] == b"True" else "C"
    return np.dtype(match[1].decode()), order, shape, end
