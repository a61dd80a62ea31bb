"""Evaluate a classifier of images, and count its predictions class by class."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from paddle_mnist.data.external import as_loader, open_loader
from paddle_mnist.errors import DataError
from paddle_mnist.interfaces import Loader
from paddle_mnist.metrics.sums import GatheredOutputs
from paddle_mnist.mnist.arrays import ItemSpec
from paddle_mnist.mnist.step import summed_cross_entropy
from paddle_mnist.parallel.world import ALONE, World
from paddle_mnist.system.arrays import as_array
from paddle_mnist.training.evaluator import add_up
from paddle_mnist.training.steps import Step, SupervisedStep

BATCH_SIZE = 500  # decides speed and memory, not the result


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
        step = _on_images(step, type(data).__name__, getattr(model, "item_spec", None))
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


def _on_images(step: Step, source: str, spec: Optional[ItemSpec]) -> Step:
    """Return a step on the batches of a dataset, `source`, which must be images with labels."""
    return lambda model, batch: step(model, _labelled_images(batch, source, spec))


def _labelled_images(
    batch: Any, source: str, spec: Optional[ItemSpec]
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return a batch of pairs (image, label): images float32 [B, ...], labels int64 [B, 1].

    Images may be of any float dtype; a label is one whole number in a tensor of any shape. Raises
    DataError for other batches.

    source: where the batch comes from, for errors. spec: further requirements.
    """
    is_pair = isinstance(batch, (tuple, list)) and len(batch) == 2
    if not is_pair:
        found = f"{len(batch)} values" if isinstance(batch, (tuple, list)) else _describe(batch)
        raise DataError(f"{source}: an item is {found}; expected (image, label)")
    images, labels = batch
    is_float = isinstance(images, paddle.Tensor) and images.is_floating_point()
    if not is_float or (spec and tuple(images.shape[1:]) != spec.image_shape):
        shape = f" {list(spec.image_shape)}" if spec else ""
        raise DataError(
            f"{source}: an image is {_describe(images)}; expected float32{shape}, with values in "
            "0..1"
        )
    wrong: list[Any] = []
    if not isinstance(labels, paddle.Tensor):
        wrong = [type(labels).__name__]
    else:
        values = as_array(labels)
        if values.size != len(images) or values.dtype.kind not in "iu":
            wrong = values[:1].tolist()
        elif spec:
            wrong = values[(values < 0) | (values >= spec.num_classes)].tolist()
    if wrong:
        valid_range = f" in 0..{spec.num_classes - 1}" if spec else ""
        raise DataError(
            f"{source}: a label is {wrong[0]!s:.40}; expected one whole number{valid_range}"
        )
    if images.dtype != paddle.float32:
        images = images.astype("float32")
    return images, labels.astype("int64").reshape([-1, 1])


def _describe(values: Any) -> str:
    """Return dtype and shape of one item of a batch of them."""
    if not isinstance(values, paddle.Tensor):
        return type(values).__name__
    return f"{str(values.dtype).rpartition('.')[2]} {list(values.shape[1:])}"


def _outputs(logits: paddle.Tensor, labels: paddle.Tensor) -> GatheredOutputs:
    """Keep the labels, the predictions and the probabilities of a batch."""
    return GatheredOutputs(
        [labels.flatten(), logits.argmax(axis=1), F.softmax(logits)], _share_of_hits
    )


def _share_of_hits(labels: np.ndarray, predictions: np.ndarray, _: np.ndarray) -> float:
    return float(np.count_nonzero(labels == predictions) / len(labels))
