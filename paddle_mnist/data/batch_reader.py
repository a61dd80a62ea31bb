"""Read the samples of a batch: in one call if the dataset allows that, else one by one."""

from collections.abc import Callable, Sequence
from typing import Any, Optional, Protocol

import numpy as np
import paddle

from paddle_mnist.data.collate import (
    COPIED_DTYPES,
    SUPPORTED,
    CollateFn,
    as_supported,
    data_error,
    make_batch,
    read_samples,
    some,
)
from paddle_mnist.data.sampler import Shard
from paddle_mnist.data.seeding import TRAIN, seed_generators
from paddle_mnist.data.structures import describe_batch, length_of, mapped
from paddle_mnist.errors import DataError


class MapDataset(Protocol):
    """An object with a length and indices: a `paddle.io.Dataset`, a list of samples."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class BatchReader:
    """Reads batches of a dataset, with random numbers that follow from their place in the epoch.

    If a dataset has a method `__getitems__(indices)`, it is called, as in PyTorch. A
    `TensorDataset` is read with one operation for each of its tensors, any other one by one.

    Before each read, Python's, NumPy's and Paddle's generators are seeded from (seed, split, epoch,
    position of the first sample in the epoch). For any number of workers and processes the same
    samples are read together, so the random numbers of samples and `collate_fn` are the same, too.
    """

    def __init__(
        self,
        dataset: MapDataset,
        seed: int,
        collate_fn: Optional[CollateFn] = None,
        split: str = TRAIN,
    ):
        self.dataset, self.seed, self.collate_fn, self.split = dataset, seed, collate_fn, split
        self._source = type(dataset).__name__  # for errors
        self._epoch: Optional[int] = None  # that was passed to the dataset
        self._read_batch = _batch_method(dataset, collate_fn)

    def begin(self, epoch: int) -> None:
        """Pass the epoch to the dataset, if it has a method `set_epoch`."""
        self._epoch = epoch
        set_epoch(self.dataset, epoch)

    def __call__(self, shard: Shard) -> Any:
        """Return the samples of a shard, whose `batch` is their indices, with arrays or tensors."""
        if shard.epoch != self._epoch:  # another epoch began after this shard's
            self.begin(shard.epoch)
        seed_generators(self.seed, self.split, shard.epoch, shard.position)
        indices = shard.batch.tolist()
        if self._read_batch is None:
            samples = read_samples(self.dataset, indices)
            return make_batch(samples, self._source, indices, self.collate_fn)
        with data_error(lambda: f"{self._source}: __getitems__ of samples {some(indices)}"):
            returned = self._read_batch(self.dataset, shard.batch)
        return self._checked(returned, indices)

    def _checked(self, returned: Any, indices: Sequence[int]) -> Any:
        """Return the batch that a dataset's `__getitems__` has returned.

        returned: a list of samples, of which the batch is made; anything else is the batch itself,
            arrays and tensors [B, ...] in tuples and dicts, whose arrays are converted as by
            `make_batch`.
        Raises DataError for another number of samples, or if a collate_fn gets a whole batch.
        """

        def error(expected: str) -> DataError:
            return DataError(
                f"{self._source}: __getitems__ of samples {some(indices)} returned "
                f"{describe_batch(returned)}; expected {expected}"
            )

        count = len(indices)
        if isinstance(returned, list):
            if len(returned) != count:
                raise error(f"{count} samples, not {len(returned)}")
            return make_batch(returned, self._source, indices, self.collate_fn)
        if self.collate_fn is not None:
            raise error("a list of samples for the collate_fn, not a whole batch")
        if length_of(returned) != count:
            raise error(f"a list of {count} samples, or arrays and tensors with {count} rows")
        try:
            return mapped(
                returned, lambda leaf: as_supported(leaf) if isinstance(leaf, np.ndarray) else leaf
            )
        except ValueError:
            raise error(SUPPORTED) from None


def set_epoch(part: Any, epoch: int) -> None:
    """Call the method `set_epoch` of an object that has one."""
    if hasattr(part, "set_epoch"):
        part.set_epoch(epoch)


def _batch_method(
    dataset: Any, collate_fn: Optional[CollateFn]
) -> Optional[Callable[[Any, np.ndarray], Any]]:
    """Return a function that reads a batch as `__getitem__` would; None if the dataset has none.

    A subclass that overrides only `__getitem__`, for example to augment samples, inherits a
    `__getitems__` that does not.
    """
    for base in type(dataset).__mro__:
        if base is paddle.io.TensorDataset:
            can_gather = collate_fn is None and all(map(_can_be_gathered, dataset.tensors))
            return _gather if can_gather else None
        if vars(base).get("__getitems__") is not None:
            return _get_items
        if "__getitem__" in vars(base):
            return None
    return None


def _can_be_gathered(values: Any) -> bool:
    return isinstance(values, paddle.Tensor) and values.is_dense() and values.dtype in COPIED_DTYPES


def _gather(dataset: Any, indices: np.ndarray) -> tuple[paddle.Tensor, ...]:
    """Return samples of a `TensorDataset` as one batch."""
    places = {str(values.place): values.place for values in dataset.tensors}
    rows = {name: paddle.to_tensor(indices, place=place) for name, place in places.items()}
    return tuple(
        paddle.gather(values.detach(), rows[str(values.place)]) for values in dataset.tensors
    )


def _get_items(dataset: Any, indices: np.ndarray) -> Any:
    return dataset.__getitems__(indices.tolist())
