"""Evaluation: exact loss and accuracy, as sums over all samples that are divided once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from paddle_mnist.data.external import open_loader
from paddle_mnist.data.labelled_images import labelled_images
from paddle_mnist.data.loader import epoch_batches
from paddle_mnist.data.seeding import generators_restored
from paddle_mnist.errors import DataError, DivergedError
from paddle_mnist.monitor.hooks import evaluation_mode
from paddle_mnist.nn.nan_check import require_finite_loss
from paddle_mnist.parallel.world import ALONE, World
from paddle_mnist.state import TrainState
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.system.arrays import as_array
from paddle_mnist.training.batch_errors import located, reraise

BATCH_SIZE = 500  # of an evaluation; decides speed and memory, not the result


@dataclass(frozen=True)
class Evaluation:
    """How well a model does on some data.

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
        return self.probabilities.shape[1]

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


class _EvaluatedBatch(NamedTuple):
    """Sum of the losses, labels [B], predictions [B] and probabilities [B, classes] of a batch."""

    loss_sum: float
    labels: np.ndarray
    predictions: np.ndarray
    probabilities: np.ndarray


def evaluate(
    model: nn.Layer, data: Union[paddle.io.Dataset, Callable, Iterable], world: World = ALONE
) -> Evaluation:
    """Evaluate the model on all of `data`: every sample once, the last short batch too.

    data: a `paddle.io.Dataset` of (image float32, label); or a loader of one, or what `load_data`
        returns.
    world: the processes that evaluate together, each every N-th batch of a dataset. Each gets the
        whole result, which is the same to the last bit however many they are. A loader, or an
        `IterableDataset`, is read to its end by each of them.
    The model is put in evaluation mode and given back as it was, layer by layer.
    Raises DataError if there is nothing to evaluate, or an item of a dataset is not (image, label);
    DivergedError if the loss is not finite.
    """
    spec = getattr(model, "item_spec", None)
    is_dataset = isinstance(data, paddle.io.Dataset)
    loader = open_loader(data, BATCH_SIZE) if is_dataset else data
    is_divided = is_dataset and not isinstance(data, paddle.io.IterableDataset)
    rank, size = (world.rank, world.size) if is_divided else (0, 1)
    modes = evaluation_mode(model), paddle.no_grad(), generators_restored()
    with modes[0], modes[1], modes[2], signals.interruptible():
        batches = []
        for number, batch in enumerate(epoch_batches(loader, 0, start=rank, stride=size)):
            if is_dataset:
                batch = labelled_images(batch, type(data).__name__, spec)
            with located(batch, loader, 0, rank + number * size, "the data"):
                batches.append(_evaluate_batch(model, *batch))
        heartbeat.beat()
        if size > 1:
            batches = interleaved(world.all_gather_objects(batches))
    if not batches:
        raise DataError("nothing to evaluate: the data has no batches; expected at least one")
    loss_sum = sum(batch.loss_sum for batch in batches)
    require_finite_loss(
        loss_sum,
        "on these images",
        "the model's weights are broken: use an earlier checkpoint, or train with a lower "
        "learning_rate",
    )
    labels = np.concatenate([batch.labels for batch in batches])
    predictions = np.concatenate([batch.predictions for batch in batches])
    return Evaluation(
        loss=loss_sum / len(labels),
        accuracy=float(np.count_nonzero(labels == predictions) / len(labels)),
        labels=labels,
        predictions=predictions,
        probabilities=np.concatenate([batch.probabilities for batch in batches]),
    )


def _evaluate_batch(
    model: nn.Layer, images: paddle.Tensor, labels: paddle.Tensor
) -> _EvaluatedBatch:
    heartbeat.beat()
    logits = model(images)
    try:
        loss_sum = F.cross_entropy(logits, labels, reduction="sum").item()
    except Exception as error:  # Paddle's
        reraise(error, F.cross_entropy, logits, labels)
    return _EvaluatedBatch(
        loss_sum=loss_sum,
        labels=as_array(labels).ravel(),
        predictions=logits.numpy().argmax(axis=1),
        probabilities=F.softmax(logits).numpy(),
    )


def interleaved(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the batches that processes took in turns, in their original order."""
    longest = max(map(len, parts))
    return [part[turn] for turn in range(longest) for part in parts if turn < len(part)]


class EpochEvaluator:
    """Evaluates every `every_epochs` epochs, and after the last one.

    datasets: what to evaluate on, by name; "valid" gives "valid/loss" and "valid/acc".
    epochs: of the whole training. patience: stop after this many evaluations without a better
    valid/acc; None: never.
    """

    def __init__(
        self,
        datasets: Mapping[str, paddle.io.Dataset],
        every_epochs: int,
        epochs: int,
        patience: Optional[int] = None,
        world: World = ALONE,
    ):
        self.datasets = datasets
        self.every_epochs = every_epochs
        self.epochs = epochs
        self.patience = patience
        self.world = world

    def after_epoch(self, state: TrainState, model: nn.Layer) -> Mapping[str, float]:
        epochs_done = state.epoch + 1
        if epochs_done % self.every_epochs and epochs_done != self.epochs:
            return {}
        try:
            return self.metrics(model)
        except DivergedError as error:
            raise DivergedError(f"after epoch {epochs_done}, step {state.step}: {error}") from error

    def metrics(self, model: nn.Layer) -> dict[str, float]:
        """Return loss and accuracy on each dataset."""
        values = {}
        for name, dataset in self.datasets.items():
            evaluation = evaluate(model, dataset, self.world)
            values[f"{name}/loss"] = evaluation.loss
            values[f"{name}/acc"] = evaluation.accuracy
        return values

    def should_stop(self, state: TrainState) -> bool:
        return self.patience is not None and state.evaluations_since_best >= self.patience


class NoEvaluator:
    """Evaluates nothing and never stops early."""

    def after_epoch(self, state: TrainState, model: nn.Layer) -> Mapping[str, float]:
        return {}

    def should_stop(self, state: TrainState) -> bool:
        return False
