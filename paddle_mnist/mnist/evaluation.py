"""Evaluate a classifier of images, or the weights of a run, and count predictions by class."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional, Union

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from paddle_mnist.checkpoint.names import SavedWeights, find_weights
from paddle_mnist.data.external import as_loader, open_loader
from paddle_mnist.data.structures import describe_batch
from paddle_mnist.errors import DataError
from paddle_mnist.interfaces import Loader
from paddle_mnist.metrics.paddle_metrics import Gathered, MetricFunction
from paddle_mnist.metrics.sums import Mean
from paddle_mnist.mnist.config import read_config
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.images import Images, open_data
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.mnist.options import NetOptions
from paddle_mnist.mnist.own_nets import DigitNet, OwnNet, is_tutorials, load_net
from paddle_mnist.parallel.world import SINGLE_PROCESS, World
from paddle_mnist.system.devices import select_device
from paddle_mnist.training.evaluator import add_up
from paddle_mnist.training.steps import Step, SupervisedStep, num_correct

BATCH_SIZE = 500  # decides speed and memory, not the result
# Measured in training and in every evaluation: functions of logits [B, classes] and labels [B, 1],
# as `fit` takes them.
METRICS: dict[str, MetricFunction] = {"acc": num_correct}


def summed_cross_entropy(logits: paddle.Tensor, labels: paddle.Tensor) -> Mean:
    """Return the cross-entropy of logits [B, classes] against labels [B, 1], in nats.

    For evaluations, where the sum of a batch must not be rounded by a division.
    """
    return Mean(F.cross_entropy(logits, labels, reduction="sum"), len(labels))


@dataclass(frozen=True)
class Evaluation:
    """The results of a model on some data.

    loss: mean cross-entropy, in nats. accuracy: fraction of correct predictions.
    metrics: those of `METRICS` by name; "acc" is the accuracy.
    labels, predictions: int64 [count], in the order of the data.
    probabilities: float32 [count, classes], of each class.
    """

    loss: float
    accuracy: float
    labels: np.ndarray = field(repr=False)
    predictions: np.ndarray = field(repr=False)
    probabilities: np.ndarray = field(repr=False)
    metrics: Mapping[str, float] = field(repr=False)

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
        """Return plain values: loss, accuracy, metrics, count, per_class and confusion_matrix.

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
            "metrics": dict(self.metrics),
            "count": self.count,
            "per_class": {str(label): table[str(label)] for label in labels},
            "confusion_matrix": self.confusion_matrix.tolist(),
        }


def evaluate(
    model: nn.Layer,
    data: Union["paddle.io.Dataset[Any]", Callable[[], Iterable[Any]], Iterable[Any]],
    world: World = SINGLE_PROCESS,
) -> Evaluation:
    """Evaluate the model on all of `data`: every sample once, the last short batch too.

    data: a `paddle.io.Dataset` of (image float32, label), a loader of one, or the function that
        `load_data` returns.
    world: the processes that evaluate together, each every N-th batch of a dataset. Each gets the
        complete result, which has the same bits for any number of processes. Each process reads a
        loader that cannot be divided, or an `IterableDataset`, to its end.
    Puts the model in evaluation mode, and restores the mode of each layer afterwards.
    Raises DataError if there is nothing to evaluate, or an item of a dataset is not (image, label);
    DivergedError if the loss is not finite.
    """
    step: Step = SupervisedStep(summed_cross_entropy, {**METRICS, "outputs": _outputs})
    loader: Loader
    if isinstance(data, paddle.io.Dataset):
        loader = open_loader(data, BATCH_SIZE)
        step = _on_images(step, type(data).__name__)
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
        metrics={name: totals[name].compute() for name in METRICS if name in totals},
    )


