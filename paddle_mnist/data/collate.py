"""Assembles the items of any classification dataset into batches, and checks them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import paddle

from paddle_mnist.errors import DataError


@dataclass(frozen=True)
class ItemSpec:
    """What a model requires of the items of a classification dataset.

    image_shape: of one image, channels first.
    num_classes: labels are 0 to num_classes - 1.
    """

    image_shape: tuple[int, ...]
    num_classes: int


def fetch_batch(
    dataset: paddle.io.Dataset, indices: np.ndarray, spec: Optional[ItemSpec] = None
) -> tuple[np.ndarray, np.ndarray]:
    """Fetch items of a map-style dataset as a batch: images float32 [B, ...], labels int64 [B, 1].

    A dataset that has a method `batch(indices)` assembles its batches itself.
    Raises DataError for an item that is not (image, label).
    """
    if _assembles_batches(type(dataset)):
        return dataset.batch(indices)
    return stack_items([dataset[int(index)] for index in indices], type(dataset).__name__, spec)


def _assembles_batches(dataset: type) -> bool:
    """Return whether a class has a method `batch` that matches its `__getitem__`.

    A subclass that overrides only `__getitem__`, say to augment items, inherits a `batch` that
    does not.
    """
    for base in dataset.__mro__:
        if "batch" in vars(base) or "__getitem__" in vars(base):
            return "batch" in vars(base)
    return False


def stack_items(
    items: Sequence[Any], source: str, spec: Optional[ItemSpec] = None
) -> tuple[np.ndarray, np.ndarray]:
    """Stack pairs (image, label) into one batch: images float32 [B, ...], labels int64 [B, 1].

    Images may be of any float dtype but must have one shape; a label is one whole number in an
    array of any shape; both may be tensors. Raises DataError for other items.

    source: where the items come from, for errors.
    spec: further requirements.
    """
    images, labels = [], []
    for item in items:
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            is_sequence = isinstance(item, (tuple, list))
            description = f"{len(item)} values" if is_sequence else type(item).__name__
            raise DataError(f"{source}: an item is {description}; expected (image, label)")
        image, label = map(np.asarray, item)
        expected = spec.image_shape if spec else images[0].shape if images else image.shape
        if image.shape != expected or image.dtype.kind != "f":
            raise DataError(
                f"{source}: an image is {image.dtype} {list(image.shape)}; expected float32 "
                f"{list(expected)}, with values in 0..1"
            )
        is_integer = label.size == 1 and label.dtype.kind in "iu"
        if not is_integer or (spec and not 0 <= label.item() < spec.num_classes):
            valid_range = f" in 0..{spec.num_classes - 1}" if spec else ""
            raise DataError(
                f"{source}: a label is {label.tolist()!r:.40}; expected one whole number"
                f"{valid_range}"
            )
        images.append(image)
        labels.append(label.item())
    return np.stack(images).astype(np.float32), np.array(labels, np.int64)[:, np.newaxis]
