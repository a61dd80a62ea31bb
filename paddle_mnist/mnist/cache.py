"""The cache: what a source holds, as .npy files that are mapped into memory, not read.

One folder a source, named by the hash of its files, so a changed file has another folder. It is
built under a temporary name and renamed, by one process at a time; a damaged one is built anew.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Optional

import numpy as np
from filelock import FileLock

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.arrays import MNIST_HASH, MODES, Data, Split, data_hash
from paddle_mnist.mnist.readers import read_class_names
from paddle_mnist.mnist.sources import DIGITS, Source, find_source, wanted

log = logging.getLogger("paddle_mnist")

VERSION = 2  # of the cache's form and of how splits are made; another one is another folder


def cache_folder() -> Path:
    """`~/.cache/paddle_mnist`, or where PADDLE_MNIST_CACHE says."""
    moved = os.environ.get("PADDLE_MNIST_CACHE")
    return Path(moved).expanduser() if moved else Path.home() / ".cache" / "paddle_mnist"


def open_data(data: str = "auto") -> Data:
    """The splits of the source that `data` names (see `find_source`), checked, from the cache.

    `PATH#0-4` takes only the images of these digits, of every split.
    Raises DataError, naming file, place, found and expected.
    """
    _, digits = wanted(data)
    found = _open_source(find_source(data))
    return found.only(digits) if digits else found


def _open_source(source: Source) -> Data:
    if source is DIGITS:  # quicker made than cached
        splits = source.read()
        return Data(DIGITS.name, str(source), source.location, data_hash(splits), splits)
    try:
        key = _source_hash(source)
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}; expected a readable file") from error
    folder = cache_folder() / f"v{VERSION}-{key[:32]}"
    splits, digest = _open(folder) or _build(folder, source)
    if digest == MNIST_HASH:
        name = "mnist"
    elif source.name in ("mnist", DIGITS.name):  # a file's or folder's name proves nothing
        name = f"other files ({source})"
    else:
        name = source.name
    names = read_class_names(source.classes_file)
    return Data(name, str(source), source.location, digest, splits, names)


def _source_hash(source: Source) -> str:
    digest = hashlib.sha256()
    for path in source.paths:
        digest.update(f"{path.name} {path.stat().st_size};".encode())
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _open(folder: Path, say: bool = False) -> Optional[tuple[dict[str, Split], str]]:
    """The splits in a cache folder and their data hash; None if there is none that is whole."""
    if not folder.exists():
        return None
    try:
        index = json.loads((folder / "index.json").read_text())
        if index["source"] != folder.name:
            raise ValueError("it was made from another source")
        splits = {}
        for mode in MODES:
            arrays = []
            for part in ("images", "labels"):
                array = np.load(folder / f"{mode}_{part}.npy", mmap_mode="r", allow_pickle=False)
                if zlib.crc32(array) != index["crc32"][mode][part]:
                    raise ValueError(f"{mode}_{part}.npy does not match its checksum")
                arrays.append(array)
            splits[mode] = Split(*arrays, index["divisor"])
        return splits, index["hash"]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        if say:
            log.warning("cache %s is damaged (%s); building it anew", folder, error)
        return None


def _build(folder: Path, source: Source) -> tuple[dict[str, Split], str]:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_suffix(".lock"))
        with lock:
            built = _open(folder, say=True)  # another process may have built it meanwhile
            if not built:
                _write(folder, source.read())
                built = _open(folder)
            return built
    except OSError as error:
        log.warning(
            "cannot write the cache in %s (%s); reading %s anew each time. "
            "PADDLE_MNIST_CACHE names another folder.",
            *(folder.parent, error.strerror or error, source),
        )
        splits = source.read()
        return splits, data_hash(splits)


def _write(folder: Path, splits: dict[str, Split]) -> None:
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        checksums = {}
        for mode, split in splits.items():
            np.save(part / f"{mode}_images.npy", split.images)
            np.save(part / f"{mode}_labels.npy", split.labels)
            checksums[mode] = {
                "images": zlib.crc32(np.ascontiguousarray(split.images)),
                "labels": zlib.crc32(np.ascontiguousarray(split.labels)),
            }
        divisor = splits["train"].divisor
        index = {
            "source": folder.name,
            "hash": data_hash(splits),
            "divisor": divisor,
            "crc32": checksums,
        }
        (part / "index.json").write_text(json.dumps(index))
        if folder.exists():  # a damaged one: out of the way first, for a rename to be possible
            os.rename(folder, part / "damaged")
        part.chmod(0o755)  # mkdtemp's 0700 would shut out others who share the cache
        os.rename(part, folder)
        shutil.rmtree(folder / "damaged", ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)
