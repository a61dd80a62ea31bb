"""Read an epoch of whatever yields batches, `paddle.io.DataLoader` above all.

Paddle's own samplers draw from NumPy's global generator, or have a method `set_epoch`. A caller's
sampler may also keep a generator, or count its epochs. A resumed run therefore iterates such a
sampler over the earlier epochs first, so that it enters an epoch in the same state as in an
unbroken run.
"""

import copy
import functools
import random
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Optional, cast

import numpy as np
import paddle
from paddle.io.dataloader.collate import default_collate_fn

from paddle_mnist.data.batch_reader import MapDataset, set_epoch
from paddle_mnist.data.collate import CollateFn, make_batch, read_samples
from paddle_mnist.data.seeding import generators_restored
from paddle_mnist.data.workers import map_in_workers, read_by_paddle, warn_of_open_files

# A sampler counts and draws with these. Its dataset, for example, is not its state.
KEPT: tuple[type, ...] = (bool, int, float, str, type(None))
KEPT += (np.random.RandomState, np.random.Generator, random.Random)
State = list[dict[str, Any]]  # of a batch sampler, and of the sampler in it

# By the id of a batch sampler: its state when it was first seen, and the epoch that it would begin
# now; None inside an epoch.
_histories: dict[int, tuple[State, Optional[int]]] = {}


def read_epoch(batches: Iterable[Any], epoch: int, start: int = 0) -> Iterator[Any]:
    """Yield the batches of an epoch; close the iterator to end the workers of a loader.

    The loader, its dataset, its batch sampler and the sampler in it get the epoch, counted from 0,
    if they have a method `set_epoch`. A sampler begins in the state that the earlier epochs leave
    it in (see `_begin_epoch`), so the order is the same wherever a run resumes.

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
    """Bring a sampler of the caller's own into its state at the beginning of an epoch.

    A sampler that has just ended the epoch before is left as it is. Any other, as in a resumed
    run, iterates over the epochs before, from the state in which it was first seen.
    """
    key, parts = id(batch_sampler), _parts(batch_sampler)
    if not hasattr(batch_sampler, "__dict__") or not any(map(_is_of_the_callers_own, parts)):
        return
    if key not in _histories:
        _histories[key] = _state(parts), 0
        weakref.finalize(batch_sampler, _histories.pop, key)
    initial, next_epoch = _histories[key]
    if next_epoch != epoch:
        for part, values in zip(parts, copy.deepcopy(initial)):
            vars(part).update(values)
        with generators_restored():
            for number in range(epoch):
                for part in parts:
                    set_epoch(part, number)
                for _ in batch_sampler:
                    pass
    _histories[key] = initial, None


def _end_epoch(batch_sampler: Any, epoch: int) -> None:
    """Record that a sampler has come to the end of an epoch."""
    if id(batch_sampler) in _histories:
        initial, _ = _histories[id(batch_sampler)]
        _histories[id(batch_sampler)] = initial, epoch + 1


def _parts(batch_sampler: Any) -> list[Any]:
    parts = (batch_sampler, getattr(batch_sampler, "sampler", None))
    return [part for part in parts if hasattr(part, "__dict__")]


def _is_of_the_callers_own(part: Any) -> bool:
    return not type(part).__module__.startswith(("paddle.", "paddle_mnist."))


def _state(parts: list[Any]) -> State:
    kept = [
        {name: value for name, value in vars(part).items() if isinstance(value, KEPT)}
        for part in parts
    ]
    return copy.deepcopy(kept)  # together: parts may share a generator
