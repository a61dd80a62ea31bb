"""The order of samples, from (seed, epoch) or from the caller, and its division into shards.

An order is a function from the epoch to the indices of its samples, int64 [length].
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from paddle_mnist.data.collate import data_error
from paddle_mnist.data.structures import num_samples
from paddle_mnist.errors import CheckpointError, ConfigError


def require_batch_size(batch_size: int) -> int:
    """Return the batch size. Raises ConfigError for one below 1."""
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}; expected at least 1")
    return batch_size


@dataclass(frozen=True)
class SeededOrder:
    """The order of the samples of each epoch: drawn by (seed, epoch), or always the same.

    length: the number of samples, each of which comes once in an epoch.
    """

    length: int
    seed: int = 0
    shuffle: bool = True

    def __call__(self, epoch: int) -> np.ndarray:
        """Return the indices of an epoch's samples, int64 [length]."""
        # RandomState, not Generator: NumPy promises that its stream never changes (NEP 19), so a
        # run that is resumed with another NumPy keeps its order.
        random = np.random.RandomState([self.seed, epoch])
        samples = np.arange(self.length)
        return random.permutation(samples) if self.shuffle else samples


class EpochOrder:
    """Calls the caller's function for the order of an epoch's samples, and keeps the result.

    The function is called once an epoch, so it may depend on the state of the training, such as
    the loss of each sample. Its result is part of the state: a run that resumes inside an epoch
    reads the rest of the epoch in the same order.

    order: (epoch) -> the indices of the epoch's samples, int64 [N]; N is the same in every epoch.
    samples: the length of the dataset.

    A call raises ConfigError for indices of another type or shape, or outside the dataset.
    """

    def __init__(self, order: Callable[[int], np.ndarray], samples: int):
        self._order, self._samples = order, samples
        self._epoch, self._indices = -1, np.zeros(0, np.int64)
        self.length = 0  # N, known from the first epoch on
        self.length = len(self(0))

    def __call__(self, epoch: int) -> np.ndarray:
        """Return the indices of an epoch's samples, int64 [N]."""
        if epoch != self._epoch:
            with data_error(lambda: f"the order of epoch {epoch}"):
                indices = np.asarray(self._order(epoch))
            self._keep(epoch, indices, ConfigError, f"the order of epoch {epoch}")
        return self._indices

    def state_dict(self) -> dict[str, Any]:
        """Return the number of the last epoch, and the indices of its samples."""
        small = np.min_scalar_type(self._samples)
        return {"epoch": self._epoch, "indices": self._indices.astype(small)}

    def set_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned. Raises CheckpointError for other contents."""
        epoch, indices = state.get("epoch"), state.get("indices")
        if type(epoch) is not int or not isinstance(indices, np.ndarray):
            raise CheckpointError("the order of an epoch is damaged; use another checkpoint")
        self._keep(epoch, indices, CheckpointError, f"the saved order of epoch {epoch}")

    def _keep(self, epoch: int, indices: np.ndarray, error: type[Exception], name: str) -> None:
        expected = f"expected indices from 0 to {self._samples - 1}, int64 [N]"
        if indices.ndim != 1 or indices.dtype.kind not in "iu" or not len(indices):
            raise error(f"{name} is {indices.dtype} {list(indices.shape)}; {expected}")
        if not 0 <= indices.min() <= indices.max() < self._samples:
            raise error(f"{name} has indices from {indices.min()} to {indices.max()}; {expected}")
        if self.length not in (0, len(indices)):
            raise error(f"{name} has {len(indices)} samples; expected {self.length}, as in epoch 0")
        self._epoch, self._indices = epoch, indices.astype(np.int64)


@dataclass(frozen=True)
class Shard:
    """One of the parts into which a batch is divided.

    batch: its samples, as a step takes them: (images float32 [B, ...], labels int64 [B, 1]), or
        any other structure of tensors. Before they are read, their indices, int64 [B].
    index: the shard's number within the batch, from 0.
    samples: how many of the batch's samples it holds.
    batch_size: samples in the whole batch.
    epoch, position: of its first sample, where samples are read by index.

    A shard without samples (samples 0) holds one sample of another shard as a filler, so that every
    process takes the same steps; its weight is 0.
    """

    batch: Any
    index: int
    samples: int
    batch_size: int
    epoch: int = 0
    position: int = 0

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


@dataclass(frozen=True)
class ShardSpec:
    """The division of batches into shards, and the share of this process.

    num_shards: shards per batch; a multiple of `world_size`. The shards are the same for any
        number of processes; all processes have equally many.
    rank: this process's number, from 0.
    world_size: number of processes.

    Raises ConfigError if the shards cannot be shared out equally.
    """

    num_shards: int = 1
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.num_shards % self.world_size:
            raise ConfigError(
                f"grad_shards is {self.num_shards}, for {self.world_size} processes; expected a "
                f"multiple of the number of processes, such as {self.world_size}"
            )

    def slices(self, batch: slice) -> Iterator[tuple[int, slice, int]]:
        """Yield index, slice and number of samples of each of this process's shards of a batch.

        batch: a slice of the order of an epoch. Shards differ by at most one sample, the larger
        ones first. If the batch has fewer samples than shards, some shards are empty: their slice
        is the batch's first sample, so that every process takes the same steps.
        """
        size, larger = divmod(batch.stop - batch.start, self.num_shards)
        count = self.num_shards // self.world_size
        for index in range(self.rank * count, (self.rank + 1) * count):
            samples = size + (index < larger)
            start = batch.start + (index * size + min(index, larger) if samples else 0)
            yield index, slice(start, start + max(1, samples)), samples
