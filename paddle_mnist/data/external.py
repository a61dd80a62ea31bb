"""Open data of any kind: a dataset, and whatever yields its batches by itself."""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import paddle

from paddle_mnist.data.batch_reader import CollateFn, MapDataset
from paddle_mnist.data.collate import data_error, make_batch, num_samples, tensors
from paddle_mnist.data.epochs import read_epoch
from paddle_mnist.data.loader import BatchLoader, Shard, is_loader, require_length
from paddle_mnist.data.sampler import BatchSampler
from paddle_mnist.data.seeding import seed_generators
from paddle_mnist.errors import ConfigError, DataError
from paddle_mnist.system import heartbeat

log = logging.getLogger("paddle_mnist")


def can_be_repeated(loader: Any) -> bool:
    """Return whether the data can be read again from the beginning."""
    return not (isinstance(loader, ExternalLoader) and loader.once)


class ResumableBatchSampler(paddle.io.BatchSampler):
    """A batch sampler for a `paddle.io.DataLoader` that `fit` can resume inside an epoch.

    The order of the samples is a function of (seed, epoch), as with a dataset given to `fit`. The
    samples must not draw random numbers, because these would depend on where the epoch was resumed.
    """

    def __init__(
        self, dataset: MapDataset, batch_size: int = 1, seed: int = 0, shuffle: bool = True
    ):
        self.batch_size = batch_size  # which DataLoader reads
        self._dataset, self._samples = dataset, len(dataset)
        self._sampler = BatchSampler(len(dataset), batch_size, seed, shuffle)
        self._epoch = self._start = 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Choose the epoch, and the number of the batch, at which the next iteration begins."""
        self._epoch, self._start = epoch, start

    def __iter__(self) -> Iterator[list[int]]:
        require_length(self._dataset, self._samples)
        for batch in self._sampler.batches(self._epoch, self._start):
            yield batch.tolist()

    def __len__(self) -> int:
        """Batches per epoch."""
        return len(self._sampler)


class ExternalLoader:
    """Loads the batches of whatever yields them: a `paddle.io.DataLoader`, or a function.

    Before each epoch Python's, NumPy's and Paddle's generators are seeded from (seed, epoch), so
    that a shuffling `DataLoader`, which draws from NumPy's, has the same order again.

    With `steps_per_epoch`, an epoch begins where the one before has ended, and at their end the
    data begin again. The generators are then seeded before each batch, so that what steps draw has
    no effect on it: a resumed training, which reads the batches before once more, has the same.

    batches: an iterable, or a function that returns one, for each epoch.
    group: how many batches make a step; their gradients are accumulated.
    steps_per_epoch: the number of steps in an epoch; by default it ends with the data.
    """

    def __init__(
        self, batches: Any, seed: int = 0, group: int = 1, steps_per_epoch: Optional[int] = None
    ):
        if not callable(batches) and not hasattr(batches, "__iter__"):
            raise ConfigError(
                f"the data are a {type(batches).__name__}; expected a paddle.io.Dataset, a "
                "paddle.io.DataLoader, or a function that returns an iterator of batches"
            )
        self.batches, self.seed, self.group = batches, seed, group
        self.steps_per_epoch = steps_per_epoch
        self._stream: Iterator[Any] = iter(())  # open from epoch to epoch
        self._stream_at: Optional[int] = None  # the number of the step that it yields next
        sampler = getattr(batches, "batch_sampler", None)
        self._sampler = sampler if isinstance(sampler, ResumableBatchSampler) else None
        self.once: Optional[Iterator[Any]] = None  # of data that can be read only once

    def peek(self) -> Iterator[Any]:
        """Yield what an epoch yields, for a look: what can be read only once is not lost by it."""
        if self.once is None and not isinstance(self.batches, Iterable):
            first, second = self.batches(), self.batches()
            self.once = first if first is second else None
        if self.once is None:
            yield from self.epoch(0)
            return
        kept, self.once = itertools.tee(self.once)
        try:
            yield from self.epoch(0)
        finally:
            self.once = kept

    @property
    def resumes_inside_epochs(self) -> bool:
        """Return whether an epoch can begin at any batch."""
        return self._sampler is not None or self.steps_per_epoch is not None

    @property
    def passes_per_step(self) -> int:
        """The number of batches that make a step."""
        return self.group

    def __len__(self) -> int:
        """Steps per epoch. Raises TypeError if the number of batches is unknown."""
        return self.steps_per_epoch or -(-len(self.batches) // self.group)

    def epoch(self, epoch: int, start: int = 0, stride: int = 1) -> Iterator[Any]:
        """Yield what the steps of an epoch take from number `start` on, every `stride`-th."""
        if self.steps_per_epoch:
            end = (epoch + 1) * self.steps_per_epoch
            steps = self._read_on(end - self.steps_per_epoch + start, end)
        else:
            begin, dropped = (start * self.group, 0) if self._sampler else (0, start)
            steps = itertools.islice(self._groups(self._pass(epoch, begin)), dropped, None)
        for group in itertools.islice(steps, 0, None, stride):
            yield self._shards(group) if self.group > 1 else tensors(group[0])

    def _read_on(self, first: int, end: int) -> Iterator[list[Any]]:
        """Yield the batches of the steps from number `first` up to `end`, in an open stream."""
        if self._stream_at != first:  # after a trial, or in a resumed training
            if first:
                log.info("reading the batches of the %d steps before once more", first)
            passes = itertools.chain.from_iterable(map(self._pass, itertools.count()))
            self._stream = self._groups(itertools.islice(passes, first * self.group, None))
        try:
            for self._stream_at in range(first + 1, end + 1):
                yield next(self._stream)
        except BaseException:  # also where the epoch is broken off
            self.close()
            raise

    def close(self) -> None:
        """Drop the open stream, which may have workers."""
        self._stream, self._stream_at = iter(()), None

    def _pass(self, number: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of one pass over the data; a `ResumableBatchSampler` begins at `start`.

        Raises DataError if there are none.
        """
        seed_generators(self.seed, number)
        batches = self.batches
        if not isinstance(batches, Iterable):  # a DataLoader is callable as well
            batches = self.once or batches()
            if not isinstance(batches, Iterable):
                raise DataError(
                    f"the function that gives the data returned a {type(batches).__name__}; "
                    "expected an iterator of batches"
                )
        place, count = {"start": start} if self._sampler else {}, 0
        for count, batch in enumerate(read_epoch(batches, number, **place), 1):
            yield batch
            if self.steps_per_epoch:
                heartbeat.beat()  # to read what is dropped may take long: it is no hang
                seed_generators(self.seed, "batch", number, count)
        if not count and not start:
            raise DataError(
                f"the data, a {type(self.batches).__name__}, have no batches in this epoch; "
                "expected at least one; a function must return a new iterator each time"
            )

    def _groups(self, batches: Iterator[Any]) -> Iterator[list[Any]]:
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
    random: bool = False,
    drop_last: bool = False,
) -> Any:
    """Return a loader of data of any kind; a loader is returned as it is.

    data: a `paddle.io.Dataset`, a list of samples or anything else with a length and indices, or
        an `IterableDataset`, each of which is divided into batches; or what an `ExternalLoader`
        takes, which yields batches. For the others see `BatchLoader`.
    Raises ConfigError.
    """
    is_indexed = (
        hasattr(data, "__getitem__")
        and hasattr(data, "__len__")
        and not isinstance(data, (type, paddle.io.IterableDataset))  # list, say, is a function
    )
    if order is not None and (is_loader(data) or not is_indexed):
        raise ConfigError(
            f"the data are a {type(data).__name__}, which has an order of its own; expected a "
            "paddle.io.Dataset with an order, or none"
        )
    if isinstance(data, paddle.io.IterableDataset):
        return ExternalLoader(_IterableBatches(data, batch_size, collate_fn, drop_last), seed)
    if drop_last and (is_loader(data) or not is_indexed):
        raise ConfigError(
            f"the data are a {type(data).__name__}, which makes the batches itself; expected a "
            "paddle.io.Dataset with drop_last, or data that leave out the last batch themselves"
        )
    if is_loader(data):
        return data
    if isinstance(data, (tuple, str, Mapping, np.ndarray, paddle.Tensor)):
        raise ConfigError(
            f"the data are a {type(data).__name__}; expected a paddle.io.Dataset, which for "
            "arrays is paddle.io.TensorDataset([paddle.to_tensor(inputs), "
            "paddle.to_tensor(labels)])"
        )
    if is_indexed:
        return BatchLoader(
            data, batch_size, seed, shuffle, collate_fn, num_workers, order, random, drop_last
        )
    if isinstance(data, Iterator):
        raise ConfigError(
            f"the data are a {type(data).__name__}, used up after one epoch; expected a "
            "paddle.io.Dataset, a paddle.io.DataLoader, or the function that makes it"
        )
    return ExternalLoader(data, seed)


class _IterableBatches:
    """Batches of a `paddle.io.IterableDataset`, which cannot be indexed."""

    def __init__(
        self, dataset: Any, batch_size: int, collate_fn: Optional[CollateFn], drop_last: bool
    ):
        self.dataset, self.batch_size, self.collate_fn = dataset, batch_size, collate_fn
        self.least = batch_size if drop_last else 1

    def __iter__(self) -> Iterator[Any]:
        name, samples, end = type(self.dataset).__name__, iter(self.dataset), object()
        for start in itertools.count(0, self.batch_size):
            batch: list[Any] = []
            while len(batch) < self.batch_size:
                with data_error(f"{name}: sample {start + len(batch)} of an epoch"):
                    sample = next(samples, end)
                if sample is end:
                    break
                batch.append(sample)
            if len(batch) >= self.least:
                indices = range(start, start + len(batch))
                yield make_batch(batch, name, indices, self.collate_fn)
            if sample is end:
                return
