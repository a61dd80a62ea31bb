"""Sources of images: finds what `data: auto | digits | PATH` names, and downloads MNIST."""

import contextlib
import hashlib
import http.client
import logging
import os
import queue
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from paddle_mnist.errors import DataError, OutputError
from paddle_mnist.mnist.arrays import Split
from paddle_mnist.mnist.csv_reader import find_test_file, find_training_file, read_csv
from paddle_mnist.mnist.embedded_digits import read_embedded_digits
from paddle_mnist.mnist.file_kinds import SOURCES, is_csv, is_npz, kind_of, read_head
from paddle_mnist.mnist.folders import (
    JSON_FILE,
    NPZ_FILE,
    almost_right,
    csv_file,
    idx_files,
    idx_name,
)
from paddle_mnist.mnist.json_reader import read_json
from paddle_mnist.mnist.npz_reader import read_npz
from paddle_mnist.mnist.readers import IDX_FILES, read_idx
from paddle_mnist.system.files import in_home, write_atomically
from paddle_mnist.system.locks import locked

log = logging.getLogger("paddle_mnist")

WORK = Path("work")  # the tutorial's folder, relative to the current directory
CLASSES_FILE = "classes.txt"
CONNECT_SECONDS = 5

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
    """The files of a source and the function that reads them.

    place: the file or folder that names the source. note: what a user should know of it.
    """

    name: str
    paths: tuple[Path, ...]
    read: Callable[[], dict[str, Split]]
    place: Optional[Path] = None
    note: str = ""

    def __str__(self) -> str:
        if not self.place:
            return "scikit-learn's digits (embedded; not MNIST)"
        return f"{self.place}{self.note}"

    @property
    def location(self) -> str:
        """The value of `data` that names this source from any current directory."""
        return str(self.place.resolve()) if self.place else self.name

    @property
    def classes_file(self) -> Optional[Path]:
        """The path where names of the classes may be found: beside the files."""
        if not self.place:
            return None
        return (self.place if self.place.is_dir() else self.place.parent) / CLASSES_FILE


DIGITS_SOURCE = Source("digits", (), read_embedded_digits)


def paddle_cache() -> Path:
    """Return the folder in which paddle.vision.datasets.MNIST keeps its files."""
    return in_home("~/.cache/paddle/dataset/mnist")


def find_source(data: str = "auto") -> Source:
    """Find the source that `data` names. Raises DataError if it names none.

    data: "auto", "digits", or the path of a file or folder; it may end with the digits to select,
        as in `work/mnist.json.gz#0-4` (see `open_data`).

    "auto" stands for the environment variable PADDLE_MNIST_DATA, if it is set. Else these are
    tried: what `work/` holds, IDX files in Paddle's cache, a download, and last the embedded
    digits, with a warning. In a folder these are tried: mnist.json.gz, the four IDX files,
    mnist.npz of Keras, mnist_train.csv and train.csv of Kaggle. A path never falls back to another
    source.
    """
    data, _ = parse_data_option(data)
    if data == "digits":
        return DIGITS_SOURCE
    if data != "auto":
        try:
            return _source_at(Path(data).expanduser())
        except (OSError, RuntimeError, ValueError) as error:  # too long, ~nobody, a NUL in it
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"{data}: {reason}; expected a file or folder") from error
    source = _in_folder(WORK) or _idx_in(paddle_cache())
    if source:
        return source
    try:
        return _download(os.environ.get("PADDLE_MNIST_URL") or MNIST_URL, paddle_cache())
    except (DataError, OutputError, OSError) as error:
        log.warning(
            "MNIST was not found (%s/%s, IDX files in %s/ or %s) and cannot be downloaded (%s). "
            "%sUsing %s instead: accuracies are not MNIST's.",
            WORK,
            JSON_FILE,
            WORK,
            paddle_cache(),
            error,
            f"In {WORK}/: {almost}. " if (almost := almost_right(WORK)) else "",
            DIGITS_SOURCE,
        )
        return DIGITS_SOURCE


def parse_data_option(data: str) -> tuple[str, tuple[int, ...]]:
    """Return the source that `data` names, auto resolved by the environment, and selected digits.

    `PATH#0-4` and `PATH#1,3,5-7` select some of the digits; an empty tuple means all.
    Raises DataError for an empty selection.
    """
    source, selection = _split_selection(data)
    if source == "auto":
        from_environment = os.environ.get("PADDLE_MNIST_DATA") or "auto"
        source, default_selection = _split_selection(from_environment)
        selection = selection or default_selection
    digits: set[int] = set()
    for part in filter(None, selection.split(",")):
        first, _, last = part.partition("-")
        digits |= set(range(int(first), int(last or first) + 1))
    if selection and not digits:
        raise DataError(f"{data}: no digits between {selection}; expected, say, #0-4 or #1,3,5")
    return source, tuple(sorted(digits))


