"""Read a `paddle.io.DataLoader`, whose workers are forked from this process."""

import gc
from collections.abc import Iterable, Iterator
from typing import Any


def iterate(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches; of a loader with workers, start them safely, and end them when closed.

    In a worker, Python's collector would destroy what earlier loaders have left, and wait for ever
    for threads of theirs that were not forked. So garbage is collected before the fork, and what is
    alive is hidden from the collector of the workers. An iterator that is only dropped keeps its
    threads, which keep it, and its workers.
    """
    if not getattr(batches, "num_workers", 0):
        yield from batches
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
