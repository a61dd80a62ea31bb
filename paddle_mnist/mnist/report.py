"""Figures of runs on digits, and what the dashboard shows of their net."""

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.errors import ConfigError, DataError, unknown_name
from paddle_mnist.mnist import figures
from paddle_mnist.mnist.arrays import Classes
from paddle_mnist.mnist.config import read_config
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.evaluate_checkpoint import EvaluatedModel, load_and_evaluate
from paddle_mnist.mnist.evaluation import Evaluation
from paddle_mnist.monitor.hooks import outputs_of
from paddle_mnist.plots import classes as class_plots
from paddle_mnist.plots import curves
from paddle_mnist.plots.figure import (
    COMPARED,
    COMPARED_FILES,
    FIGURES,
    files_of,
    save_figures,
)
from paddle_mnist.plots.history import History, read_history

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("paddle_mnist")

LAYERS = ("conv1", "relu1", "max_pool1", "conv2", "relu2", "max_pool2")  # whose outputs are drawn
EMBEDDED = 1000  # images whose features the dashboard shows
# Of y axes: by the name of a metric, and by the tag of what runs are compared by.
LABELS = {"loss": "loss (nats)", "acc": "accuracy (share)"}
COMPARED_LABELS = {
    "train/loss": "training loss (nats)",
    "valid/acc": "validation accuracy (share)",
}


def figures_of(
    run: RunDirectory, evaluated: Optional[EvaluatedModel] = None, device: str = "auto"
) -> Mapping[str, "Figure"]:
    """Return the figures of a run by name.

    evaluated: the net of a run on digits; if it is missing, the run's weights are evaluated, on
        `device`.
    """
    history = read_history(run.metrics)
    if run.is_of_fit:
        return curves.figures_of(history)
    if evaluated is None:
        images = read_config(run.config).images
        evaluated = load_and_evaluate(
            str(run.path), device=device, split=images.final_split, limit=images.eval_limit
        )
    dataset, evaluation = evaluated.dataset, evaluated.evaluation
    classes = figures.drawable(dataset.data.classes)
    counts, extent = evaluation.confusion_matrix, dataset.extent or ""
    valid = MnistDataset("valid", dataset.data, dataset.limit).extent
    drawn = {
        "curves": curves.curves(history, LABELS, {"valid": f"valid: {valid}"} if valid else {}),
        "learning_rate": curves.learning_rate(history),
        "confusion_matrix": class_plots.confusion(counts, classes.noun, classes.names, extent),
        "per_class": class_plots.per_class(counts, classes.noun, classes.names, extent),
        "kernels": figures.kernels(evaluated.model.conv1.weight.numpy()),
        "feature_maps": _feature_maps(evaluated.model, dataset, evaluation, classes),
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


def plot_runs(
    paths: Sequence[Path], output: Optional[str], device: str, only: Collection[str] = ()
) -> list[Path]:
    """Draw the figures of each run and, of several, a comparison; return what was written.

    paths: of runs on digits or of any other net. device: see `figures_of`.
    output: a folder; by default each run's own, and the first one's for the comparison. With
        several runs each has a folder in it, by its path from where they part.
    only: draw only these files, as `curves.png`.
    Raises ConfigError for a file that a run does not have, DataError for a folder that is no run,
    and what `load_and_evaluate` raises.
    """
    runs = [RunDirectory(path) for path in paths]
    histories = [_history(run) for run in runs]
    for run in runs:
        names = files_of(FIGURES if run.is_of_fit else figures.DIGIT_FIGURES)
        known = (*names, *COMPARED_FILES) if len(runs) > 1 else names
        if unknown := [name for name in only if name not in known]:
            raise ConfigError(unknown_name("--only", unknown[0], known))
    common = os.path.commonpath([path.resolve().parent for path in paths])
    written = []
    if not only or set(only) - set(COMPARED_FILES):
        for run in runs:
            folder = run.figures
            if output:
                part = os.path.relpath(run.path.resolve(), common) if len(runs) > 1 else "."
                folder = Path(output, part)
            save_figures(figures_of(run, device=device), folder, only)
            written.append(folder)
    if len(runs) > 1 and (not only or set(only) & set(COMPARED_FILES)):
        folder = Path(output) if output else runs[0].figures
        save_figures({COMPARED: _compare(runs, histories)}, folder, only)
        written += [folder / name for name in COMPARED_FILES if not only or name in only]
    elif len(runs) > 1:
        log.info("each run is drawn separately; to compare them in one chart: --only compare.png")
    return written


def _history(run: RunDirectory) -> History:
    history = read_history(run.metrics)
    if not history:
        raise DataError(
            f"{run.path}: no metrics.jsonl with lines; expected a run, or a checkpoint or file of "
            "one"
        )
    return history


def _compare(runs: Sequence[RunDirectory], histories: Sequence[History]) -> "Figure":
    """Draw several runs over one another, with the metric by which all of them are compared."""
    monitors = {_monitor(run) for run in runs}
    return curves.compare(
        {str(run.path): history for run, history in zip(runs, histories)},
        monitor=monitors.pop() if len(monitors) == 1 else None,
        labels={} if any(run.is_of_fit for run in runs) else COMPARED_LABELS,
    )


def _monitor(run: RunDirectory) -> Optional[str]:
    """Return the tag by which a run compares its evaluations; None if no checkpoint tells."""
    checkpoints = run.checkpoints.all()
    return checkpoints[-1].state.monitor if checkpoints else None


def as_uint8(images: np.ndarray) -> np.ndarray:
    """Turn shares of white, 0 to 1, into 0 to 255."""
    return np.round(255 * images).astype(np.uint8)
