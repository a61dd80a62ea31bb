"""Start the workers of a `paddle.io.DataLoader`, which are forked from this process."""

import gc
from collections.abc import Iterable, Iterator
from typing import Any


def start_iteration(batches: Iterable[Any]) -> Iterator[Any]:
    """Return an iterator of batches; of a loader with workers, one that is safe to fork for.

    In a worker, Python's collector would destroy what earlier loaders have left, and wait for ever
    for threads of theirs that were not forked. So garbage is collected here, and what is alive is
    hidden from the collector of the workers.
    """
    if not getattr(batches, "num_workers", 0):
        return iter(batches)
    gc.collect()
    gc.freeze()
    try:
        return iter(batches)
    finally:
        gc.unfreeze()
