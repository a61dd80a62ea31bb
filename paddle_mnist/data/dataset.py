"""`MnistDataset` and the ways to take batches from it."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
import paddle

from paddle_mnist import heartbeat, signals
from paddle_mnist.augment import unchanged
from paddle_mnist.data.arrays import CLASSES, SIZE, Data
from paddle_mnist.data.cache import open_data
from paddle_mnist.distributed import World, current_world
from paddle_mnist.errors import ConfigError, DataError
from paddle_mnist.sampler import BatchSampler, Cut

RARE = 1 / 3  # of the share that a class has in the whole split


class MnistDataset(paddle.io.Dataset):
    """One split as a `paddle.io.Dataset`.

    mode: "train", "valid" or "eval" (50,000 / 10,000 / 10,000 on MNIST).
    data: "auto", "digits", or the path of a file or folder (see `paddle_mnist.data.find_source`),
        or the `Data` that `open_data` gave.
    limit: keep the first so many images only, in the order of the source (see `limit_warning`).

    Item i is (image, label): float32 [1, 28, 28] in 0..1 and int64 [1].
    Raises DataError, and ConfigError for a limit below 1.
    """

    def __init__(
        self,
        mode: str = "train",
        data: Union[str, Path, Data] = "auto",
        limit: Optional[int] = None,
    ):
        super().__init__()
        if not isinstance(data, Data):
            data = open_data(str(data))
        if limit is not None and limit < 1:
            raise ConfigError(f"limit is {limit}; expected at least 1, or None for all")
        self.mode = mode
        self.data = data
        self._split = data[mode]
        self._length = min(len(self._split), limit or len(self._split))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        index = range(self._length)[index]  # IndexError past the limit, negatives from the end
        label = np.array([self._split.labels[index]], np.int64)
        return self._split.pixels(index)[np.newaxis], label

    def limit_warning(self) -> Optional[str]:
        """Which classes the limit leaves out or makes rare, in one line; None if it does neither.

        A class is rare if its share is less than a third of its share in the whole split.
        """
        whole = np.bincount(self._split.labels, minlength=CLASSES)
        kept = np.bincount(self._split.labels[: self._length], minlength=CLASSES)
        missing = np.flatnonzero((kept == 0) & (whole > 0))
        rare = np.flatnonzero((kept > 0) & (kept < RARE * whole * self._length / len(self._split)))
        faults = [
            f"{word} of class {', '.join(map(str, classes))}"
            for word, classes in (("none", missing), ("few", rare))
            if len(classes)
        ]
        if not faults:
            return None
        return (
            f"the first {self._length} of {len(self._split)} {self.mode} images: "
            f"{' and '.join(faults)}; a limit takes the first images, not a balanced sample"
        )

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Items as one batch, by one vectorised index: float32 [B, 1, 28, 28], int64 [B, 1]."""
        labels = self._split.labels[indices].astype(np.int64)
        return self._split.pixels(indices)[:, np.newaxis], labels[:, np.newaxis]


@dataclass(frozen=True)
class Replay:
    """Images of an earlier training, to be mixed with the new ones against forgetting.

    fraction: their share of every epoch, more than 0 and less than 1.
    """

    dataset: MnistDataset
    fraction: float

    def count(self, new: int) -> int:
        """How many come with so many new ones. Raises ConfigError if there are not that many."""
        wanted = round(new * self.fraction / (1 - self.fraction))
        if not wanted:
            raise ConfigError(
                f"replay_fraction is {self.fraction}: less than one image to {new} new ones; "
                f"expected at least {1 / (new + 1):.2g}"
            )
        if wanted > len(self.dataset):
            most = len(self.dataset) / (len(self.dataset) + new)
            raise ConfigError(
                f"replay_fraction is {self.fraction}: {wanted} images to {new} new ones, but "
                f"replay_data has {len(self.dataset)}; expected at most {most:.3f}"
            )
        return wanted


@dataclass(frozen=True)
class Shard:
    """A part of a batch.

    images: float32 [B, 1, 28, 28]; labels: int64 [B, 1]. number: which of the batch's parts.
    samples: how many of the batch's `whole` ones are here. A part without any has another's first
    image in their place, so that every process takes the same steps; it weighs nothing.
    """

    images: paddle.Tensor
    labels: paddle.Tensor
    number: int
    samples: int
    whole: int

    @property
    def weight(self) -> float:
        """Its share of the batch."""
        return self.samples / self.whole


