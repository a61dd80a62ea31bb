"""Read the samples of a batch: in one call where the dataset can, else one by one."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Optional, Protocol

import numpy as np
import paddle

from paddle_mnist.data.collate import (
    COPIED,
    CollateFn,
    batch_of,
    data_error,
    make_batch,
    read_samples,
    some,
)
from paddle_mnist.data.sampler import Shard
from paddle_mnist.data.seeding import TRAIN, seed_generators


class MapDataset(Protocol):
    """An object with a length and indices: a `paddle.io.Dataset`, a list of samples."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class BatchReader:
    """Reads batches of a dataset, with random numbers that follow from their place in the epoch.

    A dataset with `__getitems__(indices)` is read by it, as PyTorch does. A `TensorDataset` is read
    with one operation for each of its tensors. All others are read sample by sample.

    Before each read, Python's, NumPy's and Paddle's generators are seeded from (seed, split, epoch,
    position of the first sample in the epoch). What is read together is the same for any number of
    workers and processes, so the random numbers of samples and `collate_fn` are, too.
    """

    def __init__(
        self,
        dataset: MapDataset,
        seed: int,
        collate_fn: Optional[CollateFn] = None,
        split: str = TRAIN,
    ):
        self.dataset, self.seed, self.collate_fn, self.split = dataset, seed, collate_fn, split
        self._source = type(dataset).__name__  # for errors
        self._epoch: Optional[int] = None  # that was passed to the dataset
        self._getitems = _batch_method(dataset, collate_fn)

    def begin(self, epoch: int) -> None:
        """Pass the epoch to the dataset, if it has a method `set_epoch`."""
        self._epoch = epoch
        set_epoch(self.dataset, epoch)

    def __call__(self, shard: Shard) -> Any:
        """Return the samples of a shard, whose `batch` is their indices, with arrays or tensors."""
        if shard.epoch != self._epoch:  # another epoch was begun after that of this shard
            self.begin(shard.epoch)
        seed_generators(self.seed, self.split, shard.epoch, shard.position)
        indices = shard.batch
        if self._getitems is None:
            samples = read_samples(self.dataset, indices)
            return make_batch(samples, self._source, indices, self.collate_fn)
        with data_error(f"{self._source}: __getitems__ of samples {some(indices)}"):
            found = self._getitems(list(indices))
        return batch_of(found, self._source, indices, self.collate_fn)


def set_epoch(part: Any, epoch: int, **place: int) -> None:
    """Call the method `set_epoch` of an object that has one."""
    if hasattr(part, "set_epoch"):
        part.set_epoch(epoch, **place)


def _batch_method(dataset: Any, collate_fn: Optional[CollateFn]) -> Optional[Callable[..., Any]]:
    """Return what reads many samples at once as `__getitem__` reads one; None if nothing does.

    A subclass that overrides only `__getitem__`, for example to augment samples, inherits a
    `__getitems__` that does not.
    """
    for base in type(dataset).__mro__:
        if base is paddle.io.TensorDataset:
            can_gather = collate_fn is None and all(map(_can_be_gathered, dataset.tensors))
            return functools.partial(_gathered, dataset) if can_gather else None
        if vars(base).get("__getitems__") is not None:
            method: Callable[..., Any] = dataset.__getitems__
            return method
        if "__getitem__" in vars(base):
            return None
    return None


def _can_be_gathered(values: Any) -> bool:
    return isinstance(values, paddle.Tensor) and values.is_dense() and values.dtype in COPIED


def _gathered(dataset: Any, indices: Sequence[int]) -> tuple[paddle.Tensor, ...]:
    """Return samples of a `TensorDataset` as one batch."""
    rows = np.array(indices, np.int64)
    return tuple(
        paddle.gather(values.detach(), paddle.to_tensor(rows, place=values.place))
        for values in dataset.tensors
    )
