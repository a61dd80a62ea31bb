"""`MnistDataset` and the ways to take batches from it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
import paddle

from paddle_mnist.data.arrays import Data
from paddle_mnist.data.cache import open_data
from paddle_mnist.errors import ConfigError
from paddle_mnist.sampler import BatchSampler


class MnistDataset(paddle.io.Dataset):
    """One split as a `paddle.io.Dataset`.

    mode: "train", "valid" or "eval" (50,000 / 10,000 / 10,000 on MNIST).
    data: "auto", "digits", or the path of a file or folder (see `paddle_mnist.data.find_source`),
        or the `Data` that `open_data` gave.
    limit: keep the first so many images only.

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

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Items as one batch, by one vectorised index: float32 [B, 1, 28, 28], int64 [B, 1]."""
        labels = self._split.labels[indices].astype(np.int64)
        return self._split.pixels(indices)[:, np.newaxis], labels[:, np.newaxis]


class BatchLoader:
    """The batches of a dataset as tensors, in the order of a `BatchSampler`."""

    def __init__(
        self, dataset: MnistDataset, batch_size: int, seed: int = 0, shuffle: bool = False
    ):
        self.dataset = dataset
        self.sampler = BatchSampler(len(dataset), batch_size, seed, shuffle)

    def __len__(self) -> int:
        """Batches an epoch."""
        return len(self.sampler)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[paddle.Tensor, paddle.Tensor]]:
        """The batches of an epoch from number `start` on."""
        for indices in self.sampler.batches(epoch, start):
            images, labels = self.dataset.batch(indices)
            yield paddle.to_tensor(images), paddle.to_tensor(labels)

    def __iter__(self) -> Iterator[tuple[paddle.Tensor, paddle.Tensor]]:
        return self.epoch(0)


def load_data(mode: str = "train", batch_size: int = 100, data: str = "auto") -> Callable:
    """The tutorial's generator: a function that yields the batches of an epoch each time called.

    Batches are NumPy arrays, float32 [B, 1, 28, 28] and int64 [B, 1], the last one short where
    the size does not divide. "train" is shuffled, in another order each time; others are not.
    """
    dataset = MnistDataset(mode, data)
    sampler = BatchSampler(len(dataset), batch_size, shuffle=mode == "train")
    epochs = 0

    def data_generator():
        nonlocal epochs
        epoch, epochs = epochs, epochs + 1
        for indices in sampler.batches(epoch):
            yield dataset.batch(indices)

    return data_generator


def epoch_batches(loader: Any, epoch: int, start: int = 0) -> Iterator:
    """The batches of one epoch of any loader, from number `start` on.

    loader: a `BatchLoader`; or, as in the tutorial, a `paddle.io.DataLoader`, or a function that
        gives an iterator each time it is called. Theirs are shown the whole epoch: batches before
        `start` are read and dropped.
    """
    if hasattr(loader, "epoch"):
        yield from loader.epoch(epoch, start)
        return
    batches = loader() if callable(loader) else loader
    if not hasattr(batches, "__iter__"):
        raise ConfigError(
            f"a loader is a {type(loader).__name__}; expected a BatchLoader, a "
            "paddle.io.DataLoader or a function that yields batches"
        )
    for number, (images, labels) in enumerate(batches):
        if number >= start:
            yield _tensor(images), _tensor(labels)


def batches_an_epoch(loader: Any) -> Optional[int]:
    """The number of batches a loader gives; None where it cannot tell."""
    try:
        return len(loader)
    except (TypeError, ValueError):  # ValueError: Paddle's, over an IterableDataset
        return None


def _tensor(values: Union[np.ndarray, paddle.Tensor]) -> paddle.Tensor:
    return values if isinstance(values, paddle.Tensor) else paddle.to_tensor(values)
