"""Sources of images: finds what `data: auto | digits | PATH` names, and downloads MNIST."""

import hashlib
import http.client
import logging
import os
import re
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from paddle_mnist.errors import DataError, OutputError
from paddle_mnist.mnist.json_reader import read_json
from paddle_mnist.mnist.readers import (
    CSV_COLUMNS,
    IDX_FILES,
    count_columns,
    read_csv,
    read_embedded_digits,
    read_idx,
    read_npz,
)
from paddle_mnist.mnist.splits import Split
from paddle_mnist.system.files import in_home, write_atomically
from paddle_mnist.system.lock import locked

log = logging.getLogger("paddle_mnist")

WORK = Path("work")  # the tutorial's folder, relative to the current directory
JSON_FILE = "mnist.json.gz"
NPZ_FILE = "mnist.npz"
CSV_FILES = ("mnist_train.csv", "train.csv")  # with labels; the test file is beside it
FORMATS = f"{JSON_FILE}, the four IDX files, {NPZ_FILE} of Keras, or CSV files as Kaggle has them"
# Of files that hold all splits, by suffix; CSV files are in `_csv`.
READERS: dict[str, Callable[[Path], dict[str, Split]]] = {".json": read_json, ".npz": read_npz}
# IDX files by any of the names that mirrors give them, such as train-images.idx3-ubyte.
_IDX_NAME = re.compile(r"(train|t10k)[-_.](images|labels)[-_.](idx[13])[-_.]ubyte(\.gz)?", re.I)
TIMEOUT = 5  # seconds without an answer from the server

# The server of paddle.vision.datasets.MNIST, and the MD5 it expects of each file. Paddle's own
# download tries three times without a timeout and writes straight to the final name.
MNIST_URL = "https://dataset.bj.bcebos.com/mnist/"
MD5 = """
    f68b3c2dcbeaaa9fbdd348bbdeb94873 d53e105ee54ea40749a09fcbcd1e9432
    9fb629c4189551a2d022fa330f9573f3 ec29112dd5afa0611ce80d1b7f02629c
""".split()
MNIST_MD5 = dict(zip(IDX_FILES, MD5))
MAX_DOWNLOAD = 1 << 26  # bytes of a file; the largest of them has 9.9e6


@dataclass(frozen=True)
class Source:
    """The origin of images, and the function that reads them.

    path: of the file or folder; None for the embedded digits. files: those that are read.
    note: a remark for the user. digits: the selected ones; empty for all.
    """

    name: str
    path: Optional[Path]
    files: tuple[Path, ...]
    read: Callable[[], dict[str, Split]]
    note: str = ""
    digits: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.path or ''}{self.note}"


DIGITS_SOURCE = Source(
    "digits", None, (), read_embedded_digits, "scikit-learn's digits (embedded; not MNIST)"
)


def paddle_cache() -> Path:
    """Return the folder in which paddle.vision.datasets.MNIST keeps its files."""
    return in_home("~/.cache/paddle/dataset/mnist")


def find_source(data: str = "auto") -> Source:
    """Find the source that `data` names. Raises DataError if it names none.

    data: "auto", "digits", or the path of a file or folder; it may end with the digits to select,
        as in `work/mnist.json.gz#0-4` or `PATH#1,3,5-7`.

    "auto" stands for the environment variable PADDLE_MNIST_DATA, if it is set. Otherwise it tries
    the folder `work/`, IDX files in Paddle's cache, a download, and last the embedded digits, with
    a warning. In a folder it tries mnist.json.gz, the four IDX files, Keras's mnist.npz, and
    Kaggle's mnist_train.csv and train.csv. A path never falls back to another source; "auto" skips
    CSV files in `work/` that cannot be read, with a warning.
    """
    data, digits = _split_selection(data)
    if data == "auto":
        data, default_digits = _split_selection(os.environ.get("PADDLE_MNIST_DATA") or "auto")
        digits = digits or default_digits
    if data == "auto":
        source = _in_work() or _idx_in(paddle_cache()) or _downloaded() or DIGITS_SOURCE
    elif data == "digits":
        source = DIGITS_SOURCE
    else:
        try:
            source = _source_at(Path(data).expanduser())
        except (OSError, RuntimeError, ValueError) as error:  # too long, ~nobody, a NUL in it
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"{data}: {reason}; expected a file or folder") from error
    return replace(source, digits=digits) if digits else source


def _split_selection(data: str) -> tuple[str, tuple[int, ...]]:
    """Split `PATH#0-2,5` into PATH and the digits, unless a file has exactly that name.

    Raises DataError for an empty selection.
    """
    match = re.fullmatch(r"(.*)#((?:\d(?:-\d)?)(?:,\d(?:-\d)?)*)", data, re.DOTALL)
    if not match or os.path.exists(data):  # False also for an invalid path
        return data, ()
    digits: set[int] = set()
    for part in match[2].split(","):
        first, _, last = part.partition("-")
        digits |= set(range(int(first), int(last or first) + 1))
    if not digits:
        raise DataError(
            f"{data}: no digits between {match[2]}; expected a selection such as #0-4 or #1,3,5"
        )
    return match[1], tuple(sorted(digits))


