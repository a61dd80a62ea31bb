"""Evaluation: the exact metrics of a step, which are added up over all samples and divided once."""

import itertools
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from paddle_mnist.data.collate import num_samples
from paddle_mnist.data.external import as_loader, open_loader
from paddle_mnist.data.labelled_images import ItemSpec, labelled_images
from paddle_mnist.data.seeding import generators_restored, reseed
from paddle_mnist.errors import DataError, DivergedError
from paddle_mnist.interfaces import BatchMetric, Loader
from paddle_mnist.metrics.sums import ANY_MEAN, GatheredOutputs, as_metric, computed
from paddle_mnist.nn.modes import evaluation_mode
from paddle_mnist.nn.nan_check import require_finite_loss
from paddle_mnist.parallel.world import ALONE, World
from paddle_mnist.progress import TrainState
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.training.batch_errors import located
from paddle_mnist.training.rehearsing import is_rehearsal
from paddle_mnist.training.steps import Step, SupervisedStep, summed_cross_entropy

log = logging.getLogger("paddle_mnist")

BATCH_SIZE = 500  # of `evaluate`; decides speed and memory, not the result


class EpochEvaluator:
    """Evaluates the loss and the metrics of a step, every `every_epochs` epochs and at the end.

    step: see `paddle_mnist.training.steps`.
    datasets: loaders of what to evaluate on, by the name of their split; "valid" gives "valid/loss"
        and so on.
    epochs: of the whole training, after the last of which it evaluates, too.
    world: the processes that evaluate together.
    every_steps: evaluate after every so many steps, too.
    max_steps: of the whole training, after the last of which it evaluates, too.
    """

    def __init__(
        self,
        step: Step,
        datasets: Mapping[str, Loader],
        every_epochs: int = 1,
        epochs: Optional[int] = None,
        world: World = ALONE,
        every_steps: Optional[int] = None,
        max_steps: Optional[int] = None,
    ):
        self.step = step
        self.datasets = datasets
        self.every_epochs = every_epochs
        self.epochs = epochs
        self.world = world
        self.every_steps = every_steps
        self.max_steps = max_steps

    def is_due_after_step(self, state: TrainState) -> bool:
        is_nth = self.every_steps is not None and state.step % self.every_steps == 0
        return bool(state.position) and (is_nth or state.step == self.max_steps)

    def after_epoch(self, state: TrainState, model: nn.Layer) -> Mapping[str, float]:
        epochs_done = state.epoch + 1
        is_due = epochs_done % self.every_epochs == 0 or epochs_done == self.epochs
        is_done = self.is_due_after_step(state)  # after the last step of the epoch
        return self.after_step(state, model) if is_due and not is_done else {}

    def after_step(self, state: TrainState, model: nn.Layer) -> Mapping[str, float]:
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
    step: Step, model: nn.Layer, loader: Loader, split: str = "valid", world: World = ALONE
) -> dict[str, float]:
    """Return the loss and the metrics of a step over all batches; see `add_up`."""
    return computed(add_up(step, model, loader, f"the data {split!r}", world), f" of {split}")


def add_up(
    step: Step, model: nn.Layer, loader: Loader, data: str, world: World = ALONE
) -> dict[str, BatchMetric]:
    """Return the loss and the metrics of a step, each added up over all batches, by name.

    They are added in float64, in the order of the batches: the result is the same to the last bit
    for any number of processes. Of loaders that can be divided each process evaluates every N-th
    batch, and gets what the others' give. The model is put in evaluation mode, and it and the
    generators of random numbers are given back as they were.

    data: what it is called in errors. Raises DataError if there is no batch, DivergedError if the
    loss is not finite. Warns of a loss that is undefined, since its count is 0.
    """
    untouched = evaluation_mode(model), generators_restored()
    with untouched[0], untouched[1], paddle.no_grad(), signals.interruptible():
        batches = _evaluate_batches(step, model, loader, data, world)
    if not batches:
        raise DataError(f"{data} have no batches; expected at least one")
    parts: dict[str, list[BatchMetric]] = {}
    for metrics in batches:
        for name, metric in metrics.items():
            parts.setdefault(name, []).append(metric)
    totals = {name: first.plus(*others) for name, (first, *others) in parts.items()}
    require_finite_loss(
        totals["loss"].to_numpy()[0],
        f"on {data}",
        "the model's weights are broken: use an earlier checkpoint, or train with a lower "
        "learning rate",
    )
    if math.isnan(totals["loss"].compute()) and not is_rehearsal():  # which has one batch
        log.warning(
            "the loss on %s is undefined: it is a mean over a count of 0; expected something in "
            "the data that counts for the loss",
            data,
        )
    return totals


def _evaluate_batches(
    step: Step, model: nn.Layer, loader: Loader, data: str, world: World
) -> list[dict[str, BatchMetric]]:
    """Return the metrics of all batches, those of other processes too."""
    rank, size = (world.rank, world.size) if loader.is_indexed else (0, 1)
    batches = []
    for turn, batch in enumerate(loader.epoch(0, start=rank, stride=size)):
        heartbeat.beat()
        number = rank + turn * size  # in the epoch
        reseed(0, number)  # a net that draws numbers draws the same every time
        with located(batch, loader, 0, number, data):
            batches.append(_evaluate_batch(step, model, batch))
    heartbeat.beat()
    if size == 1:
        return batches
    examples = batches
    if not batches:  # fewer batches than processes
        examples = [_evaluate_batch(step, model, batch) for batch in loader.first_batches(1)]
    return _of_all_processes(batches, examples, world)


