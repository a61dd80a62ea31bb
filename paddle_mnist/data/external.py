"""Open data of any kind: a dataset, or whatever yields batches by itself."""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import paddle

from paddle_mnist.data.batch_reader import MapDataset
from paddle_mnist.data.collate import CollateFn, data_error, make_batch
from paddle_mnist.data.epochs import read_epoch
from paddle_mnist.data.loader import BatchLoader, known_length, require_length
from paddle_mnist.data.sampler import SeededOrder, Shard, require_batch_size
from paddle_mnist.data.seeding import TRAIN, seed_generators
from paddle_mnist.data.structures import num_samples, tensors
from paddle_mnist.errors import ConfigError, DataError
from paddle_mnist.interfaces import Loader
from paddle_mnist.system import heartbeat

log = logging.getLogger("paddle_mnist")


class ResumableBatchSampler(paddle.io.BatchSampler):
    """A batch sampler for a `paddle.io.DataLoader` that `fit` can resume inside an epoch.

    The order of the samples is a function of (seed, epoch), as with a dataset given to `fit`. The
    samples must not draw random numbers, because these would depend on where the epoch was resumed.
    """

    def __init__(
        self, dataset: MapDataset, batch_size: int = 1, seed: int = 0, shuffle: bool = True
    ):
        self.batch_size = require_batch_size(batch_size)  # which DataLoader reads
        self._dataset, self._order = dataset, SeededOrder(len(dataset), seed, shuffle)
        self._epoch = self._start = 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Choose the epoch, and the number of the batch, at which the next iteration begins."""
        self._epoch, self._start = epoch, start

    def __iter__(self) -> Iterator[list[int]]:
        require_length(self._dataset, self._order.length)
        order = self._order(self._epoch).tolist()
        for first in range(self._start * self.batch_size, len(order), self.batch_size):
            yield order[first : first + self.batch_size]

    def __len__(self) -> int:
        """Batches per epoch."""
        return -(-self._order.length // self.batch_size)


class ExternalLoader(Loader):
    """Loads the batches of whatever yields them: a `paddle.io.DataLoader`, or a function.

    Each pass over the data yields batches 0, 1, 2, ..., and `group` of them make a step. With five
    batches and a group of two, the steps are:

    no steps_per_epoch    [0 1] [2 3] [4] | [0 1] [2 3] [4] |    an epoch is a pass
    steps_per_epoch=2     [0 1] [2 3] | [4 0] [1 2] | [3 4] ...  a stream of passes stays open

    Before each pass Python's, NumPy's and Paddle's generators are seeded from (seed, pass), so that
    a shuffling `DataLoader`, which draws from NumPy's, has the same order again. With
    `steps_per_epoch` they are seeded after each batch, too: a resumed run, which reads the earlier
    batches of the stream again without making their steps, then gets the same ones.

    batches: an iterable, or a function that returns one for each pass.
    seed: by default no generator is seeded.
    group: how many batches make a step; their gradients are accumulated.
    steps_per_epoch: the number of steps in an epoch; by default it ends with the data.
    """

    def __init__(
        self,
        batches: Any,
        seed: Optional[int] = None,
        group: int = 1,
        steps_per_epoch: Optional[int] = None,
    ):
        if not callable(batches) and not hasattr(batches, "__iter__"):
            raise ConfigError(
                f"the data are a {type(batches).__name__}; expected a paddle.io.Dataset, a "
                "BatchLoader, a paddle.io.DataLoader, or a function that returns an iterator of "
                "batches"
            )
        self.batches, self.seed, self.group = batches, seed, group
        self._steps = steps_per_epoch
        self._stream: Iterator[list[Any]] = iter(())  # of steps, open from epoch to epoch
        self._next_step: Optional[int] = None  # the number of the step that the stream yields next
        sampler = getattr(batches, "batch_sampler", None)
        self._has_resumable_sampler = isinstance(sampler, ResumableBatchSampler)
        self._last_returned: Any = None  # by the function

    @property
    def is_function(self) -> bool:
        """Whether a function yields the batches; a DataLoader is callable, too."""
        return callable(self.batches) and not isinstance(self.batches, paddle.io.DataLoader)

    @property
    def resumes_inside_epochs(self) -> bool:
        return self._has_resumable_sampler or self._steps is not None

    @property
    def steps_per_epoch(self) -> Optional[int]:
        """The number of steps in an epoch; None if the number of batches is unknown."""
        batches = known_length(self.batches)
        return self._steps or (None if batches is None else -(-batches // self.group))

    def epoch(self, epoch: int, start: int = 0, stride: int = 1) -> Iterator[Any]:
        """Yield the batches of an epoch's steps from number `start` on, every `stride`-th."""
        if self._steps:
            steps = self._read_stream(epoch * self._steps + start, (epoch + 1) * self._steps)
        elif self._has_resumable_sampler:
            steps = self._grouped(self._read_pass(epoch, start * self.group))
        else:
            steps = itertools.islice(self._grouped(self._read_pass(epoch)), start, None)
        for group in itertools.islice(steps, 0, None, stride):
            yield self._shards(group) if self.group > 1 else tensors(group[0])

    def _read_stream(self, first: int, end: int) -> Iterator[list[Any]]:
        """Yield the batches of the steps from number `first` up to `end`, counted over epochs."""
        if self._next_step != first:  # after a trial, or in a resumed training
            if first:
                log.info("reading the batches of the %d earlier steps again", first)
            batches = itertools.chain.from_iterable(map(self._read_pass, itertools.count()))
            self._stream = self._grouped(itertools.islice(batches, first * self.group, None))
        try:
            for self._next_step in range(first + 1, end + 1):
                yield next(self._stream)
        except BaseException:  # also of a caller who leaves the epoch early
            self.close()
            raise

    def close(self) -> None:
        """Drop the open stream, which may have workers."""
        self._stream, self._next_step = iter(()), None

    def _read_pass(self, number: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of one pass over the data. Raises DataError if there are none.

        start: the first batch to read, for a `ResumableBatchSampler`.
        """
        self._seed_generators(number)
        batches = self._iterable_batches()
        count = 0
        for count, batch in enumerate(read_epoch(batches, number, start), 1):
            yield batch
            heartbeat.beat()  # skipping batches may take long, and is not a hang
            if self._steps:
                self._seed_generators("batch", number, count)
        if not count and not start:
            data = getattr(batches, "dataset", self.batches)
            raise DataError(
                f"the data, a {type(data).__name__}, have no batches in this epoch; expected at "
                "least one; a function must return a new iterator each time"
            )

    def _iterable_batches(self) -> Iterable[Any]:
        """Return the batches; call the function if they come from one. Raises DataError."""
        if isinstance(self.batches, Iterable):  # a DataLoader is callable as well
            return self.batches
        batches = self.batches()
        if not isinstance(batches, Iterable):
            raise DataError(
                f"the function that gives the data returned a {type(batches).__name__}; "
                "expected an iterator of batches"
            )
        if isinstance(batches, Iterator) and batches is self._last_returned:
            raise DataError(
                f"the function that gives the data returned the same {type(batches).__name__} "
                "twice; expected a new iterator each time, as fit reads the first batches "
                "before the training"
            )
        self._last_returned = batches
        return batches

    def _seed_generators(self, *key: Union[int, str]) -> None:
        if self.seed is not None:
            seed_generators(self.seed, *key)

    def _grouped(self, batches: Iterator[Any]) -> Iterator[list[Any]]:
        """Yield the batches of each step; the last may have fewer."""
        while group := list(itertools.islice(batches, self.group)):
            yield group

    def _shards(self, group: Sequence[Any]) -> list[Shard]:
        sizes = [num_samples(batch) for batch in group]
        return [
            Shard(tensors(batch), index, size, batch_size=sum(sizes))
            for index, (batch, size) in enumerate(zip(group, sizes))
        ]


def open_loader(
    data: Any,
    batch_size: int,
    seed: int = 0,
    shuffle: bool = False,
    collate_fn: Optional[CollateFn] = None,
    num_workers: int = 0,
    order: Optional[Callable[[int], np.ndarray]] = None,
    drop_last: bool = False,
    split: str = TRAIN,
) -> Union[BatchLoader, ExternalLoader]:
    """Return a loader of data of any kind. Raises ConfigError.

    data                                                 loader
    a loader                                             itself
    a `paddle.io.Dataset`, a list of samples, or         `BatchLoader`, which makes batches
        anything else with a length and indices
    an `IterableDataset`                                 `ExternalLoader` of the batches made here
    a `DataLoader`, a function, another iterable         `ExternalLoader`

    For the other arguments see `BatchLoader`.
    """
    # A class such as `list` has both methods, and counts as a function here.
    is_indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    is_indexed &= not isinstance(data, (type, paddle.io.IterableDataset))
    if order is not None and not is_indexed:
        raise ConfigError(
            f"the data are a {type(data).__name__}, which has an order of its own; expected a "
            "paddle.io.Dataset with an order, or none"
        )
    if isinstance(data, paddle.io.IterableDataset):
        return ExternalLoader(_IterableBatches(data, batch_size, collate_fn, drop_last), seed)
    if drop_last and not is_indexed:
        raise ConfigError(
            f"the data are a {type(data).__name__}, which makes the batches itself; expected a "
            "paddle.io.Dataset with drop_last, or data that leave out the last batch themselves"
        )
    if isinstance(data, (BatchLoader, ExternalLoader)):
        return data
    if isinstance(data, (tuple, str, Mapping, np.ndarray, paddle.Tensor)):
        raise ConfigError(
            f"the data are a {type(data).__name__}; expected a paddle.io.Dataset, which for "
            "arrays is paddle.io.TensorDataset([paddle.to_tensor(inputs), "
            "paddle.to_tensor(labels)])"
        )
    if is_indexed:
        return BatchLoader(
            data, batch_size, seed, shuffle, collate_fn, num_workers, order, drop_last, split
        )
    if isinstance(data, Iterator):
        raise ConfigError(
            f"the data are a {type(data).__name__}, used up after one epoch; expected a "
            "paddle.io.Dataset, a paddle.io.DataLoader, or the function that makes it"
        )
    return ExternalLoader(data, seed)


def own_batch_size(data: Any) -> Optional[int]:
    """Return the size of the batches that a loader makes; None for other data, or if unknown."""
    if not isinstance(data, (BatchLoader, paddle.io.DataLoader)):
        return None
    return data.batch_size or getattr(getattr(data, "batch_sampler", None), "batch_size", None)


def as_loader(batches: Any) -> Loader:
    """Return a loader of ready batches, without seeding any generator.

    batches: a loader; or, as in the tutorial, a `paddle.io.DataLoader`, or a function that returns
        an iterator each time it is called; or any other iterable. Raises ConfigError.
    """
    return batches if isinstance(batches, Loader) else ExternalLoader(batches)


class _IterableBatches:
    """Batches of a `paddle.io.IterableDataset`, which cannot be indexed."""

    def __init__(
        self, dataset: Any, batch_size: int, collate_fn: Optional[CollateFn], drop_last: bool
    ):
        self.dataset, self.batch_size, self.collate_fn = dataset, batch_size, collate_fn
        self.least = batch_size if drop_last else 1

    def __iter__(self) -> Iterator[Any]:
        samples = self._samples()
        for start in itertools.count(0, self.batch_size):
            batch = list(itertools.islice(samples, self.batch_size))
            if len(batch) >= self.least:
                indices = range(start, start + len(batch))
                yield make_batch(batch, type(self.dataset).__name__, indices, self.collate_fn)
            if len(batch) < self.batch_size:
                return

    def _samples(self) -> Iterator[Any]:
        """Yield the samples. Raises DataError, which counts those before the one that fails."""
        count = 0
        with data_error(lambda: f"{type(self.dataset).__name__}: sample {count} of an epoch"):
            for sample in self.dataset:
                yield sample
                count += 1
