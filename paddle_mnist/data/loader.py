"""Batches of any dataset as tensors, and the shards into which they may be divided."""

import copy
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from typing import Any, Optional, Union

import numpy as np

from paddle_mnist.data.batch_reader import BatchReader, MapDataset
from paddle_mnist.data.collate import CollateFn
from paddle_mnist.data.sampler import EpochOrder, SeededOrder, Shard, ShardSpec, require_batch_size
from paddle_mnist.data.seeding import TRAIN
from paddle_mnist.data.structures import tensors
from paddle_mnist.data.workers import map_in_workers, warn_of_open_files
from paddle_mnist.errors import ConfigError
from paddle_mnist.interfaces import Loader
from paddle_mnist.system import signals


class BatchLoader(Loader):
    """Loads the batches of a map-style dataset as tensors, in the same order wherever it begins.

    dataset: a `paddle.io.Dataset`, or anything else with a length and indices, whose samples are
        arrays, tensors and numbers, nested in dicts, tuples and lists. Its method `set_epoch`, if
        there is one, is called with the epoch, counted from 0.

        If the dataset has a method `__getitems__(indices)`, as in PyTorch, one call reads a batch,
        which is quicker. It returns a list of samples, or the batch itself: tuples and dicts of
        arrays or tensors [B, ...]. A `paddle.io.TensorDataset` needs no such method.
    batch_size: samples in a batch; the last of an epoch may be short.
    seed, shuffle: shuffle the samples in every epoch, by (seed, epoch).
    collate_fn: makes a batch of a list of samples; by default they are stacked.
    num_workers: processes that read samples ahead; 0 reads them in this one.
    order: an order in place of `shuffle`: from the epoch, the indices of its samples, int64 [N].
        It may leave samples out, and repeat them; N is the same in every epoch.
    drop_last: whether to leave out the last batch of an epoch if it is short.
    split: "train", or another name, for data whose samples draw other random numbers.

    Before each batch, or each shard of one, is read, Python's, NumPy's and Paddle's generators are
    seeded from (seed, split, epoch, position of its first sample in the epoch), so random
    augmentation is the same in every process.

    Raises ConfigError for a batch size below 1, for an invalid order, and for a dataset whose
    length changes later.
    """

    is_indexed: bool = True

    def __init__(
        self,
        dataset: MapDataset,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = False,
        collate_fn: Optional[CollateFn] = None,
        num_workers: int = 0,
        order: Optional[Callable[[int], np.ndarray]] = None,
        drop_last: bool = False,
        split: str = TRAIN,
    ) -> None:
        self.dataset = dataset
        self._samples = len(dataset)
        self.num_workers = num_workers
        self.batch_size = require_batch_size(batch_size)
        self.shard_spec: Optional[ShardSpec] = None
        self.order: Union[SeededOrder, EpochOrder] = (
            EpochOrder(order, self._samples) if order else SeededOrder(self._samples, seed, shuffle)
        )
        self._end = self.order.length  # how many samples of the order an epoch reads
        if drop_last:
            self._end -= self._end % batch_size
        self._read = BatchReader(dataset, seed, collate_fn, split)

    def __len__(self) -> int:
        """Batches per epoch."""
        return -(-self._end // self.batch_size)

    @property
    def steps_per_epoch(self) -> int:
        return len(self)

    @property
    def own_order(self) -> Optional[EpochOrder]:
        return self.order if isinstance(self.order, EpochOrder) else None

    def sharded(self, shard_spec: Optional[ShardSpec], batches: int = 1) -> "BatchLoader":
        """Return a loader of the same samples in shards.

        batches: how many batches make one, whose gradients a step accumulates.
        """
        other = copy.copy(self)
        other.shard_spec = shard_spec
        other.batch_size = self.batch_size * batches
        return other

    def ending_after(self, steps: int) -> "BatchLoader":
        """Return a loader whose epochs have so many batches. Raises ConfigError for too many."""
        if steps > len(self):
            raise ConfigError(
                f"steps_per_epoch is {steps}, but an epoch of the data has {len(self)} steps; "
                "expected at most as many: more epochs read the data again"
            )
        other = copy.copy(self)
        other._end = min(steps * self.batch_size, self._end)
        return other

    def __iter__(self) -> Iterator[Any]:
        return self.epoch(0)

    def epoch(self, epoch: int, start: int = 0, stride: int = 1) -> Iterator[Any]:
        """Yield the batches of an epoch from number `start` on, every `stride`-th, as tensors.

        With shards each is a list of this process's `Shard`s.
        """
        self._read.begin(epoch)
        require_length(self.dataset, self._samples)
        plan, plan_to_read = itertools.tee(self._plan(epoch, start, stride))  # workers read ahead
        to_read = itertools.chain.from_iterable(plan_to_read)
        if self.num_workers:
            warn_of_open_files(self.dataset)
            loaded = map_in_workers(self._read, to_read, self.num_workers)
        else:
            loaded = map(self._read, to_read)
        for parts in plan:
            batches = [tensors(next(loaded)) for _ in parts]
            shards = (replace(part, batch=batch) for part, batch in zip(parts, batches))
            yield [*shards] if self.shard_spec else batches[0]

    def first_batch(self, epoch: int = 0) -> Any:
        """Return the batch that this process reads first in the first epoch, or its first shard.

        It is read without workers, and has arrays.
        epoch: the one whose random numbers these samples draw.
        """
        shard = next(self._plan(0))[0]
        self._read.begin(epoch)
        return self._read(replace(shard, epoch=epoch))

    def indices(self, epoch: int, number: int, shard: int = 0) -> np.ndarray:
        """Return the indices of the samples of a batch, or of one of its shards."""
        parts = {part.index: part.batch for part in next(self._plan(epoch, number))}
        return np.array(parts[shard])

    def sample_name(self, epoch: int, number: int, shard: int, row: int) -> str:
        index = self.indices(epoch, number, shard)[row]
        return f"sample {index} of {type(self.dataset).__name__}"

    def _plan(self, epoch: int, start: int = 0, stride: int = 1) -> Iterator[list[Shard]]:
        """Yield the shards of each batch that this process reads, with indices as `batch`.

        The batches are those of an epoch from number `start` on, every `stride`-th.
        """
        order, spec = self.order(epoch), self.shard_spec or ShardSpec()
        for first in range(start * self.batch_size, self._end, stride * self.batch_size):
            end = min(first + self.batch_size, self._end)
            yield [
                Shard(order[part], index, samples, end - first, epoch, part.start)
                for index, part, samples in spec.slices(slice(first, end))
            ]


def require_length(dataset: MapDataset, samples: int) -> None:
    """Raise ConfigError for a dataset whose length has changed since it was first seen."""
    if len(dataset) != samples:
        raise ConfigError(
            f"{type(dataset).__name__} had {samples} samples at first, and has {len(dataset)} now; "
            "expected the same number in every epoch; for data that grow, give a function that "
            "returns an iterator over the batches of an epoch, which is called for each epoch, or "
            "call fit again with another output and start=StartFrom(...)"
        )


def interruptible_batches(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the same batches; a signal interrupts the wait for one, and raises StoppedError.

    The workers that read them end then, too, even while the error keeps this generator alive.
    """
    iterator, end = iter(batches), object()
    try:
        while True:
            with signals.interruptible():
                batch = next(iterator, end)
            if batch is end:
                return
            yield batch
    finally:
        if isinstance(iterator, Generator):
            iterator.close()


def known_length(data: Any) -> Optional[int]:
    """Return the length of a dataset or a loader; None if it has none."""
    try:
        return len(data)
    except (TypeError, ValueError, RuntimeError):  # Paddle's, over an IterableDataset
        return None
