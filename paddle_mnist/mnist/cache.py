"""Opens a source of images through a cache of .npy files, which are memory-mapped.

Each source has a folder named after the hash of its files, so a changed file has another folder.
It is built under a temporary name and renamed, by one process at a time; a damaged one is rebuilt.
"""

import copyreg
import hashlib
import json
import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Optional

import numpy as np

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.arrays import MNIST_HASH, SPLIT_NAMES, Data, Split, data_hash
from paddle_mnist.mnist.readers import read_class_names
from paddle_mnist.mnist.sources import DIGITS_SOURCE, Source, find_source, parse_data_option
from paddle_mnist.system.files import cache_folder
from paddle_mnist.system.locks import locked

log = logging.getLogger("paddle_mnist")

VERSION = 2  # of the cache's format and of how splits are made; each has folders of its own


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


def _place_of(data: Data) -> tuple[Callable[[str, str], Data], tuple[str, str]]:
    """Return how another process opens the same images, which are not sent to it."""
    return reopen_data, (data.location, data.hash)


copyreg.pickle(Data, _place_of)


def _open_source(source: Source) -> Data:
    if source is DIGITS_SOURCE:  # reading them takes less time than a cache
        splits = source.read()
        return Data(DIGITS_SOURCE.name, str(source), source.location, data_hash(splits), splits)
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
    return Data(name, str(source), source.location, digest, splits, class_names)


def _source_hash(source: Source) -> str:
    digest = hashlib.sha256()
    for path in source.paths:
        digest.update(os.fsencode(f"{path.name} {path.stat().st_size};"))
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _open_folder(folder: Path, warn: bool = False) -> Optional[tuple[dict[str, Split], str]]:
    """Return the splits in a cache folder and their hash; None if it is missing or damaged."""
    if not folder.exists():
        return None
    try:
        index = json.loads((folder / "index.json").read_text())
        if index["source"] != folder.name:
            raise ValueError("it was made from another source")
        splits = {}
        for mode in SPLIT_NAMES:
            arrays = []
            for part in ("images", "labels"):
                array = np.load(folder / f"{mode}_{part}.npy", mmap_mode="r", allow_pickle=False)
                if zlib.crc32(array.data) != index["crc32"][mode][part]:
                    raise ValueError(f"{mode}_{part}.npy does not match its checksum")
                arrays.append(array)
            images, labels = arrays
            splits[mode] = Split(images, labels, index["divisor"])
        return splits, index["hash"]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        if warn:
            log.warning("cache %s is damaged (%s); rebuilding it", folder, error)
        return None


def _build_folder(folder: Path, source: Source) -> tuple[dict[str, Split], str]:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_suffix(".lock")):
            contents = _open_folder(folder, warn=True)  # another process may have built it by now
            if not contents:
                _write_folder(folder, source.read())
                contents = _open_folder(folder)
            if not contents:
                raise DataError(
                    f"{folder}: what was written there reads back as something else; expected a "
                    "disk that keeps it; PADDLE_MNIST_CACHE names another folder"
                )
            return contents
    except OSError as error:
        log.warning(
            "cannot write the cache in %s (%s); reading %s anew each time. "
            "PADDLE_MNIST_CACHE names another folder.",
            folder.parent,
            error.strerror or error,
            source,
        )
        splits = source.read()
        return splits, data_hash(splits)


def _write_folder(folder: Path, splits: dict[str, Split]) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        checksums = {}
        for mode, split in splits.items():
            np.save(temporary / f"{mode}_images.npy", split.images)
            np.save(temporary / f"{mode}_labels.npy", split.labels)
            checksums[mode] = {
                "images": zlib.crc32(np.ascontiguousarray(split.images).data),
                "labels": zlib.crc32(np.ascontiguousarray(split.labels).data),
            }
        divisor = splits["train"].divisor
        index = {
            "source": folder.name,
            "hash": data_hash(splits),
            "divisor": divisor,
            "crc32": checksums,
        }
        (temporary / "index.json").write_text(json.dumps(index))
        if folder.exists():  # damaged; moved away, because a rename needs a free name
            os.rename(folder, temporary / "damaged")
        temporary.chmod(0o755)  # mkdtemp's 0700 would keep out others who share the cache
        os.rename(temporary, folder)
        shutil.rmtree(folder / "damaged", ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
