"""Exact loss and accuracy: sums over samples and counts, divided once."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from paddle_mnist.data.loader import BatchLoader, ItemSpec, epoch_batches, stack_items
from paddle_mnist.errors import DataError, DivergedError
from paddle_mnist.monitor.hooks import evaluation_mode
from paddle_mnist.parallel.world import ALONE, World
from paddle_mnist.state import TrainState
from paddle_mnist.system import signals

BATCH_SIZE = 500  # of an evaluation; decides speed and memory, not the result


@dataclass(frozen=True)
class Evaluation:
    """What a model made of some data.

    loss: mean cross-entropy in nats. accuracy: share of right answers.
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
        """Counts, int64 [classes, classes]; row i, column j: images of class i taken for j."""
        cells = self.classes * self.labels + self.predictions
        return np.bincount(cells, minlength=self.classes**2).reshape(self.classes, self.classes)

    def report(self) -> dict[str, Any]:
        """Plain values: loss, accuracy, count, per_class and confusion_matrix.

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
    model: nn.Layer, data: Union[paddle.io.Dataset, Callable, Iterable], world: World = ALONE
) -> Evaluation:
    """Run the model over all of `data`, every sample once, the last short batch too.

    data: a `paddle.io.Dataset` of (image float32, label);
        or a loader of one, or what `load_data` returns.
    world: the processes that share a dataset's batches among them, taking turns. Each gets the
        whole result, which is the same to the last bit however many they are. A loader, or an
        `IterableDataset`, is read to its end by each of them.
    The model is put in evaluation mode and given back as it was, layer by layer.
    Raises DataError if there is nothing to evaluate, or an item of a dataset is not (image, label);
    DivergedError if the loss is not finite.
    """
    loader, turns = data, (0, 1)
    spec = getattr(model, "item_spec", None)
    if isinstance(data, paddle.io.IterableDataset):
        loader = _chunks(data, spec)
    elif isinstance(data, paddle.io.Dataset):
        loader, turns = BatchLoader(data, BATCH_SIZE, spec=spec), (world.rank, world.size)
    batches = []
    with evaluation_mode(model), paddle.no_grad(), signals.interruptible():
        for images, label in epoch_batches(loader, 0, *turns):
            logits = model(images)
            loss = F.cross_entropy(logits, label, reduction="sum").item()
            batches.append(
                (
                    *(loss, label.numpy().ravel(), logits.numpy().argmax(axis=1)),
                    F.softmax(logits).numpy(),
                )
            )
        batches = _in_turns(world.all_gather_objects(batches)) if turns[1] > 1 else batches
    if not batches:
        raise DataError("nothing to evaluate: the data has no batches; expected at least one")
    losses, labels, predictions, probabilities = zip(*batches)
    loss_sum = sum(losses)
    if not math.isfinite(loss_sum):
        raise DivergedError(
            f"the model's loss is {loss_sum} on these images; expected a finite number: its "
            "weights are broken; use an earlier checkpoint, or train with a lower learning_rate"
        )
    labels, predictions = np.concatenate(labels), np.concatenate(predictions)
    return Evaluation(
        loss=loss_sum / len(labels),
        accuracy=float(np.count_nonzero(labels == predictions) / len(labels)),
        labels=labels,
        predictions=predictions,
        probabilities=np.concatenate(probabilities),
    )


def _chunks(
    dataset: paddle.io.IterableDataset, spec: Optional[ItemSpec]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All items of a dataset that cannot be indexed, in batches."""
    items = iter(dataset)
    while chunk := list(itertools.islice(items, BATCH_SIZE)):
        yield stack_items(chunk, type(dataset).__name__, spec)


def _in_turns(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """What several processes took in turns, in the order in which it was."""
    most = max(map(len, parts))
    return [part[turn] for turn in range(most) for part in parts if turn < len(part)]


class EpochEvaluator:
    """Evaluates after every so many epochs, and after the last one.

    datasets: what to evaluate on, by name; gives e.g. "valid/loss" and "valid/acc".
    patience: enough is enough after so many evaluations without a better valid/acc.
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
        done = state.epoch + 1
        if done % self.every_epochs and done != self.epochs:
            return {}
        try:
            return self.metrics(model)
        except DivergedError as error:
            raise DivergedError(f"after epoch {done}, step {state.step}: {error}") from error

    def metrics(self, model: nn.Layer) -> dict[str, float]:
        """Loss and accuracy on each dataset."""
        values = {}
        for name, dataset in self.datasets.items():
            found = evaluate(model, dataset, self.world)
            values.update({f"{name}/loss": found.loss, f"{name}/acc": found.accuracy})
        return values

    def should_stop(self, state: TrainState) -> bool:
        return self.patience is not None and state.evaluations_since_best >= self.patience


class NoEvaluator:
    """Stands for an evaluator where none was given."""

    def after_epoch(self, state: TrainState, model: nn.Layer) -> Mapping[str, float]:
        return {}

    def should_stop(self, state: TrainState) -> bool:
        return False
