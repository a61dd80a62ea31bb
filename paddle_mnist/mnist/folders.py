"""Finds image files in a folder by their names, and tells which files there are almost right."""

import difflib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.csv_reader import is_labelled
from paddle_mnist.mnist.file_kinds import PICTURE, kind_of, read_head
from paddle_mnist.mnist.readers import IDX_FILES

JSON_FILE = "mnist.json.gz"
NPZ_FILE = "mnist.npz"
CSV_FILES = ("mnist_train.csv", "train.csv")  # with labels; the test file stands beside it

# IDX files by any of the names that mirrors give them: train-images.idx3-ubyte.
_IDX_NAME = re.compile(r"(train|t10k)[-_.](images|labels)[-_.](idx[13])[-_.]ubyte(\.gz)?", re.I)
# Files whose names let a user expect that they are taken.
_DATA_NAME = re.compile(
    r"mnist|idx[13]|ubyt|t10k|(train|test)\.|\.(zip|tar|tgz|7z|rar|npz|csv|parquet|mat|h5|pkl)\b",
    re.I,
)
_PICTURES = ("png", "jpg", "jpeg", "bmp")  # suffixes
_MANY = 1000  # entries of a folder; more are not looked at
_SHOWN = 4  # files that are almost right


def idx_name(path: Path) -> Optional[str]:
    """Return which of the four IDX files a file is, by its name; None if it is none."""
    match = _IDX_NAME.fullmatch(path.name)
    name = match and "{}-{}-{}-ubyte".format(*match.groups()[:3]).lower()
    return name if name in IDX_FILES else None


def idx_files(folder: Path) -> dict[str, Path]:
    """Return the IDX files in a folder, by the names in IDX_FILES.

    A packed file goes before a plain one, and the usual name before others. Where a folder has the
    name of a file, as in Kaggle's archives, the file is in it.
    """
    paths = [path for path in _entries(folder) if idx_name(path)]
    inner = [file for path in paths if path.is_dir() for file in _entries(path) if idx_name(file)]
    files: dict[str, Path] = {}
    for path in (*sorted(paths, key=_rank), *inner):
        if (name := idx_name(path)) and path.is_file():
            files.setdefault(name, path)
    return {name: files[name] for name in IDX_FILES if name in files}


def _rank(path: Path) -> tuple[bool, bool]:
    return path.name.removesuffix(".gz") not in IDX_FILES, path.suffix != ".gz"


def csv_file(folder: Path) -> Optional[Path]:
    """Return the CSV file with labelled training images in a folder; None if there is none."""
    for name in itertools.chain.from_iterable((name, f"{name}.gz") for name in CSV_FILES):
        path = folder / name
        if path.is_file() and is_labelled(path):
            return path
    return None


def almost_right(folder: Path) -> str:
    """Describe the files in a folder that might have been meant but cannot be used; "" if none."""
    found = idx_files(folder)
    missing = [name for name in IDX_FILES if name not in found]
    notes = []
    if found and missing:
        notes.append(f"{len(found)} of the 4 IDX files are there, but not {', '.join(missing)}")
    notes += _notes(folder, missing)
    more = f"; and {len(notes) - _SHOWN} more" if len(notes) > _SHOWN else ""
    return "; ".join(notes[:_SHOWN]) + more


def _notes(folder: Path, missing: list[str]) -> Iterator[str]:
    if picture := _picture_of_a_class(folder):
        yield f"{picture.parent.parent} holds folders of pictures: {PICTURE.remedy}"
    for path in _entries(folder):
        if path.is_dir():
            if len(idx_files(path)) == len(IDX_FILES) or (path / JSON_FILE).is_file():
                yield f"{path} holds all that is needed: give that folder as --data"
        elif not idx_name(path) and _DATA_NAME.search(path.name):
            yield f"{path} {_what_is_wrong(path, missing)}"


def _what_is_wrong(path: Path, missing: list[str]) -> str:
    if near := difflib.get_close_matches(path.name.removesuffix(".gz"), missing, n=1, cutoff=0.8):
        return f"has almost the name {near[0]}: rename it if it is whole"
    try:
        kind = kind_of(read_head(path))
    except DataError as error:
        return f"cannot be read ({str(error).removeprefix(f'{path}: ')})"
    if kind:
        return f"is {kind.name}: {kind.remedy}"
    return "is another file: to use it, give it as --data"


def _picture_of_a_class(folder: Path) -> Optional[Path]:
    """Return a picture in a folder that is named by a digit, as `training/7/`; None without one."""
    files = (file for form in ("[0-9]/*", "*/[0-9]/*") for file in folder.glob(form))
    return next((file for file in files if file.suffix[1:].lower() in _PICTURES), None)


def _entries(folder: Path) -> list[Path]:
    """Return what is in a folder, sorted; [] if it is none or cannot be listed."""
    try:
        return sorted(itertools.islice(folder.iterdir(), _MANY))
    except OSError:
        return []
