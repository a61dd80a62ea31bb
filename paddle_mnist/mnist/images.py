"""Opens the images that `data` names, through a cache of .npy files, which are memory-mapped.

Each source has a folder in the cache, named after the hash of its files, so a changed file has
another folder. One process builds it, under a temporary name, while the others wait; a damaged one
is rebuilt.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional, TypedDict

import numpy as np

from paddle_mnist.errors import DataError, listed
from paddle_mnist.mnist.sources import DIGITS_SOURCE, Source, find_source
from paddle_mnist.mnist.splits import SIZE, SPLIT_NAMES, Split, make_split
from paddle_mnist.system.files import cache_folder, warn_once
from paddle_mnist.system.lock import locked
from paddle_mnist.system.regular_files import MAX_JSON, open_to_read, parse_json, read_bytes

log = logging.getLogger("paddle_mnist")

VERSION = 3  # of the cache's format and of how splits are made; each has its own folders

# The data hash of the real MNIST: 50,000 / 10,000 / 10,000 images, pixels k/256. No other data is
# ever called MNIST.
MNIST_HASH = "e2ef4476bda5ae7a7e382e669d99ef8ae83369e07178dd8c4bb3d0132e5a21f8"


@dataclass(frozen=True)
class Images:
    """The three splits of one source, with its name and hash.

    name: "mnist" for the real one, "digits" for the embedded one, else that of the file or folder.
    source: where the images come from, for people. path: the same, as a value of `data=`.
    hash: SHA-256 of the images and labels, hex; it does not depend on the file format.

    Another process that gets these images opens them again: they are not sent to it.
    """

    name: str
    source: str
    path: str
    hash: str
    splits: Mapping[str, Split]

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.path, self.hash)

    def __getitem__(self, mode: str) -> Split:
        if mode not in self.splits:
            raise DataError(f"mode is {mode!r}; expected one of {', '.join(SPLIT_NAMES)}")
        return self.splits[mode]

    def select_digits(self, digits: Collection[int]) -> "Images":
        """Return the images of some digits only, with the same labels.

        Raises DataError if a split has none.
        """
        splits = {}
        for mode, split in self.splits.items():
            indices = np.flatnonzero(np.isin(split.labels, list(digits)))
            if not len(indices):
                names = listed([*map(str, digits)])
                raise DataError(
                    f"{self.source}: no image of {names} in its {mode} split; choose digits that "
                    "every split has"
                )
            splits[mode] = split.take(indices)
        suffix = "#" + ",".join(map(str, sorted(digits)))
        return replace(
            self,
            name=self.name + suffix,
            source=self.source + suffix,
            path=self.path + suffix,
            hash=data_hash(splits),
            splits=splits,
        )


def data_hash(splits: Mapping[str, Split]) -> str:
    """Return the SHA-256, hex, of images and labels; it does not depend on the file format."""
    digest = hashlib.sha256()
    for mode in SPLIT_NAMES:
        split = splits[mode]
        digest.update(f"{mode} {split.images.shape} {split.divisor};".encode())
        digest.update(np.ascontiguousarray(split.images).data)
        digest.update(np.ascontiguousarray(split.labels).data)
    return digest.hexdigest()


def open_data(data: str = "auto") -> Images:
    """Open the source that `data` names (see `find_source`), through the cache.

    `PATH#0-4` selects the images of these digits in every split.
    Raises DataError, naming the file, the place in it, what is there and what was expected.
    """
    source = find_source(data)
    if not source.path:  # the embedded digits: reading them takes less time than a cache
        splits = source.read()
        images = Images(source.name, str(source), source.name, data_hash(splits), splits)
    else:
        splits, digest = _through_cache(source)
        name = source.name
        if digest == MNIST_HASH:
            name = "mnist"
        elif name in ("mnist", DIGITS_SOURCE.name):  # a file's or folder's name proves nothing
            name = f"other files ({source})"
        images = Images(name, str(source), str(source.path.resolve()), digest, splits)
    return images.select_digits(source.digits) if source.digits else images


def _reopen(path: str, expected_hash: str) -> Images:
    """Open the images that another process has opened. Raises DataError if they have changed."""
    images = open_data(path)
    if images.hash != expected_hash:
        raise DataError(
            f"{path}: the images have changed since training began; expected the same for all "
            "processes"
        )
    return images


# ------------------------------------------------------------------ the cache

Contents = tuple[dict[str, Split], str]  # the splits and their data hash


class _Index(TypedDict):
    """The contents of `index.json`, about the images beside it."""

    hash: str
    divisor: Optional[int]


PARTS = ("images", "labels")  # of a split, each in a file `{split}_{part}.npy`


def _through_cache(source: Source) -> Contents:
    """Read a source from the cache, or build the cache."""
    folder = cache_folder() / f"v{VERSION}-{_hash_of_files(source.files)[:32]}"
    if contents := _read_cache(folder):
        return contents
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_suffix(".lock")):
            if contents := _read_cache(folder):  # another process has built it meanwhile
                return contents
            splits = source.read()
            _write_cache(folder, splits)
            return _read_cache(folder) or (splits, data_hash(splits))
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


def _hash_of_files(files: Collection[Path]) -> str:
    digest = hashlib.sha256()
    try:
        for path in files:
            digest.update(os.fsencode(f"{path.name} {path.stat().st_size};"))
            with open_to_read(path) as file:
                while block := file.read(1 << 20):
                    digest.update(block)
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}; expected a readable file") from error
    return digest.hexdigest()


def _read_cache(folder: Path) -> Optional[Contents]:
    """Return what a cache folder holds; None if it is missing or damaged."""
    if not folder.exists():
        return None
    try:
        index = parse_json(read_bytes(folder / "index.json", MAX_JSON), _Index)
        splits = {}
        for mode in SPLIT_NAMES:
            images, labels = (_map_array(folder / f"{mode}_{kind}.npy") for kind in PARTS)
            splits[mode] = make_split(images, labels, index["divisor"], str(folder))
            if images.shape[1:] != (SIZE, SIZE):
                raise ValueError(f"images of shape {images.shape[1:]}")
        # Computed: anybody else who can write to the cache could write any hash into it.
        if (digest := data_hash(splits)) != index["hash"]:
            raise ValueError("its images do not match their hash")
        return splits, digest
    except (OSError, EOFError, ValueError, TypeError, DataError) as error:
        warn_once(folder, "cache %s is damaged (%s); it is built again", folder, error)
        return None


def _map_array(path: Path) -> np.ndarray:
    """Map the array of numbers in a .npy file into memory, as `numpy.load` does."""
    with open_to_read(path) as file:
        header: Any = np.lib.format
        header.read_magic(file)
        shape, is_fortran, dtype = header.read_array_header_1_0(file)
        if dtype.hasobject:
            raise ValueError(f"{path.name} holds objects")
        return np.memmap(file, dtype, "r", file.tell(), shape, "F" if is_fortran else "C")


def _write_cache(folder: Path, splits: Mapping[str, Split]) -> None:
    arrays = {}
    for mode, split in splits.items():
        for part in PARTS:
            arrays[f"{mode}_{part}.npy"] = np.ascontiguousarray(getattr(split, part))
    index = {
        "hash": data_hash(splits),
        "divisor": splits["train"].divisor,
    }
    temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        for name, array in arrays.items():
            np.save(temporary / name, array)
        (temporary / "index.json").write_text(json.dumps(index))
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one
        temporary.chmod(0o755)  # mkdtemp's 0700 would keep out others who share the cache
        os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
