"""`MnistDataset`, and the tutorial's `load_data`."""

import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
import paddle

from paddle_mnist.data.sampler import require_batch_size
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.images import Images, open_data
from paddle_mnist.mnist.splits import CLASSES, SIZE, Split
from paddle_mnist.parallel.world import World, current_world

Batches = Iterator[tuple[np.ndarray, np.ndarray]]


class _Rows(Sequence[np.ndarray]):
    """The images of a dataset as rows, float32 [784], made when they are read."""

    def __init__(self, dataset: "MnistDataset"):
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        """Return a row, or the rows of a slice, float32 [N, 784]."""
        pixels = self._dataset._split.take(slice(len(self))).pixels(index)
        return pixels.reshape(*pixels.shape[:-2], SIZE * SIZE)


class MnistDataset(paddle.io.Dataset):  # type: ignore[type-arg]  # Paddle 2's has none
    """One split of MNIST, or of data of the same format, as a `paddle.io.Dataset`.

    mode: "train", "valid" or "eval" (50,000 / 10,000 / 10,000 on MNIST).
    data: "auto", "digits", the path of a file or folder (see `mnist.sources.find_source`), or
        the `Images` that `open_data` returned.
    limit: keep only the first N images, in the order of the source (see `limit_warning`).

    Item i is (image, label): float32 [1, 28, 28] in 0..1 and int64 [1]. As in the tutorial's class,
    `imgs` and `labels` are those of the split, and `IMG_ROWS` and `IMG_COLS` the size of an image.
    Raises DataError, and ConfigError for a limit below 1.
    """

    IMG_ROWS = IMG_COLS = SIZE

    def __init__(
        self,
        mode: str = "train",
        data: Union[str, Path, Images] = "auto",
        limit: Optional[int] = None,
    ):
        super().__init__()
        if not isinstance(data, Images):
            data = open_data(os.fspath(data))
        if limit is not None and limit < 1:
            raise ConfigError(f"limit is {limit}; expected at least 1, or None for all")
        self.mode = mode
        self.data = data
        self.limit = limit
        self._length = min(self.available, limit or self.available)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        index = range(self._length)[index]  # IndexError past the limit, negatives from the end
        label = np.array([self._split.labels[index]], np.int64)
        return self._split.pixels(index)[np.newaxis], label

    @property
    def _split(self) -> Split:  # not an attribute, since another process reopens the images
        return self.data[self.mode]

    @property
    def imgs(self) -> Sequence[np.ndarray]:
        """The images as rows, float32 [784] in 0..1, converted when they are read."""
        return _Rows(self)

    @property
    def labels(self) -> np.ndarray:
        """The labels, int64 [N]."""
        return self._split.labels[: self._length].astype(np.int64)

    @property
    def available(self) -> int:
        """The number of images in the split, without the limit."""
        return len(self._split)

    @property
    def fingerprint(self) -> str:
        """The hash of the images, which identifies their source."""
        return self.data.hash[:12]

    @property
    def extent(self) -> Optional[str]:
        """The part that a limit leaves, "the first 500 of 10,000 images"; None for the whole split.

        Numbers of a limited split are reported with it.
        """
        if len(self) == self.available:
            return None
        return f"the first {len(self):,} of {self.available:,} images"

    def limit_warning(self) -> Optional[str]:
        """Return a warning that lists the classes that the limit excludes, if any."""
        counts = np.bincount(self._split.labels, minlength=CLASSES)
        kept = np.bincount(self._split.labels[: self._length], minlength=CLASSES)
        missing = np.flatnonzero((kept == 0) & (counts > 0))
        if not len(missing):
            return None
        return (
            f"the first {self._length} of {len(self._split)} {self.mode} images: none of class "
            f"{', '.join(map(str, missing))}; a limit takes the first images, not a balanced sample"
        )

    def batch(self, indices: Union[Sequence[int], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return items as one batch, with one vectorized index operation.

        Images float32 [B, 1, 28, 28], labels int64 [B, 1].
        """
        labels = self._split.labels[indices].astype(np.int64)
        return self._split.pixels(indices)[:, np.newaxis], labels[:, np.newaxis]

    __getitems__ = batch  # the name that PyTorch's loaders call, and `BatchLoader`


def load_data(
    mode: str = "train", batch_size: int = 100, data: str = "auto"
) -> Callable[[], Batches]:
    """Return a function that yields the batches of an epoch, as the tutorial's does.

    Batches are NumPy arrays, float32 [B, 1, 28, 28] and int64 [B, 1]; the last one of an epoch may
    be short. "train" is shuffled in each epoch; the other splits are not shuffled.

    The order is drawn from Python's global generator, as in the tutorial: with the same
    `random.seed` it is the same as in the tutorial. `np.random.seed` and `paddle.seed` do not
    change it.

    If several processes have called `paddle.distributed.init_parallel_env`, each gets its share of
    "train", in an order that rank 0 draws for all: together they see every sample once per epoch,
    in the same number of batches, of at most `batch_size`. All processes must iterate over every
    epoch. Each process gets all batches of "valid" and "eval".

    Raises DataError; ConfigError for a batch size below 1, or one too small to divide shares of
    unequal length into the same number of batches.
    """
    dataset = MnistDataset(mode, data)
    require_batch_size(batch_size)
    order = list(range(len(dataset)))

    def shuffled() -> list[int]:
        random.shuffle(order)  # in place, epoch after epoch, as the tutorial does
        return order

    def data_generator() -> Batches:
        batches: Iterable[np.ndarray]
        if mode != "train":
            batches = np.split(np.arange(len(dataset)), range(batch_size, len(dataset), batch_size))
        else:
            world = current_world()
            batches = _batches_of_rank(np.array(world.run_on_main(shuffled)), batch_size, world)
        for indices in batches:
            yield dataset.batch(indices)

    return data_generator


def _batches_of_rank(order: np.ndarray, batch_size: int, world: World) -> list[np.ndarray]:
    """Return this rank's share of an order, in the same number of batches as every rank's."""
    if world.size == 1:
        return np.split(order, range(batch_size, len(order), batch_size))
    largest = -(-len(order) // world.size)
    count = -(-largest // batch_size)
    if len(order) // world.size < count:
        raise ConfigError(
            f"batch_size is {batch_size}: {len(order)} samples on {world.size} processes cannot be "
            "divided into equally many batches; expected larger batches or fewer processes"
        )
    return np.array_split(order[world.rank :: world.size], count)
