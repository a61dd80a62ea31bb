"""Base class of callbacks, and what `fit` passes to them. Imports no paddle."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, TypeVar

from paddle_mnist.interfaces import Loader, MetricSums, Observer
from paddle_mnist.options import Options
from paddle_mnist.train_state import TrainState

if TYPE_CHECKING:
    import paddle
    from paddle import nn

    from paddle_mnist.checkpoint.manifest import Checkpoint, Manifest
    from paddle_mnist.checkpoint.run import RunDirectory
    from paddle_mnist.hidden_state.extra_state import ExtraState
    from paddle_mnist.monitor.profiler import Profiler
    from paddle_mnist.nn.ema import WeightAverage
    from paddle_mnist.nn.schedule import Schedule
    from paddle_mnist.parallel.world import World
    from paddle_mnist.training.arguments import FitArguments
    from paddle_mnist.training.evaluator import EpochEvaluator
    from paddle_mnist.training.steps import Step


AnyCallback = TypeVar("AnyCallback", bound="Callback")

# Compared values that are not hyperparameters; a dashboard would use `name` as the run's.
NOT_HYPERPARAMETERS = ("parameters", "arrays", "valid", "name")


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
    witness: whether steps that a resumed run repeated agree with those of the interrupted run
        (docs/en/resume.md); empty if version 1.0 trained the run.
    """

    metrics: Mapping[str, float]
    weights: Path
    checkpoint: Path
    epochs: int
    steps: int
    seconds: float
    stopped: str
    witness: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """Return the contents of `result.json`: plain values, and the names of files."""
        names = {"weights": self.weights.name, "checkpoint": self.checkpoint.name}
        return {**vars(self), "metrics": dict(self.metrics), **names, "witness": dict(self.witness)}


@dataclass(eq=False)
class Training:
    """A training run of `fit`, for its callbacks, which may read but not change it.

    model: the net, with the weights of the newest step; until `before_training` returns, with its
        initial weights.
    optimizer: the optimizer of its parameters.
    run: its directory: `run.path`, `run.checkpoints.folder`, `run.metrics` (the path of
        `metrics.jsonl`), `run.figures`, ...
    world: the processes: `world.rank`, `world.size`, `world.is_main_process`.
    state: the progress after the newest step: `epoch`, `step`, `samples`, `metrics`, `best`, ...;
        in `run_opened` at step 0, since `fit` decides afterwards where to resume.

    Unlike these, the following may change in any version.
    arguments: those of `fit`. device: the name of Paddle's device.
    loader: batches of the training data, with their order. schedule: when the optimizer's learning
    rate changes. average: a moving average of the weights, or `NO_AVERAGE`. extra: all other state.
    step, metric_prototypes: see `paddle_mnist.training.loop.TrainingLoop`.
    first_batch: a hash of it, by name. evaluator: evaluates the splits. tags: of its metrics.
    callbacks: including the default ones.
    compared: the values that a resume compares, by names such as "optimizer.beta1".
    config: the contents of `config.yaml`. resumed_from: a checkpoint, if it was resumed.
    origin: the manifest of the checkpoint from which it was resumed or started; else empty.
    witness: that of the result, once all steps are done.
    """

    arguments: "FitArguments"
    world: "World"
    device: str
    run: "RunDirectory"
    model: "nn.Layer"
    optimizer: "paddle.optimizer.Optimizer"
    schedule: "Schedule"
    loader: Loader
    average: "WeightAverage"
    extra: "ExtraState"
    step: "Step"
    evaluator: "EpochEvaluator"
    callbacks: "Sequence[Callback]"
    state: TrainState
    metric_prototypes: Mapping[str, MetricSums] = field(default_factory=dict)
    first_batch: Mapping[str, str] = field(default_factory=dict)
    tags: Sequence[str] = ()
    compared: Mapping[str, Any] = field(default_factory=dict)
    config: str = ""
    resumed_from: "Optional[Checkpoint]" = None
    origin: "Manifest" = field(default_factory=dict)  # type: ignore[assignment]
    witness: Mapping[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> Optional[int]:
        """The number of steps in all epochs; None if the data has no length."""
        steps = (self.loader.steps_per_epoch or 0) * self.arguments.epochs
        return min(steps, self.arguments.loading.max_steps or steps) or None

    @property
    def hyperparameters(self) -> Mapping[str, object]:
        """The options that affect the result, as plain values, by names such as "batch_size"."""
        return {
            k: v for k, v in self.compared.items() if k.partition(".")[0] not in NOT_HYPERPARAMETERS
        }

    @property
    def log_every(self) -> int:
        """The number of steps between log lines."""
        return min(steps for callback in self.callbacks if (steps := callback.log_every))

    def callback(self, kind: type[AnyCallback]) -> Optional[AnyCallback]:
        """Return the first callback of a class; None if there is none."""
        return next((callback for callback in self.callbacks if isinstance(callback, kind)), None)

    def is_over(self, state: TrainState) -> bool:
        """Return whether all epochs or steps are trained."""
        max_steps = self.arguments.loading.max_steps
        has_all_steps = max_steps is not None and state.step >= max_steps
        return has_all_steps or state.epoch == self.arguments.epochs


class Callback(Observer):
    """Base class for callbacks of `fit`; override the methods you need.

    Every process calls each method, in the same order; only the process in which
    `training.world.is_main_process` is true should write. As an `Observer`, a callback is also
    called after every step and epoch, and before a new run's first step in a rehearsal: see
    `is_rehearsal`.

    If a callback has `state_dict` and `set_state_dict`, checkpoints save and restore its state.

    ends_with_best: (attribute) whether the training ends with the weights of its best checkpoint.
    log_every: (attribute) the number of steps between log lines; the lowest number of all
        callbacks counts.
    options: (attribute) further groups of options that a resume compares.
    """

    ends_with_best: bool = False
    log_every: Optional[int] = None
    options: Sequence[Options] = ()

    def check_training(self, training: Training) -> None:
        """Raise ConfigError if the callback does not fit the run; called before writing a file."""

    def config_entries(self) -> Mapping[str, object]:
        """Return more entries for `config.yaml`, as plain values."""
        return {}

    def manifest_entries(self) -> Mapping[str, object]:
        """Return more entries for the manifests of checkpoints, as plain values."""
        return {}

    def run_opened(self, training: Training) -> None:
        """Called when the run directory is open, before `fit` decides where to resume."""

    def before_training(self, training: Training) -> None:
        """Called in each call of `fit`, before a checkpoint is loaded and before the rehearsal.

        A resumed run then replaces what it sets, such as pretrained weights, by the saved values.
        The state of callbacks is loaded afterwards: if you need it, use `before_first_step`.
        """

    def before_first_step(self, training: Training) -> None:
        """Called right before the first step, after the rehearsal."""

    def profiler(self) -> Optional["Profiler"]:
        """Return a profiler of the steps, or None; called after the method above."""
        return None

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        """Called with a copy of the metrics of each log line and evaluation, by tag."""

    def after_last_step(self, training: Training) -> None:
        """Called after the last step, before the final weights are evaluated."""

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
        """Called when `fit` returns or raises, if `run_opened` was called."""


_depth = 0  # of nested rehearsals


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
