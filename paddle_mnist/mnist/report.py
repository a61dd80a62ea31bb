"""Figures of runs on digits, and what the dashboard shows of their net."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.errors import ConfigError, unknown_name
from paddle_mnist.mnist import figures
from paddle_mnist.mnist.arrays import Classes
from paddle_mnist.mnist.config import read_config
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.evaluate_checkpoint import load_and_evaluate
from paddle_mnist.mnist.evaluation import Evaluation
from paddle_mnist.monitor.hooks import outputs_of
from paddle_mnist.plots import classes as class_plots
from paddle_mnist.plots import curves
from paddle_mnist.plots.figure_files import COMPARED_FILES, files_of
from paddle_mnist.plots.history import History
from paddle_mnist.plots.run_figures import RunFigures, draw_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAYERS = ("conv1", "relu1", "max_pool1", "conv2", "relu2", "max_pool2")  # whose outputs are drawn
EMBEDDED = 1000  # images whose features the dashboard shows
# Of y axes: by the name of a metric, and by the tag of what runs are compared by.
LABELS = {"loss": "loss (nats)", "acc": "accuracy (share)"}
COMPARED_LABELS = {
    "train/loss": "training loss (nats)",
    "valid/acc": "validation accuracy (share)",
}


def draw(
    model: nn.Layer, dataset: MnistDataset, evaluation: Evaluation, history: History
) -> dict[str, "Figure"]:
    """Return the figures of a run by name. evaluation: of the model on `dataset`."""
    classes = figures.drawable(dataset.data.classes)
    counts, extent = evaluation.confusion_matrix, dataset.extent or ""
    valid = MnistDataset("valid", dataset.data, dataset.limit).extent
    drawn = {
        "curves": curves.curves(history, LABELS, {"valid": f"valid: {valid}"} if valid else {}),
        "learning_rate": curves.learning_rate(history),
        "confusion_matrix": class_plots.confusion(counts, classes.noun, classes.names, extent),
        "per_class": class_plots.per_class(counts, classes.noun, classes.names, extent),
        "kernels": figures.kernels(model.conv1.weight.numpy()),
        "feature_maps": _feature_maps(model, dataset, evaluation, classes),
        "mistakes": _mistakes(dataset, evaluation, classes),
        "health": curves.health(history, figures.HEALTH),
    }
    return {name: figure for name, figure in drawn.items() if figure}


def embedded(model: nn.Layer, dataset: MnistDataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of the first images, [N, 980], and their labels [N]."""
    images, labels = dataset.batch(np.arange(min(EMBEDDED, len(dataset))))
    features = outputs_of(model, paddle.to_tensor(images), ["max_pool2"])["max_pool2"]
    return features.reshape(len(features), -1), labels.ravel()


def _feature_maps(
    model: nn.Layer, dataset: MnistDataset, evaluation: Evaluation, classes: Classes
) -> "Figure":
    """Draw the way of the first image that was read rightly."""
    labels, predictions = evaluation.labels, evaluation.predictions
    first = int(np.argmax(labels == predictions))
    images, _ = dataset.batch(np.array([first]))
    outputs = outputs_of(model, paddle.to_tensor(images), LAYERS)
    prediction = predictions[first]
    share = evaluation.probabilities[first, prediction]
    title = (
        f"Feature maps of {classes.describe(labels[first])}, predicted as {classes[prediction]} "
        f"with {share:.1%} confidence"
    )
    maps = {name: values[0] for name, values in outputs.items()}
    return figures.feature_maps(images[0, 0], maps, title)


def _mistakes(dataset: MnistDataset, evaluation: Evaluation, classes: Classes) -> "Figure":
    labels, probabilities = evaluation.labels, evaluation.probabilities
    worst = figures.worst(labels, probabilities)
    wrong = np.count_nonzero(labels != evaluation.predictions)
    title = f"{wrong:,} of {dataset.extent or f'{evaluation.count:,} images'} misclassified"
    if len(worst) < wrong:
        title += f"; the {len(worst)} with the highest confidence"
    images = dataset.batch(worst)[0][:, 0]
    return figures.mistakes(images, labels[worst], probabilities[worst], title, classes=classes)


class DigitFigures(RunFigures):
    """The figures of runs on digits. device: evaluates their nets."""

    names = figures.DIGIT_FIGURES
    labels = COMPARED_LABELS

    def __init__(self, device: str):
        self.device = device

    def draw(self, run: RunDirectory, history: History) -> Mapping[str, "Figure"]:
        images = read_config(run.config).images
        evaluated = load_and_evaluate(
            str(run.path), device=self.device, split=images.final_split, limit=images.eval_limit
        )
        return draw(evaluated.model, evaluated.dataset, evaluated.evaluation, history)


def plot_runs(
    runs: Sequence[Path], output: Optional[str], device: str, only: Collection[str] = ()
) -> list[Path]:
    """Draw the figures of runs, on digits or of any other net; return what was written.

    See `paddle_mnist.plots.run_figures.draw_runs`. only: files of `DIGIT_FIGURES` and of
    the comparison. Raises what that and `load_and_evaluate` raise.
    """
    known = (*files_of(figures.DIGIT_FIGURES), *COMPARED_FILES)
    for name in only:
        if name not in known:
            raise ConfigError(unknown_name("--only", name, known))
    any_net, digits = RunFigures(), DigitFigures(device)
    return draw_runs(runs, output, only, lambda run: any_net if run.is_of_fit else digits)


def as_uint8(images: np.ndarray) -> np.ndarray:
    """Turn shares of white, 0 to 1, into 0 to 255."""
    return np.round(255 * images).astype(np.uint8)
