"""The images and labels of a data set in memory: one contiguous array each per split."""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Optional

import numpy as np

from paddle_mnist.errors import DataError

SPLIT_NAMES = ("train", "valid", "eval")
SIZE = 28
CLASSES = 10

# The data hash of the real MNIST: 50,000 / 10,000 / 10,000 images, pixels k/256. No other data is
# ever called MNIST.
MNIST_HASH = "e2ef4476bda5ae7a7e382e669d99ef8ae83369e07178dd8c4bb3d0132e5a21f8"


@dataclass(frozen=True)
class Split:
    """The images and labels of one split.

    images: [N, 28, 28]; uint8, to be divided by `divisor`, or float32 (divisor None).
    labels: uint8 [N], 0..9.
    """

    images: np.ndarray
    labels: np.ndarray
    divisor: Optional[int]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Any) -> "Split":
        """Return the images and labels at `index`, which may be whatever indexes an array."""
        return Split(self.images[index], self.labels[index], self.divisor)

    def pixels(self, index: Any) -> np.ndarray:
        """Return the images at `index`, float32 [..., 28, 28] in 0..1."""
        images = self.images[index]
        if self.divisor is None:
            return np.asarray(images, np.float32)
        values: np.ndarray = images.astype(np.float32)
        values /= np.float32(self.divisor)
        return values


@dataclass(frozen=True)
class Classes:
    """The words of tables and figures for the labels 0..9.

    noun: "digit", or "class" for data that are neither MNIST nor the digits.
    names: one for each label; empty if they have none.
    """

    noun: str = "digit"
    names: tuple[str, ...] = ()

    def __getitem__(self, label: int) -> str:
        """Return the name of a label, or its number if it has none."""
        return self.names[label] if self.names else str(label)

    def describe(self, label: int) -> str:
        """Return words for an image of a label: "a 7", "class 7", or its name."""
        if self.names:
            return self.names[label]
        return f"a {label}" if self.noun == "digit" else f"{self.noun} {label}"


DIGIT_CLASSES = Classes()


def noun_of(dataset: str) -> str:
    """Return "digit" or "class" for a data set. dataset: its name (`Data.name`)."""
    return "digit" if dataset.partition("#")[0] in ("mnist", "digits") else "class"


@dataclass(frozen=True)
class Data:
    """The three splits of one source, with its name and hash.

    name: "mnist" for the real one, "digits" for the embedded one, else that of the file or folder.
    source: where the images come from, for people.
    location: the same, as a value of `data=`.
    hash: SHA-256 of the images and labels, hex; it does not depend on the file format.
    class_names: of the ten labels, from a `classes.txt`; empty if there is none.
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
            raise DataError(f"mode is {mode!r}; expected one of {', '.join(SPLIT_NAMES)}")
        return self.splits[mode]

    def select_digits(self, digits: Collection[int]) -> "Data":
        """Return the images of some digits only, with the same labels.

        Raises DataError if a split has none.
        """
        splits = {}
        for mode, split in self.splits.items():
            indices = np.flatnonzero(np.isin(split.labels, list(digits)))
            if not len(indices):
                raise DataError(f"{self.source}: no {digits} in its {mode} split; expected some")
            splits[mode] = split.take(indices)
        suffix = "#" + ",".join(map(str, sorted(digits)))
        return replace(
            self,
            name=self.name + suffix,
            source=self.source + suffix,
            location=self.location + suffix,
            hash=data_hash(splits),
            splits=splits,
        )


def data_hash(splits: Mapping[str, Split]) -> str:
    """Return the SHA-256, hex, of images and labels, whatever file format they came in."""
    digest = hashlib.sha256()
    for mode in SPLIT_NAMES:
        split = splits[mode]
        digest.update(f"{mode} {split.images.shape} {split.divisor};".encode())
        digest.update(np.ascontiguousarray(split.images).data)
        digest.update(np.ascontiguousarray(split.labels).data)
    return digest.hexdigest()
