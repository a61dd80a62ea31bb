"""Assemble the samples of a dataset into batches, and check them."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, Optional, Union

import numpy as np
import paddle
from paddle.io.dataloader.collate import default_collate_fn

from paddle_mnist.data.structures import leaves, length_of, mapped, rebuilt
from paddle_mnist.errors import DataError, PaddleMnistError, summary
from paddle_mnist.system.arrays import as_array

# Paddle reads the bits of a uint16 array as bfloat16, and has no uint32.
SIGNED = {"uint16": np.int32, "uint32": np.int64}
# What `paddle.gather` and `paddle.stack` take on a CPU, in Paddle 2.6.2 as in 3.3.1.
COPIED = (paddle.float32, paddle.float64, paddle.int32, paddle.int64, paddle.uint8)
EXPECTED = "numbers, arrays, tensors or strings; for others give a collate_fn"  # in a sample


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
    if length_of(found) != len(indices):
        raise error(
            f"a {kind} of {length_of(found) or 'no'} rows; expected a list of {len(indices)} "
            f"samples, or arrays and tensors with {len(indices)} rows"
        )

    def converted(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            return leaf
        return _as_paddles(leaf, leaf, source, lambda number: str(indices[number]), 0)

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
        _require_one(samples, _kind, "structure", source, name)
    if isinstance(first, Mapping):
        if len(set(map(frozenset, samples))) > 1:
            _require_one(samples, lambda sample: sorted(sample, key=str), "keys", source, name)
        return {
            key: stack_samples(
                [sample[key] for sample in samples], source, indices, f"{place}[{key!r}]"
            )
            for key in first
        }
    if isinstance(first, (tuple, list)):
        if len(set(map(len, samples))) > 1:
            _require_one(samples, len, "number of values", source, name)
        parts = [
            stack_samples(values, source, indices, f"{place}[{number}]")
            for number, values in enumerate(zip(*samples))
        ]
        return rebuilt(first, parts)
    if isinstance(first, (str, bytes)):
        return list(samples)
    return _stack_leaves(samples, types, source, name)


def _kind(sample: Any) -> str:
    """Return what a sample is: one of these, or something that is to become an array."""
    if isinstance(sample, Mapping):
        return "dict"
    if isinstance(sample, (tuple, list)):
        return "tuple or list"
    return "text" if isinstance(sample, (str, bytes)) else "number or array"


def _stack_leaves(
    samples: Sequence[Any], types: Set[type], source: str, name: Callable[[int], str]
) -> Any:
    """Stack numbers, arrays or tensors. types: theirs. See `stack_samples`."""
    if types == {paddle.Tensor}:
        stacked = _stack_tensors(samples)
        if stacked is not None:
            return stacked
    arrays = samples if types == {np.ndarray} else [as_array(sample) for sample in samples]
    if len(types) == len({(array.dtype, array.shape) for array in arrays}) == 1:
        # Not `np.stack`, which takes three times as long for small arrays.
        return _as_paddles(np.array(arrays), samples[0], source, name, 0)
    converted = [
        _as_paddles(array, sample, source, name, number)
        for number, (array, sample) in enumerate(zip(arrays, samples))
    ]
    _require_one(
        converted,
        lambda array: f"{array.dtype} {list(array.shape)}",
        "dtype or shape",
        source,
        name,
    )
    return np.stack(converted)


def _stack_tensors(tensors: Sequence[paddle.Tensor]) -> Optional[paddle.Tensor]:
    """Stack tensors in one operation on a CPU; return None where that is not possible."""
    first = tensors[0]
    shape, dtype = first.shape, first.dtype
    # By identity: to compare dtypes takes as long as to stack.
    is_alike = all(one.dtype is dtype and one.shape == shape and one.is_dense() for one in tensors)
    if not is_alike or not math.prod(shape) or dtype not in COPIED:
        return None
    # A forked worker sends arrays; what is on another device than the net is copied there.
    if paddle.io.get_worker_info() is not None or paddle.get_device() != "cpu":
        return None
    with paddle.no_grad():
        return paddle.stack(list(tensors)) if first.place.is_cpu_place() else None


def _as_paddles(
    array: np.ndarray, value: Any, source: str, name: Callable[[int], str], number: int
) -> np.ndarray:
    """Return an array in a dtype that Paddle has. Raises DataError if there is none.

    value: which it was made of, that of a sample. number: the sample's, for `name`.
    """
    if isinstance(value, paddle.Tensor):
        return array
    if array.dtype.kind in "bifc" and not isinstance(value, float):  # most; a name takes longer
        return array
    if array.dtype.name in SIGNED:
        return array.astype(SIGNED[array.dtype.name])
    if array.dtype.name == "uint64":
        raise DataError(
            f"{source}: sample {name(number)} is uint64, which Paddle does not have; expected int64"
        )
    if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
        raise DataError(
            f"{source}: sample {name(number)} is a {type(value).__name__}; expected {EXPECTED}"
        )
    return array.astype(np.float32) if isinstance(value, float) else array


def _require_one(
    samples: Sequence[Any],
    describe: Callable[[Any], Any],
    what: str,
    source: str,
    name: Callable[[int], str],
) -> None:
    """Raise DataError unless all samples have the same description.

    name: gives that of a sample by its number in the batch.
    """
    descriptions = [describe(sample) for sample in samples]
    for number, found in enumerate(descriptions):
        if found != descriptions[0]:
            raise DataError(
                f"{source}: samples {name(0)} and {name(number)} of a batch differ in their "
                f"{what}: {descriptions[0]} and {found}; expected the same in all; for samples of "
                "different sizes give a collate_fn, which pads them, say"
            )