def _evaluate_batch(step: Step, model: nn.Layer, batch: Any) -> dict[str, BatchMetric]:
    """Return the metrics of a batch, with values that have left the device."""
    samples, metrics = num_samples(batch), {}
    for name, value in step(model, batch).items():
        if isinstance(value, paddle.Tensor) and value.size == 1:
            value = value.item()  # multiplied by the samples, and added, in float64
        metric = as_metric(value, name, samples)
        metrics[name] = metric.with_values(metric.to_numpy())
    return metrics


def _of_all_processes(
    batches: Sequence[Mapping[str, BatchMetric]],
    examples: Sequence[Mapping[str, BatchMetric]],
    world: World,
) -> list[dict[str, BatchMetric]]:
    """Return the metrics of the batches that processes took in turns, in their original order.

    Only values are sent: what computes a metric from them need not be one that pickle can write.
    examples: metrics of this process, which compute those of the others.
    """
    kinds = {name: metric for metrics in examples for name, metric in metrics.items()}
    sent = [{name: one.to_numpy() for name, one in metrics.items()} for metrics in batches]
    received = world.all_gather_objects(sent)
    turns = itertools.zip_longest(*received)
    return [
        {name: kinds.get(name, ANY_MEAN).with_values(values) for name, values in metrics.items()}
        for turn in turns
        for metrics in turn
        if metrics is not None
    ]


@dataclass(frozen=True)
class Evaluation:
    """The results of a model on some data.

    loss: mean cross-entropy, in nats. accuracy: fraction of correct predictions.
    labels, predictions: int64 [count], in the order of the data.
    probabilities: float32 [count, classes], of each class.
    """

    loss: float
    accuracy: float
    labels: np.ndarray
    predictions: np.ndarray
    probabilities: np.ndarray

    @property
    def count(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.probabilities.shape[1])

    @property
    def confusion_matrix(self) -> np.ndarray:
        """Counts, int64 [classes, classes]; row i, column j: images of class i predicted as j."""
        cells = self.classes * self.labels + self.predictions
        return np.bincount(cells, minlength=self.classes**2).reshape(self.classes, self.classes)

    def report(self) -> dict[str, Any]:
        """Return plain values: loss, accuracy, count, per_class and confusion_matrix.

        per_class: for each class, by its number, precision, recall, f1-score and support (count).
        """
        from sklearn.metrics import classification_report  # here, for it is slow to import

        labels = list(range(self.classes))
        table = classification_report(
            self.labels, self.predictions, labels=labels, output_dict=True, zero_division=0
        )
        return {
            "loss": self.loss,
            "accuracy": self.accuracy,
            "count": self.count,
            "per_class": {str(label): table[str(label)] for label in labels},
            "confusion_matrix": self.confusion_matrix.tolist(),
        }


def evaluate(
    model: nn.Layer,
    data: Union["paddle.io.Dataset[Any]", Callable[[], Iterable[Any]], Iterable[Any]],
    world: World = ALONE,
) -> Evaluation:
    """Evaluate the model on all of `data`: every sample once, the last short batch too.

    data: a `paddle.io.Dataset` of (image float32, label); or a loader of one, or what `load_data`
        returns.
    world: the processes that evaluate together, each every N-th batch of a dataset. Each gets the
        whole result, which is the same to the last bit however many they are. A loader that cannot
        be divided, or an `IterableDataset`, is read to its end by each of them.
    The model is put in evaluation mode and given back as it was, layer by layer.
    Raises DataError if there is nothing to evaluate, or an item of a dataset is not (image, label);
    DivergedError if the loss is not finite.
    """
    step: Step = SupervisedStep(summed_cross_entropy, {"outputs": _outputs})
    loader: Loader
    if isinstance(data, paddle.io.Dataset):
        loader = open_loader(data, BATCH_SIZE)
        step = _StepOnImages(step, type(data).__name__, getattr(model, "item_spec", None))
    else:
        loader = as_loader(data)
    totals = add_up(step, model, loader, "the data", world)
    labels, predictions, probabilities = totals["outputs"].to_numpy()
    return Evaluation(
        loss=totals["loss"].compute(),
        accuracy=totals["outputs"].compute(),
        labels=labels,
        predictions=predictions,
        probabilities=probabilities,
    )


def _outputs(logits: paddle.Tensor, labels: paddle.Tensor) -> GatheredOutputs:
    """Keep the labels, the predictions and the probabilities of a batch."""
    return GatheredOutputs(
        [labels.flatten(), logits.argmax(axis=1), F.softmax(logits)], _share_of_hits
    )


def _share_of_hits(labels: np.ndarray, predictions: np.ndarray, _: np.ndarray) -> float:
    return float(np.count_nonzero(labels == predictions) / len(labels))


@dataclass(frozen=True)
class _StepOnImages:
    """A step on the batches of a dataset, which must be images with labels. source: its name."""

    step: Step
    source: str
    spec: Optional[ItemSpec]

    def __call__(self, model: nn.Layer, batch: Any) -> Mapping[str, object]:
        return self.step(model, labelled_images(batch, self.source, self.spec))
