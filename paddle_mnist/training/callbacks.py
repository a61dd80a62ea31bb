"""What a caller of `fit` adds to the beginning and the end of a training."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from paddle import nn

from paddle_mnist.interfaces import Observer
from paddle_mnist.metrics.visualdl import VisualDLWriter
from paddle_mnist.parallel.world import World
from paddle_mnist.plots.figure import save_figures
from paddle_mnist.plots.figure_files import files_of
from paddle_mnist.plots.history import read_history
from paddle_mnist.progress import TrainState
from paddle_mnist.training.job import TrainingJob
from paddle_mnist.training.run_directory import RunDirectory
from paddle_mnist.training.run_figures import draw_history


@dataclass(frozen=True)
class FitResult:
    """The result of a training run.

    metrics: the metrics of the final weights, by tag, such as "valid/loss".
    weights: the path of the file with the final weights.
    checkpoint: the path of the checkpoint with these weights, without a suffix.
    epochs, steps: the numbers of epochs and steps that were trained.
    seconds: the time spent in steps, over all starts of the run.
    stopped: "finished", "early" (`early_stop_patience`), or "already finished" by an earlier call.
    """

    metrics: Mapping[str, float]
    weights: Path
    checkpoint: Path
    epochs: int
    steps: int
    seconds: float
    stopped: str

    def as_dict(self) -> dict[str, Any]:
        """Return the contents of `result.json`: plain values, and the names of files."""
        names = {"weights": self.weights.name, "checkpoint": self.checkpoint.name}
        return {**vars(self), "metrics": dict(self.metrics), **names}


@dataclass(frozen=True)
class Training:
    """A training of `fit` as its callbacks see it.

    job: what is trained, and how. run: its directory. board: the dashboard's pages.
    state: where it stands; None before that is known.
    """

    job: TrainingJob
    run: RunDirectory
    board: VisualDLWriter
    state: Optional[TrainState] = None

    @property
    def model(self) -> nn.Layer:
        return self.job.parts.model

    @property
    def world(self) -> World:
        return self.job.world

    def at(self, state: TrainState) -> "Training":
        """Return the same training at another place."""
        return replace(self, state=state)


class Callback(Observer):
    """Base class for callbacks of `fit`; override the methods you need.

    Every process calls each method, in the same order; only the process in which
    `training.world.is_main_process` is true should write. As an `Observer`, a callback is also
    called after every step and epoch, and before a new run's first step in a rehearsal: see
    `is_rehearsal`.

    If a callback has `state_dict` and `set_state_dict`, checkpoints save and restore its state.
    """

    def run_opened(self, training: Training) -> None:
        """Called when the run directory is open, before `fit` decides where to resume."""

    def before_training(self, training: Training) -> None:
        """Called before the first step of this call of `fit`."""

    def final_metrics(self, training: Training) -> Mapping[str, float]:
        """Return more metrics for the result, by tag; the model has the final weights."""
        return {}

    def result_entries(self, training: Training, result: FitResult) -> Mapping[str, Any]:
        """Return more entries for `result.json`, as plain values."""
        return {}

    def has_result(self, entries: Mapping[str, Any]) -> bool:
        """Return whether `result.json` has all entries; if not, the run is evaluated again."""
        return True

    def summary(self, training: Training, result: FitResult) -> Optional[str]:
        """Return a log line about the result that replaces `fit`'s own, or None."""

    def after_training(self, training: Training, result: FitResult) -> None:
        """Called after the result is written."""

    def already_finished(self, training: Training, result: FitResult) -> None:
        """Called after `run_opened`, instead of the other methods, if the run is finished."""


class ReportCallback(Callback):
    """Draws the curves of the metrics, and writes the row that compares runs on the dashboard."""

    def after_training(self, training: Training, result: FitResult) -> None:
        if not training.world.is_main_process:
            return
        drawn = draw_history(read_history(training.run.metrics))
        save_figures(drawn, training.run.figures)
        training.board.figures(drawn, result.steps)
        training.board.hparams(training.job.request.config, result.metrics, result.steps)

    def already_finished(self, training: Training, result: FitResult) -> None:
        """Draw what is missing: the disk was full, say."""
        folder = training.run.figures
        if training.world.is_main_process:
            drawn = draw_history(read_history(training.run.metrics))
            missing = [name for name in files_of(list(drawn)) if not (folder / name).exists()]
            if missing:
                save_figures(drawn, folder, missing)
