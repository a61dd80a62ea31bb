"""`Callback`: what a caller of `fit` adds to a training. Imports no paddle."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from paddle_mnist.interfaces import Observer
from paddle_mnist.options import Options
from paddle_mnist.progress import TrainState

if TYPE_CHECKING:
    import paddle
    from paddle import nn

    from paddle_mnist.checkpoint.run import RunDirectory
    from paddle_mnist.monitor.profiler import Profiler
    from paddle_mnist.parallel.world import World
    from paddle_mnist.training.job import TrainingJob

# What a resume compares, and is no hyperparameter; a dashboard would take `name` for the run's.
NOT_CHOSEN = ("parameters", "valid", "name")


@dataclass(frozen=True)
class FitResult:
    """The result of a training run.

    metrics: the metrics of the final weights, by tag, such as "valid/loss".
    weights: the path of the file with the final weights.
    checkpoint: the path of the checkpoint with these weights, without a suffix.
    epochs, steps: the numbers of epochs and steps that were trained.
    seconds: the time spent in steps, summed over all starts of the run.
    stopped: "finished", "early" (a callback asked to stop), or "already finished" by an earlier
        call.
    """

    metrics: Mapping[str, float]
    weights: Path
    checkpoint: Path
    epochs: int
    steps: int
    seconds: float
    stopped: str

    def as_dict(self) -> dict[str, object]:
        """Return the contents of `result.json`: plain values, and the names of files."""
        names = {"weights": self.weights.name, "checkpoint": self.checkpoint.name}
        return {**vars(self), "metrics": dict(self.metrics), **names}


@dataclass(frozen=True)
class Training:
    """A training of `fit` as its callbacks see it: to read, not to change.

    run: its directory: `run.path`, `run.checkpoints.folder`, `run.metrics` (the path of
        `metrics.jsonl`), `run.figures`, ...
    state: where it stands, now and after each step: `epoch`, `step`, `samples`, `metrics`, `best`,
        ...; None in `run_opened`, before that is known.
    job: everything else that was asked for; unlike the rest it may change in any version.
    """

    job: "TrainingJob"
    run: "RunDirectory"
    state: Optional[TrainState] = None

    @property
    def model(self) -> "nn.Layer":
        """The net that is trained, with the weights of the newest step."""
        return self.job.parts.model

    @property
    def optimizer(self) -> "paddle.optimizer.Optimizer":
        """The optimizer of its parameters."""
        return self.job.parts.optimizer

    @property
    def steps(self) -> Optional[int]:
        """The number of steps in all epochs; None if the data have no length."""
        return self.job.steps

    @property
    def hyperparameters(self) -> Mapping[str, object]:
        """The chosen values that decide the result: plain ones, by names such as "batch_size"."""
        compared = self.job.request.config
        return {k: v for k, v in compared.items() if k.partition(".")[0] not in NOT_CHOSEN}

    @property
    def world(self) -> "World":
        """The processes: `world.rank`, `world.size`, `world.is_main_process`."""
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

    ends_with_best: (attribute) whether the training ends with the weights of its best checkpoint.
    log_every: (attribute) the number of steps between log lines; of several callbacks' the lowest
        counts.
    options: (attribute) groups of options that `fit` does not get, and a resume compares as well.
    """

    ends_with_best: bool = False
    log_every: Optional[int] = None
    options: Sequence[Options] = ()

    def check_job(self, job: "TrainingJob") -> None:
        """Raise ConfigError for what does not fit the training; called before a file is written."""

    def config_entries(self) -> Mapping[str, object]:
        """Return more entries for `config.yaml`, as plain values."""
        return {}

    def manifest_entries(self) -> Mapping[str, object]:
        """Return more entries for the manifests of checkpoints, as plain values."""
        return {}

    def run_opened(self, training: Training) -> None:
        """Called when the run directory is open, before `fit` decides where to resume."""

    def before_training(self, training: Training) -> None:
        """Called before the first step of this call of `fit`, and before the rehearsal."""

    def before_first_step(self, training: Training) -> None:
        """Called right before the first step, after the rehearsal."""

    def profiler(self) -> Optional["Profiler"]:
        """Return what measures the parts of the steps, or None; called after the method above."""
        return None

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        """Called with a copy of the metrics of each log line and evaluation, by tag."""

    def after_last_step(self, training: Training) -> None:
        """Called when the steps are over, before the final weights are evaluated."""

    def final_metrics(self, training: Training) -> Mapping[str, float]:
        """Return more metrics for the result, by tag; the model has the final weights."""
        return {}

    def result_entries(self, training: Training, result: FitResult) -> Mapping[str, object]:
        """Return more entries for `result.json`, as plain values."""
        return {}

    def has_result(self, entries: Mapping[str, object]) -> bool:
        """Return whether `result.json` has all entries; if not, the run is evaluated again."""
        return True

    def summary(self, training: Training, result: FitResult) -> Optional[str]:
        """Return a log line about the result that replaces `fit`'s own, or None."""
        return None

    def after_training(self, training: Training, result: FitResult) -> None:
        """Called after the result is written."""

    def already_finished(self, training: Training, result: FitResult) -> None:
        """Called after `run_opened`, instead of the other methods, if the run is finished."""

    def close(self) -> None:
        """Called when `fit` ends, whatever ended it, if `run_opened` was called."""
