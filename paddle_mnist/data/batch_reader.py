"""Read the samples of a batch: in one call where the dataset can, else one by one."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional, Protocol

import numpy as np
import paddle

from paddle_mnist.data.collate import batch_of, data_error, make_batch, read_sample, some
from paddle_mnist.data.sampler_state import set_epoch
from paddle_mnist.data.seeding import next_draws, seed_generators, seed_of
from paddle_mnist.system.files import warn_once

CollateFn = Callable[[list[Any]], Any]
# What `paddle.gather` takes on a CPU, in Paddle 2.6.2 as in 3.3.1.
GATHERED = (paddle.float32, paddle.float64, paddle.int32, paddle.int64, paddle.uint8)


class MapDataset(Protocol):
    """An object with a length and indices: a `paddle.io.Dataset`, a list of samples."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Request(NamedTuple):
    """The samples to read, in an epoch."""

    epoch: int
    indices: list[int]


class Reading(NamedTuple):
    """A batch as it was read. draws: whether the dataset's `__getitems__` draws; see below."""

    batch: Any
    draws: bool


class BatchReader:
    """Reads batches of a dataset, with random numbers that follow from (seed, epoch, index).

    A dataset with `__getitems__(indices)` is read by it, as PyTorch does. It may take the
    parameter `seeds`, a seed for each sample. Without it, the global generators tell whether it
    has drawn from them in the first batch; if so it would not resume, and is read as all other
    datasets are: sample by sample, the generators seeded for each. A `TensorDataset` is read
    with one operation for each of its tensors.
    """

    def __init__(self, dataset: MapDataset, seed: int, collate_fn: Optional[CollateFn] = None):
        self.dataset, self.seed, self.collate_fn = dataset, seed, collate_fn
        self._epoch: Optional[int] = None  # that the dataset was told
        self._getitems = _batch_method(dataset, collate_fn)
        names = inspect.signature(self._getitems).parameters if self._getitems else {}
        self._takes_seeds = "seeds" in names
        self._is_checked = self._takes_seeds
        self._draws = False

    def begin(self, epoch: int) -> None:
        """Tell the dataset the epoch, if it has a method `set_epoch`."""
        self._epoch = epoch
        set_epoch(self.dataset, epoch)

    def __call__(self, request: Request) -> Reading:
        """Return the batch of some samples, with arrays or tensors [B, ...]."""
        if request.epoch != self._epoch:  # another epoch was begun after that of this request
            self.begin(request.epoch)
        if self._getitems is None or self._draws:
            return Reading(self._one_by_one(request), self._draws)
        if self._is_checked:
            return Reading(self._at_once(request), draws=False)
        before = next_draws()
        batch = self._at_once(request)
        self._is_checked = True
        self._draws = next_draws() != before
        return self(request) if self._draws else Reading(batch, draws=False)

    def read_one_by_one(self) -> None:
        """From now on read sample by sample, as `__getitems__` draws random numbers; say it."""
        self._draws = True
        warn_once(
            type(self.dataset),
            "%s: its __getitems__ draws from the global generators of random numbers, which a "
            "resumed training could not repeat, so samples are read one by one, which is slower; "
            "expected __getitems__(indices, seeds) with a seed for each sample, or a generator of "
            "its own that is seeded with the index",
            self._source,
        )

    @property
    def _source(self) -> str:
        return type(self.dataset).__name__

    def _at_once(self, request: Request) -> Any:
        assert self._getitems is not None
        epoch, indices = request
        options: dict[str, Any] = {}
        if self._takes_seeds:
            options["seeds"] = [seed_of(self.seed, epoch, index) for index in indices]
        with data_error(f"{self._source}: __getitems__ of samples {some(indices)}"):
            found = self._getitems(list(indices), **options)
        return batch_of(found, self._source, indices, self.collate_fn)

    def _one_by_one(self, request: Request) -> Any:
        samples = []
        for index in request.indices:
            seed_generators(self.seed, request.epoch, index)
            samples.append(read_sample(self.dataset, index))
        return make_batch(samples, self._source, request.indices, self.collate_fn)


def _batch_method(dataset: Any, collate_fn: Optional[CollateFn]) -> Optional[Callable[..., Any]]:
    """Return what reads many samples at once as `__getitem__` reads one; None if nothing does.

    A subclass that overrides only `__getitem__`, say to augment samples, inherits a
    `__getitems__` that does not.
    """
    for base in type(dataset).__mro__:
        if base is paddle.io.TensorDataset:
            can_gather = collate_fn is None and all(map(_can_be_gathered, dataset.tensors))
            return functools.partial(_gathered, dataset) if can_gather else None
        if vars(base).get("__getitems__") is not None:
            method: Callable[..., Any] = dataset.__getitems__
            return method
        if "__getitem__" in vars(base):
            return None
    return None


def _can_be_gathered(values: Any) -> bool:
    return isinstance(values, paddle.Tensor) and values.is_dense() and values.dtype in GATHERED


def _gathered(dataset: Any, indices: Sequence[int]) -> tuple[paddle.Tensor, ...]:
    """Return samples of a `TensorDataset` as one batch."""
    rows = np.array(indices, np.int64)
    return tuple(
        paddle.gather(values.detach(), paddle.to_tensor(rows, place=values.place))
        for values in dataset.tensors
    )
