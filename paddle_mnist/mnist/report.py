"""What a run shows of its trained net: figures, and the dashboard's pages."""

import logging
import os
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import numpy as np
import paddle
from matplotlib.figure import Figure
from paddle import nn

import paddle_mnist
from paddle_mnist.errors import ConfigError, DataError, unknown_name
from paddle_mnist.metrics.visualdl import VisualDLWriter
from paddle_mnist.mnist import figures
from paddle_mnist.mnist.arrays import SIZE, Classes
from paddle_mnist.mnist.config import TrainConfig, read_config
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.evaluate_checkpoint import load_and_evaluate
from paddle_mnist.mnist.figure_files import COMPARED_FILES, FIGURE_FILES
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.monitor.hooks import outputs_of
from paddle_mnist.plots import classes as class_plots
from paddle_mnist.plots import curves
from paddle_mnist.plots.figure import save_figures
from paddle_mnist.plots.history import History, read_history
from paddle_mnist.training.evaluator import Evaluation
from paddle_mnist.training.run_directory import RunDirectory

log = logging.getLogger("paddle_mnist")

LAYERS = ("conv1", "relu1", "max_pool1", "conv2", "relu2", "max_pool2")  # whose outputs are drawn
EMBEDDED = 1000  # images whose features the dashboard shows
SHOWN = 16  # images that it shows before training


@dataclass(frozen=True)
class FinalEvaluation:
    """A trained model, the data that it was evaluated on, and the results.

    evaluation: of the model on `dataset`. scores: the accuracies and losses of `result.json`, by
    name. step: the number of training steps.
    """

    model: nn.Layer
    dataset: MnistDataset
    evaluation: Evaluation
    scores: Mapping[str, float]
    step: int


def environment(device: str) -> str:
    """Describe what a result may depend on, a line each.

    Of the environment variables only one: the others may hold secrets.
    """
    versions = {
        "python": platform.python_version(),
        "paddle": paddle.__version__,
        "numpy": np.__version__,
        "paddle_mnist": paddle_mnist.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "device": device,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
    }
    return "\n".join(f"{name}: {value}" for name, value in versions.items())


def introduce(
    board: VisualDLWriter, config: TrainConfig, dataset: MnistDataset, device: str
) -> None:
    """Write the dashboard's pages that precede a training. dataset: the training images."""
    board.text("configuration", config.as_yaml())
    board.text("environment", environment(device))
    if "images" in board.pages:
        images, _ = dataset.batch(np.arange(min(SHOWN, len(dataset))))
        board.images("inputs", _as_uint8(images[:, 0]))


def write_report(
    board: VisualDLWriter, run: RunDirectory, config: TrainConfig, final: FinalEvaluation
) -> None:
    """Draw the run's figures, unless `config` switches them off, and write the dashboard's pages.

    Raises OutputError.
    """
    model, dataset, evaluation = final.model, final.dataset, final.evaluation
    if config.figures:
        drawn = draw(model, dataset, evaluation, read_history(run.metrics))
        save_figures(drawn, run.figures)
        board.figures(drawn, final.step)
    if "images" in board.pages:
        worst = figures.worst(evaluation.labels, evaluation.probabilities)
        board.images("mistakes", _as_uint8(dataset.batch(worst)[0][:, 0]))
    noun = dataset.data.classes.noun
    board.curves(evaluation.labels, evaluation.probabilities, final.step, noun)
    if "embeddings" in board.pages:
        images, labels = dataset.batch(np.arange(min(EMBEDDED, len(dataset))))
        features = outputs_of(model, paddle.to_tensor(images), ["max_pool2"])["max_pool2"]
        board.embeddings(features.reshape(len(features), -1), labels.ravel(), noun)
    board.hparams(config.binding(), final.scores, final.step)
    board.graph(MNIST, [None, 1, SIZE, SIZE])


def draw(
    model: nn.Layer, dataset: MnistDataset, evaluation: Evaluation, history: History
) -> dict[str, Figure]:
    """Return the figures of a run by name. evaluation: of the model on `dataset`."""
    classes = figures.drawable(dataset.data.classes)
    counts = evaluation.confusion_matrix
    drawn = {
        "curves": curves.curves(history),
        "learning_rate": curves.learning_rate(history),
        "confusion_matrix": class_plots.confusion(counts, classes.noun, classes.names),
        "per_class": class_plots.per_class(counts, classes.noun, classes.names),
        "kernels": figures.kernels(model.conv1.weight.numpy()),
        "feature_maps": _feature_maps(model, dataset, evaluation, classes),
        "mistakes": _mistakes(dataset, evaluation, classes),
        "health": curves.health(history, figures.HEALTH),
    }
    return {name: figure for name, figure in drawn.items() if figure}


