"""Batches of any dataset as tensors, optionally divided into shards."""

import contextlib
import copy
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Optional

import numpy as np
import paddle

from paddle_mnist._arguments import accepts_numpy
from paddle_mnist.data.collate import Dataset, ItemSpec, fetch_batch, num_samples, tensors
from paddle_mnist.data.epochs import read_epoch
from paddle_mnist.data.sampler import BatchSampler, ShardSpec
from paddle_mnist.errors import ConfigError
from paddle_mnist.system import heartbeat, signals

Augment = Callable[[paddle.Tensor, int, np.ndarray], paddle.Tensor]


def no_augmentation(images: paddle.Tensor, epoch: int, indices: np.ndarray) -> paddle.Tensor:
    """Return the images as they are."""
    return images


@dataclass(frozen=True)
class Replay:
    """Samples of an earlier training, mixed with the new ones against forgetting.

    fraction: their share of every epoch, more than 0 and less than 1.
    """

    dataset: Dataset
    fraction: float

    def num_samples(self, num_new: int) -> int:
        """Return how many samples are replayed in an epoch with `num_new` new ones.

        Raises ConfigError if that is none, or more than the dataset has.
        """
        count = round(num_new * self.fraction / (1 - self.fraction))
        if not count:
            raise ConfigError(
                f"replay_fraction is {self.fraction}: less than one image to {num_new} new ones; "
                f"expected at least {1 / (num_new + 1):.2g}"
            )
        if count > len(self.dataset):
            largest = len(self.dataset) / (len(self.dataset) + num_new)
            raise ConfigError(
                f"replay_fraction is {self.fraction}: {count} images to {num_new} new ones, but "
                f"replay_data has {len(self.dataset)}; expected at most {largest:.3f}"
            )
        return count


@dataclass(frozen=True)
class Shard:
    """One of the parts into which a batch is divided.

    batch: its samples, as a step takes them: (images float32 [B, ...], labels int64 [B, 1]), or
        any other structure of tensors.
    index: the shard's number within the batch, from 0.
    samples: how many of the batch's samples it holds.
    batch_size: samples in the whole batch.

    An empty shard (samples 0) holds one sample of another shard in their place, so that every
    process takes the same steps; its weight is 0.
    """

    batch: Any
    index: int
    samples: int
    batch_size: int

    @property
    def weight(self) -> float:
        """The shard's share of the batch's samples."""
        return self.samples / self.batch_size


def shards_of(batch: Any) -> list[Shard]:
    """Return the shards of a batch that belong to this process.

    batch: a list of shards; or anything else that a step takes, which is one shard.
    """
    if isinstance(batch, list) and batch and isinstance(batch[0], Shard):
        return batch
    batch_size = num_samples(batch)
    return [Shard(batch, index=0, samples=batch_size, batch_size=batch_size)]


class OrderedLoader:
    """Base class of the loaders that read a dataset in the order of a `BatchSampler`.

    sampler: the order. shard_spec: how to divide batches into shards, or None.
    """

    dataset: Any
    sampler: BatchSampler
    shard_spec: Optional[ShardSpec] = None

    def __len__(self) -> int:
        """Batches per epoch."""
        return len(self.sampler)

    @property
    def passes_per_step(self) -> int:
        """How many shards of each batch belong to this process."""
        return self.shard_spec.shards_per_process if self.shard_spec else 1

    def sharded(self, shard_spec: Optional[ShardSpec], batches: int = 1) -> "OrderedLoader":
        """Return a loader of the same samples in shards, `batches` batches together."""
        other = copy.copy(self)
        other.shard_spec = shard_spec
        other.sampler = replace(self.sampler, batch_size=self.sampler.batch_size * batches)
        return other

    def epoch(self, epoch: int, start: int = 0, stride: int = 1) -> Iterator[Any]:
        """Yield the batches of an epoch from number `start` on, every `stride`-th.

        With a `shard_spec` each is a list of this process's `Shard`s.
        """
        raise NotImplementedError

    def indices(self, epoch: int, number: int, shard: int = 0) -> np.ndarray:
        """Return the indices of the samples of a batch, or of one of its shards."""
        batch = next(self.sampler.batch_slices(number))
        if self.shard_spec:
            batch = {index: part for index, part, _ in self.shard_spec.slices(batch)}[shard]
        return self.sampler.order(epoch)[batch]

    def __iter__(self) -> Iterator[Any]:
        return self.epoch(0)


