"""Evaluation with the step of a training: exact metrics of any kind, on any data."""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.data.collate import num_samples
from paddle_mnist.data.loader import epoch_batches
from paddle_mnist.data.seeding import reseed
from paddle_mnist.errors import DataError
from paddle_mnist.metrics.paddle_metrics import GatheredOutputs
from paddle_mnist.metrics.sums import as_sums, compute_all
from paddle_mnist.nn.modes import evaluation_mode
from paddle_mnist.nn.nan_check import require_finite_loss
from paddle_mnist.parallel.world import ALONE, World
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.training.batch_errors import located
from paddle_mnist.training.evaluator import EpochEvaluator, interleaved
from paddle_mnist.training.steps import Step


class StepEvaluator(EpochEvaluator):
    """Evaluates the loss and the metrics that a step returns, on data of any kind.

    step: see `paddle_mnist.training.steps`. loaders: of the data, by the name of their split;
    "valid" gives "valid/loss" and so on. Of loaders that can be divided each of several processes
    evaluates every N-th batch. For the others see `EpochEvaluator`.
    """

    def __init__(
        self,
        step: Step,
        loaders: Mapping[str, Any],
        every_epochs: int,
        epochs: int,
        patience: Optional[int] = None,
        world: World = ALONE,
    ):
        super().__init__(loaders, every_epochs, epochs, patience, world)
        self.step = step

    def metrics(self, model: nn.Layer) -> dict[str, float]:
        """Return every metric on each split, by tag."""
        return {
            f"{split}/{name}": value
            for split, loader in self.datasets.items()
            for name, value in evaluate_step(self.step, model, loader, split, self.world).items()
        }


class _Evaluated(NamedTuple):
    """What a batch gives: the sums of the metrics, and the outputs to gather, by name."""

    samples: int
    sums: Mapping[str, np.ndarray]
    gathered: Mapping[str, list]


def evaluate_step(
    step: Step, model: nn.Layer, loader: Any, split: str = "valid", world: World = ALONE
) -> dict[str, float]:
    """Return the loss and the metrics of a step over all batches, exact to float64's rounding.

    Sums are added in the order of the batches and divided once, so that the result is the same to
    the last bit for any number of processes. The model is put in evaluation mode and given back as
    it was. Raises DataError if there is no batch, DivergedError if the loss is not finite.
    """
    rank, size = (world.rank, world.size) if hasattr(loader, "sharded") else (0, 1)
    functions: dict[str, Any] = {}
    with evaluation_mode(model), paddle.no_grad(), signals.interruptible():
        batches = []
        for number, batch in enumerate(epoch_batches(loader, 0, start=rank, stride=size)):
            heartbeat.beat()
            number = rank + number * size  # in the epoch
            reseed(0, number)  # a net that draws numbers draws the same every time
            with located(batch, loader, 0, number, f"the data {split!r}"):
                batches.append(_evaluate_batch(step, model, batch, functions))
        if not batches and rank:  # fewer batches than processes: learn the functions from another
            for batch in itertools.islice(epoch_batches(loader, 0), 1):
                _evaluate_batch(step, model, batch, functions)
        heartbeat.beat()
        if size > 1:
            batches = interleaved(world.all_gather_objects(batches))
    if not batches:
        raise DataError(f"the data {split!r} have no batches; expected at least one")
    totals: dict[str, np.ndarray] = {}
    for batch in batches:
        for name, values in batch.sums.items():
            totals[name] = totals.get(name, 0) + values
    require_finite_loss(
        totals["loss"][0],
        f"on the data {split!r}",
        "the model's weights are broken: use an earlier checkpoint, or train with a lower "
        "learning rate",
    )
    metrics = compute_all(totals, functions)
    for name in batches[0].gathered:
        columns = zip(*(batch.gathered[name] for batch in batches))
        metrics[name] = functions[name](*(np.concatenate(column) for column in columns))
    return metrics


def _evaluate_batch(step: Step, model: nn.Layer, batch: Any, functions: dict) -> _Evaluated:
    """Evaluate a batch; note in `functions` how each metric follows from what it gives."""
    samples = num_samples(batch)
    sums, gathered = {}, {}
    for name, value in step(model, batch).items():
        if isinstance(value, GatheredOutputs):
            gathered[name], functions[name] = value.to_arrays(), value.compute
            continue
        if isinstance(value, paddle.Tensor) and value.size == 1:
            value = value.item()  # multiplied by the samples, and added, in float64
        metric = as_sums(value, name, samples)
        sums[name], functions[name] = metric.to_array(), metric.compute
    return _Evaluated(samples, sums, gathered)
