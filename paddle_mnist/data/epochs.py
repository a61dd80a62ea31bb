"""Read an epoch of whatever yields batches, `paddle.io.DataLoader` above all."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Optional, cast

import paddle
from paddle.io.dataloader.collate import default_collate_fn

from paddle_mnist.data.batch_reader import MapDataset, set_epoch
from paddle_mnist.data.collate import CollateFn, make_batch, read_samples
from paddle_mnist.data.workers import map_in_workers, read_by_paddle, warn_of_open_files


def read_epoch(batches: Iterable[Any], epoch: int, **place: int) -> Iterator[Any]:
    """Yield the batches of an epoch; close the iterator to end the workers of a loader.

    The loader, its dataset, its batch sampler and the sampler in it get the epoch, counted from 0,
    if they have a method `set_epoch`. Paddle's own samplers have it, or draw from NumPy's global
    generator. So the order is the same wherever a training resumes.

    place: further arguments of the batch sampler's `set_epoch`.
    """
    sampler = getattr(batches, "batch_sampler", None)
    for part in (batches, getattr(batches, "dataset", None), getattr(sampler, "sampler", None)):
        set_epoch(part, epoch)
    set_epoch(sampler, epoch, **place)
    yield from _iterate(batches)


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
