"""`TrainingLoop`: the loop over epochs and steps, which `Trainer` and `fit` run.

`train` runs the epochs, `train_epoch` the steps of one; a step is `forward_backward_step` and
`optimizer_step`. To follow them, read two collaborators: `train_state.TrainState`, which counts
epochs and steps, and `metrics.running.RunningMetrics`, which accumulates the metrics of steps until
a log line is due. A loader's `epoch` yields the batches of an epoch; a batch is a list of this
process's shards, and anything else counts as one shard (`shards_of`).
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import paddle
from paddle import nn
from paddle.utils import unique_name

from paddle_mnist.checkpoint.checkpointer import Checkpointer
from paddle_mnist.data.loader import interruptible_batches
from paddle_mnist.data.sampler import shards_of
from paddle_mnist.hidden_state.extra_state import ExtraState
from paddle_mnist.hidden_state.optimizer_state import require_distinct_names
from paddle_mnist.interfaces import (
    Loader,
    MetricSums,
    Observer,
    View,
    Writer,
    as_number,
    require_layers,
)
from paddle_mnist.metrics.running import RunningMetrics
from paddle_mnist.metrics.writers import JsonlWriter, ManyWriters, NewestMetrics
from paddle_mnist.monitor.hooks import recording_outputs
from paddle_mnist.monitor.profiler import NULL_CONTEXT, Profiler
from paddle_mnist.nn.ema import NO_AVERAGE, WeightAverage
from paddle_mnist.nn.layers import training_mode_begins
from paddle_mnist.nn.schedule import Schedule
from paddle_mnist.parallel.gradients import GradientExchange, SingleProcessGradients, StepResult
from paddle_mnist.system import heartbeat
from paddle_mnist.train_state import TrainState
from paddle_mnist.training.batch_errors import located
from paddle_mnist.training.callbacks import is_rehearsal
from paddle_mnist.training.evaluator import EpochEvaluator
from paddle_mnist.training.steps import Step, run_step
from paddle_mnist.training.whole_steps import LastWholeStep
from paddle_mnist.training.witness import Witness


class TrainingLoop:
    """Runs epochs and steps, with evaluation, saving and logging.

    model, optimizer: a `paddle.nn.Layer`, and a Paddle optimizer of its parameters.
    step: computes the loss and the metrics of a batch (`paddle_mnist.training.steps`).
    state: where to start, possibly inside an epoch; the loop counts on in it.
    metric_prototypes: the step's metrics of any batch, by name; needed to resume training with
        metrics that are not means.
    schedule: when the optimizer's `LRScheduler` is stepped; by default after every step.
    average: a moving average of the weights, which is evaluated instead of the weights.
    evaluator, checkpointer, writer: the collaborators (`paddle_mnist.interfaces`). By default
        nothing is evaluated or saved. writer: of log lines and evaluations.
    observers: called after every step and every epoch; they may ask to stop
        (`paddle_mnist.interfaces.Observer`).
    profile: measures the time of each phase of a step
        (`paddle_mnist.monitor.profiler.StepProfiler`).
    log_every: steps between log lines.
    max_steps: the number of steps after which training ends, also inside an epoch.
    reseed: called before each forward pass with (steps done, shard index). If it seeds Paddle,
        dropout does not depend on earlier steps.
    exchange: sums the gradients of a batch's shards, over processes
        (`paddle_mnist.parallel.gradients`); by default batches are not divided.
    extra: the state beside the weights and the optimizer's; history: `metrics.jsonl`. After an
        error, both are restored to the last whole step.
    witness: compares steps that a resumed run repeats with those of the interrupted run.
    """

    def __init__(
        self,
        model: nn.Layer,
        optimizer: paddle.optimizer.Optimizer,
        step: Step,
        state: TrainState,
        writer: Writer,
        *,
        metric_prototypes: Mapping[str, MetricSums] = {},
        schedule: Optional[Schedule] = None,
        average: WeightAverage = NO_AVERAGE,
        evaluator: Optional[EpochEvaluator] = None,
        checkpointer: Optional[Checkpointer] = None,
        observers: Sequence[Observer] = (),
        profile: Optional[Profiler] = None,
        log_every: int = 100,
        max_steps: Optional[int] = None,
        reseed: Callable[[int, int], None] = lambda step, shard: None,
        exchange: Union[SingleProcessGradients, GradientExchange, None] = None,
        extra: Optional[ExtraState] = None,
        history: Optional[JsonlWriter] = None,
        witness: Optional[Witness] = None,
    ):
        require_distinct_names(model, optimizer)
        self.model = model
        self.optimizer = optimizer
        self.step = step
        self.state = state
        self.schedule = schedule or Schedule(optimizer)
        self.average = average
        self.evaluator = evaluator or EpochEvaluator(step, {})
        self.checkpointer = checkpointer or Checkpointer(None, model, optimizer)
        self.observers = observers
        self.profile = profile or Profiler()
        self.max_steps = max_steps or math.inf
        self.reseed = reseed
        self.exchange = exchange or SingleProcessGradients(model)
        self.extra, self.history = extra, history
        self.last_whole: Optional[LastWholeStep] = None  # only in `train`, which saves it
        self.witness = witness or Witness()
        self.loss: Optional[paddle.Tensor] = None  # of the newest step
        self.rate = 0.0  # its learning rate
        self.outputs: dict[str, np.ndarray] = {}  # of its recorded layers
        self._recorders: list[Observer] = []  # those that ask for outputs, in an epoch
        self.newest_metrics = NewestMetrics()
        self.writers = ManyWriters([writer, self.newest_metrics])
        self.running = RunningMetrics(state, self.writers, log_every, metric_prototypes)

    def train(self, loader: Loader, end_epoch: int) -> None:
        """Train from the state's epoch and position to the end of epoch `end_epoch - 1`.

        Raises DivergedError when a loss is not finite, OutputError when a file cannot be written.
        """
        state, checkpointer = self.state, self.checkpointer
        self.running.after_step()  # writes a line that was due when version 1.0 was interrupted
        self.last_whole = LastWholeStep(
            self.model,
            self.optimizer,
            self.average,
            self.extra,
            state,
            self.running,
            self.exchange.buffers,
            self.history,
        )
        try:
            if not state.metrics and self._evaluate_after_step():
                checkpointer.after_step(state)
            for epoch in range(state.epoch, end_epoch):
                if self._ends_inside_epoch(loader) or (not state.position and self.should_stop()):
                    break
                self.train_epoch(loader, epoch, state.position)
                if self._ends_inside_epoch(loader):  # inside the epoch, which may be ended later
                    break
                self.end_epoch()
                checkpointer.after_epoch(state)
        except BaseException as error:
            # A signal raises StoppedError, while waiting for a batch or evaluating.
            problem = self.last_whole.undo()
            self.witness.after_error(state.step + 1, error)
            checkpointer.after_error(error, state, problem)
            raise
        checkpointer.at_end(state)

    def train_epoch(self, loader: Loader, epoch: int, start: int = 0) -> None:
        """Train on the batches of one epoch, beginning with number `start`.

        Raises DivergedError when a loss is not finite, at the next log line or checkpoint, so that
        a step does not wait for its device.
        """
        self.state.epoch, self.state.position = epoch, start
        with training_mode_begins(self.model, warns=not is_rehearsal()):
            view = self._view()
            for observer in self._observers_of("on_epoch_start"):
                observer.on_epoch_start(view)  # before forking workers, which see its changes
        followers = self._observers_of("after_step")
        self._recorders = self._observers_of("recorded_layers")
        self.profile.before_epoch()
        # Close it even if an error ends the epoch: a loader may have worker processes.
        with contextlib.closing(
            self.running.timed(interruptible_batches(loader.epoch(epoch, start)))
        ) as batches:
            for batch in batches:
                with located(batch, loader, epoch, self.state.position, f"epoch {epoch + 1}"):
                    result = self.forward_backward_step(batch)
                self.optimizer_step(result)
                with self.profile.part("logging"):
                    view = self._view()
                    for observer in followers:
                        if values := observer.after_step(view):
                            self._write_metrics_of(observer, values)
                    self.running.after_step()
                self._mark_whole()
                self.witness.after_step(
                    self.state.step, result.mean, self.rate, self.exchange.buffers
                )
                self._evaluate_after_step()
                with self.profile.part("saving"):
                    self.checkpointer.after_step(self.state)
                self.profile.after_step()
                if self.state.step >= self.max_steps:
                    break
        heartbeat.beat()
        self.running.write_line()

    def end_epoch(self) -> None:
        """Evaluate after the last step of an epoch, and step a schedule that counts epochs."""
        self._before_pass()
        self._evaluate(self.evaluator.after_epoch)
        self.schedule.after_epoch(self.state.metrics)
        self.state.end_epoch()
        for observer in self._observers_of("after_epoch"):
            if values := observer.after_epoch(self._view()):
                self._write_metrics_of(observer, values)
        self._mark_whole()

    def forward_backward_step(self, data: Iterable[Any]) -> StepResult:
        """Run the forward and backward passes of a batch, on all of its shards in this process."""
        heartbeat.beat()
        self._before_pass(trains=True)
        self.optimizer.clear_grad()  # not after the step: observers look at its gradients
        recording = self._recording()
        for shard in shards_of(data):
            self.exchange.begin_shard()
            self.reseed(self.state.step, shard.index)
            with self.profile.part("forward"), recording:
                outputs = run_step(self.step, self.model, shard.batch, shard.samples)
            recording = NULL_CONTEXT  # the first shard's outputs are enough
            with self.profile.part("backward"):
                self.exchange.backward(shard, outputs)
        with self.profile.part("exchange"):
            result = self.exchange.reduce()
        self.loss = result.mean
        return result

    def _observers_of(self, method: str) -> list[Observer]:
        """Return the observers that override a method of `Observer`."""
        base = getattr(Observer, method)
        return [o for o in self.observers if getattr(getattr(o, method), "__func__", None) != base]

    def _before_pass(self, trains: bool = False) -> None:
        """Keep what a step (trains), an evaluation or the end of an epoch may change."""
        self.exchange.buffers.keep()
        if self.last_whole:
            self.last_whole.before_pass(trains)

    def _mark_whole(self) -> None:
        """End a step, an evaluation or an epoch: from now on, an error does not undo it."""
        if self.last_whole:
            self.last_whole.mark_whole()

    def _recording(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that records the outputs that observers ask for in the next step."""
        self.outputs = {}
        step = self.state.step + 1
        names = [name for observer in self._recorders for name in observer.recorded_layers(step)]
        if not names:
            return NULL_CONTEXT
        layers = require_layers("recorded_layers", self.model, names)
        return recording_outputs(layers, self.outputs)

    def optimizer_step(self, result: StepResult, in_epoch: bool = True) -> None:
        """Step the optimizer, the average and the schedule; then the state counts the step.

        in_epoch: whether the batch belongs to the current epoch.
        """
        with self.profile.part("optimizer"):
            # Before the schedule steps: with the rate of this step.
            self.rate = self.schedule.learning_rate
            self.running.add(result, self.rate)
            if result.count:
                # Paddle numbers accumulators per process; restart the numbering, so that names
                # match the checkpoint's.
                with unique_name.guard():
                    self.optimizer.step()
                self.average.update(self.model, self.state.step)
            self.schedule.after_step()
            self.state.count_step(result.samples, in_epoch)

    def should_stop(self) -> bool:
        """Return whether an observer asks to stop training, in this process or in another.

        Asks all of them, in order.
        """
        answers = [observer.should_stop(self._view()) for observer in self.observers]
        return any(self.exchange.world.all_gather_objects(any(answers)))

    def _ends_inside_epoch(self, loader: Loader) -> bool:
        """Return whether all steps are done, and the last one does not end an epoch."""
        return self.state.step >= self.max_steps and self.state.position != loader.steps_per_epoch

    def _evaluate_after_step(self) -> bool:
        """Evaluate if that is due inside an epoch; return whether it was."""
        is_due = self.evaluator.is_due_after_step(self.state)
        if is_due:
            self._before_pass()
            with self.running.paused():
                self._evaluate(self.evaluator.after_step)
            self._mark_whole()
        return is_due

    def _evaluate(self, evaluate: Callable[[TrainState, nn.Layer], Mapping[str, float]]) -> None:
        with self.average.apply(self.model):
            metrics = evaluate(self.state, self.model)
        if metrics:
            self.state.record_evaluation(metrics)
            self.writers.write(self.state, metrics)
            self.witness.after_evaluation(self.state.step, metrics)

    def _write_metrics_of(self, observer: Observer, values: Mapping[str, Any]) -> None:
        """Write the metrics of an observer. Raises ConfigError unless they are numbers."""
        name = type(observer).__name__
        numbers = {tag: as_number(value, tag, name) for tag, value in values.items()}
        self.writers.write(self.state, numbers)

    def _view(self) -> View:
        metrics = self.newest_metrics.values
        return View(self.state, self.loss, metrics, self.model, self.outputs)
