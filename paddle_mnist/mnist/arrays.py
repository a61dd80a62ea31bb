"""The images and labels of one split in memory, their form, and the names of their classes."""

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

SPLIT_NAMES = ("train", "valid", "eval")
SIZE = 28
CLASSES = 10


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
class ItemSpec:
    """The form that a model requires of the items of a classification dataset.

    image_shape: of one image, channels first.
    num_classes: labels are 0 to num_classes - 1.
    """

    image_shape: tuple[int, ...]
    num_classes: int


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
    """Return "digit" or "class" for a data set. dataset: its name (`Images.name`)."""
    return "digit" if dataset.partition("#")[0] in ("mnist", "digits") else "class"
