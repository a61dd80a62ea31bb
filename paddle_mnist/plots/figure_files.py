"""The names of figures and their files. Imports nothing, for `--help` prints them."""

from collections.abc import Sequence

KINDS = ("png", "svg")  # each figure is a file of each
FIGURES = ("curves", "learning_rate", "health")  # of any run; the last if it was watched
COMPARED = "compare"  # several runs in one figure


def files_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the files of some figures."""
    return tuple(f"{name}.{kind}" for name in names for kind in KINDS)


COMPARED_FILES = files_of([COMPARED])
