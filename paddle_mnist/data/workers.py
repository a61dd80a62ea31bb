"""Batches that worker processes read, in whatever structure, and the errors they meet.

Paddle's `DataLoader` sends arrays through shared memory, but makes lists of tuples, fails on an
array without elements, ends an epoch at a batch without arrays, and hides the error of a worker
behind one of its own. Hence it is given arrays apart, and the rest as one object.
"""

import copy
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import paddle

from paddle_mnist.data.collate import mapped
from paddle_mnist.data.forking import iterate
from paddle_mnist.system.arrays import as_array


def map_in_workers(
    read: Callable[[Sequence[Any]], Any], lists_of_keys: Iterator[Sequence[Any]], num_workers: int
) -> Iterator[Any]:
    """Yield `read(keys)` of each list of keys, in order, computed ahead in other processes.

    Arrays come as tensors. Raises what `read` raises, with the traceback in the worker as its
    cause.
    """
    loader = paddle.io.DataLoader(
        _Batches(read),
        batch_sampler=_Lists(lists_of_keys),
        collate_fn=_only,
        num_workers=num_workers,
        return_list=True,
    )
    for sent in iterate(loader):
        yield _unpacked(sent)


class _Batches(paddle.io.Dataset):
    """Batches by the keys of their samples, packed."""

    def __init__(self, read: Callable[[Sequence[Any]], Any]):
        super().__init__()
        self.read = read

    def __getitem__(self, keys: Sequence[Any]) -> list[Any]:
        try:
            return _packed(self.read(keys))
        except Exception as error:  # whatever the dataset raises
            return _packed(_Failure(error))


@dataclass(frozen=True)
class _Slot:
    """The place of an array that is sent by itself. number: among those of the batch."""

    number: int


@dataclass(frozen=True)
class _Rest:
    """What is left of a batch without its arrays, which Paddle sends as it is."""

    structure: Any


class _Failure:
    """An error in a worker, with its traceback as text."""

    def __init__(self, error: Exception):
        self.traceback = "".join(
            traceback.format_exception(type(error), error, error.__traceback__)
        )
        try:
            ForkingPickler.dumps(error)
            self.error = copy.copy(error)  # made anew as in the other process
        except Exception:  # an error whose arguments are not its constructor's
            self.error = RuntimeError(f"{type(error).__name__}: {error}")


# What Paddle's workers send as tensors; uint16 is what NumPy makes of bfloat16.
SENT_DTYPES = """
    bool int8 uint8 int16 uint16 int32 int64 float16 float32 float64 complex64 complex128
""".split()


def _packed(batch: Any) -> list[Any]:
    """Return the arrays and tensors of a batch, and the rest of it."""
    arrays = [np.zeros(1, np.uint8)]  # an epoch would end at a batch without arrays

    def set_apart(leaf: Any) -> Any:
        if isinstance(leaf, paddle.Tensor):
            leaf = as_array(leaf)
        is_array = isinstance(leaf, np.ndarray) and leaf.size > 0
        if not is_array or leaf.dtype.name not in SENT_DTYPES:
            return leaf
        arrays.append(np.asarray(leaf, order="C"))
        return _Slot(len(arrays) - 1)

    rest = _Rest(mapped(batch, set_apart))
    return [*arrays, rest]


def _unpacked(sent: Sequence[Any]) -> Any:
    """Return the batch that a worker has packed. Raises the error that it had."""
    *arrays, rest = sent
    batch = rest.structure
    if isinstance(batch, _Failure):
        raise batch.error from RuntimeError(f"in a worker:\n{batch.traceback}")
    return mapped(
        batch,
        lambda leaf: arrays[leaf.number] if isinstance(leaf, _Slot) else leaf,
    )


def _only(items: Sequence[Any]) -> Any:
    """Return the only item of a list: the batch, which is already made."""
    (item,) = items
    return item


class _Lists(paddle.io.BatchSampler):
    """Hands lists of keys to Paddle's DataLoader, each as the index of one batch."""

    def __init__(self, lists: Iterator[Sequence[Any]]):
        self.lists = lists

    def __iter__(self) -> Iterator[list[Sequence[Any]]]:
        return ([keys] for keys in self.lists)

    def __len__(self) -> int:
        raise TypeError("an iterator has no length")
