"""`Trainer`: train a model epoch by epoch, as in the tutorial, and save it after each.

The loop itself, which `fit` runs too, is `paddle_mnist.training.loop.TrainingLoop`.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Optional, Union

import paddle
from paddle import nn

from paddle_mnist.checkpoint.checkpointer import Checkpointer
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.checkpoint.weights import write_weights
from paddle_mnist.data.external import as_loader
from paddle_mnist.interfaces import Loader, Observer, Writer
from paddle_mnist.metrics.console import console_writer
from paddle_mnist.metrics.running import REMEDY
from paddle_mnist.metrics.sums import as_float
from paddle_mnist.metrics.writers import ManyWriters
from paddle_mnist.nn.losses import CrossEntropy
from paddle_mnist.nn.numerics import require_finite_loss
from paddle_mnist.system.files import make_folder
from paddle_mnist.train_state import TrainState
from paddle_mnist.training.loop import TrainingLoop
from paddle_mnist.training.steps import Step, SupervisedStep, num_correct


class Trainer:
    """Trains a model, writes log lines, and saves a checkpoint after each epoch.

    model_path: the path of the final weights.
    model, optimizer: a `paddle.nn.Layer`, and a Paddle optimizer of its parameters.
    loss_fn: (logits [B, classes], labels [B, 1]) -> mean loss []; by default the cross-entropy.
    step: computes the loss and the metrics of a batch (`paddle_mnist.training.steps`); by default
        `loss_fn`, and the accuracy of the logits.
    writer: of log lines (`paddle_mnist.interfaces.Writer`); by default they go to the console.
    observers: called after every step and every epoch; they may ask to stop
        (`paddle_mnist.interfaces.Observer`).
    log_every: steps between log lines.
    state: (attribute) the progress so far, a `paddle_mnist.train_state.TrainState`.
    """

    def __init__(
        self,
        model_path: Union[str, Path],
        model: nn.Layer,
        optimizer: paddle.optimizer.Optimizer,
        *,
        loss_fn: Optional[Callable[[paddle.Tensor, paddle.Tensor], paddle.Tensor]] = None,
        step: Optional[Step] = None,
        writer: Optional[Writer] = None,
        observers: Sequence[Observer] = (),
        log_every: int = 100,
    ):
        self.model_path = Path(model_path)
        self.model = model
        self.optimizer = optimizer
        self.step = step or SupervisedStep(loss_fn or CrossEntropy(), {"acc": num_correct})
        self.writer = writer
        self.observers = observers
        self.log_every = log_every
        self.state = TrainState()
        self._has_begun = False
        self._loop = self._new_loop(ManyWriters([]))  # for a `train_step` before any epoch

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
        save_path: the folder of the checkpoints.
        Raises DivergedError when a loss is not finite, OutputError when a file cannot be written.
        """
        loader = as_loader(train_datasets)
        checkpointer = Checkpointer(CheckpointStore(save_path), self.model, self.optimizer)
        self._begin(loader, start_epoch, end_epoch, checkpointer)
        if start_epoch < end_epoch:  # otherwise the initial weights are not a checkpoint
            self._loop.train(loader, end_epoch)
        self.save()
        return self.state

    def train_epoch(self, datasets: Any, epoch: int) -> None:
        """Train on the batches of one epoch, without saving a checkpoint.

        Raises DivergedError when a loss is not finite, at the next log line, so that a step does
        not wait for its device.
        """
        loader = as_loader(datasets)
        if not self._has_begun:
            self._begin(loader, epoch)
        self._update_loop()
        self._loop.train_epoch(loader, int(epoch))  # it may be a NumPy integer

    def train_step(self, data: Iterable[Any]) -> paddle.Tensor:
        """Train a single step, outside any epoch, and return its mean loss [].

        data: a batch (images [B, ...], labels [B, 1]).
        Raises DivergedError when the loss is not finite, before the weights change.
        """
        self._update_loop()
        result = self._loop.forward_backward_step(data)
        step = f"at epoch {self.state.epoch + 1}, step {self.state.step + 1}"
        if result.count:
            require_finite_loss(as_float(result.loss), step, REMEDY)
        self._loop.optimizer_step(result, in_epoch=False)
        self.state.synchronize()  # no log line does it here
        return result.mean

    def save(self) -> None:
        """Write the weights to `model_path` atomically. Raises OutputError."""
        make_folder(self.model_path.parent)
        write_weights(self.model_path, self.model.state_dict())

    def _begin(
        self,
        loader: Loader,
        epoch: int,
        end_epoch: Optional[int] = None,
        checkpointer: Optional[Checkpointer] = None,
    ) -> None:
        """Start with an epoch, as if those before it had been trained elsewhere.

        end_epoch: for log lines; None if it is unknown.
        """
        steps = loader.steps_per_epoch
        self.state = TrainState(epoch=int(epoch), step=int(epoch) * (steps or 0))
        earlier = self._loop
        self._loop = self._new_loop(self.writer or console_writer(end_epoch, steps), checkpointer)
        self._loop.loss = earlier.loss  # observers see those of an earlier `train`, too
        self._loop.newest_metrics.values.update(earlier.newest_metrics.values)
        self._has_begun = True

    def _update_loop(self) -> None:
        """Give the loop the attributes that the caller may have replaced between calls."""
        self._loop.model, self._loop.optimizer = self.model, self.optimizer
        self._loop.step, self._loop.observers = self.step, self.observers

    def _new_loop(
        self, writer: Writer, checkpointer: Optional[Checkpointer] = None
    ) -> TrainingLoop:
        return TrainingLoop(
            self.model,
            self.optimizer,
            self.step,
            self.state,
            writer,
            checkpointer=checkpointer,
            observers=self.observers,
            log_every=self.log_every,
        )
