"""Assembles the samples of a dataset into batches, and checks them."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import paddle
from paddle.io.dataloader.collate import default_collate_fn

from paddle_mnist.data.stacking import EXPECTED, as_paddles, require_one, stack_leaves
from paddle_mnist.errors import DataError, PaddleMnistError, summary
from paddle_mnist.system.arrays import own_memory


@contextlib.contextmanager
def data_error(what: Union[str, Callable[[], str]]) -> Iterator[None]:
    """Raise an error of the caller's code as a DataError, of which it is the cause.

    what: what fails, or returns that.
    """
    try:
        yield
    except (PaddleMnistError, MemoryError):
        raise
    except Exception as error:  # whatever a dataset or a collate_fn raises
        name = what if isinstance(what, str) else what()
        raise DataError(f"{name} fails with {summary(error)}") from error


def read_samples(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Return samples of a dataset. Raises DataError, which names the one that cannot be read."""
    samples: list[Any] = []
    with data_error(lambda: f"{type(dataset).__name__}: sample {indices[len(samples)]}"):
        for index in indices:
            samples.append(dataset[index])
    return samples


def make_batch(
    samples: list[Any],
    source: str,
    indices: Sequence[int],
    collate_fn: Optional[Callable[[list[Any]], Any]] = None,
) -> Any:
    """Make a batch of samples, by default with `stack_samples`.

    source, indices: where they come from, for errors. Raises DataError if collate_fn raises, or
    returns None.
    """
    if collate_fn is None:
        return stack_samples(samples, source, indices)
    with data_error(f"{source}: the collate_fn of samples {some(indices)}"):
        try:
            batch = collate_fn(samples)
            arrays = [leaf for leaf in leaves(batch) if isinstance(leaf, np.ndarray)]
            is_of_objects = any(array.dtype.hasobject for array in arrays)
        except Exception:
            if collate_fn is default_collate_fn:
                stack_samples(samples, source, indices)  # raises an error that names the sample
            raise
    if batch is None:
        raise DataError(
            f"{source}: the collate_fn of samples {some(indices)} returned None; expected a batch"
        )
    if is_of_objects and collate_fn is default_collate_fn:  # NumPy has taken a None, say
        stack_samples(samples, source, indices)
    return batch


def batch_of(
    found: Any,
    source: str,
    indices: Sequence[int],
    collate_fn: Optional[Callable[[list[Any]], Any]] = None,
) -> Any:
    """Return the batch that a dataset's `__getitems__` has found.

    found: a list of samples, of which the batch is made; anything else is the batch itself, arrays
        and tensors [B, ...] in tuples and dicts. Its arrays are converted as `stack_samples` does.
    Raises DataError if it is not of so many samples, or is a batch and there is a collate_fn.
    """

    def error(reason: str) -> DataError:
        return DataError(f"{source}: __getitems__ of samples {some(indices)} returned {reason}")

    if isinstance(found, list):
        if len(found) != len(indices):
            raise error(f"{len(found)} samples; expected {len(indices)}")
        return make_batch(found, source, indices, collate_fn)
    kind = type(found).__name__
    if collate_fn is not None:
        raise error(
            f"a {kind}, which is a whole batch, so that there is nothing for the collate_fn; "
            "expected a list of samples, or no collate_fn"
        )
    if _length(found) != len(indices):
        raise error(
            f"a {kind} of {_length(found) or 'no'} rows; expected a list of {len(indices)} "
            f"samples, or arrays and tensors with {len(indices)} rows"
        )

    def converted(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            return leaf
        return as_paddles(leaf, leaf, source, lambda number: str(indices[number]), 0)

    return mapped(found, converted)


def some(indices: Sequence[int]) -> str:
    """Return the first few indices, as an error names them."""
    return ", ".join(map(str, indices[:4])) + (", ..." if len(indices) > 4 else "")


def stack_samples(
    samples: Sequence[Any],
    source: str = "the dataset",
    indices: Optional[Sequence[int]] = None,
    place: str = "",
) -> Any:
    """Stack samples of one structure into a batch, as NumPy arrays or tensors [B, ...].

    samples: arrays, tensors or numbers, or dicts, tuples and lists of such, nested as one likes.
        Arrays keep their dtype, but for uint16 and uint32, which become int32 and int64; Python's
        numbers become float32, int64 or bool; strings become a list.
    source: where they come from, indices: in it, place: in their structure, for errors; by default
        the indices are those in the batch.
    Raises DataError for samples of different structures, shapes or dtypes.
    """
    first = samples[0]
    if indices is None:
        indices = range(len(samples))

    def name(number: int) -> str:
        return f"{indices[number]}{place}"

    # Of a hundred samples of one type, whatever is the same is looked at once.
    types = set(map(type, samples))
    if type(None) in types:
        number = next(number for number, sample in enumerate(samples) if sample is None)
        raise DataError(f"{source}: sample {name(number)} is None; expected {EXPECTED}")
    if len(types) > 1:
        require_one(samples, _kind, "structure", source, name)
    if isinstance(first, Mapping):
        if len(set(map(frozenset, samples))) > 1:
            require_one(samples, lambda sample: sorted(sample, key=str), "keys", source, name)
        return {
            key: stack_samples(
                [sample[key] for sample in samples], source, indices, f"{place}[{key!r}]"
            )
            for key in first
        }
    if isinstance(first, (tuple, list)):
        if len(set(map(len, samples))) > 1:
            require_one(samples, len, "number of values", source, name)
        parts = [
            stack_samples(values, source, indices, f"{place}[{number}]")
            for number, values in enumerate(zip(*samples))
        ]
        return rebuilt(first, parts)
    if isinstance(first, (str, bytes)):
        return list(samples)
    return stack_leaves(samples, types, source, name)


def _kind(sample: Any) -> str:
    """Return what a sample is: one of these, or something that is to become an array."""
    kinds: dict[str, Union[type, tuple[type, ...]]] = {
        "dict": Mapping,
        "tuple or list": (tuple, list),
        "text": (str, bytes),
    }
    return next(
        (name for name, kind in kinds.items() if isinstance(sample, kind)), "number or array"
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
        if isinstance(leaf, paddle.Tensor):
            return own_memory(leaf)
        return paddle.to_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf

    return mapped(batch, tensor)


def num_samples(batch: Any) -> int:
    """Return how many samples a batch has: the length of its first tensor or array.

    Raises DataError if it holds none.
    """
    size = _length(batch)
    if size is None:
        raise DataError(
            f"a batch is a {type(batch).__name__} without a tensor; expected at least one, whose "
            "first dimension counts the samples"
        )
    return size


def _length(batch: Any) -> Optional[int]:
    """Return the length of the first tensor or array of a batch; None if it holds none."""
    for leaf in leaves(batch):
        shape: Sequence[int] = getattr(leaf, "shape", ())
        if len(shape):
            return shape[0]
    return None
