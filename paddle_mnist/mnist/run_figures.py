"""Draw the figures of a run on digits, or a chart that compares several."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import numpy as np
import paddle

from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.errors import ConfigError, DataError, unknown_name
from paddle_mnist.mnist import figures
from paddle_mnist.mnist.config import read_config
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.evaluation import EvaluatedModel, load_and_evaluate
from paddle_mnist.mnist.splits import noun_of
from paddle_mnist.monitor.hooks import outputs_of
from paddle_mnist.plots import classes as class_plots
from paddle_mnist.plots import curves
from paddle_mnist.plots.figure import COMPARED, FIGURES, files_of, save_figures
from paddle_mnist.plots.history import History, read_history

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAYERS = ("conv1", "relu1", "max_pool1", "conv2", "relu2", "max_pool2")  # whose outputs are drawn
# Of y axes: by the name of a metric, and in comparisons of runs by its tag.
LABELS = {"loss": "loss (nats)", "acc": "accuracy (share)"}
COMPARED_LABELS = {
    "train/loss": "training loss (nats)",
    "valid/acc": "validation accuracy (share)",
}


def digit_figures_of(
    run: RunDirectory, evaluated: Optional[EvaluatedModel] = None, device: str = "auto"
) -> Mapping[str, Callable[[], "Figure"]]:
    """Return functions that draw the figures of a run, by name.

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
    noun = noun_of(dataset.data.name)
    counts, extent = evaluation.confusion_matrix, dataset.extent or ""
    valid = MnistDataset("valid", dataset.data, dataset.limit).extent
    drawn: dict[str, Callable[[], Figure]] = {
        **curves.figures_of(history, LABELS, {"valid": f"valid: {valid}"} if valid else {}),
        "confusion_matrix": partial(class_plots.confusion, counts, noun, extent),
        "per_class": partial(class_plots.per_class, counts, noun, extent),
        "kernels": partial(figures.kernels, evaluated.model.conv1.weight.numpy()),
        "feature_maps": _feature_maps(evaluated, noun),
        "mistakes": _mistakes(evaluated),
    }
    # In this order, two processes that take one after another from the end, which is the slowest,
    # finish at about the same time.
    return {name: drawn[name] for name in figures.DIGIT_FIGURES if name in drawn}


def _feature_maps(evaluated: EvaluatedModel, noun: str) -> Callable[[], "Figure"]:
    """Return a function that draws the layers' outputs for the first correctly predicted image."""
    evaluation = evaluated.evaluation
    first = int(np.argmax(evaluation.labels == evaluation.predictions))
    label, prediction = evaluation.labels[first], evaluation.predictions[first]
    images, _ = evaluated.dataset.batch(np.array([first]))
    outputs = outputs_of(evaluated.model, paddle.to_tensor(images), LAYERS)
    shown = f"a {label}" if noun == "digit" else f"{noun} {label}"
    title = (
        f"Feature maps of {shown}, predicted as {prediction} with "
        f"{evaluation.probabilities[first, prediction]:.1%} confidence"
    )
    maps = {name: values[0] for name, values in outputs.items()}
    return partial(figures.feature_maps, images[0, 0], maps, title)


def _mistakes(evaluated: EvaluatedModel) -> Callable[[], "Figure"]:
    """Return a function that draws the mistakes with the highest confidence."""
    dataset, evaluation = evaluated.dataset, evaluated.evaluation
    labels, probabilities = evaluation.labels, evaluation.probabilities
    worst = figures.worst(labels, probabilities)
    wrong = np.count_nonzero(labels != evaluation.predictions)
    title = f"{wrong:,} of {dataset.extent or f'{evaluation.count:,} images'} misclassified"
    if len(worst) < wrong:
        title += f"; the {len(worst)} with the highest confidence"
    captions = [
        f"label {label} ({shares[label]:.0%})\npredicted {shares.argmax()} ({shares.max():.0%})"
        for label, shares in zip(labels[worst], probabilities[worst])
    ]
    return partial(figures.gallery, dataset.batch(worst)[0][:, 0], captions, title)


def plot_runs(
    paths: Sequence[Path], output: Optional[str], device: str, only: Collection[str] = ()
) -> Path:
    """Draw the figures of a run, or a chart that compares several; return their folder.

    paths: of runs on digits or of any other net. device: see `digit_figures_of`.
    output: a folder; by default the figures of the run, or of the first of several.
    only: draw only these files, such as `curves.png`.
    Raises ConfigError for a file that is not drawn, DataError for a folder that is not a run, and
    the errors of `load_and_evaluate`.
    """
    runs = [RunDirectory(path) for path in paths]
    histories = [_history(run) for run in runs]
    names: tuple[str, ...] = (COMPARED,)
    if len(runs) == 1:
        names = FIGURES if runs[0].is_of_fit else figures.DIGIT_FIGURES
    if unknown := [file for file in only if file not in files_of(names)]:
        raise ConfigError(_not_drawn(unknown[0], names))
    folder = Path(output) if output else runs[0].figures
    if not output:
        runs[0].require_inside(folder)
    if len(runs) > 1:
        save_figures({COMPARED: _compare(runs, histories)}, folder, only)
    else:
        save_figures(digit_figures_of(runs[0], device=device), folder, only)
    return folder


def _not_drawn(file: str, names: Sequence[str]) -> str:
    """Return why a file is not drawn. names: of the figures that are."""
    if file in files_of([COMPARED]):
        return f"{file} compares runs; expected two or more"
    if COMPARED in names and file in files_of([*FIGURES, *figures.DIGIT_FIGURES]):
        return f"{file} is drawn of one run; expected one RUN, or {COMPARED}.png"
    return unknown_name("--only", file, files_of(names))


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
    newest = [run.checkpoints.all()[-1:] for run in runs]
    monitors = {checkpoint.state.monitor for found in newest for checkpoint in found}
    return curves.compare(
        {str(run.path): history for run, history in zip(runs, histories)},
        monitor=monitors.pop() if len(monitors) == 1 and all(newest) else None,
        labels={} if any(run.is_of_fit for run in runs) else COMPARED_LABELS,
    )
