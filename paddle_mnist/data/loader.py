"""Batches of any dataset as tensors, whole or in shards."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
import paddle

from paddle_mnist.data.sampler import BatchSampler, ShardSpec
from paddle_mnist.errors import ConfigError, DataError
from paddle_mnist.system import heartbeat, signals


def unchanged(images: paddle.Tensor, epoch: int, indices: np.ndarray) -> paddle.Tensor:
    """No augmentation."""
    return images


@dataclass(frozen=True)
class Replay:
    """Images of an earlier training, to be mixed with the new ones against forgetting.

    fraction: their share of every epoch, more than 0 and less than 1.
    """

    dataset: paddle.io.Dataset
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

    images: float32 [B, ...]; labels: int64 [B, 1]. number: which of the batch's parts.
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


@dataclass(frozen=True)
class ItemSpec:
    """What the items of a classification dataset must be.

    image_shape: of one image, channels first. classes: labels are 0 to classes - 1.
    """

    image_shape: tuple[int, ...]
    classes: int


def batch_of(
    dataset: paddle.io.Dataset, indices: np.ndarray, spec: Optional[ItemSpec] = None
) -> tuple[np.ndarray, np.ndarray]:
    """Items of any map-style dataset as one batch: images float32 [B, ...], labels int64 [B, 1].

    A dataset that has a method `batch(indices)` assembles its batches itself.
    Raises DataError for an item that is not (image, label).
    """
    if _assembles_batches(type(dataset)):
        return dataset.batch(indices)
    return stack_items([dataset[int(index)] for index in indices], type(dataset).__name__, spec)


def _assembles_batches(dataset: type) -> bool:
    """Whether a class has a `batch` that goes with its `__getitem__`.

    A subclass that changes its items, say to augment them, inherits a `batch` that does not.
    """
    for base in dataset.__mro__:
        if "batch" in vars(base) or "__getitem__" in vars(base):
            return "batch" in vars(base)
    return False


def stack_items(
    items: Sequence[Any], source: str, spec: Optional[ItemSpec] = None
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (image, label) as one batch: images float32 [B, ...], labels int64 [B, 1].

    Each image is of any float type, and all of one shape; each label one whole number in any shape;
    both may be tensors. Raises DataError for other items.

    source: where they come from, for errors. spec: what they must be beyond that.
    """
    images, labels = [], []
    for item in items:
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            what = f"{len(item)} values" if isinstance(item, (tuple, list)) else type(item).__name__
            raise DataError(f"{source}: an item is {what}; expected (image, label)")
        image, label = map(np.asarray, item)
        expected = spec.image_shape if spec else images[0].shape if images else image.shape
        if image.shape != expected or image.dtype.kind != "f":
            raise DataError(
                f"{source}: an image is {image.dtype} {list(image.shape)}; expected float32 "
                f"{list(expected)}, with values in 0..1"
            )
        whole = label.size == 1 and label.dtype.kind in "iu"
        if not whole or (spec and not 0 <= label.item() < spec.classes):
            span = f" in 0..{spec.classes - 1}" if spec else ""
            raise DataError(
                f"{source}: a label is {label.tolist()!r:.40}; expected one whole number{span}"
            )
        images.append(image)
        labels.append(label.item())
    return np.stack(images).astype(np.float32), np.array(labels, np.int64)[:, np.newaxis]


class BatchLoader:
    """The batches of a dataset as tensors, in the order of a `BatchSampler`.

    dataset: any map-style `paddle.io.Dataset` of (image, label); one that has a method
        `batch(indices)`, such as `MnistDataset`, is the quickest.
    augment: (images float32 [B, ...], epoch, indices int64 [B]) -> images.
    replay: what to mix in; its samples are numbered on after the dataset's.
    shard_spec: into which shards batches are divided; without one, they are whole.
    resident: all images lie on the device, float32, and batches are gathered there; without it,
        each is copied when its turn comes.
    spec: what items must be; by default images of a batch are of one shape.
    """

    def __init__(
        self,
        dataset: paddle.io.Dataset,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = False,
        augment: Callable = unchanged,
        replay: Optional[Replay] = None,
        shard_spec: Optional[ShardSpec] = None,
        resident: bool = False,
        spec: Optional[ItemSpec] = None,
    ):
        self.dataset = dataset
        self.spec = spec
        self.shard_spec = shard_spec
        self.augment = augment
        self.replay = replay
        drawn = (replay.count(len(dataset)), len(replay.dataset)) if replay else (0, 0)
        self.sampler = BatchSampler(len(dataset), batch_size, seed, shuffle, *drawn)
        self._resident = self._copied(np.arange(len(dataset) + drawn[1])) if resident else None

    def __len__(self) -> int:
        """Batches an epoch."""
        return len(self.sampler)

    @property
    def passes_per_step(self) -> int:
        """How many parts of each batch are this process's."""
        return self.shard_spec.shards // self.shard_spec.size if self.shard_spec else 1

    def epoch(self, epoch: int, start: int = 0, step: int = 1) -> Iterator[Any]:
        """The batches of an epoch from number `start` on, every `step`-th.

        Each is (images [B, ...], labels [B, 1]), or a list of `Shard`s where they are cut.
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
            if self.shard_spec is None:
                yield tensors(span)
            else:
                whole = span.stop - span.start
                yield [
                    Shard(*tensors(part), number, count, whole)
                    for number, part, count in self._parts(span)
                ]

    def _parts(self, span: slice) -> Iterator[tuple[int, slice, int]]:
        """Of a batch's parts those that are ours: number, where in the order, how many samples."""
        for number, mine in self.shard_spec(np.arange(span.start, span.stop)):
            first = mine[0] if len(mine) else span.start
            yield number, slice(first, first + max(1, len(mine))), len(mine)

    def _copied(self, indices: np.ndarray) -> tuple[paddle.Tensor, paddle.Tensor]:
        return tuple(paddle.to_tensor(values) for values in self._batch(indices))

    def _batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not self.replay:
            return batch_of(self.dataset, indices, self.spec)
        is_new = indices < len(self.dataset)
        sources = ((self.dataset, indices[is_new]),)
        sources += ((self.replay.dataset, indices[~is_new] - len(self.dataset)),)
        parts = [batch_of(data, chosen, self.spec) for data, chosen in sources if len(chosen)]
        places = np.argsort(np.argsort(~is_new, kind="stable"), kind="stable")
        images, labels = (np.concatenate(values)[places] for values in zip(*parts))
        return images, labels

    def __iter__(self) -> Iterator[tuple[paddle.Tensor, paddle.Tensor]]:
        return self.epoch(0)


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