def _feature_maps(
    model: nn.Layer, dataset: MnistDataset, evaluation: Evaluation, classes: Classes
) -> Figure:
    """Draw the way of the first image that was read rightly."""
    labels, predictions = evaluation.labels, evaluation.predictions
    first = int(np.argmax(labels == predictions))
    images, _ = dataset.batch(np.array([first]))
    outputs = outputs_of(model, paddle.to_tensor(images), LAYERS)
    prediction = predictions[first]
    share = evaluation.probabilities[first, prediction]
    title = f"{classes.describe(labels[first])}, read as {classes[prediction]} ({share:.1%})"
    maps = {name: values[0] for name, values in outputs.items()}
    return figures.feature_maps(images[0, 0], maps, title)


def _mistakes(dataset: MnistDataset, evaluation: Evaluation, classes: Classes) -> Figure:
    labels, probabilities = evaluation.labels, evaluation.probabilities
    worst = figures.worst(labels, probabilities)
    wrong = np.count_nonzero(labels != evaluation.predictions)
    title = f"{wrong} of {evaluation.count} images read wrongly"
    if len(worst) < wrong:
        title += f"; the {len(worst)} it was most sure about"
    images = dataset.batch(worst)[0][:, 0]
    return figures.mistakes(images, labels[worst], probabilities[worst], title, classes=classes)


def missing_figures(run: RunDirectory) -> list[str]:
    """Return the names of the figure files that a finished run should have and has not."""
    missing = [name for name in FIGURE_FILES if not (run.figures / name).exists()]
    if any(name.startswith("health") for name in missing):
        watched = curves.was_watched(read_history(run.metrics))
        missing = [name for name in missing if watched or not name.startswith("health")]
    return missing


def draw_runs(
    runs: Sequence[Path], output: Optional[str], device: str, only: Collection[str] = ()
) -> list[Path]:
    """Draw the figures of each run and, of several, a comparison; return what was written.

    output: a folder; by default each run's own, and the first one's for the comparison. With
        several runs each has a folder in it, by its path from where they part.
    only: draw only these files, as `curves.png`.
    Raises ConfigError for an unknown file name, DataError for a folder that is no run, and what
    `load_and_evaluate` raises.
    """
    for name in only:
        if name not in (*FIGURE_FILES, *COMPARED_FILES):
            raise ConfigError(unknown_name("--only", name, (*FIGURE_FILES, *COMPARED_FILES)))
        if name in COMPARED_FILES and len(runs) < 2:
            raise ConfigError(f"{name} is of several runs; expected more than {runs[0]}")
    histories = {str(path): _history(path) for path in runs}
    common = os.path.commonpath([path.resolve().parent for path in runs])
    written = []
    for path in runs if not only or set(only) - set(COMPARED_FILES) else ():
        folder = RunDirectory(path).figures
        if output:
            folder = Path(output, os.path.relpath(path.resolve(), common) if len(runs) > 1 else ".")
        _draw_run(RunDirectory(path), histories[str(path)], folder, device, only)
        written.append(folder)
    if len(histories) > 1 and (not only or set(only) & set(COMPARED_FILES)):
        folder = Path(output) if output else RunDirectory(runs[0]).figures
        save_figures({"compare": curves.compare(histories)}, folder, only)
        written += [folder / name for name in COMPARED_FILES if not only or name in only]
    elif len(histories) > 1:
        log.info("each run is drawn by itself; to draw them over one another: --only compare.png")
    return written


def _history(run: Path) -> History:
    history = read_history(RunDirectory(run).metrics)
    if not history:
        raise DataError(f"{run}: no metrics.jsonl with lines; expected a run directory")
    return history


def _draw_run(
    run: RunDirectory, history: History, folder: Path, device: str, only: Collection[str]
) -> None:
    limit = read_config(run.config).eval_limit
    evaluated = load_and_evaluate(str(run.path), device=device, limit=limit)
    save_figures(
        draw(evaluated.model, evaluated.dataset, evaluated.evaluation, history), folder, only
    )


def _as_uint8(images: np.ndarray) -> np.ndarray:
    """Turn shares of white, 0 to 1, into 0 to 255."""
    return np.round(255 * images).astype(np.uint8)
