"""Read a `paddle.io.DataLoader`, whose workers are forked from this process."""

import gc
from collections.abc import Iterable, Iterator
from typing import Any

import paddle
from paddle.io.dataloader.collate import default_collate_fn


def iterate(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches; of a loader with workers, start them safely, and end them when closed.

    In a worker, Python's collector would destroy what earlier loaders have left, and wait for ever
    for threads of theirs that were not forked. So garbage is collected before the fork, and what is
    alive is hidden from the collector of the workers. An iterator that is only dropped keeps its
    threads, which keep it, and its workers.
    """
    if not getattr(batches, "num_workers", 0):
        yield from _read_here(batches) if _can_be_read_here(batches) else batches
        return
    gc.collect()
    gc.freeze()
    try:
        iterator = iter(batches)
    finally:
        gc.unfreeze()
    try:
        yield from iterator
    finally:
        if not getattr(batches, "_persistent_workers", False):
            iterator._try_shutdown_all()


def _can_be_read_here(batches: Any) -> bool:
    return (
        isinstance(batches, paddle.io.DataLoader)
        and not isinstance(batches.dataset, paddle.io.IterableDataset)
        and batches.batch_sampler is not None
    )


def _read_here(loader: paddle.io.DataLoader) -> Iterator[Any]:
    """Yield the batches of a loader without workers.

    Paddle reads them in a thread, ahead of the step: what the samples draw from the global
    generators would depend on which of the two comes first.
    """
    collate = loader.collate_fn or default_collate_fn
    for indices in loader.batch_sampler:
        yield collate([loader.dataset[index] for index in indices])
