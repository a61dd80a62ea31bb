"""Reads `mnist.npz` of Keras: four NumPy arrays in a zip archive. Nothing is ever unpickled."""

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from isal import isal_zlib

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.arrays import SIZE, Split
from paddle_mnist.mnist.readers import divide, make_split, open_unpacked

KEYS = ("x_train", "y_train", "x_test", "y_test")
MAX_ARRAY = 256 << 20  # bytes; MNIST's training images have 47e6

_read_array: Callable[..., np.ndarray] = np.lib.format.read_array


def read_npz(path: Path) -> dict[str, Split]:
    """Read an npz file with x_train, y_train, x_test and y_test; a pixel k is k/256."""
    with open_unpacked(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if not set(KEYS) <= set(members):
                raise DataError(
                    f"{path}: {', '.join(members) or 'no arrays'}; expected {', '.join(KEYS)}"
                )
            arrays = {key: _read_member(f"{path}: {key}", file, members[key]) for key in KEYS}
        except (
            zipfile.BadZipFile,
            struct.error,
            ValueError,  # an offset before the beginning, say
            OverflowError,
            NotImplementedError,  # of zipfile, for a version of the format that it does not know
        ) as error:
            raise DataError(f"{path}: damaged file ({error}); fetch it again") from error
    training = make_split(arrays["x_train"], arrays["y_train"], 256, f"{path}: x_train")
    test = make_split(arrays["x_test"], arrays["y_test"], 256, f"{path}: x_test")
    return {**divide(training, str(path)), "eval": test}


def _read_member(where: str, file: BinaryIO, info: zipfile.ZipInfo) -> np.ndarray:
    """Read x, uint8 [N, 28, 28], or y, whole numbers [N]."""
    content = io.BytesIO(_unpack(where, file, info))
    try:
        array = _read_array(content)  # which unpickles nothing, by default
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


def _unpack(where: str, file: BinaryIO, info: zipfile.ZipInfo) -> bytes:
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
