"""Stacks the leaves of samples: numbers, arrays and tensors, all of one kind."""

import math
from collections.abc import Callable, Sequence, Set
from typing import Any, Optional

import numpy as np
import paddle

from paddle_mnist.errors import DataError
from paddle_mnist.system.arrays import as_array

# Paddle reads the bits of a uint16 array as bfloat16, and has no uint32.
SIGNED = {"uint16": np.int32, "uint32": np.int64}
# What `paddle.gather` and `paddle.stack` take on a CPU, in Paddle 2.6.2 as in 3.3.1.
COPIED = (paddle.float32, paddle.float64, paddle.int32, paddle.int64, paddle.uint8)
EXPECTED = "numbers, arrays, tensors or strings; for others give a collate_fn"  # in a sample


def stack_leaves(
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
        return as_paddles(np.array(arrays), samples[0], source, name, 0)
    converted = [
        as_paddles(array, sample, source, name, number)
        for number, (array, sample) in enumerate(zip(arrays, samples))
    ]
    require_one(
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


def as_paddles(
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
            f"{source}: sample {name(number)} is uint64, which Paddle has not; expected int64, say"
        )
    if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
        raise DataError(
            f"{source}: sample {name(number)} is a {type(value).__name__}; expected {EXPECTED}"
        )
    return array.astype(np.float32) if isinstance(value, float) else array


def require_one(
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
