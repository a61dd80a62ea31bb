"""The figures of runs, drawn from what they have logged, and of several runs over one another."""

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.errors import ConfigError, DataError
from paddle_mnist.plots import curves
from paddle_mnist.plots.figure import save_figures
from paddle_mnist.plots.figure_files import COMPARED, COMPARED_FILES, FIGURES, files_of
from paddle_mnist.plots.history import History, read_history

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("paddle_mnist")


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


class RunFigures:
    """The figures of runs of any net; those of other kinds of runs override it.

    names: (attribute) of the figures. labels: (attribute) of the y axes where runs of this kind are
    compared, by tag.
    """

    names: Sequence[str] = FIGURES
    labels: Mapping[str, str] = {}

    def draw(self, run: RunDirectory, history: History) -> Mapping[str, "Figure"]:
        """Return the figures by name, those that the run has something to draw for."""
        return draw_history(history)


def draw_runs(
    runs: Sequence[Path],
    output: Optional[str] = None,
    only: Collection[str] = (),
    figures_of: Callable[[RunDirectory], RunFigures] = lambda run: RunFigures(),
) -> list[Path]:
    """Draw the figures of each run and, of several, a comparison; return what was written.

    output: a folder; by default each run's own, and the first one's for the comparison. With
        several runs each has a folder in it, by its path from where they part.
    only: draw only these files, as `curves.png`. figures_of: the kind of a run.
    Raises ConfigError for a file that a run does not have, DataError for a folder that is no run,
    and what `RunFigures.draw` raises.
    """
    histories = {str(path): _history(path) for path in runs}
    kinds = {str(path): figures_of(RunDirectory(path)) for path in runs}
    for name, kind in kinds.items():
        _check_names(only, name, kind, is_alone=len(runs) < 2)
    common = os.path.commonpath([path.resolve().parent for path in runs])
    written = []
    for path in runs if not only or set(only) - set(COMPARED_FILES) else ():
        run, history = RunDirectory(path), histories[str(path)]
        folder = run.figures
        if output:
            folder = Path(output, os.path.relpath(path.resolve(), common) if len(runs) > 1 else ".")
        save_figures(kinds[str(path)].draw(run, history), folder, only)
        written.append(folder)
    if len(histories) > 1 and (not only or set(only) & set(COMPARED_FILES)):
        folder = Path(output) if output else RunDirectory(runs[0]).figures
        save_figures({COMPARED: _compare(histories, list(kinds.values()))}, folder, only)
        written += [folder / name for name in COMPARED_FILES if not only or name in only]
    elif len(histories) > 1:
        log.info("each run is drawn separately; to compare them in one chart: --only compare.png")
    return written


def _history(run: Path) -> History:
    history = read_history(RunDirectory(run).metrics)
    if not history:
        raise DataError(
            f"{run}: no metrics.jsonl with lines; expected a run, or a checkpoint or file of one"
        )
    return history


def _check_names(only: Collection[str], run: str, kind: RunFigures, is_alone: bool) -> None:
    """Raise ConfigError unless a run has the files that were asked for."""
    known = files_of(kind.names)
    for name in only:
        if name in COMPARED_FILES and is_alone:
            raise ConfigError(f"{name} is of several runs; expected more than {run}")
        if name not in (*known, *COMPARED_FILES):
            raise ConfigError(
                f"--only names {name}, which runs like {run} do not have; expected "
                f"{', '.join(kind.names)}, or of several runs {COMPARED}, each .png or .svg"
            )


def _compare(histories: Mapping[str, History], kinds: Sequence[RunFigures]) -> "Figure":
    """Draw several runs over one another, with the metric that all of them monitor."""
    monitors = {_monitor(RunDirectory(run)) for run in histories}
    is_one_kind = all(type(kind) is type(kinds[0]) for kind in kinds)
    return curves.compare(
        histories,
        monitor=monitors.pop() if len(monitors) == 1 else None,
        labels=kinds[0].labels if is_one_kind else {},
    )


def _monitor(run: RunDirectory) -> Optional[str]:
    """Return the tag by which a run compares its evaluations; None if no checkpoint tells."""
    checkpoints = run.checkpoints.all()
    return checkpoints[-1].state.monitor if checkpoints else None
