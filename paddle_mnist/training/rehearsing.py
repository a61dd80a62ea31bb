"""Tell whether the code that runs is part of a rehearsal."""

import contextlib
from collections.abc import Iterator

_depth = 0  # of trials within each other


def is_rehearsal() -> bool:
    """Return whether the calling step or callback runs in a rehearsal.

    Before the first step, `fit` tries the first batch. In a new run, it also trains a few steps,
    evaluates a batch of each split and calls the callbacks' `on_epoch_start`, `after_step` and
    `after_epoch`, several times each, and then restores every value that these have changed. It
    cannot undo effects outside the program, such as writes to a database: skip them while this
    function returns True.
    """
    return _depth > 0


@contextlib.contextmanager
def rehearsing() -> Iterator[None]:
    """Mark everything that runs inside the context as a rehearsal."""
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
