"""The numbers that the READMEs quote from the tables.

A ratio compares like with like: one thread with one thread.
"""

from benchmarks.commands import FIVE_EPOCHS, WARM
from benchmarks.steps import PADDLE, STEP_1, TORCH_1
from benchmarks.turns import Rows

TORCH = "PyTorch eager, the tutorial's recipe, images in memory"
# By mark: the table, the figure, the two rows whose ratio is quoted, and its format.
RATIOS = {
    "faster-fast": ("time-to-accuracy", "seconds", FIVE_EPOCHS, WARM, ".1f"),
    "faster-torch": ("time-to-accuracy", "seconds", FIVE_EPOCHS, TORCH, ".1f"),
    "times-paddle": ("train", "rate", STEP_1, PADDLE, ".2f"),
    "times-torch": ("train", "rate", STEP_1, TORCH_1, ".2f"),
}


def headlines(name: str, rows: Rows) -> dict[str, str]:
    """Return the numbers from the table called `name`, by mark; not those of missing libraries."""
    numbers = {
        mark: format(rows[first][figure] / rows[second][figure], form)
        for mark, (table, figure, first, second, form) in RATIOS.items()
        if table == name and rows.get(first) and rows.get(second)
    }
    if rows.get(WARM):
        numbers["accuracy-fast"] = rows[WARM]["mean"].split()[0]  # of "98.68% (of 5)"
    return numbers
