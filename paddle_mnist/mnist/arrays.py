"""What every source turns into: one contiguous array of images and one of labels a split."""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Optional

import numpy as np

from paddle_mnist.errors import DataError

MODES = ("train", "valid", "eval")
SIZE = 28
CLASSES = 10

# The data hash of the real thing: 50,000 / 10,000 / 10,000 images, pixels k/256. Whatever else
# is trained on is never called MNIST.
MNIST_HASH = "e2ef4476bda5ae7a7e382e669d99ef8ae83369e07178dd8c4bb3d0132e5a21f8"


@dataclass(frozen=True)
class Split:
    """The images and labels of one split.

    images: [N, 28, 28]; uint8, to be divided by `divisor`, or float32 as they are (divisor None).
    labels: uint8 [N], 0..9.
    """

    images: np.ndarray
    labels: np.ndarray
    divisor: Optional[int]

    def __len__(self) -> int:
        return len(self.labels)

    def pixels(self, index) -> np.ndarray:
        """The images at `index` (whatever indexes an array), float32 [..., 28, 28] in 0..1."""
        images = self.images[index]
        if self.divisor is None:
            return np.asarray(images, np.float32)
        return images.astype(np.float32) / np.float32(self.divisor)


@dataclass(frozen=True)
class Classes:
    """What the labels 0..9 stand for, in words, for tables and figures.

    noun: what one of them is: "digit", or "class" in a set that is neither MNIST nor the digits.
    names: one for each label; empty where nobody has named them.
    """

    noun: str = "digit"
    names: tuple[str, ...] = ()

    def __getitem__(self, label: int) -> str:
        """Its name, else its number."""
        return self.names[label] if self.names else str(label)

    def one(self, label: int) -> str:
        """An image of it: "a 7", "class 7", or its name."""
        if self.names:
            return self.names[label]
        return f"a {label}" if self.noun == "digit" else f"{self.noun} {label}"


DIGITS = Classes()


def noun_of(dataset: str) -> str:
    """What one class of a dataset is called. dataset: its name, as `Data.name` is."""
    return "digit" if dataset.partition("#")[0] in ("mnist", "digits") else "class"


@dataclass(frozen=True)
class Data:
    """The three splits of one source, and what they are called.

    name: "mnist" for the real one, "digits" for the embedded one, else the file's or folder's.
    source: where they come from, for people; location: for `data=` to find them again.
    hash: SHA-256 of the images and labels, hex; the same for every form they come in.
    class_names: of the ten labels, from a `classes.txt`; empty where there is none.
    """

    name: str
    source: str
    location: str
    hash: str
    splits: Mapping[str, Split]
    class_names: tuple[str, ...] = ()

    @property
    def classes(self) -> Classes:
        return Classes(noun_of(self.name), self.class_names)

    def __getitem__(self, mode: str) -> Split:
        if mode not in self.splits:
            raise DataError(f"mode is {mode!r}; expected one of {', '.join(MODES)}")
        return self.splits[mode]

    def only(self, digits: Collection[int]) -> "Data":
        """The images of some digits, as a source of its own. Raises DataError if a split has none.

        Labels stay what they are.
        """
        splits = {}
        for mode, split in self.splits.items():
            there = np.flatnonzero(np.isin(split.labels, list(digits)))
            if not len(there):
                raise DataError(f"{self.source}: no {digits} in its {mode} split; expected some")
            splits[mode] = Split(split.images[there], split.labels[there], split.divisor)
        mark = "#" + ",".join(map(str, sorted(digits)))
        return replace(
            self,
            name=self.name + mark,
            source=self.source + mark,
            location=self.location + mark,
            hash=data_hash(splits),
            splits=splits,
        )


def data_hash(splits: Mapping[str, Split]) -> str:
    """SHA-256, hex, of what the splits hold; the form of the file they came in does not count."""
    digest = hashlib.sha256()
    for mode in MODES:
        split = splits[mode]
        digest.update(f"{mode} {split.images.shape} {split.divisor};".encode())
        digest.update(np.ascontiguousarray(split.images))
        digest.update(np.ascontiguousarray(split.labels))
    return digest.hexdigest()