def shards_of(batch: Any) -> list[Shard]:
    """A batch as the shards that this process has of it. batch: such, or (images, labels)."""
    if isinstance(batch, list) and isinstance(batch[0], Shard):
        return batch
    images, labels = batch
    return [Shard(images, labels, 0, labels.shape[0], labels.shape[0])]


def batch_of(dataset: paddle.io.Dataset, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Items of any map-style dataset as one batch: float32 [B, 1, 28, 28], int64 [B, 1].

    Raises DataError for an item that is not (image, label).
    """
    # A subclass that changes its items has inherited a `batch` that does not.
    if getattr(type(dataset), "__getitem__", None) is MnistDataset.__getitem__:
        return dataset.batch(indices)
    return stack_items([dataset[int(index)] for index in indices], type(dataset).__name__)


def stack_items(items: Sequence[Any], source: str) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (image, label) as one batch: float32 [B, 1, 28, 28], int64 [B, 1].

    Each image is of any float type, [1, 28, 28]; each label one whole number in any shape; both
    may be tensors. Raises DataError for other items; source: where they come from.
    """
    images, labels = [], []
    for item in items:
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            what = f"{len(item)} values" if isinstance(item, (tuple, list)) else type(item).__name__
            raise DataError(f"{source}: an item is {what}; expected (image, label)")
        image, label = map(np.asarray, item)
        if image.shape != (1, SIZE, SIZE) or image.dtype.kind != "f":
            raise DataError(
                f"{source}: an image is {image.dtype} {list(image.shape)}; expected float32 "
                f"[1, {SIZE}, {SIZE}], with values in 0..1"
            )
        if label.size != 1 or label.dtype.kind not in "iu" or not 0 <= label.item() < CLASSES:
            raise DataError(
                f"{source}: a label is {label.tolist()!r:.40}; expected one whole number in "
                f"0..{CLASSES - 1}"
            )
        images.append(image)
        labels.append(label.item())
    return np.stack(images).astype(np.float32), np.array(labels, np.int64)[:, np.newaxis]


class BatchLoader:
    """The batches of a dataset as tensors, in the order of a `BatchSampler`.

    dataset: any map-style `paddle.io.Dataset` of (image, label); a `MnistDataset` is the quickest.
    augment: (images float32 [B, 1, 28, 28], epoch, indices int64 [B]) -> images.
    replay: what to mix in; its samples are numbered on after the dataset's.
    cut: into which shards; without one, batches are whole.
    resident: all images lie on the device, float32, and batches are gathered there; without it,
        each is copied when its turn comes.
    """

    def __init__(
        self,
        dataset: paddle.io.Dataset,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = False,
        augment: Callable = unchanged,
        replay: Optional[Replay] = None,
        cut: Optional[Cut] = None,
        resident: bool = False,
    ):
        self.dataset = dataset
        self.cut = cut
        self.augment = augment
        self.replay = replay
        drawn = (replay.count(len(dataset)), len(replay.dataset)) if replay else (0, 0)
        self.sampler = BatchSampler(len(dataset), batch_size, seed, shuffle, *drawn)
        self._resident = self._copied(np.arange(len(dataset) + drawn[1])) if resident else None

    def __len__(self) -> int:
        """Batches an epoch."""
        return len(self.sampler)

    @property
    def passes_a_step(self) -> int:
        """How many parts of each batch are this process's."""
        return self.cut.shards // self.cut.size if self.cut else 1

    def epoch(self, epoch: int, start: int = 0, step: int = 1) -> Iterator[Any]:
        """The batches of an epoch from number `start` on, every `step`-th.

        Each is (images [B, 1, 28, 28], labels [B, 1]), or a list of `Shard`s where they are cut.
        """
        order = self.sampler.order(epoch)
        # Sent once an epoch: a copy from the host waits for the device.
        resident = paddle.to_tensor(order) if self._resident else None

        def tensors(span: slice) -> tuple[paddle.Tensor, paddle.Tensor]:
            if resident is None:
                images, labels = self._copied(order[span])
            else:
                images, labels = (paddle.gather(all_, resident[span]) for all_ in self._resident)
            return self.augment(images, epoch, order[span]), labels

        for span in self.sampler.spans(start, step):
            if self.cut is None:
                yield tensors(span)
            else:
                whole = span.stop - span.start
                yield [
                    Shard(*tensors(part), number, count, whole)
                    for number, part, count in self._parts(span)
                ]

    def _parts(self, span: slice) -> Iterator[tuple[int, slice, int]]:
        """Of a batch's parts those that are ours: number, where in the order, how many samples."""
        for number, mine in self.cut(np.arange(span.start, span.stop)):
            first = mine[0] if len(mine) else span.start
            yield number, slice(first, first + max(1, len(mine))), len(mine)

    def _copied(self, indices: np.ndarray) -> tuple[paddle.Tensor, paddle.Tensor]:
        return tuple(paddle.to_tensor(values) for values in self._batch(indices))

    def _batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not self.replay:
            return batch_of(self.dataset, indices)
        new = indices < len(self.dataset)
        images = np.empty((len(indices), 1, SIZE, SIZE), np.float32)
        labels = np.empty((len(indices), 1), np.int64)
        images[new], labels[new] = batch_of(self.dataset, indices[new])
        images[~new], labels[~new] = self.replay.dataset.batch(indices[~new] - len(self.dataset))
        return images, labels

    def __iter__(self) -> Iterator[tuple[paddle.Tensor, paddle.Tensor]]:
        return self.epoch(0)


def load_data(mode: str = "train", batch_size: int = 100, data: str = "auto") -> Callable:
    """The tutorial's generator: a function that yields the batches of an epoch each time called.

    Batches are NumPy arrays, float32 [B, 1, 28, 28] and int64 [B, 1], the last one short where
    the size does not divide. "train" comes in another order each time; others are not shuffled.

    The order is drawn from Python's global generator, as in the tutorial: after the same
    `random.seed` it is the same as there. `np.random.seed` and `paddle.seed` do not change it.

    Where several processes have called `paddle.distributed.init_parallel_env`, each gets its share
    of "train", in an order that rank 0 draws for all: together they see every sample once an
    epoch, in equally many batches of at most `batch_size`. All of them must begin every epoch.
    "valid" and "eval" are whole in each process.

    Raises DataError; ConfigError for a batch size that is below 1, or too small for shares of
    unequal length to be cut into equally many batches.
    """
    dataset = MnistDataset(mode, data)
    whole = BatchSampler(len(dataset), batch_size, shuffle=False)
    order = list(range(len(dataset)))

    def shuffled() -> list[int]:
        random.shuffle(order)  # in place, epoch after epoch, as the tutorial does
        return order

    def data_generator():
        if mode != "train":
            batches = whole.batches(0)
        else:
            world = current_world()
            batches = _batches_of_rank(np.array(world.first(shuffled)), batch_size, world)
        for indices in batches:
            yield dataset.batch(indices)

    return data_generator


def _batches_of_rank(order: np.ndarray, batch_size: int, world: World) -> list[np.ndarray]:
    """This rank's share of an order, in as many batches as any other's."""
    if world.size == 1:
        return np.split(order, range(batch_size, len(order), batch_size))
    largest = -(-len(order) // world.size)
    count = -(-largest // batch_size)
    if len(order) // world.size < count:
        raise ConfigError(
            f"batch_size is {batch_size}: {len(order)} samples on {world.size} processes cannot be "
            "cut into equally many batches; expected larger batches or fewer processes"
        )
    return np.array_split(order[world.rank :: world.size], count)


def epoch_batches(loader: Any, epoch: int, start: int = 0, step: int = 1) -> Iterator:
    """The batches of one epoch of any loader, from number `start` on, every `step`-th.

    loader: a `BatchLoader`; or, as in the tutorial, a `paddle.io.DataLoader`, or a function that
        gives an iterator each time it is called. Theirs are shown the whole epoch: batches before
        `start` are read and dropped.
    """
    if hasattr(loader, "epoch"):
        yield from _fetched(loader.epoch(epoch, start, step))
        return
    batches = loader() if callable(loader) else loader
    if not hasattr(batches, "__iter__"):
        raise ConfigError(
            f"a loader is a {type(loader).__name__}; expected a BatchLoader, a "
            "paddle.io.DataLoader or a function that yields batches"
        )
    for number, (images, labels) in enumerate(_fetched(batches)):
        if number >= start and (number - start) % step == 0:
            yield _tensor(images), _tensor(labels)


def _fetched(batches: Iterable) -> Iterator:
    """The same batches; a signal breaks off the wait for one, and each is a sign of life."""
    iterator, nothing = iter(batches), object()
    while True:
        with signals.interruptible():
            batch = next(iterator, nothing)
        heartbeat.beat()
        if batch is nothing:
            return
        yield batch


def batches_an_epoch(loader: Any) -> Optional[int]:
    """The number of batches a loader gives; None where it cannot tell."""
    try:
        return len(loader)
    except (TypeError, ValueError):  # ValueError: Paddle's, over an IterableDataset
        return None


def _tensor(values: Union[np.ndarray, paddle.Tensor]) -> paddle.Tensor:
    return values if isinstance(values, paddle.Tensor) else paddle.to_tensor(values)
