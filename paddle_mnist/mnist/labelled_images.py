"""Batches of images with labels: what a classifier requires of them."""

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import paddle

from paddle_mnist.data.collate import mapped
from paddle_mnist.errors import DataError
from paddle_mnist.system.arrays import as_array


@dataclass(frozen=True)
class ItemSpec:
    """The form that a model requires of the items of a classification dataset.

    image_shape: of one image, channels first.
    num_classes: labels are 0 to num_classes - 1.
    """

    image_shape: tuple[int, ...]
    num_classes: int


def labelled_images(
    batch: Any, source: str, spec: Optional[ItemSpec] = None
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return a batch of pairs (image, label): images float32 [B, ...], labels int64 [B, 1].

    Images may be of any float dtype; a label is one whole number in a tensor of any shape. Raises
    DataError for other batches.

    source: where the batch comes from, for errors. spec: further requirements.
    """
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        is_sequence = isinstance(batch, (tuple, list))
        description = f"{len(batch)} values" if is_sequence else _describe(batch)
        raise DataError(f"{source}: an item is {description}; expected (image, label)")
    images, labels = batch
    is_float = isinstance(images, paddle.Tensor) and images.is_floating_point()
    if not is_float or (spec and tuple(images.shape[1:]) != spec.image_shape):
        shape = f" {list(spec.image_shape)}" if spec else ""
        raise DataError(
            f"{source}: an image is {_describe(images)}; expected float32{shape}, with values in "
            "0..1"
        )
    if images.dtype != paddle.float32:
        images = images.astype("float32")
    return images, _whole_numbers(labels, len(images), source, spec)


def _whole_numbers(labels: Any, count: int, source: str, spec: Optional[ItemSpec]) -> paddle.Tensor:
    """Return labels as int64 [B, 1]; the same tensor if that is what they are."""
    values = as_array(labels) if isinstance(labels, paddle.Tensor) else np.zeros(0)
    wrong = None
    if values.size != count or values.dtype.kind not in "iu":
        wrong = mapped(labels, _of_first)
    elif spec:
        others = values[(values < 0) | (values >= spec.num_classes)]
        wrong = others[0].item() if len(others) else None
    if wrong is not None:
        valid_range = f" in 0..{spec.num_classes - 1}" if spec else ""
        raise DataError(
            f"{source}: a label is {wrong!r:.40}; expected one whole number{valid_range}"
        )
    if values.dtype == np.int64 and values.shape == (count, 1):
        assert isinstance(labels, paddle.Tensor)
        return labels
    return paddle.to_tensor(values.astype(np.int64).reshape(-1, 1))


def _of_first(values: Any) -> Any:
    """Return the value of the first item of a batch."""
    return as_array(values)[0].tolist() if isinstance(values, paddle.Tensor) else values


def _describe(values: Any) -> str:
    """Return dtype and shape of one item of a batch of them."""
    if not isinstance(values, paddle.Tensor):
        return type(values).__name__
    return f"{str(values.dtype).rpartition('.')[2]} {list(values.shape[1:])}"