def _split_selection(data: str) -> tuple[str, str]:
    """Split `PATH#0-4` into PATH and 0-4, unless there is a file of that very name."""
    match = re.fullmatch(r"(.*)#((?:\d(?:-\d)?)(?:,\d(?:-\d)?)*)", data, re.DOTALL)
    return (match[1], match[2]) if match and not Path(data).exists() else (data, "")


def _source_at(path: Path) -> Source:
    if path.is_dir():
        source = _in_folder(path)
        if not source:
            almost = almost_right(path)
            raise DataError(
                f"{path}: neither {JSON_FILE} nor the four IDX files nor {NPZ_FILE} nor CSV files "
                f"in it{f' ({almost})' if almost else ''}; expected one of those, the IDX files "
                f"plain or .gz: {', '.join(IDX_FILES)}"
            )
        return source
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; expected auto, digits, or one of those")
    if idx_name(path):
        raise DataError(f"{path}: one of four IDX files; give the folder, {path.parent}")
    return _source_of_file(path)


def _source_of_file(path: Path) -> Source:
    head = read_head(path)
    if is_npz(path, head):
        return _npz(path)
    if is_csv(path, head):
        return _csv(path)
    if kind := kind_of(head):
        raise DataError(f"{path}: {kind.name}; expected {SOURCES}; {kind.remedy}")
    return _json(path)


def _in_folder(folder: Path) -> Optional[Source]:
    """Return the first source that a folder holds; None if it holds none."""
    if (folder / JSON_FILE).exists():
        return _json(folder / JSON_FILE)
    if source := _idx_in(folder):
        return source
    if (folder / NPZ_FILE).exists():
        return _npz(folder / NPZ_FILE)
    path = csv_file(folder)
    return _csv(path) if path else None


def _json(path: Path) -> Source:
    return Source(path.name, (path,), lambda: read_json(path), place=path)


def _npz(path: Path) -> Source:
    return Source(path.name, (path,), lambda: read_npz(path), place=path)


def _csv(path: Path) -> Source:
    if train := find_training_file(path):
        raise DataError(f"{path}: the test images; expected the training file, {train}")
    test = find_test_file(path)
    return Source(
        path.name,
        (path, test) if test else (path,),
        lambda: read_csv(path, test),
        place=path,
        note="" if test else " (no test file with labels: the eval split is part of it)",
    )


def _idx_in(folder: Path) -> Optional[Source]:
    files = idx_files(folder)
    if len(files) < len(IDX_FILES):
        return None
    paths = tuple(files.values())
    return Source(folder.resolve().name, paths, lambda: read_idx(paths), place=folder)


def _download(base_url: str, folder: Path) -> Source:
    """Download those of the four files that are missing; one process does, the others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".paddle_mnist.lock"):
        for name, md5 in MNIST_MD5.items():
            path = folder / f"{name}.gz"
            if not path.exists():
                _fetch(base_url.rstrip("/") + f"/{name}.gz", path, md5)
    source = _idx_in(folder)
    if not source:
        raise DataError(f"{folder}: downloaded files are gone already; run the same command again")
    return source


def _fetch(url: str, path: Path, md5: str) -> None:
    log.info("downloading %s", url)
    try:
        with _connect(url) as response:
            data = response.read(MAX_DOWNLOAD)
    except http.client.HTTPException as error:
        raise DataError(f"{url}: the connection broke ({error!r})") from error
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if found != md5:
        raise DataError(f"{url}: MD5 {found}; expected {md5}")
    write_atomically(path, data)


def _connect(url: str) -> Any:
    """Return the open response of `url`; DataError without a connection after 5 seconds.

    In a thread, because the lookup of a host name takes no time limit.
    """
    results: queue.Queue[Any] = queue.Queue()

    def request() -> None:
        try:
            results.put(urllib.request.urlopen(url, timeout=CONNECT_SECONDS))
        except (OSError, ValueError, http.client.HTTPException) as error:
            results.put(error)

    threading.Thread(target=request, daemon=True).start()
    with contextlib.suppress(queue.Empty):
        result = results.get(timeout=CONNECT_SECONDS)
        if not isinstance(result, Exception):
            return result
        raise DataError(f"{url}: {getattr(result, 'reason', result)}") from result
    raise DataError(f"{url}: no connection within {CONNECT_SECONDS} s")
