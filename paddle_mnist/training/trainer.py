"""`Trainer`: the training loop.

`train` runs the epochs, `train_epoch` the steps of one; a step is `_forward_backward_step` and
`_optimizer_step`. To follow them, read two collaborators: `train_state.TrainState`, which counts
epochs and steps, and `metrics.running.RunningMetrics`, which accumulates the metrics of steps until
a log line is due. A loader's `epoch` yields the batches of an epoch; a batch is a list of this
process's shards, and anything else counts as one shard (`shards_of`).
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

import paddle
from paddle import nn
from paddle.utils import unique_name

from paddle_mnist.checkpoint.checkpointer import StoreCheckpointer
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.checkpoint.weights import write_weights
from paddle_mnist.data.external import as_loader
from paddle_mnist.data.loader import interruptible_batches
from paddle_mnist.data.sampler import shards_of
from paddle_mnist.errors import ConfigError
from paddle_mnist.hidden_state.optimizer_state import optimizer_parameters
from paddle_mnist.interfaces import (
    Checkpointer,
    Loader,
    MetricSums,
    Observer,
    View,
    Writer,
    as_number,
)
from paddle_mnist.metrics.console import console_writer
from paddle_mnist.metrics.running import REMEDY, RunningMetrics
from paddle_mnist.metrics.sums import as_float
from paddle_mnist.metrics.writers import ManyWriters, NewestMetrics
from paddle_mnist.monitor.profiler import Profiler
from paddle_mnist.nn.ema import NO_AVERAGE, WeightAverage
from paddle_mnist.nn.layers import training_mode_begins
from paddle_mnist.nn.losses import CrossEntropy
from paddle_mnist.nn.numerics import require_finite_loss
from paddle_mnist.nn.schedule import Schedule
from paddle_mnist.parallel.gradients import GradientExchange, SingleProcessGradients, StepResult
from paddle_mnist.system import heartbeat
from paddle_mnist.system.files import make_folder
from paddle_mnist.train_state import TrainState
from paddle_mnist.training.batch_errors import located
from paddle_mnist.training.callbacks import is_rehearsal
from paddle_mnist.training.evaluator import EpochEvaluator
from paddle_mnist.training.steps import Step, SupervisedStep, num_correct, run_step


class Trainer:
    """Trains a model: runs the loop over epochs and steps, with evaluation, saving and logging.

    model_path: the path of the final weights.
    model, optimizer: a `paddle.nn.Layer`, and a Paddle optimizer of its parameters.
    loss_fn: (logits [B, classes], labels [B, 1]) -> mean loss []; by default the cross-entropy.
    step: computes the loss and the metrics of a batch (`paddle_mnist.training.steps`); by default
        `loss_fn`, and the accuracy of the logits.
    metric_prototypes: the step's metrics of any batch, by name; needed to resume training with
        metrics that are not means.
    schedule: when the optimizer's `LRScheduler` is stepped; by default after every step.
    average: a moving average of the weights, which is evaluated and saved instead of the weights.
    evaluator, checkpointer, writer: the collaborators (`paddle_mnist.interfaces`). By default
        nothing is evaluated, every epoch is saved to `save_path`, and log lines go to the console.
    observers: called after every step and every epoch; they may ask to stop
        (`paddle_mnist.interfaces.Observer`).
    profile: measures the time of each phase of a step
        (`paddle_mnist.monitor.profiler.StepProfiler`).
    state: where the first `train` resumes, possibly inside an epoch; by default every `train`
        begins with a new epoch.
    log_every: steps between log lines.
    max_steps: the number of steps after which `train` ends, also inside an epoch.
    reseed: called before each forward pass with (steps done, shard index). If it seeds Paddle,
        dropout does not depend on earlier steps.
    exchange: sums the gradients of a batch's shards, over processes
        (`paddle_mnist.parallel.gradients`); by default batches are whole.
    """

    def __init__(
        self,
        model_path: Union[str, Path],
        model: nn.Layer,
        optimizer: paddle.optimizer.Optimizer,
        *,
        loss_fn: Optional[Callable[[paddle.Tensor, paddle.Tensor], paddle.Tensor]] = None,
        step: Optional[Step] = None,
        metric_prototypes: Mapping[str, MetricSums] = {},
        schedule: Optional[Schedule] = None,
        average: WeightAverage = NO_AVERAGE,
        evaluator: Optional[EpochEvaluator] = None,
        checkpointer: Optional[Checkpointer] = None,
        writer: Optional[Writer] = None,
        observers: Sequence[Observer] = (),
        profile: Optional[Profiler] = None,
        state: Optional[TrainState] = None,
        log_every: int = 100,
        reseed: Callable[[int, int], None] = lambda step, shard: None,
        exchange: Union[SingleProcessGradients, GradientExchange, None] = None,
        max_steps: Optional[int] = None,
    ):
        trained = [*model.parameters(), *optimizer_parameters(optimizer)]
        names = {id(parameter): parameter.name for parameter in trained}
        if len(set(names.values())) < len(names):
            raise ConfigError(
                "two parameters have one name, so the optimizer would mix up their states; give "
                "each model layers of its own, and create layers outside unique_name.guard"
            )
        self.model_path = Path(model_path)
        self.model = model
        self.optimizer = optimizer
        self.schedule = schedule or Schedule(optimizer)
        self.step = step or SupervisedStep(loss_fn or CrossEntropy(), {"acc": num_correct})
        self.metric_prototypes = metric_prototypes
        self.average = average
        self.evaluator = evaluator or EpochEvaluator(self.step, {})
        self.checkpointer = checkpointer
        # Without one, `train` creates it, since only `train` knows the folder.
        self._saving: Checkpointer = checkpointer or Checkpointer()
        self.writer = writer
        self.observers = observers
        self.profile = profile or Profiler()
        self.newest_metrics = NewestMetrics()
        self.loss: Optional[paddle.Tensor] = None
        self.state = state or TrainState()
        self.resuming = state is not None
        self.log_every = log_every
        self.max_steps = max_steps or math.inf
        self.reseed = reseed
        self.exchange = exchange or SingleProcessGradients()
        self._started = False
        self._steps_per_epoch: Optional[int] = None
        self._make_running_metrics()  # without log lines, for a `train_step` before any `train`

    def train(
        self,
        train_datasets: Any,
        start_epoch: int,
        end_epoch: int,
        save_path: Union[str, Path] = "checkpoint",
    ) -> TrainState:
        """Train epochs `start_epoch` to `end_epoch - 1`, then write the weights to model_path.

        train_datasets: a `BatchLoader`, a `paddle.io.DataLoader`, or a function that yields
            batches (`load_data`).
        save_path: the folder of the checkpoints, when no checkpointer was given.
        Raises ConfigError when start_epoch is not the epoch of the given `state`, DivergedError
        when a loss is not finite, OutputError when a file cannot be written.
        """
        loader = as_loader(train_datasets)
        is_resumed = self.resuming  # `_start` resets it
        may_have_trained = is_resumed or start_epoch < end_epoch
        self._start(loader, start_epoch, end_epoch, self.state.position)
        self._saving = self.checkpointer or StoreCheckpointer(
            CheckpointStore(save_path), self.model, self.optimizer, average=self.average
        )
        try:
            was_evaluated = bool(self.state.metrics)
            # An evaluation is repeated, since it may have been interrupted before it was written.
            if is_resumed and self._evaluate_after_step() and not was_evaluated:
                self._saving.after_step(self.state)
            for epoch in range(start_epoch, end_epoch):
                if self._is_over() or (not self.state.position and self.should_stop()):
                    break
                self.train_epoch(loader, epoch, self.state.position)
                if self._is_over():  # inside the epoch, which may be ended later
                    break
                self.end_epoch()
                self._saving.after_epoch(self.state)
        except BaseException as error:
            # A signal raises StoppedError, while waiting for a batch or evaluating.
            self._saving.after_error(error, self.state)
            raise
        if may_have_trained:  # otherwise the initial weights are not a checkpoint
            self._saving.at_end(self.state)
        self.save()
        return self.state

    def train_epoch(self, datasets: Any, epoch: int, start: int = 0) -> None:
        """Train on the batches of one epoch, beginning with number `start`.

        Saves the checkpoints that are due after steps, if the trainer has a checkpointer.
        Raises DivergedError when a loss is not finite, at the next log line or checkpoint, so that
        a step does not wait for its device.
        """
        loader = as_loader(datasets)
        if not self._started:
            self._start(loader, epoch, None, start)
        self.state.epoch, self.state.position = int(epoch), int(start)  # which may be NumPy's
        with training_mode_begins(self.model, warns=not is_rehearsal()):
            view = self._view()
            for observer in self.observers:  # before forking workers, which see its changes
                observer.on_epoch_start(view)
        self.profile.before_epoch()
        # Close it even if an error ends the epoch: a loader may have worker processes.
        with contextlib.closing(
            self.running.timed(interruptible_batches(loader.epoch(epoch, start)))
        ) as batches:
            for batch in batches:
                with located(batch, loader, epoch, self.state.position, f"epoch {epoch + 1}"):
                    result = self._forward_backward_step(batch)
                self._optimizer_step(result)
                with self.profile.part("logging"):
                    view = self._view()
                    for observer in self.observers:
                        self._write_metrics_of(observer, observer.after_step(view))
                    self.running.after_step()
                self._evaluate_after_step()
                with self.profile.part("saving"):
                    self._saving.after_step(self.state)
                self.profile.after_step()
                if self.state.step >= self.max_steps:
                    break
        heartbeat.beat()
        self.running.write_line()

    def end_epoch(self) -> None:
        """Evaluate after the last step of an epoch, and step a schedule that counts epochs."""
        self._evaluate(self.evaluator.after_epoch)
        self.schedule.after_epoch(self.state.metrics)
        self.state.end_epoch()
        for observer in self.observers:
            self._write_metrics_of(observer, observer.after_epoch(self._view()))

    def _is_over(self) -> bool:
        """Return whether all steps are done, and the last one does not end an epoch."""
        return self.state.step >= self.max_steps and self.state.position != self._steps_per_epoch

    def _evaluate_after_step(self) -> bool:
        """Evaluate if that is due inside an epoch; return whether it was."""
        is_due = self.evaluator.is_due_after_step(self.state)
        if is_due:
            with self.running.paused():
                self._evaluate(self.evaluator.after_step)
        return is_due

    def _evaluate(self, evaluate: Callable[[TrainState, nn.Layer], Mapping[str, float]]) -> None:
        with self.average.apply(self.model):
            metrics = evaluate(self.state, self.model)
        if metrics:
            self.state.record_evaluation(metrics)
            self.writers.write(self.state, metrics)

    def should_stop(self) -> bool:
        """Return whether an observer asks to stop training, in this process or in another.

        Asks all of them, in order.
        """
        answers = [observer.should_stop(self._view()) for observer in self.observers]
        return any(self.exchange.world.all_gather_objects(any(answers)))

    def train_step(self, data: Iterable[Any]) -> paddle.Tensor:
        """Train a single step, outside any epoch, and return its mean loss [].

        data: a batch (images [B, ...], labels [B, 1]), or its shards, as a `BatchLoader` divides
            it for several processes.
        Raises DivergedError when the loss is not finite, before the weights change.
        """
        result = self._forward_backward_step(data)
        step = f"at epoch {self.state.epoch + 1}, step {self.state.step + 1}"
        if result.count:
            require_finite_loss(as_float(result.loss), step, REMEDY)
        self._optimizer_step(result, in_epoch=False)
        self.state.synchronize()  # no log line does it here
        return result.mean

    def _forward_backward_step(self, data: Iterable[Any]) -> StepResult:
        """Run the forward and backward passes of a batch, on all of its shards in this process."""
        heartbeat.beat()
        self.optimizer.clear_grad()  # not after the step: observers look at its gradients
        for shard in shards_of(data):
            self.exchange.begin_shard()
            self.reseed(self.state.step, shard.index)
            with self.profile.part("forward"):
                outputs = run_step(self.step, self.model, shard.batch, shard.samples)
            with self.profile.part("backward"):
                weight = self.exchange.weight(shard, outputs)
                if outputs.count != 0 or weight:  # None: all samples
                    # In a small net, a multiplication by 1 takes a fifth of a step.
                    (outputs.loss if weight == 1 else outputs.loss * weight).backward()
                self.exchange.add(shard, outputs)
        with self.profile.part("exchange"):
            result = self.exchange.reduce()
        self.loss = result.mean
        return result

    def _optimizer_step(self, result: StepResult, in_epoch: bool = True) -> None:
        """Step the optimizer, the average and the schedule; then the state counts the step.

        in_epoch: whether the batch belongs to the current epoch.
        """
        # Inside the block `state.step` is still the number of steps before this one.
        with self.profile.part("optimizer"), self.state.stepping(result.samples, in_epoch):
            # Before the schedule steps: with the rate of this step.
            self.running.add(result, self.schedule.learning_rate)
            if result.count:
                # Paddle numbers accumulators per process; restart the numbering, so that names
                # match the checkpoint's.
                with unique_name.guard():
                    self.optimizer.step()
                self.average.update(self.model, self.state.step)
            self.schedule.after_step()

    def save(self) -> None:
        """Write the weights to `model_path` atomically. Raises OutputError."""

        def write() -> None:
            make_folder(self.model_path.parent)
            write_weights(self.model_path, self.average.weights(self.model))

        self.exchange.world.run_on_main(write)

    def _write_metrics_of(self, observer: Observer, values: Optional[Mapping[str, Any]]) -> None:
        """Write the metrics of an observer. Raises ConfigError unless they are numbers."""
        if values:
            name = type(observer).__name__
            self.writers.write(
                self.state, {tag: as_number(value, tag, name) for tag, value in values.items()}
            )

    def _view(self) -> View:
        return View(self.state, self.loss, self.newest_metrics.values, self.model)

    def _start(
        self, loader: Loader, start_epoch: int, end_epoch: Optional[int], position: int
    ) -> None:
        """Prepare the state and the log for training. Raises ConfigError: see `train`.

        end_epoch: None if the caller of `train_epoch` decides. position: of the first batch in its
            epoch, to compare with a resumed state.
        """
        at = (self.state.epoch, self.state.position)
        if self.resuming and (start_epoch, position) != at:
            asked = f"epoch {start_epoch}" + (f", batch {position}" if position != at[1] else "")
            raise ConfigError(
                f"asked to start at {asked} (counted from 0), but the state is at epoch {at[0]}, "
                f"batch {at[1]}; start there, or create a Trainer without a state to start from "
                "the beginning"
            )
        steps = self._steps_per_epoch = loader.steps_per_epoch
        if not self.resuming:  # start_epoch > 0: assume the epochs before were trained elsewhere
            self.state = TrainState(epoch=int(start_epoch), step=int(start_epoch) * (steps or 0))
        self._make_running_metrics(self.writer or console_writer(end_epoch, steps))
        if self.resuming:
            self.running.after_step()  # writes the line that was due at the interruption, if any
        self.resuming = False
        self._started = True

    def _make_running_metrics(self, *writers: Writer) -> None:
        """Create `writers` and `running` for the current state. writers: of log lines."""
        self.writers: Writer = ManyWriters([*writers, self.newest_metrics])
        self.running = RunningMetrics(
            self.state, self.writers, self.log_every, self.metric_prototypes
        )
