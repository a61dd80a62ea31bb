"""Read the samples of a batch: in one call where the dataset can, else one by one."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Protocol

import numpy as np
import paddle

from paddle_mnist.data.collate import batch_of, data_error, make_batch, read_samples, some
from paddle_mnist.data.sampler_state import set_epoch
from paddle_mnist.data.seeding import draw, foreseen_draws, next_draws, seed_generators, seed_of
from paddle_mnist.data.stacking import COPIED
from paddle_mnist.errors import ConfigError
from paddle_mnist.system.files import warn_once

CollateFn = Callable[[list[Any]], Any]


class MapDataset(Protocol):
    """An object with a length and indices: a `paddle.io.Dataset`, a list of samples."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Request(NamedTuple):
    """The samples to read, in an epoch."""

    epoch: int
    indices: list[int]


class Reading(NamedTuple):
    """A batch as it was read. draws: whether samples draw random numbers; see below."""

    batch: Any
    draws: bool


class BatchReader:
    """Reads batches of a dataset, with random numbers that follow from (seed, epoch, index).

    A dataset with `__getitems__(indices)` is read by it, as PyTorch does. It may take the
    parameter `seeds`, a seed for each sample. A `TensorDataset` is read with one operation for
    each of its tensors. All others are read sample by sample.

    The first batch shows whether samples draw from the global generators, which takes time to
    seed. If they do, these are seeded for each sample, and the batch is read once more; what has a
    `__getitems__`, too, is then read sample by sample. If they do not, no later batch may: a
    resumed training would draw other numbers.

    random: whether to take for granted that samples draw.
    """

    def __init__(
        self,
        dataset: MapDataset,
        seed: int,
        collate_fn: Optional[CollateFn] = None,
        random: bool = False,
    ):
        self.dataset, self.seed, self.collate_fn = dataset, seed, collate_fn
        self._epoch: Optional[int] = None  # that the dataset was told
        self._getitems = _batch_method(dataset, collate_fn)
        names = inspect.signature(self._getitems).parameters if self._getitems else {}
        self._takes_seeds = "seeds" in names
        is_gathered = getattr(self._getitems, "func", None) is _gathered
        self._never_draws = self._takes_seeds or is_gathered
        self._is_declared = random
        self._draws: Optional[bool] = random or None  # None until the first batch is read
        # What tells the states of each of the dataset's own generators apart.
        self.generators: Mapping[str, Callable[[], str]] = {}

    def begin(self, epoch: int) -> None:
        """Tell the dataset the epoch, if it has a method `set_epoch`."""
        self._epoch = epoch
        set_epoch(self.dataset, epoch)

    def __call__(self, request: Request) -> Reading:
        """Return the batch of some samples, with arrays or tensors [B, ...].

        Raises ConfigError in a worker if a generator of the dataset's own draws, since its state
        is in that worker alone.
        """
        if paddle.io.get_worker_info() is None:
            return self._read(request)
        before = {name: state() for name, state in self.generators.items()}
        reading = self._read(request)
        for name, state in self.generators.items():
            if state() != before[name]:
                raise ConfigError(
                    f"{self._source}: reading samples {some(request.indices)} in a worker draws "
                    f"from {name}, whose state a checkpoint cannot hold; expected draws from "
                    "random, numpy.random or paddle, which are seeded for each sample, or "
                    "num_workers=0"
                )
        return reading

    def _read(self, request: Request) -> Reading:
        if request.epoch != self._epoch:  # another epoch was begun after that of this request
            self.begin(request.epoch)
        if self._never_draws:
            return Reading(self._unseeded(request), draws=False)
        if self._draws:
            return Reading(self._seeded(request), draws=True)
        key = self.seed, request.epoch, request.indices[0]
        if self._draws is None:
            if self._getitems is None:  # what a dataset draws once, for its first sample, is known
                seed_generators(*key)
            before = next_draws()
            batch = self._unseeded(request)
            self._draws = next_draws() != before
            return self._read(request) if self._draws else Reading(batch, draws=False)
        foreseen = foreseen_draws(*key)
        batch = self._unseeded(request)
        if draw() != foreseen:
            raise ConfigError(
                f"{self._source}: reading samples {some(request.indices)} draws random numbers, "
                "unlike the first batch, so the generators were not seeded for each sample, and "
                "would give others next time; or a thread of this program has drawn some "
                "meanwhile; in both cases expected random=True, for fit Loading(random=True), with "
                "which the run goes on from here"
            )
        return Reading(batch, draws=False)

    def learn(self, draws: bool) -> None:
        """Take over whether samples draw, as a worker may have found out in its own copy."""
        self._draws = self._draws or draws
        if draws and self._getitems is not None:
            reason = (
                "random=True says that its samples draw from the global generators of random "
                "numbers, which are seeded for each"
                if self._is_declared
                else "its __getitems__ draws from the global generators of random numbers, which "
                "a resumed training could not repeat"
            )
            warn_once(
                type(self.dataset),
                "%s: %s, so samples are read one by one, which is slower; expected "
                "__getitems__(indices, seeds) with a seed for each sample, or a generator of its "
                "own that is seeded with the index",
                self._source,
                reason,
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

    def _unseeded(self, request: Request) -> Any:
        if self._getitems is not None:
            return self._at_once(request)
        return self._batch_of(read_samples(self.dataset, request.indices), request)

    def _seeded(self, request: Request) -> Any:
        samples = []
        for index in request.indices:
            seed_generators(self.seed, request.epoch, index)
            samples += read_samples(self.dataset, [index])
        return self._batch_of(samples, request)

    def _batch_of(self, samples: list[Any], request: Request) -> Any:
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
    return isinstance(values, paddle.Tensor) and values.is_dense() and values.dtype in COPIED


def _gathered(dataset: Any, indices: Sequence[int]) -> tuple[paddle.Tensor, ...]:
    """Return samples of a `TensorDataset` as one batch."""
    rows = np.array(indices, np.int64)
    return tuple(
        paddle.gather(values.detach(), paddle.to_tensor(rows, place=values.place))
        for values in dataset.tensors
    )
