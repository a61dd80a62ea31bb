"""Sums and clocks between two lines of the log: loss, accuracy, and where the time goes."""

import math
import time
from collections.abc import Iterable, Iterator

import paddle

from paddle_mnist.errors import DivergedError
from paddle_mnist.state import TrainState, Writer


class Progress:
    """Watches the steps and writes their figures every `log_every` steps and at an epoch's end.

    Losses are kept as tensors until a line is due, so that a step need not wait for its device;
    they are added up in order then, so that the sums do not depend on when that is.
    """

    def __init__(self, writer: Writer, log_every: int, rate):
        """rate: a function that gives the learning rate of the step to come."""
        self.writer = writer
        self.log_every = log_every
        self.rate = rate
        self._clear()

    def _clear(self) -> None:
        self._steps: list[tuple[int, paddle.Tensor, paddle.Tensor, int]] = []
        self._lr = None
        self._reader_seconds = 0.0
        self._started = time.perf_counter()

    def timed(self, batches: Iterable) -> Iterator:
        """The same batches, with the time spent waiting for them kept."""
        self._clear()
        iterator = iter(batches)
        while True:
            started = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._reader_seconds += time.perf_counter() - started
            self._lr = self.rate()
            yield batch

    def add(self, loss: paddle.Tensor, logits: paddle.Tensor, labels: paddle.Tensor) -> None:
        """One step's outcome: loss [], logits [B, 10], labels [B, 1]."""
        right = (logits.detach().argmax(axis=1) == labels.flatten()).sum()
        self._steps.append((loss.detach(), right, labels.shape[0]))

    def after_step(self, state: TrainState) -> None:
        """Write a line if one is due. Raises DivergedError."""
        if state.step % self.log_every == 0:
            self.flush(state)
        self.writer.advance(state)

    def flush(self, state: TrainState) -> None:
        """Write what has come together since the last line. Raises DivergedError.

        The mean loss is over samples: each step's mean weighs as much as its batch is large.
        """
        if not self._steps:
            return
        seconds = time.perf_counter() - self._started
        first = state.step - len(self._steps)
        loss_sum = right = samples = 0
        for number, (loss, hits, count) in enumerate(self._steps, first + 1):
            value = loss.item()
            if not math.isfinite(value):
                raise DivergedError(
                    f"the loss is {value} at epoch {state.epoch + 1}, step {number}; expected a "
                    "finite number; try a lower learning_rate (checkpoints before it are good)"
                )
            loss_sum += value * count
            right += hits.item()
            samples += count
        steps = len(self._steps)
        state.train_seconds += seconds
        values = {
            "train/loss": loss_sum / samples,
            "train/acc": right / samples,
            "train/lr": self._lr,
            "speed/reader_cost": self._reader_seconds / steps,
            "speed/batch_cost": seconds / steps,
            "speed/ips": samples / seconds,
        }
        self._clear()
        self.writer.write(state, values)