def _on_images(step: Step, source: str) -> Step:
    """Return a step on the batches of a dataset, whose items must be images with labels.

    Images may be of any float dtype; a label is one whole number in a tensor of any shape.
    source: of the batches, for errors.
    """

    def on_images(model: nn.Layer, batch: Any) -> Mapping[str, object]:
        if not _are_labelled_images(batch):
            raise DataError(
                f"{source}: a batch is {describe_batch(batch)}; expected images, float32 "
                "[N, 1, 28, 28] in 0..1, and a label of each, a whole number, 0 or more"
            )
        images, labels = batch
        return step(model, (images.astype("float32"), labels.astype("int64").reshape([-1, 1])))

    return on_images


def _are_labelled_images(batch: Any) -> bool:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        return False
    images, labels = batch
    return (
        isinstance(images, paddle.Tensor)
        and isinstance(labels, paddle.Tensor)
        and images.is_floating_point()
        and not labels.is_floating_point()
        and labels.dtype != paddle.bool
        and labels.size == len(images)
        and int(labels.astype("int64").min()) >= 0
    )


def _outputs(logits: paddle.Tensor, labels: paddle.Tensor) -> Gathered:
    """Keep the labels, the predictions and the probabilities of a batch."""
    return Gathered(_accuracy, [labels.flatten(), logits.argmax(axis=1), F.softmax(logits)])


def _accuracy(labels: np.ndarray, predictions: np.ndarray, _: np.ndarray) -> float:
    return float(np.count_nonzero(labels == predictions) / len(labels))


# ------------------------------------------------------------------ of saved weights


@dataclass(frozen=True)
class EvaluatedModel:
    """A saved model and its evaluation on a dataset. path: of the weights' file."""

    path: str
    model: nn.Layer
    dataset: MnistDataset
    evaluation: Evaluation

    def report(self) -> dict[str, Any]:
        """Return `Evaluation.report`, with `checkpoint`, `dataset` and `split`."""
        return {
            "checkpoint": self.path,
            "dataset": self.dataset.data.name,
            "split": self.dataset.mode,
            **self.evaluation.report(),
        }


def load_and_evaluate(
    checkpoint: Optional[str] = None,
    output: Optional[str] = None,
    data: Optional[str] = None,
    split: str = "eval",
    device: str = "auto",
    limit: Optional[int] = None,
    net: Optional[OwnNet] = None,
) -> EvaluatedModel:
    """Load the named weights, and evaluate them on a split.

    checkpoint, output: the name of weights, and their run, as `find_weights` takes them; by default
        the final weights of the newest run in work/output.
    data: by default the run's; "auto" for weights that belong to no run on digits.
    limit: evaluate on the first N images only.
    net: of weights that are not the tutorial's; see `paddle_mnist.mnist.own_nets.load_net`.
    Raises CheckpointError if the weights are missing or damaged, do not fit the net, or come from a
    run of `fit` and no net is given; DataError if the images are missing or damaged, or are not
    the run's.
    """
    weights = find_weights(checkpoint, output)
    device = select_device(device)
    model = load_net(weights, net)
    if not is_tutorials(model):
        model = DigitNet(model)
    elif isinstance(model, MNIST):
        fast_conv = (weights.manifest.get("config") or {}).get("fast_conv", "auto")  # as in its run
        model.fast_conv = NetOptions(fast_conv=fast_conv).conv_threads()
    dataset = MnistDataset(split, _open_data_of(weights, data), limit)
    return EvaluatedModel(str(weights.path), model, dataset, evaluate(model, dataset))


def _open_data_of(weights: SavedWeights, data: Optional[str]) -> Images:
    """Open `data`, or without it the images of the weights' run, which must not have changed."""
    if data:
        return open_data(data)
    is_from_run = "config" in weights.manifest or weights.run.config.exists()
    is_from_run = is_from_run and not weights.run.is_of_fit
    images = open_data(read_config(weights.run.config).images.data if is_from_run else "auto")
    if weights.manifest.get("data_hash") not in (None, images.hash):
        raise DataError(
            f"{images.source}: not the images that {weights.path} was trained on; choose those to "
            "evaluate on with --data"
        )
    return images
