"""Names the kinds of files that hold images but are not read here, and how to convert them."""

import re
from pathlib import Path
from typing import NamedTuple, Optional

from paddle_mnist.mnist.readers import open_unpacked

HEAD = 512  # bytes at a file's beginning, unpacked, that tell its kind
SOURCES = "mnist.json.gz, the four IDX files, mnist.npz of Keras, or CSV files as Kaggle has them"

_SAVE = "numpy.savez('mnist.npz', x_train=..., y_train=..., x_test=..., y_test=...)"


class Kind(NamedTuple):
    """A kind of file. name: with its article. remedy: what to do to get one that can be read."""

    name: str
    remedy: str


def _convert(reader: str) -> str:
    return f"read it with {reader} and save the arrays with {_SAVE}"


_UNPACK = "unpack it and give the folder"
PICTURE = Kind(
    "a picture",
    f"read the pictures with PIL.Image, 28x28 grey pixels each, and save them with {_SAVE}",
)
_KINDS = (  # a pattern of the first bytes, and what they are of
    (rb"PK(\x03\x04|\x05\x06)", Kind("a zip archive", _UNPACK)),
    (rb".{257}ustar", Kind("a tar archive", _UNPACK)),
    (rb"7z\xbc\xaf|Rar!|BZh\d|\xfd7zXZ|\x28\xb5\x2f\xfd", Kind("a packed file", _UNPACK)),
    (rb"PAR1", Kind("a Parquet file", _convert("pandas.read_parquet"))),
    (rb"\x89HDF\r\n", Kind("an HDF5 file", _convert("h5py.File"))),
    (rb"MATLAB ", Kind("a MATLAB file", _convert("scipy.io.loadmat"))),
    (rb"\x93NUMPY", Kind("one NumPy array", _convert("numpy.load"))),
    (
        rb"\x80[\x01-\x05]|\(*cnumpy[\w.]+\n|\(+[dl]p?\d*\n",
        Kind("a pickle", _convert("pickle.load, which may run any code in it,")),
    ),
    (rb"\s*(%|@relation)", Kind("an ARFF file", _convert("scipy.io.arff.loadarff"))),
    (rb"\x89PNG|\xff\xd8\xff|GIF8|BM.{4}\0{4}", PICTURE),
    (rb"\0\0\x08[\x01\x03]", Kind("an IDX file", "give the folder with all four")),
    (rb"\xff\xfe|\xfe\xff", Kind("text in UTF-16", "save it as UTF-8")),
    (rb"\s*<(!doctype|html|\?xml)", Kind("a web page", "download the file itself")),
    (rb"version https://git-lfs", Kind("a pointer of Git LFS", "run `git lfs pull`")),
)
_CSV_START = re.compile(rb'(\xef\xbb\xbf)?\s*("?label"?|\d+)\s*,', re.IGNORECASE)


def read_head(path: Path) -> bytes:
    """Return a file's first bytes, unpacked if it is gzip. Raises DataError."""
    with open_unpacked(path) as stream:
        return stream.read(HEAD)


def kind_of(head: bytes) -> Optional[Kind]:
    """Return the kind of a file that cannot be read here, by its head; None for others."""
    for pattern, kind in _KINDS:
        if re.match(pattern, head, re.DOTALL | re.IGNORECASE):
            return kind
    return None


def is_npz(path: Path, head: bytes) -> bool:
    """Return whether a file is a zip archive of NumPy arrays."""
    first_name = head[30 : 30 + int.from_bytes(head[26:28], "little")]
    return head.startswith(b"PK") and (path.suffix == ".npz" or first_name.endswith(b".npy"))


def is_csv(path: Path, head: bytes) -> bool:
    """Return whether a file holds comma-separated values, by its name or its first line."""
    if _CSV_START.match(head):
        return True
    return path.name.removesuffix(".gz").lower().endswith(".csv") and kind_of(head) is None
