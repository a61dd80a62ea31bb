"""The order of samples: a pure function of (seed, epoch), with a position, and a rank's share."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from paddle_mnist.errors import ConfigError


@dataclass(frozen=True)
class BatchSampler:
    """Cuts the epochs of `length` samples into batches; the last one may be short.

    Every sample comes exactly once an epoch, and with them `replayed` ones of `pool` more, which
    are numbered on and drawn anew each epoch. Holds no state: the order of epoch e is the same
    whoever asks, and whenever.
    """

    length: int
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    replayed: int = 0
    pool: int = 0

    def __post_init__(self):
        if self.batch_size < 1:
            raise ConfigError(f"batch_size is {self.batch_size}; expected at least 1")

    def __len__(self) -> int:
        """Batches an epoch."""
        return -(-(self.length + self.replayed) // self.batch_size)

    def order(self, epoch: int) -> np.ndarray:
        """The indices of all samples, int64 [length + replayed], in the order of this epoch."""
        # RandomState, not Generator: NumPy promises its stream never changes (NEP 19), so a run
        # goes on in the same order after NumPy was upgraded.
        random = np.random.RandomState([self.seed, epoch])
        samples = np.arange(self.length)
        if self.replayed:
            old = self.length + random.permutation(self.pool)[: self.replayed]
            samples = np.concatenate([samples, old])
        return random.permutation(samples) if self.shuffle else samples

    def batches(self, epoch: int, start: int = 0, step: int = 1) -> Iterator[np.ndarray]:
        """The batches of an epoch from number `start` on, each int64 [at most batch_size].

        step: only every so many-th of them.
        """
        order = self.order(epoch)
        return (order[span] for span in self.spans(start, step))

    def spans(self, start: int = 0, step: int = 1) -> Iterator[slice]:
        """Where in an epoch's order these batches lie."""
        length = self.length + self.replayed
        for first in range(start * self.batch_size, length, step * self.batch_size):
            yield slice(first, min(first + self.batch_size, length))


@dataclass(frozen=True)
class ShardSpec:
    """How every batch is cut up: into `shards` parts, of which one of `size` processes has its own.

    The parts are the same whoever works on them; a process has as many as any other.
    """

    shards: int = 1
    rank: int = 0
    size: int = 1

    def __post_init__(self):
        if self.shards % self.size:
            raise ConfigError(
                f"grad_shards is {self.shards}, for {self.size} processes; expected a multiple of "
                f"the number of processes, as in --grad_shards {self.size}"
            )

    def __call__(self, batch: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """The numbers and samples of this process's parts; some are empty where a batch is short.

        Parts differ by one sample at most, the larger ones first.
        """
        own = self.shards // self.size
        parts = np.array_split(batch, self.shards)
        first = self.rank * own
        return list(enumerate(parts))[first : first + own]
