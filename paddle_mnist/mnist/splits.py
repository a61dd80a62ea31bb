"""The images and labels of one split in memory, and their form."""

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from paddle_mnist.errors import DataError

SPLIT_NAMES = ("train", "valid", "eval")
SIZE = 28
CLASSES = 10
VALID = 10_000  # of 60,000 training images: MNIST's valid split, as in the JSON file


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
        """Return the images and labels at `index`, as it indexes an array."""
        return Split(self.images[index], self.labels[index], self.divisor)

    def pixels(self, index: Any) -> np.ndarray:
        """Return the images at `index`, float32 [..., 28, 28] in 0..1."""
        images = self.images[index]
        if self.divisor is None:
            return np.asarray(images, np.float32)
        values: np.ndarray = images.astype(np.float32)
        values /= np.float32(self.divisor)
        return values


def make_split(images: np.ndarray, labels: np.ndarray, divisor: Optional[int], where: str) -> Split:
    """Return images and labels as a split. where: the place of the images, for errors.

    Raises DataError if there are none, another number of labels, or labels outside 0..9.
    """
    if len(images) != len(labels):
        raise DataError(
            f"{where}: {len(images)} images and {len(labels)} labels; expected the same number"
        )
    if not len(images):
        raise DataError(f"{where}: no images; expected at least one")
    invalid = np.flatnonzero((labels < 0) | (labels >= CLASSES))
    if len(invalid):
        first = invalid[0]
        raise DataError(f"{where}: label {first} is {labels[first]}; expected 0..{CLASSES - 1}")
    return Split(images, labels.astype(np.uint8, copy=False), divisor)


def divide(training: Split, where: str, held_out: tuple[str, ...] = ("valid",)) -> dict[str, Split]:
    """Divide training images into train and the splits that are held out, one or two.

    If only valid is held out of 60,000 or more images, it is the last 10,000, as in MNIST.
    Otherwise each held-out split gets a fifth as many images as train, of every class, so that
    files sorted by label work too. Raises DataError for too few images.
    """
    if len(training) >= 6 * VALID and held_out == ("valid",):
        return {"train": training.take(slice(-VALID)), "valid": training.take(slice(-VALID, None))}
    turns = 5 + len(held_out)
    if len(training) < turns:
        raise DataError(
            f"{where}: {len(training)} images; expected at least {turns}, to divide them into "
            f"train, {', '.join(held_out)}"
        )
    turn = np.empty(len(training), int)
    turn[np.argsort(training.labels, kind="stable")] = np.arange(len(training)) % turns
    splits = {"train": training.take(turn < 5)}
    for number, mode in enumerate(held_out, 5):
        splits[mode] = training.take(turn == number)
    return splits


def noun_of(dataset: str) -> str:
    """Return "digit" or "class" for a data set. dataset: its name (`Images.name`)."""
    return "digit" if dataset.partition("#")[0] in ("mnist", "digits") else "class"