class BatchLoader(OrderedLoader):
    """Loads the batches of a dataset as tensors, in the order of a `BatchSampler`.

    dataset: any map-style `paddle.io.Dataset` of (image, label). One with a method
        `batch(indices)` is the fastest.
    augment: (images float32 [B, ...], epoch, indices int64 [B]) -> images.
    replay: samples to mix in; their indices follow those of the dataset.
    shard_spec: how to divide batches into shards; by default they are not divided.
    on_device: keep all images on the device, as float32, and gather batches there; by default each
        batch is copied to the device when it is needed.
    spec: requirements on the items; by default the images of a batch must have one shape.
    """

    @accepts_numpy
    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = False,
        augment: Augment = no_augmentation,
        replay: Optional[Replay] = None,
        shard_spec: Optional[ShardSpec] = None,
        on_device: bool = False,
        spec: Optional[ItemSpec] = None,
    ):
        self.dataset = dataset
        self.spec = spec
        self.shard_spec = shard_spec
        self.augment = augment
        self.replay = replay
        replay_pool_size = len(replay.dataset) if replay else 0
        self.sampler = BatchSampler(
            len(dataset),
            batch_size,
            seed,
            shuffle,
            replay_count=replay.num_samples(len(dataset)) if replay else 0,
            replay_pool_size=replay_pool_size,
        )
        all_indices = np.arange(len(dataset) + replay_pool_size)
        self._on_device = self._to_tensors(all_indices) if on_device else None

    def epoch(self, epoch: int, start: int = 0, stride: int = 1) -> Iterator[Any]:
        """Yield the batches of an epoch from number `start` on, every `stride`-th.

        Each is (images [B, ...], labels [B, 1]), or with a `shard_spec` a list of this process's
        `Shard`s.
        """
        order, on_device = self.sampler.order(epoch), self._on_device
        # Sent once per epoch: a copy from the host waits for the device.
        order_on_device = paddle.to_tensor(order) if on_device else None

        def load(batch: slice) -> tuple[paddle.Tensor, paddle.Tensor]:
            if on_device is None or order_on_device is None:
                images, labels = self._to_tensors(order[batch])
            else:
                indices = order_on_device[batch]
                images, labels = (paddle.gather(values, indices) for values in on_device)
            return self.augment(images, epoch, order[batch]), labels

        for batch in self.sampler.batch_slices(start, stride):
            if self.shard_spec is None:
                yield load(batch)
            else:
                yield [
                    Shard(load(part), index, samples, batch_size=batch.stop - batch.start)
                    for index, part, samples in self.shard_spec.slices(batch)
                ]

    def _to_tensors(self, indices: np.ndarray) -> tuple[paddle.Tensor, paddle.Tensor]:
        images, labels = self._fetch(indices)
        return paddle.to_tensor(images), paddle.to_tensor(labels)

    def _fetch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not self.replay:
            return fetch_batch(self.dataset, indices, self.spec)
        is_new = indices < len(self.dataset)
        parts = [
            fetch_batch(dataset, part_indices, self.spec)
            for dataset, part_indices in (
                (self.dataset, indices[is_new]),
                (self.replay.dataset, indices[~is_new] - len(self.dataset)),
            )
            if len(part_indices)
        ]
        # The new samples come first in the parts; put all back in the order of the indices.
        places = np.argsort(np.argsort(~is_new, kind="stable"), kind="stable")
        images, labels = (np.concatenate(values)[places] for values in zip(*parts))
        return images, labels


def is_loader(data: Any) -> bool:
    """Return whether data are a loader, which has a method `epoch`; a dataset may count epochs."""
    return callable(getattr(data, "epoch", None))


def epoch_batches(
    loader: Any, epoch: int, start: int = 0, stride: int = 1
) -> Generator[Any, None, None]:
    """Yield the batches of one epoch of any loader, from number `start` on, every `stride`-th.

    loader: a `BatchLoader`; or, as in the tutorial, a `paddle.io.DataLoader`, or a function that
        returns an iterator each time it is called. Of these all batches are read, and those before
        `start` dropped.
    """
    if is_loader(loader):
        yield from _interruptible(loader.epoch(epoch, start, stride))
        return
    # a DataLoader is callable as well
    batches = loader() if callable(loader) and not hasattr(loader, "__iter__") else loader
    if not hasattr(batches, "__iter__"):
        raise ConfigError(
            f"a loader is a {type(loader).__name__}; expected a BatchLoader, a "
            "paddle.io.DataLoader or a function that yields batches"
        )
    for number, batch in enumerate(_interruptible(read_epoch(batches, epoch))):
        if number >= start and (number - start) % stride == 0:
            yield tensors(batch)
        else:
            heartbeat.beat()  # to read what is dropped may take long: it is no hang


def _interruptible(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the same batches; a signal interrupts the wait for one."""
    iterator, end = iter(batches), object()
    while True:
        with signals.interruptible():
            batch = next(iterator, end)
        if batch is end:
            return
        yield batch


def first_batches(loader: Any, count: int) -> list[Any]:
    """Return the first batches of the first epoch."""
    with contextlib.closing(epoch_batches(loader, 0)) as batches:
        return list(itertools.islice(batches, count))


def batches_per_epoch(loader: Any) -> Optional[int]:
    """Return the number of batches of a loader; None if it has no length."""
    try:
        return len(loader)
    except (TypeError, ValueError):  # ValueError: Paddle's, over an IterableDataset
        return None
