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
from typing import Optional

from filelock import FileLock

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.arrays import Split
from paddle_mnist.mnist.embedded_digits import read_digits
from paddle_mnist.mnist.json_reader import read_json
from paddle_mnist.mnist.readers import IDX_FILES, read_idx
from paddle_mnist.system.files import in_home

log = logging.getLogger("paddle_mnist")

WORK = Path("work")  # the tutorial's folder, relative to the current directory
JSON_FILE = "mnist.json.gz"
CLASSES_FILE = "classes.txt"
CONNECT_SECONDS = 5

# The server of paddle.vision.datasets.MNIST, and the MD5 it expects of each file. Paddle's own
# download tries three times without a timeout and writes straight to the final name.
MNIST_URL = "https://dataset.bj.bcebos.com/mnist/"
MNIST_MD5 = dict(
    zip(
        IDX_FILES,
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    )
)


@dataclass(frozen=True)
class Source:
    """The files of a source and the function that reads them."""

    name: str
    paths: tuple[Path, ...]
    read: Callable[[], dict[str, Split]]

    def __str__(self) -> str:
        if not self.paths:
            return "scikit-learn's digits (embedded; not MNIST)"
        return str(self._path)

    @property
    def location(self) -> str:
        """The value of `data` that names this source from any current directory."""
        return str(self._path.resolve()) if self.paths else self.name

    @property
    def classes_file(self) -> Optional[Path]:
        """The path where names of the classes may be found: beside the files."""
        return self.paths[0].parent / CLASSES_FILE if self.paths else None

    @property
    def _path(self) -> Path:
        """The file, or the folder if there are several."""
        return self.paths[0] if len(self.paths) == 1 else self.paths[0].parent


DIGITS = Source("digits", (), read_digits)


def paddle_cache() -> Path:
    """Return the folder in which paddle.vision.datasets.MNIST keeps its files."""
    return in_home("~/.cache/paddle/dataset/mnist")


def find_source(data: str = "auto") -> Source:
    """Find the source that `data` names. Raises DataError if it names none.

    data: "auto", "digits", or the path of a file or folder; it may end with the digits to select,
        as in `work/mnist.json.gz#0-4` (see `open_data`).

    "auto" stands for the environment variable PADDLE_MNIST_DATA, if it is set. Else these are
    tried: work/mnist.json.gz, IDX files in work/ or in Paddle's cache, a download, and last the
    embedded digits, with a warning. A path never falls back to another source.
    """
    data, _ = parse_data_option(data)
    if data == "digits":
        return DIGITS
    if data != "auto":
        try:
            return _source_at(Path(data).expanduser())
        except (OSError, RuntimeError, ValueError) as error:  # too long, ~nobody, a NUL in it
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"{data}: {reason}; expected a file or folder") from error
    source = _json_in(WORK) or _idx_in(WORK) or _idx_in(paddle_cache())
    if source:
        return source
    try:
        return _download(os.environ.get("PADDLE_MNIST_URL") or MNIST_URL, paddle_cache())
    except (DataError, OSError) as error:
        log.warning(
            "MNIST was not found (%s/%s, IDX files in %s/ or %s) and cannot be downloaded (%s). "
            "Using %s instead: accuracies are not MNIST's.",
            WORK,
            JSON_FILE,
            WORK,
            paddle_cache(),
            error,
            DIGITS,
        )
        return DIGITS


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
        source = _json_in(path) or _idx_in(path)
        if not source:
            raise DataError(
                f"{path}: neither {JSON_FILE} nor the four IDX files in it; expected "
                f"{JSON_FILE}, or {', '.join(IDX_FILES)}, each plain or .gz"
            )
        return source
    if path.name.removesuffix(".gz") in IDX_FILES:
        raise DataError(f"{path}: one of four IDX files; give the folder, {path.parent}")
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; expected auto, digits, or one of those")
    return Source(path.name, (path,), lambda: read_json(path))


def _json_in(folder: Path) -> Optional[Source]:
    path = folder / JSON_FILE
    return Source(path.name, (path,), lambda: read_json(path)) if path.exists() else None


def _idx_in(folder: Path) -> Optional[Source]:
    paths = []
    for name in IDX_FILES:
        existing = [path for path in (folder / f"{name}.gz", folder / name) if path.exists()]
        if not existing:
            return None
        paths.append(existing[0])
    return Source(folder.resolve().name, tuple(paths), lambda: read_idx(tuple(paths)))


def _download(base_url: str, folder: Path) -> Source:
    """Download those of the four files that are missing; one process does, the others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".paddle_mnist.lock"):
        for name, md5 in MNIST_MD5.items():
            path = folder / f"{name}.gz"
            if not path.exists():
                _fetch(base_url.rstrip("/") + f"/{name}.gz", path, md5)
    return _idx_in(folder)


def _fetch(url: str, path: Path, md5: str) -> None:
    log.info("downloading %s", url)
    part = path.with_name(f"{path.name}.part")
    try:
        with _connect(url) as response, open(part, "wb") as file:
            digest = hashlib.md5(usedforsecurity=False)
            while block := response.read(1 << 20):
                digest.update(block)
                file.write(block)
        if digest.hexdigest() != md5:
            raise DataError(f"{url}: MD5 {digest.hexdigest()}; expected {md5}")
        os.replace(part, path)
    except http.client.HTTPException as error:
        raise DataError(f"{url}: the connection broke ({error!r})") from error
    finally:
        part.unlink(missing_ok=True)


def _connect(url: str):
    """Return the open response of `url`; DataError without a connection after 5 seconds.

    In a thread, because the lookup of a host name takes no time limit.
    """
    results: queue.Queue = queue.Queue()

    def request():
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
