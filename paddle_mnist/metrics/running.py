"""Accumulate the metrics of steps between log lines."""

import contextlib
import logging
import math
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from paddle_mnist.interfaces import MetricSums, Writer
from paddle_mnist.metrics.sums import Mean, Sums, added, as_float, computed, total
from paddle_mnist.metrics.writers import LEARNING_RATE
from paddle_mnist.nn.numerics import require_finite_loss
from paddle_mnist.parallel.gradients import StepResult
from paddle_mnist.train_state import RunningSums, TrainState

log = logging.getLogger("paddle_mnist")

Batch = TypeVar("Batch")

SKIPPED = "skipped_steps"  # the metric that counts steps in which nothing counts for the loss
REMEDY = "try a lower learning_rate, or look for NaN in the data (checkpoints before it are good)"


class RunningMetrics:
    """Aggregates loss, accuracy and timing between log lines.

    Results of steps stay on the device until a line is due, or the state is saved, copied or
    compared, so that a step does not wait for its device. Then `synchronize` adds them to
    `state.running_sums`, which checkpoints hold; a step's mean loss is weighted by its count.

    A line is due every `log_every` steps and at the end of an epoch. Its speeds ("speed/...") only
    cover the steps of this process.
    """

    def __init__(
        self,
        state: TrainState,
        writer: Writer,
        log_every: int,
        prototypes: Mapping[str, MetricSums] = {},
    ):
        """prototypes: the metrics of any step, by name; for a line that is due before the first
        step of a resumed run. The newest step's metrics replace them.
        """
        self.state = state
        self._prototypes: dict[str, MetricSums] = {SKIPPED: Sums([0.0], total), **prototypes}
        self.writer = writer
        self.log_every = log_every
        self.pending: list[tuple[int, int, StepResult, float]] = []  # on the device
        self._has_skipped = False
        self._counted_until = 0.0
        self._restart_timing()
        state.attach(self.synchronize)

    def timed(self, batches: Iterable[Batch]) -> Generator[Batch, None, None]:
        """Yield the batches, and time the wait for each."""
        self._restart_timing()
        iterator = iter(batches)
        while True:
            started = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._reader_seconds += time.perf_counter() - started
            self._steps += 1
            yield batch

    def add(self, result: StepResult, lr: float) -> None:
        """Add the result of the current step, as tensors. lr: its learning rate."""
        self.pending.append((self.state.epoch, self.state.step + 1, result, lr))
        self._samples += result.samples

    def synchronize(self) -> None:
        """Wait for the device and add all results to the state's sums, in order of steps.

        Raises DivergedError if a loss is not finite.
        """
        pending, self.pending = self.pending, []
        if not pending:
            return
        sums = self.state.running_sums
        values = {name: [np.array(total)] for name, total in sums.totals.items()}
        try:
            for epoch, step, result, lr in pending:
                totals = self._loss_of(f"at epoch {epoch + 1}, step {step}", result)
                totals.update({name: metric.to_numpy() for name, metric in result.metrics.items()})
                for name, numbers in totals.items():
                    values.setdefault(name, []).append(numbers)
                self._prototypes.update(result.metrics)
                sums.samples += result.samples
                sums.lr = lr
        finally:
            for name, rows in values.items():
                sums.totals[name] = added(rows).tolist()

    def _totals(self) -> dict[str, MetricSums]:
        """Return the sums of the state as metrics; those without a prototype are means."""
        return {
            name: self._prototypes.get(name, Mean(0, 0)).with_values(np.array(values))
            for name, values in self.state.running_sums.totals.items()
        }

    def _loss_of(self, place: str, result: StepResult) -> dict[str, np.ndarray]:
        """Return the total and the count of a step's loss; also count steps without a loss.

        Raises DivergedError.
        """
        loss = as_float(result.loss)
        is_nothing = not result.count and math.isnan(loss)  # the mean of nothing
        if not is_nothing:
            require_finite_loss(loss, place, REMEDY)
        if result.count:
            return {"loss": np.array([loss * result.count, result.count])}
        if not self._has_skipped:
            self._has_skipped = True
            log.warning(
                "%s: nothing in the batch counts for the loss (all labels are ignored, for "
                "example), so the step does not change the weights; train/%s counts such steps",
                place,
                SKIPPED,
            )
        return {"loss": np.array([0.0 if is_nothing else loss, 0.0]), SKIPPED: np.ones(1)}

    def after_step(self) -> None:
        """Count the step's time, and write a line if one is due. Raises DivergedError."""
        if self.state.step % self.log_every == 0:
            self.write_line()
        else:
            self._count_time()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time within the context."""
        self._count_time()
        yield
        seconds = time.perf_counter() - self._counted_until
        self._line_started += seconds
        self._counted_until += seconds

    def write_line(self) -> None:
        """Write the metrics since the last line, if there were steps. Raises DivergedError."""
        self.synchronize()
        self._count_time()
        sums = self.state.running_sums
        if not sums.samples:
            return
        seconds = time.perf_counter() - self._line_started
        values = {
            **{f"train/{name}": value for name, value in computed(self._totals()).items()},
            LEARNING_RATE: sums.lr,
            "speed/reader_cost": self._reader_seconds / max(1, self._steps),
            "speed/batch_cost": seconds / max(1, self._steps),
            "speed/ips": self._samples / seconds,
        }
        self._restart_timing()
        self.writer.write(self.state, values)
        self.state.running_sums = RunningSums()  # only now: if writing fails, the line is still due

    def _restart_timing(self) -> None:
        self._steps = self._samples = 0
        self._reader_seconds = 0.0
        self._line_started = self._counted_until = time.perf_counter()

    def _count_time(self) -> None:
        now = time.perf_counter()
        self.state.train_seconds += now - self._counted_until
        self._counted_until = now
