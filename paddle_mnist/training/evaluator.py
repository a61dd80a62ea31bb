"""Evaluate a step exactly: add up its metrics over all samples, and divide once."""

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import paddle
from paddle import nn

from paddle_mnist.data.seeding import generators_restored, reseed
from paddle_mnist.data.structures import num_samples
from paddle_mnist.errors import DataError, DivergedError
from paddle_mnist.interfaces import Loader
from paddle_mnist.metrics.paddle_metrics import Gathered
from paddle_mnist.metrics.sums import Mean, Sums, as_sums, computed
from paddle_mnist.nn.layers import evaluation_mode
from paddle_mnist.nn.numerics import require_finite_loss
from paddle_mnist.parallel.world import SINGLE_PROCESS, World
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.train_state import TrainState
from paddle_mnist.training.batch_errors import located
from paddle_mnist.training.callbacks import is_rehearsal
from paddle_mnist.training.steps import Step

log = logging.getLogger("paddle_mnist")

BatchMetric = Union[Sums, Gathered]  # adds up over the batches


@dataclass(frozen=True)
class EpochEvaluator:
    """Evaluates the loss and the metrics of a step, every `every_epochs` epochs and at the end.

    step: see `paddle_mnist.training.steps`.
    datasets: loaders by split; the metrics of "valid" are "valid/loss" and so on.
    epochs: the number of epochs of the run; it evaluates after the last one, too.
    world: the processes that evaluate together.
    every_steps: the number of steps between further evaluations.
    max_steps: the number of steps of the run; it evaluates after the last one, too.
    """

    step: Step
    datasets: Mapping[str, Loader]
    every_epochs: int = 1
    epochs: Optional[int] = None
    world: World = SINGLE_PROCESS
    every_steps: Optional[int] = None
    max_steps: Optional[int] = None

    def is_due_after_step(self, state: TrainState) -> bool:
        """Return whether to evaluate after a step inside an epoch."""
        is_nth = self.every_steps is not None and state.step % self.every_steps == 0
        return bool(state.position) and (is_nth or state.step == self.max_steps)

    def after_epoch(self, state: TrainState, model: nn.Layer) -> Mapping[str, float]:
        """Evaluate if that is due after an epoch, and not done after its last step."""
        epochs_done = state.epoch + 1
        is_due = epochs_done % self.every_epochs == 0 or epochs_done == self.epochs
        is_done = self.is_due_after_step(state)  # after the last step of the epoch
        return self.after_step(state, model) if is_due and not is_done else {}

    def after_step(self, state: TrainState, model: nn.Layer) -> Mapping[str, float]:
        """Evaluate; a DivergedError names the step."""
        try:
            return self.metrics(model)
        except DivergedError as error:
            raise DivergedError(
                f"after epoch {state.epoch + 1}, step {state.step}: {error}"
            ) from error

    def metrics(self, model: nn.Layer) -> dict[str, float]:
        """Return every metric on each split, by tag."""
        return {
            f"{split}/{name}": value
            for split, loader in self.datasets.items()
            for name, value in evaluate_step(self.step, model, loader, split, self.world).items()
        }


def evaluate_step(
    step: Step, model: nn.Layer, loader: Loader, split: str = "valid", world: World = SINGLE_PROCESS
) -> dict[str, float]:
    """Return the loss and the metrics of a step over all batches; see `add_up`."""
    return computed(add_up(step, model, loader, f"the data {split!r}", world), f" of {split}")


def add_up(
    step: Step, model: nn.Layer, loader: Loader, data: str, world: World = SINGLE_PROCESS
) -> dict[str, BatchMetric]:
    """Return the loss and the metrics of a step, each added up over all batches, by name.

    They are added in float64, in the order of the batches, so that the result is bit-identical for
    any number of processes. If a loader can be divided, each of N processes evaluates every N-th
    batch, and they exchange the results. Evaluates in evaluation mode, and restores the model's
    mode and the random-number generators afterwards.

    data: the name of the data in errors. Raises DataError if there is no batch, DivergedError if
    the loss is not finite. Warns if the loss is undefined, since its count is 0.
    """
    with evaluation_mode(model), generators_restored(), paddle.no_grad(), signals.interruptible():
        batches = _evaluate_batches(step, model, loader, data, world)
    if not batches:
        raise DataError(f"{data} have no batches; expected at least one")
    parts: dict[str, list[Any]] = {}  # of each metric, all of one kind
    for metrics in batches:
        for name, metric in metrics.items():
            parts.setdefault(name, []).append(metric)
    totals = {name: first.plus(*others) for name, (first, *others) in parts.items()}
    require_finite_loss(
        totals["loss"].to_numpy()[0],
        f"on {data}",
        "the model's weights are unusable: use an earlier checkpoint, or train with a lower "
        "learning rate",
    )
    if math.isnan(totals["loss"].compute()) and not is_rehearsal():  # which has one batch
        log.warning(
            "the loss on %s is undefined: it is a mean over a count of 0; expected samples that "
            "count for the loss",
            data,
        )
    return totals


def _evaluate_batches(
    step: Step, model: nn.Layer, loader: Loader, data: str, world: World
) -> list[dict[str, BatchMetric]]:
    """Return the metrics of all batches, including those of other processes."""
    rank, size = (world.rank, world.size) if loader.is_indexed else (0, 1)
    batches: list[dict[str, BatchMetric]] = []
    firsts: dict[str, Any] = {}
    for turn, batch in enumerate(loader.epoch(0, start=rank, stride=size)):
        heartbeat.beat()
        number = rank + turn * size  # in the epoch
        reseed(0, number)  # a net that draws random numbers gives the same result every time
        with located(batch, loader, 0, number, data):
            batches.append(_evaluate_batch(step, model, batch))
            for name, metric in batches[-1].items():  # an error must not wait for the last batch
                firsts.setdefault(name, metric).plus(metric)
    heartbeat.beat()
    if size == 1:
        return batches
    prototypes = batches
    if not batches:  # fewer batches than processes
        prototypes = [_evaluate_batch(step, model, batch) for batch in loader.first_batches(1)]
    return _of_all_processes(batches, prototypes, world)


def _evaluate_batch(step: Step, model: nn.Layer, batch: Any) -> dict[str, BatchMetric]:
    """Return the metrics of a batch, with values in host memory."""
    samples, metrics = num_samples(batch), {}
    for name, value in step(model, batch).items():
        if isinstance(value, paddle.Tensor) and value.size == 1:
            value = value.item()  # to multiply it by the samples, and add it, in float64
        is_metric = isinstance(value, (Sums, Gathered))
        metric: Any = value if is_metric else as_sums(value, name, samples)
        metrics[name] = metric.with_values(metric.to_numpy())
    return metrics


def _of_all_processes(
    batches: Sequence[Mapping[str, BatchMetric]],
    prototypes: Sequence[Mapping[str, BatchMetric]],
    world: World,
) -> list[dict[str, BatchMetric]]:
    """Return the metrics of all processes' batches, in the original order of the batches.

    Only values are sent: the functions that compute metrics from them may not be picklable.
    prototypes: metrics of this process, which compute those of the others.
    """
    kinds: dict[str, Any] = {n: metric for metrics in prototypes for n, metric in metrics.items()}
    sent = [{name: metric.to_numpy() for name, metric in metrics.items()} for metrics in batches]
    received = world.all_gather_objects(sent)
    turns = itertools.zip_longest(*received)
    return [
        {name: kinds.get(name, Mean(0, 0)).with_values(values) for name, values in metrics.items()}
        for turn in turns
        for metrics in turn
        if metrics is not None
    ]
