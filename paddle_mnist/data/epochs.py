"""Read an epoch of whatever yields batches, `paddle.io.DataLoader` above all.

The order of an epoch must not depend on where a run resumes. Paddle's own samplers draw from
NumPy's global generator, which `ExternalLoader` seeds for each epoch, or have a method `set_epoch`.
A caller's own sampler may also keep a generator, or count its epochs. Unless it has just ended the
epoch before, it returns to its first state and iterates over all earlier epochs.
"""

import copy
import functools
import random
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Optional, cast

import numpy as np
import paddle
from paddle.io.dataloader.collate import default_collate_fn

from paddle_mnist.data.batch_reader import MapDataset, set_epoch
from paddle_mnist.data.collate import CollateFn, make_batch, read_samples
from paddle_mnist.data.seeding import generators_restored
from paddle_mnist.data.workers import map_in_workers, read_by_paddle, warn_of_open_files

# The attributes that a sampler counts and draws with. Its dataset, for example, is not its state.
STATE_TYPES: tuple[type, ...] = (bool, int, float, str, type(None))
STATE_TYPES += (np.random.RandomState, np.random.Generator, random.Random)


@dataclass
class _History:
    """The history of a batch sampler of the caller's own, and of the sampler in it.

    first_state: the attributes of both when they were first seen.
    next_epoch: the epoch that they would begin now; None inside an epoch.
    """

    first_state: list[dict[str, Any]]
    next_epoch: Optional[int] = 0


_histories: dict[int, _History] = {}  # by the id of the batch sampler


def read_epoch(batches: Iterable[Any], epoch: int, start: int = 0) -> Iterator[Any]:
    """Yield the batches of an epoch; close the iterator to end the workers of a loader.

    The loader, its dataset, its batch sampler and the sampler in it get the epoch, counted from 0,
    if they have a method `set_epoch`.

    start: the first batch to read, for a batch sampler whose `set_epoch` takes it.
    """
    sampler: Any = getattr(batches, "batch_sampler", None)
    _begin_epoch(sampler, epoch)
    dataset, inner = getattr(batches, "dataset", None), getattr(sampler, "sampler", None)
    for part in (batches, dataset, inner):
        set_epoch(part, epoch)
    if start:
        sampler.set_epoch(epoch, start)
    else:
        set_epoch(sampler, epoch)
    yield from _iterate(batches)
    _end_epoch(sampler, epoch)


def _iterate(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches; those of a map-style DataLoader as `BatchLoader` reads them.

    An error then names the sample, and workers do without shared memory where it has no room.
    Without workers Paddle would read in a thread, ahead of the step: what samples draw from the
    global generators would depend on which of the two comes first.
    """
    if not isinstance(batches, paddle.io.DataLoader):
        yield from batches
        return
    if batches.num_workers:
        warn_of_open_files(batches.dataset)
    is_map_style = not isinstance(batches.dataset, paddle.io.IterableDataset)
    if not is_map_style or batches.batch_sampler is None:
        yield from read_by_paddle(batches)
        return
    collate_fn, sampler = batches.collate_fn or default_collate_fn, cast(Any, batches.batch_sampler)
    read = functools.partial(_read, batches.dataset, collate_fn)
    if not batches.num_workers:
        yield from map(read, sampler)
        return
    yield from map_in_workers(
        read,
        iter(sampler),
        batches.num_workers,
        places=batches.places,
        prefetch_factor=batches.prefetch_factor,
        timeout=batches.timeout,
        use_shared_memory=batches.use_shared_memory,
        worker_init_fn=functools.partial(_init_worker, batches.dataset, batches.worker_init_fn),
    )


def _read(dataset: MapDataset, collate_fn: CollateFn, indices: Iterable[int]) -> Any:
    """Read a batch of a dataset by the indices of its samples, as Paddle's loader does."""
    indices = list(indices)  # a sampler may give a set
    samples = read_samples(dataset, indices)
    return make_batch(samples, type(dataset).__name__, indices, collate_fn)


def _init_worker(
    dataset: MapDataset, worker_init_fn: Optional[Callable[[int], Any]], number: int
) -> None:
    """Call the caller's `worker_init_fn`, which expects the original dataset in its worker."""
    vars(paddle.io.get_worker_info())["dataset"] = dataset
    if worker_init_fn:
        worker_init_fn(number)


def _begin_epoch(batch_sampler: Any, epoch: int) -> None:
    """Bring a sampler of the caller's own into the state in which it begins an epoch."""
    parts = [batch_sampler, getattr(batch_sampler, "sampler", None)]
    parts = [part for part in parts if hasattr(part, "__dict__")]
    if not hasattr(batch_sampler, "__dict__") or not any(map(_is_of_the_callers_own, parts)):
        return
    key = id(batch_sampler)
    if key not in _histories:
        _histories[key] = _History(_copied_state(parts))
        weakref.finalize(batch_sampler, _histories.pop, key)
    history = _histories[key]
    if history.next_epoch != epoch:
        for part, values in zip(parts, copy.deepcopy(history.first_state)):
            vars(part).update(values)
        with generators_restored():
            for number in range(epoch):
                for part in parts:
                    set_epoch(part, number)
                for _ in batch_sampler:
                    pass
    history.next_epoch = None


def _end_epoch(batch_sampler: Any, epoch: int) -> None:
    """Record that a sampler has come to the end of an epoch."""
    if history := _histories.get(id(batch_sampler)):
        history.next_epoch = epoch + 1


def _is_of_the_callers_own(part: Any) -> bool:
    return not type(part).__module__.startswith(("paddle.", "paddle_mnist."))


def _copied_state(parts: list[Any]) -> list[dict[str, Any]]:
    states = [
        {name: value for name, value in vars(part).items() if isinstance(value, STATE_TYPES)}
        for part in parts
    ]
    return copy.deepcopy(states)  # together: parts may share a generator
