"""Assemble the samples of a dataset into batches, and check them."""

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import paddle
from paddle.io.dataloader.collate import default_collate_fn

from paddle_mnist.data.structures import describe_batch, leaves, rebuilt
from paddle_mnist.errors import DataError, PaddleMnistError, summary
from paddle_mnist.system.arrays import as_array

SIGNED_DTYPES = {"uint16": np.int32, "uint32": np.int64}
# What `paddle.gather` and `paddle.stack` take on a CPU, in Paddle 2.6.2 as in 3.3.1.
COPIED_DTYPES = (paddle.float32, paddle.float64, paddle.int32, paddle.int64, paddle.uint8)
SUPPORTED = (  # in a sample
    "numbers, arrays, tensors or strings, of a dtype that Paddle supports (int64, but not "
    "uint64); for others give a collate_fn"
)
CollateFn = Callable[[list[Any]], Any]
_dtype_of = operator.attrgetter("dtype")


@contextlib.contextmanager
def data_error(describe: Callable[[], str]) -> Iterator[None]:
    """Raise an error of the caller's code as a DataError, with the error as its cause.

    describe: returns what fails, for the message.
    """
    try:
        yield
    except (PaddleMnistError, MemoryError):
        raise
    except Exception as error:  # whatever a dataset or a collate_fn raises
        raise DataError(f"{describe()} fails with {summary(error)}") from error


def read_samples(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Return samples of a dataset. Raises DataError, which names the one that cannot be read."""
    samples: list[Any] = []
    with data_error(lambda: f"{type(dataset).__name__}: sample {indices[len(samples)]}"):
        for index in indices:
            samples.append(dataset[index])
    return samples


def make_batch(
    samples: list[Any], source: str, indices: Sequence[int], collate_fn: Optional[CollateFn] = None
) -> Any:
    """Make a batch of samples.

    By default it has the structure of one sample, with NumPy arrays or tensors [B, ...]. Arrays
    keep their dtype, except that uint16 and uint32 become int32 and int64, as Paddle reads the bits
    of uint16 as bfloat16 and has no uint32; Python's numbers become float32, int64 or bool; strings
    become a list.

    source, indices: where the samples come from, for errors. Raises DataError for samples of
    different structures, shapes or dtypes, and if collate_fn raises or returns None.
    """
    is_default = collate_fn is None or collate_fn is default_collate_fn
    with data_error(lambda: f"{source}: the collate_fn of samples {some(indices)}"):
        try:
            batch = (collate_fn or _stack)(samples)
            # Paddle's collation makes an array of objects where one number of several is None.
            if collate_fn is default_collate_fn and any(map(_is_of_objects, leaves(batch))):
                raise ValueError("an array of objects")
        except Exception:
            if is_default:
                _require_alike(samples, source, indices)
            raise
    if batch is None:
        raise DataError(
            f"{source}: the collate_fn of samples {some(indices)} returned None; expected a batch"
        )
    return batch


def some(indices: Sequence[int]) -> str:
    """Return the first few indices as text, for an error."""
    return ", ".join(map(str, indices[:4])) + (", ..." if len(indices) > 4 else "")


def _stack(samples: Sequence[Any]) -> Any:
    """Stack samples of one structure into a batch (see `make_batch`).

    Raises an error that does not name the sample (`_require_alike` does).
    """
    first, types = samples[0], set(map(type, samples))
    kind, *others = set(map(_kind, types))
    if others:
        raise ValueError("different structures")
    if kind is Mapping:
        if any(sample.keys() != first.keys() for sample in samples):
            raise ValueError("different keys")
        return {key: _stack([sample[key] for sample in samples]) for key in first}
    if kind is Sequence:
        if len(set(map(len, samples))) > 1:
            raise ValueError("different lengths")
        return rebuilt(first, [_stack(values) for values in zip(*samples)])
    if kind is str:
        return list(samples)
    if types == {paddle.Tensor} and _can_stack_tensors(samples):
        with paddle.no_grad():
            return paddle.stack(list(samples))
    arrays = samples if types == {np.ndarray} else [_as_array(sample) for sample in samples]
    if len(set(map(_dtype_of, arrays))) > 1:
        arrays = [as_supported(array) for array in arrays]  # uint16 and int32 are both int32 then
        if len(set(map(_dtype_of, arrays))) > 1:
            raise ValueError("different dtypes")
    # Not `np.stack`, which takes three times as long for small arrays.
    batch = np.array(arrays)
    if batch.shape[1:] != arrays[0].shape:  # in NumPy 1.23, an array of objects
        raise ValueError("different shapes")
    return batch if paddle.Tensor in types else as_supported(batch)


@functools.lru_cache  # bounded: a dataset may make classes
def _kind(sample_type: type) -> type:
    """Return Mapping, Sequence, str, or np.ndarray for anything that becomes an array."""
    if issubclass(sample_type, Mapping):
        return Mapping
    if issubclass(sample_type, (tuple, list)):
        return Sequence
    return str if issubclass(sample_type, (str, bytes)) else np.ndarray


def _can_stack_tensors(tensors: Sequence[paddle.Tensor]) -> bool:
    """Return whether `paddle.stack` takes tensors as they are, on a CPU."""
    first = tensors[0]
    shape, dtype = first.shape, first.dtype
    # By identity: to compare dtypes takes as long as to stack.
    are_alike = all(t.dtype is dtype and t.shape == shape and t.is_dense() for t in tensors)
    if not are_alike or not math.prod(shape) or dtype not in COPIED_DTYPES:
        return False
    # A forked worker sends arrays; tensors on another device than the net are copied there.
    is_on_cpu = paddle.get_device() == "cpu" and first.place.is_cpu_place()
    return paddle.io.get_worker_info() is None and is_on_cpu


def _as_array(value: Any) -> np.ndarray:
    """Return a number, an array or a tensor as an array; Python's floats as float32."""
    return np.asarray(value, np.float32) if isinstance(value, float) else as_array(value)


def as_supported(array: np.ndarray) -> np.ndarray:
    """Return an array in a dtype that Paddle supports. Raises ValueError for any other."""
    if array.dtype.kind in "bifc":  # most arrays; comparing names takes longer
        return array
    name = array.dtype.name
    if name in SIGNED_DTYPES:
        return array.astype(SIGNED_DTYPES[name])
    if name not in ("uint8", "bfloat16"):
        raise ValueError(f"Paddle does not support {name}")
    return array


def _is_of_objects(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype.hasobject


def _require_alike(samples: Sequence[Any], source: str, indices: Sequence[int]) -> None:
    """Raise DataError for the first sample that cannot be batched, or differs from the first."""
    for index, sample in zip(indices, samples):
        try:
            _stack([sample])
        except Exception:  # whatever NumPy raises for an object that it does not know
            raise DataError(
                f"{source}: sample {index} is {describe_batch(sample):.300}; expected {SUPPORTED}"
            ) from None
    first, *others = map(describe_batch, samples)
    for index, other in zip(indices[1:], others):
        if other != first:
            raise DataError(
                f"{source}: samples {indices[0]} and {index} of a batch differ: {first:.300} "
                f"and {other:.300}; expected the same structure, dtypes and shapes; for samples of "
                "different sizes give a collate_fn, which pads them, for example"
            )
