"""Assembles the items of a dataset into batches, and checks them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import paddle

from paddle_mnist.errors import DataError
from paddle_mnist.system.arrays import as_array

# Paddle reads the bits of a uint16 array as bfloat16, and has no uint32.
SIGNED = {"uint16": np.int32, "uint32": np.int64}


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
        image, label = map(as_array, item)
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


def stack_samples(samples: Sequence[Any], source: str = "the dataset", place: str = "") -> Any:
    """Stack samples of one structure into a batch, as NumPy arrays [B, ...].

    samples: arrays, tensors or numbers, or dicts, tuples and lists of such, nested as one likes.
        Arrays keep their dtype, but for uint16 and uint32, which become int32 and int64; Python's
        numbers become float32, int64 or bool; strings become a list.
    source: where they come from, place: in the structure, for errors.
    Raises DataError for samples of different structures, shapes or dtypes.
    """
    first = samples[0]
    _require_one(samples, _kind, "structure", source, place)
    if isinstance(first, Mapping):
        _require_one(samples, lambda sample: sorted(sample, key=str), "keys", source, place)
        return {
            key: stack_samples([sample[key] for sample in samples], source, f"{place}[{key!r}]")
            for key in first
        }
    if isinstance(first, (tuple, list)):
        _require_one(samples, len, "number of values", source, place)
        parts = [
            stack_samples(values, source, f"{place}[{number}]")
            for number, values in enumerate(zip(*samples))
        ]
        return rebuilt(first, parts)
    if isinstance(first, (str, bytes)):
        return list(samples)
    arrays = [_as_array(sample, source, place) for sample in samples]
    _require_one(arrays, lambda array: f"{array.dtype} {list(array.shape)}", "type", source, place)
    return np.stack(arrays)


def _kind(sample: Any) -> str:
    """Return what a sample is: one of these, or something that is to become an array."""
    kinds = {"dict": Mapping, "tuple or list": (tuple, list), "text": (str, bytes)}
    return next((name for name, kind in kinds.items() if isinstance(sample, kind)), "array")


def _as_array(value: Any, source: str, place: str) -> np.ndarray:
    array = as_array(value)
    if isinstance(value, paddle.Tensor):
        return array
    if array.dtype.name in SIGNED:
        return array.astype(SIGNED[array.dtype.name])
    if array.dtype.name == "uint64":
        raise DataError(
            f"{source}: a sample{place} is uint64, which Paddle has not; expected int64, say"
        )
    if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
        raise DataError(
            f"{source}: a sample{place} is a {type(value).__name__}; expected numbers, arrays, "
            "tensors or strings; for others give a collate_fn"
        )
    return array.astype(np.float32) if isinstance(value, float) else array


def _require_one(
    samples: Sequence[Any], describe: Callable[[Any], Any], what: str, source: str, place: str
) -> None:
    """Raise DataError unless all samples have the same description."""
    descriptions = [describe(sample) for sample in samples]
    other = next((found for found in descriptions if found != descriptions[0]), None)
    if other is not None:
        raise DataError(
            f"{source}: two samples{place} of a batch differ in their {what}: {descriptions[0]} "
            f"and {other}; expected the same in all; for samples of different sizes give a "
            "collate_fn, which pads them, say"
        )


def rebuilt(like: Any, parts: Sequence[Any]) -> Any:
    """Return a tuple or list of the class of `like`, a named tuple's too, with other parts."""
    return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)


def mapped(structure: Any, function: Callable[[Any], Any]) -> Any:
    """Return a structure of tuples, lists and dicts with `function` applied to every leaf."""
    if isinstance(structure, Mapping):
        return {key: mapped(value, function) for key, value in structure.items()}
    if isinstance(structure, (tuple, list)):
        return rebuilt(structure, [mapped(value, function) for value in structure])
    return function(structure)


def leaves(structure: Any) -> Iterator[Any]:
    """Yield the leaves of a structure of tuples, lists and dicts, depth first."""
    if isinstance(structure, Mapping):
        structure = list(structure.values())
    if isinstance(structure, (tuple, list)):
        for part in structure:
            yield from leaves(part)
    else:
        yield structure


def tensors(batch: Any) -> Any:
    """Return a batch with its NumPy arrays as tensors; what else is in it stays as it is.

    A tensor is copied: it may be a view, and whoever asks a view for its values copies all of the
    tensor behind it (see `as_array`).
    """

    def tensor(leaf: Any) -> Any:
        if isinstance(leaf, paddle.Tensor) and leaf.is_dense():
            return leaf.clone()
        return paddle.to_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf

    return mapped(batch, tensor)


def num_samples(batch: Any) -> int:
    """Return how many samples a batch has: the length of its first tensor or array.

    Raises DataError if it holds none.
    """
    sizes = (len(leaf) for leaf in leaves(batch) if len(getattr(leaf, "shape", ())))
    size = next(sizes, None)
    if size is None:
        raise DataError(
            f"a batch is a {type(batch).__name__} without a tensor; expected at least one, whose "
            "first dimension counts the samples"
        )
    return size