def _source_at(path: Path) -> Source:
    if path.is_dir():
        if source := _in_folder(path):
            return source
        raise DataError(f"{path}: {_contents(path)}; expected {FORMATS}")
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; expected auto, digits, or one of those")
    kind = Path(path.name.lower().removesuffix(".gz")).suffix
    if kind == ".csv":
        return _csv(path)
    if kind in READERS:
        return Source(path.name, path, (path,), lambda: READERS[kind](path))
    if _idx_name(path):
        raise DataError(f"{path}: one of four IDX files; expected their folder, {path.parent}")
    raise DataError(
        f"{path}: unknown suffix; expected {FORMATS}; rename it to end in .json.gz, .npz, .csv "
        "or .csv.gz"
    )


def _contents(folder: Path) -> str:
    """Return the names of the first files in a folder."""
    names = sorted(path.name for path in folder.glob("*"))
    return ", ".join(names[:9]) + (f" and {len(names) - 9} more" if names[9:] else "") or "no files"


def _in_work() -> Optional[Source]:
    """Return the source in `work/`, if any; None, with a warning, if it cannot be read."""
    try:
        return _in_folder(WORK)
    except (DataError, OSError) as error:  # a train.csv may be an unrelated file
        log.warning("%s; looking for MNIST outside of %s/", error, WORK)
        return None


def _in_folder(folder: Path) -> Optional[Source]:
    """Return the first source that a folder holds; None if it holds none."""
    if (folder / JSON_FILE).exists():
        return _source_at(folder / JSON_FILE)
    if source := _idx_in(folder):
        return source
    if (folder / NPZ_FILE).exists():
        return _source_at(folder / NPZ_FILE)
    for name in CSV_FILES:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file() and count_columns(path) == CSV_COLUMNS:
                return _csv(path)
    return None


def _csv(path: Path) -> Source:
    train = path.with_name(path.name.replace("test", "train"))
    if train != path and train.is_file():
        raise DataError(f"{path}: the test images; expected the training file, {train}")
    beside = path.with_name(path.name.replace("train", "test"))
    # Kaggle's has no labels.
    has_test = beside != path and beside.is_file() and count_columns(beside) != CSV_COLUMNS - 1
    test = beside if has_test else None
    return Source(
        path.name,
        path,
        (path, test) if test else (path,),
        lambda: read_csv(path, test),
        "" if test else " (no test file with labels: the eval split is part of it)",
    )


def _idx_in(folder: Path) -> Optional[Source]:
    """Return the four IDX files of a folder; None if one is missing.

    The usual names take precedence. If a folder has the name of a file, as in Kaggle's archives,
    the file is in it.
    """
    paths_by_name: dict[str, Path] = {}
    paths = sorted([*folder.glob("*"), *folder.glob("*ubyte/*")])
    for path in sorted(paths, key=lambda path: path.name.removesuffix(".gz") not in IDX_FILES):
        if path.is_file() and (name := _idx_name(path)):
            paths_by_name.setdefault(name, path)
    if len(paths_by_name) < len(IDX_FILES):
        return None
    files = tuple(paths_by_name[name] for name in IDX_FILES)
    return Source(folder.resolve().name, folder, files, lambda: read_idx(files))


def _idx_name(path: Path) -> Optional[str]:
    """Return which of IDX_FILES a file is, by its name, or None."""
    match = _IDX_NAME.fullmatch(path.name)
    name = match and "{}-{}-{}-ubyte".format(*match.groups()[:3]).lower()
    return name if name in IDX_FILES else None


def _downloaded() -> Optional[Source]:
    """Download the IDX files that Paddle's cache lacks; return None, with a warning, on failure."""
    folder = paddle_cache()
    base_url = (os.environ.get("PADDLE_MNIST_URL") or MNIST_URL).rstrip("/")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / ".paddle_mnist.lock"):  # one process downloads, the others wait
            for name, md5 in MNIST_MD5.items():
                path = folder / f"{name}.gz"
                if not path.exists():
                    _fetch(f"{base_url}/{name}.gz", path, md5)
        return _idx_in(folder)
    except (DataError, OutputError, OSError) as error:
        log.warning(
            "MNIST was not found (in %s/ are %s; expected %s; no IDX files are in %s) and cannot "
            "be downloaded (%s). Using %s instead: accuracies are not MNIST's.",
            WORK,
            _contents(WORK),
            FORMATS,
            folder,
            error,
            DIGITS_SOURCE,
        )
        return None


def _fetch(url: str, path: Path, md5: str) -> None:
    log.info("downloading %s", url)
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            data = response.read(MAX_DOWNLOAD)
    except (ValueError, http.client.HTTPException) as error:
        raise DataError(f"{url}: {error!r}") from error
    digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if digest != md5:
        raise DataError(f"{url}: MD5 {digest}; expected {md5}")
    write_atomically(path, data)
