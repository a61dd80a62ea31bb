"""Opens a source of images through a cache of .npy files, which are memory-mapped.

Each source has a folder named after the hash of its files, so a changed file has another folder.
It is built under a temporary name and renamed, by one process at a time; a damaged one is rebuilt.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Any, Optional

import numpy as np

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.arrays import MNIST_HASH, SPLIT_NAMES, Data, Split, data_hash
from paddle_mnist.mnist.readers import read_class_names
from paddle_mnist.mnist.sources import DIGITS_SOURCE, Source, find_source, parse_data_option
from paddle_mnist.system.files import cache_folder, warn_once
from paddle_mnist.system.locks import locked

log = logging.getLogger("paddle_mnist")

VERSION = 3  # of the cache's format and of how splits are made; each has folders of its own

Contents = tuple[dict[str, Split], str]  # the splits and their data hash


class OpenedData(Data):
    """Data whose images another process opens again: they are not sent to it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return reopen_data, (self.location, self.hash)


def open_data(data: str = "auto") -> Data:
    """Open the source that `data` names (see `find_source`), through the cache.

    `PATH#0-4` selects the images of these digits in every split.
    Raises DataError, naming the file, the place in it, what is there and what was expected.
    """
    _, digits = parse_data_option(data)
    all_digits = _open_source(find_source(data))
    return all_digits.select_digits(digits) if digits else all_digits


def reopen_data(location: str, expected_hash: str) -> Data:
    """Open the source that another process has opened. Raises DataError if it has changed."""
    data = open_data(location)
    if data.hash != expected_hash:
        raise DataError(
            f"{location}: the images have changed since the training began; expected the same for "
            "all processes"
        )
    return data


def _open_source(source: Source) -> Data:
    if source is DIGITS_SOURCE:  # reading them takes less time than a cache
        splits = source.read()
        digest = data_hash(splits)
        return OpenedData(source.name, str(source), source.location, digest, splits)
    try:
        key = _source_hash(source)
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}; expected a readable file") from error
    folder = cache_folder() / f"v{VERSION}-{key[:32]}"
    splits, digest = _open_folder(folder) or _build_folder(folder, source)
    if digest == MNIST_HASH:
        name = "mnist"
    elif source.name in ("mnist", DIGITS_SOURCE.name):  # a file's or folder's name proves nothing
        name = f"other files ({source})"
    else:
        name = source.name
    class_names = read_class_names(source.classes_file)
    return OpenedData(name, str(source), source.location, digest, splits, class_names)


def _source_hash(source: Source) -> str:
    digest = hashlib.sha256()
    for path in source.files:
        digest.update(os.fsencode(f"{path.name} {path.stat().st_size};"))
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _open_folder(folder: Path) -> Optional[Contents]:
    """Return what a cache folder holds; None if it is missing or damaged."""
    if not folder.exists():
        return None
    try:
        index = json.loads((folder / "index.json").read_text())
        if index["source"] != folder.name:
            raise ValueError("it was made from another source")
        splits = {
            mode: Split(
                _map(folder / f"{mode}_images.npy", index),
                _map(folder / f"{mode}_labels.npy", index),
                index["divisor"],
            )
            for mode in SPLIT_NAMES
        }
        return splits, index["hash"]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        warn_once(folder, "cache %s is damaged (%s); it is built again", folder, error)
        return None


def _map(path: Path, index: dict[str, dict[str, int]]) -> np.ndarray:
    array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    if zlib.crc32(array.data) != index["crc32"][path.name]:
        raise ValueError(f"{path.name} does not match its checksum")
    return array


def _build_folder(folder: Path, source: Source) -> Contents:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_suffix(".lock")):
            if contents := _open_folder(folder):  # another process has built it meanwhile
                return contents
            splits = source.read()
            contents = splits, data_hash(splits)
            _write_folder(folder, *contents)
            return _open_folder(folder) or contents
    except OSError as error:
        log.warning(
            "cannot write the cache in %s (%s); reading %s again each time. "
            "PADDLE_MNIST_CACHE names another folder.",
            folder.parent,
            error.strerror or error,
            source,
        )
        splits = source.read()
        return splits, data_hash(splits)


def _write_folder(folder: Path, splits: dict[str, Split], digest: str) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        checksums = {}
        for mode, split in splits.items():
            for part, array in (("images", split.images), ("labels", split.labels)):
                name = f"{mode}_{part}.npy"
                np.save(temporary / name, array)
                checksums[name] = zlib.crc32(np.ascontiguousarray(array).data)
        index = {
            "source": folder.name,
            "hash": digest,
            "divisor": splits["train"].divisor,
            "crc32": checksums,
        }
        (temporary / "index.json").write_text(json.dumps(index))
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one
        temporary.chmod(0o755)  # mkdtemp's 0700 would keep out others who share the cache
        os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
