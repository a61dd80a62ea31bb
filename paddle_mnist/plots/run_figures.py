"""The figures of a run of any net, drawn from what it has logged."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.plots import curves
from paddle_mnist.plots.figure_files import files_of
from paddle_mnist.plots.history import History, read_history

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_history(history: History) -> dict[str, "Figure"]:
    """Return the figures of any run by name: curves, learning_rate, and health if watched."""
    drawn = {
        "curves": curves.curves(history),
        "learning_rate": curves.learning_rate(history),
        "health": curves.health(history, curves.health_panels(history)),
    }
    return {name: figure for name, figure in drawn.items() if figure}


def missing_figures(run: RunDirectory, names: Sequence[str]) -> list[str]:
    """Return the files of some figures that a finished run should have and has not."""
    missing = [name for name in files_of(names) if not (run.figures / name).exists()]
    if any(name.startswith("health") for name in missing):
        watched = curves.was_watched(read_history(run.metrics))
        missing = [name for name in missing if watched or not name.startswith("health")]
    return missing
