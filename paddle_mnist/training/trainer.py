"""`Trainer`: the training loop."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Optional, Union

import paddle
from paddle import nn
from paddle.utils import unique_name

from paddle_mnist.checkpoint.checkpointer import NO_CHECKPOINTER, StoreCheckpointer
from paddle_mnist.checkpoint.contents import saved_bytes
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.data.loader import batches_per_epoch, epoch_batches, shards_of
from paddle_mnist.errors import ConfigError
from paddle_mnist.metrics.running import Progress
from paddle_mnist.metrics.writers import ManyWriters, NewestMetrics, console_writer
from paddle_mnist.monitor.profiler import NO_PROFILE, Profiler
from paddle_mnist.nn.ema import NO_AVERAGE, WeightAverage
from paddle_mnist.nn.optim import cross_entropy, schedule_of
from paddle_mnist.parallel.gradients import GradientExchange, SingleProcessGradients
from paddle_mnist.state import (
    Checkpointer,
    Evaluator,
    Observer,
    TrainState,
    View,
    Writer,
    as_number,
)
from paddle_mnist.system.files import make_folder, write_atomically
from paddle_mnist.training.evaluator import NoEvaluator


class Trainer:
    """Trains a model: steps, epochs, and what happens between them.

    model_path: where the final weights go.
    model, optimizer: a `paddle.nn.Layer` giving logits, and a Paddle optimizer of its parameters;
        an `LRScheduler` of the optimizer is stepped after every batch.
    loss_fn: (logits [B, 10], labels [B, 1]) -> mean loss []; by default the cross-entropy.
    average: of the weights, kept beside them; evaluated and written in their place.
    evaluator, checkpointer, writer: collaborators (`paddle_mnist.state` says what is asked of
        them). By default nothing is evaluated, every epoch is saved to `save_path`, and lines of
        the log go to the console.
    observers: look on, after every step and every epoch (`paddle_mnist.state.Observer`).
    profile: measures where a step's time goes (`paddle_mnist.monitor.profiler.Profile`).
    state: where the first `train` goes on, inside an epoch too; by default each starts an epoch.
    reseed: called with the number of steps done, and that of the shard, before each forward pass;
        with a function that seeds Paddle's generators, what is drawn in a step (dropout) does not
        depend on earlier steps.
    autocast: gives the context of the model's forward pass
        (`paddle_mnist.system.devices.autocast`); the loss is taken outside it, of float32.
    exchange: adds up the gradients of a batch's shards, of several processes
        (`paddle_mnist.parallel.gradients`); by default batches are whole.
    """

    def __init__(
        self,
        model_path: Union[str, Path],
        model: nn.Layer,
        optimizer: paddle.optimizer.Optimizer,
        *,
        loss_fn: Optional[Callable] = None,
        average: WeightAverage = NO_AVERAGE,
        evaluator: Optional[Evaluator] = None,
        checkpointer: Optional[Checkpointer] = None,
        writer: Optional[Writer] = None,
        observers: Sequence[Observer] = (),
        profile: Profiler = NO_PROFILE,
        state: Optional[TrainState] = None,
        log_every: int = 100,
        reseed: Callable[[int, int], None] = lambda step, shard: None,
        autocast: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
        exchange: Union[SingleProcessGradients, GradientExchange, None] = None,
    ):
        names = [parameter.name for parameter in model.parameters()]
        if len(set(names)) < len(names):
            raise ConfigError(
                "two parameters of the model have one name, so the optimizer would mix up their "
                "states; expected different ones: use one MNIST a model"
            )
        self.model_path = Path(model_path)
        self.model = model
        self.optimizer = optimizer
        self.schedule = schedule_of(optimizer)
        self.loss_fn = loss_fn or cross_entropy()
        self.average = average
        self.evaluator = evaluator or NoEvaluator()
        self.checkpointer = checkpointer
        self.writer = writer
        self.observers = observers
        self.profile = profile
        self.metrics = NewestMetrics()
        self.log: Writer = self.metrics
        self.loss: Optional[paddle.Tensor] = None
        self.state = state or TrainState()
        self.going_on = state is not None
        self.log_every = log_every
        self.reseed = reseed
        self.autocast = autocast
        self.exchange = exchange or SingleProcessGradients()
        self.progress: Optional[Progress] = None
        self._in_epoch = False

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
        something = self.going_on or start_epoch < end_epoch
        self._begin(train_datasets, start_epoch, end_epoch, self.state.position)
        checkpointer = self.checkpointer or StoreCheckpointer(
            CheckpointStore(save_path), average=self.average
        )
        try:
            for epoch in range(start_epoch, end_epoch):
                if self.evaluator.should_stop(self.state):
                    break
                self.train_epoch(train_datasets, epoch, self.state.position, checkpointer)
                with self.average.apply(self.model):
                    self.state.record_evaluation(self.evaluator.after_epoch(self.state, self.model))
                self.log.write(self.state, self.state.metrics)
                self.state.end_epoch()
                self.observe("after_epoch")
                checkpointer.after_epoch(self.state, self.model, self.optimizer)
        except BaseException as error:
            checkpointer.after_error(error, self.state, self.model, self.optimizer)
            raise
        if something:
            checkpointer.at_end(self.state, self.model, self.optimizer)
        self.save()
        return self.state

    def train_epoch(
        self,
        datasets: Any,
        epoch: int,
        start: int = 0,
        checkpointer: Checkpointer = NO_CHECKPOINTER,
    ) -> None:
        """Train on the batches of one epoch, from number `start` on."""
        if self.progress is None:
            self._begin(datasets, epoch, epoch + 1, start)
        self.model.train()
        self.state.epoch, self.state.position = epoch, start
        self.profile.before_epoch()
        self._in_epoch = True
        try:
            for batch in self.progress.timed(epoch_batches(datasets, epoch, start)):
                self.train_step(batch)
                with self.profile.part("logging"):
                    self.observe("after_step")
                    self.progress.after_step(self.state)
                with self.profile.part("saving"):
                    checkpointer.after_step(self.state, self.model, self.optimizer)
                self.profile.after_step()
        finally:
            self._in_epoch = False
        self.progress.flush(self.state)

    def train_step(self, data: Iterable) -> paddle.Tensor:
        """One step on a batch (images [B, 1, 28, 28], labels [B, 1]); gives its mean loss [].

        data: also its shards, as a `BatchLoader` cuts them for the exchange.
        Raises DivergedError when the loss is not finite: before the weights change; inside an
        epoch, where a step need not wait for its device, with the next line of the log.
        """
        self.optimizer.clear_grad()  # not after the step: observers look at its gradients
        for shard in shards_of(data):
            self.reseed(self.state.step, shard.index)
            with self.profile.part("forward"):
                with self.autocast():
                    logits = self.model(shard.images)
                loss = self.loss_fn(logits.astype("float32"), shard.labels)
            with self.profile.part("backward"):
                (loss * shard.weight).backward()
                self.exchange.add(shard, loss, logits)
        with self.profile.part("exchange"):
            outcome = self.exchange.finish()
        self.loss = outcome.loss
        position = self.state.position
        with self.profile.part("optimizer"), self.state.stepping(outcome.samples):
            lr = self.optimizer.get_lr()
            self.state.record(outcome.loss, outcome.num_correct, outcome.samples, lr)
            if self._in_epoch:
                self.progress.add(outcome.samples)
            else:
                self.state.settle()
            # The first step names the optimizer's state; guarded, it has the names that the first
            # optimizer of a process gives, whichever this is, so that saved states fit.
            with unique_name.guard():
                self.optimizer.step()
            self.schedule.step()
            self.average.update(self.model, self.state.step)
        if not self._in_epoch:  # the batch is none of an epoch, which is trained whole
            self.state.position = position
        return self.loss

    def save(self) -> None:
        """Write the weights to `model_path`, whole or not at all. Raises OutputError."""
        self.exchange.world.run_on_main(self._write)

    def _write(self) -> None:
        make_folder(self.model_path.parent)
        write_atomically(self.model_path, saved_bytes(self.average.weights(self.model)))

    def observe(self, event: str) -> None:
        """Show the observers where the training stands; write the values that they return.

        Raises ConfigError for a value that is not a number.
        """
        for observer in self.observers:
            view = View(self.state, self.loss, self.metrics.values, self.model)
            if values := getattr(observer, event)(view):
                name = type(observer).__name__
                self.log.write(
                    self.state, {tag: as_number(value, tag, name) for tag, value in values.items()}
                )

    def _begin(self, loader: Any, start_epoch: int, end_epoch: int, position: int) -> None:
        """Begin to keep figures of the steps. Raises ConfigError: see `train`."""
        here = (self.state.epoch, self.state.position)
        if self.going_on and (start_epoch, position) != here:
            asked = f"epoch {start_epoch}" + (f", batch {position}" if position != here[1] else "")
            raise ConfigError(
                f"asked to start at {asked} (counted from 0), but the state stands at epoch "
                f"{here[0]}, batch {here[1]}; expected the same, or a Trainer without a state, "
                "which begins anew"
            )
        steps = batches_per_epoch(loader)
        self.log = ManyWriters([self.writer or console_writer(end_epoch, steps), self.metrics])
        if not self.going_on:  # the epochs before were trained elsewhere, or by an earlier call
            self.state = TrainState(epoch=start_epoch, step=start_epoch * (steps or 0))
        self.progress = Progress(self.log, self.log_every)
        if self.going_on:  # a line was due, if that is what the training broke off at
            self.progress.after_step(self.state)
        self.going_on = False
