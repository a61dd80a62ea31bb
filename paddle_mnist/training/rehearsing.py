"""Whether what runs is a rehearsal."""

import contextlib
from collections.abc import Iterator

_depth = 0  # of trials within each other


def is_rehearsal() -> bool:
    """Return whether the step or the callback that asks is called in a rehearsal.

    Before the first step, `fit` tries the first batch; and in a new run it also trains two steps,
    evaluates a batch, calls the callbacks' `after_step` and `after_epoch`, and undoes all that.
    What acts on the world outside the program, such as a database, should do nothing then.
    """
    return _depth > 0


@contextlib.contextmanager
def rehearsing() -> Iterator[None]:
    """Within the context, what runs is a rehearsal."""
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
