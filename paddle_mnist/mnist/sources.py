"""Where images come from: what `data: auto | digits | PATH` names, and the download."""

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
from paddle_mnist.mnist.readers import IDX_FILES, read_digits, read_idx, read_json

log = logging.getLogger("paddle_mnist")

WORK = Path("work")  # the tutorial's folder, relative to the current directory
JSON_FILE = "mnist.json.gz"
CLASSES_FILE = "classes.txt"
CONNECT_SECONDS = 5

# Where paddle.vision.datasets.MNIST fetches from, and the MD5 it expects of each file. It tries
# three times without a timeout and writes straight to the final name, so we fetch ourselves.
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
        """What `find_source` takes to find it again, from any folder."""
        return str(self._path.resolve()) if self.paths else self.name

    @property
    def classes_file(self) -> Optional[Path]:
        """Where the names of the classes may be: beside the files."""
        return self.paths[0].parent / CLASSES_FILE if self.paths else None

    @property
    def _path(self) -> Path:
        """The file, or the folder of several."""
        return self.paths[0] if len(self.paths) == 1 else self.paths[0].parent


DIGITS = Source("digits", (), read_digits)


def paddle_cache() -> Path:
    """The folder paddle.vision.datasets.MNIST keeps its files in."""
    return Path.home() / ".cache" / "paddle" / "dataset" / "mnist"


def find_source(data: str = "auto") -> Source:
    """The source that `data` names. Raises DataError when it names none.

    `data` may end with the digits to take, as in `work/mnist.json.gz#0-4`; see `open_data`.
    A given `data` goes before the environment variable PADDLE_MNIST_DATA, and that before
    "auto": work/mnist.json.gz, IDX files in work/ or in Paddle's cache, a download, and at last
    the embedded digits, which is said aloud. A path never falls back to anything else.
    """
    data, _ = wanted(data)
    if data == "digits":
        return DIGITS
    if data != "auto":
        try:
            return _named(Path(data).expanduser())
        except (OSError, RuntimeError, ValueError) as error:  # too long, ~nobody, a NUL in it
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"{data}: {reason}; expected a file or folder") from error
    found = _json_in(WORK) or _idx_in(WORK) or _idx_in(paddle_cache())
    if found:
        return found
    try:
        return _download(os.environ.get("PADDLE_MNIST_URL") or MNIST_URL, paddle_cache())
    except (DataError, OSError) as error:
        log.warning(
            "MNIST is not here (%s/%s, IDX files in %s/ or %s) and cannot be fetched (%s). "
            "Using %s instead: accuracies are not MNIST's.",
            *(WORK, JSON_FILE, WORK, paddle_cache(), error, DIGITS),
        )
        return DIGITS


def wanted(data: str) -> tuple[str, tuple[int, ...]]:
    """The source that `data` names, auto resolved by the environment, and the digits to take of it.

    `PATH#0-4` and `PATH#1,3,5-7` are some of the digits; without them, all: an empty tuple.
    Raises DataError for a selection that is none.
    """
    where, selection = _cut(data)
    if where == "auto":
        where, more = _cut(os.environ.get("PADDLE_MNIST_DATA") or "auto")
        selection = selection or more
    digits: set[int] = set()
    for part in filter(None, selection.split(",")):
        first, _, last = part.partition("-")
        digits |= set(range(int(first), int(last or first) + 1))
    if selection and not digits:
        raise DataError(f"{data}: no digits between {selection}; expected, say, #0-4 or #1,3,5")
    return where, tuple(sorted(digits))


def _cut(data: str) -> tuple[str, str]:
    found = re.fullmatch(r"(.*)#((?:\d(?:-\d)?)(?:,\d(?:-\d)?)*)", data, re.DOTALL)
    return (found[1], found[2]) if found and not Path(data).exists() else (data, "")


def _named(path: Path) -> Source:
    if path.is_dir():
        found = _json_in(path) or _idx_in(path)
        if not found:
            raise DataError(
                f"{path}: neither {JSON_FILE} nor the four IDX files in it; expected "
                f"{JSON_FILE}, or {', '.join(IDX_FILES)}, each plain or .gz"
            )
        return found
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
        either = [p for p in (folder / f"{name}.gz", folder / name) if p.exists()]
        if not either:
            return None
        paths.append(either[0])
    return Source(folder.resolve().name, tuple(paths), lambda: read_idx(tuple(paths)))


def _download(base_url: str, folder: Path) -> Source:
    """Fetch what is missing of the four files; one process at a time does, the others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".paddle_mnist.lock"):
        for name, md5 in MNIST_MD5.items():
            path = folder / f"{name}.gz"
            if not path.exists():
                _fetch(base_url.rstrip("/") + f"/{name}.gz", path, md5)
    return _idx_in(folder)


def _fetch(url: str, path: Path, md5: str) -> None:
    log.info("fetching %s", url)
    part = path.with_name(f"{path.name}.part")
    try:
        with _connect(url) as answer, open(part, "wb") as file:
            found = hashlib.md5(usedforsecurity=False)
            while block := answer.read(1 << 20):
                found.update(block)
                file.write(block)
        if found.hexdigest() != md5:
            raise DataError(f"{url}: MD5 {found.hexdigest()}; expected {md5}")
        os.replace(part, path)
    except http.client.HTTPException as error:
        raise DataError(f"{url}: broken off ({error!r})") from error
    finally:
        part.unlink(missing_ok=True)


def _connect(url: str):
    """An open answer to `url`, or DataError when no connection stands after 5 seconds.

    In a thread, because the look-up of a host name cannot be given a time limit.
    """
    answer: queue.Queue = queue.Queue()

    def ask():
        try:
            answer.put(urllib.request.urlopen(url, timeout=CONNECT_SECONDS))
        except (OSError, ValueError, http.client.HTTPException) as error:
            answer.put(error)

    threading.Thread(target=ask, daemon=True).start()
    with contextlib.suppress(queue.Empty):
        got = answer.get(timeout=CONNECT_SECONDS)
        if not isinstance(got, Exception):
            return got
        raise DataError(f"{url}: {getattr(got, 'reason', got)}") from got
    raise DataError(f"{url}: no connection within {CONNECT_SECONDS} s")
