"""Check that samples do not change when they are read again."""

import functools
import logging
from collections.abc import Mapping
from typing import Any

from paddle_mnist.data.sampler import shards_of
from paddle_mnist.data.structures import leaves
from paddle_mnist.data.workers import map_in_workers
from paddle_mnist.errors import ConfigError, listed
from paddle_mnist.hidden_state.object_graph import describe_path
from paddle_mnist.hidden_state.object_paths import find
from paddle_mnist.hidden_state.plain_data import GENERATORS, equal
from paddle_mnist.hidden_state.snapshot import data_snapshot
from paddle_mnist.interfaces import Loader

log = logging.getLogger("paddle_mnist")


def check_samples(loader: Loader, data: Mapping[str, Any], what: str) -> bool:
    """Read the first batch twice; return whether both are the same.

    data: the objects that belong to the data, by name. what: the batch, for messages.

    If they differ, raises ConfigError; for a function that yields batches, such as those of a
    stream, logs a warning.
    """
    what_differs = functools.partial(_what_differs, loader, data)
    # In a worker, because workers that are forked later must not share files that it opens.
    in_worker = functools.partial(map_in_workers, num_workers=1)
    map_once = in_worker if loader.num_workers else map
    ((differs, draws),) = map_once(what_differs, iter([what]))
    if differs and not draws and loader.is_function:
        log.warning(
            "%s, as with a stream, so a resumed run trains on other samples than an uninterrupted "
            "run; the resume is not rehearsed",
            differs,
        )
    elif differs:
        raise ConfigError(
            f"{differs}, so a resumed run and workers would see other samples; expected samples "
            "that depend only on their index and on random numbers from random, numpy.random or "
            "paddle, which are seeded for each batch"
        )
    return not differs


def _what_differs(loader: Loader, data: Mapping[str, Any], what: str) -> tuple[str, bool]:
    """Read the first batch twice; return a description of the difference, and whether it is drawn.

    The description is empty if there is no difference.
    """
    untouched = data_snapshot(data)
    first = loader.first_batch(0)
    before = data_snapshot(data)
    is_same = _is_same_batch(first, loader.first_batch(0))
    # A cache may hold samples with the random numbers of an epoch.
    if is_same and loader.is_indexed:
        cached = loader.first_batch(1)
        kept = listed([describe_path(path) for path in untouched.changes()])
        untouched.restore()
        if not _is_same_batch(cached, loader.first_batch(1)):
            return f"{what} differs in the next epoch if it was read before: {kept} keeps it", True
    changes = before.changes()
    drawn = [path for path in changes if isinstance(find(data, path), GENERATORS)]
    if is_same and not drawn:
        return "", False
    # A value that only the first reading changes may have reached a limit, as a full queue does.
    named = drawn or changes or untouched.changes()
    names = listed([describe_path(path) for path in named] or before.iterators())
    change = "draws new numbers" if drawn else "changes"
    changed = f": {names} {change} with each reading" if names else ""
    return f"{what} differs when it is read again{changed}", bool(drawn)


def _is_same_batch(batch: Any, other: Any) -> bool:
    first, second = (
        [leaf for shard in shards_of(shards) for leaf in leaves(shard.batch)]
        for shards in (batch, other)
    )
    return len(first) == len(second) and all(map(equal, first, second))
