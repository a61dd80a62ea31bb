"""What a trained net shows of itself: figures, and the dashboard's pages."""

import json
import logging
import os
import platform
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import paddle
from paddle import nn

import paddle_mnist
from paddle_mnist.errors import ConfigError, DataError, unknown_name
from paddle_mnist.metrics.visualdl import VisualDLWriter
from paddle_mnist.mnist import figures
from paddle_mnist.mnist.arrays import SIZE
from paddle_mnist.mnist.config import TrainConfig
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.evaluate_checkpoint import score_checkpoint
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.monitor.hooks import outputs_of
from paddle_mnist.training.evaluator import Evaluation
from paddle_mnist.training.run_directory import COMPARED_FILES, FIGURE_FILES, RunDirectory

log = logging.getLogger("paddle_mnist")

ON_THE_WAY = ("conv1", "relu1", "max_pool1", "conv2", "relu2", "max_pool2")
EMBEDDED = 1000  # images whose features the dashboard shows
SHOWN = 16  # images that it shows before training


def read_history(path: Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`, but for a torn last one, where a run was killed."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def environment(device: str) -> str:
    """What a result may depend on. Of the environment only this: it may hold secrets."""
    known = {
        "python": platform.python_version(),
        "paddle": paddle.__version__,
        "numpy": np.__version__,
        "paddle_mnist": paddle_mnist.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "device": device,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
    }
    return "\n".join(f"{name}: {value}" for name, value in known.items())


def introduce(board: VisualDLWriter, config: TrainConfig, dataset: MnistDataset, device: str):
    """What the dashboard shows of a training before it begins. dataset: what is trained on."""
    board.text("configuration", config.as_yaml())
    board.text("environment", environment(device))
    if "images" in board.pages:
        images, _ = dataset.batch(np.arange(min(SHOWN, len(dataset))))
        board.images("inputs", _grey(images[:, 0]))


def write_report(
    board: VisualDLWriter,
    folder: Optional[Path],
    config: TrainConfig,
    model: nn.Layer,
    dataset: MnistDataset,
    found: Evaluation,
    history: figures.History,
    scores: Mapping[str, float],
    step: int,
) -> None:
    """What a run shows of itself when it is done: figures in `folder`, if that is given, and
    the dashboard's pages.

    dataset, found: what was evaluated on, and what came of it. Raises OutputError.
    """
    if folder:
        drawn = draw(model, dataset, found, history)
        figures.save(drawn, folder)
        board.figures(drawn, step)
    if "images" in board.pages:
        worst = figures.worst(found.labels, found.probabilities)
        board.images("mistakes", _grey(dataset.batch(worst)[0][:, 0]))
    noun = dataset.data.classes.noun
    board.curves(found.labels, found.probabilities, step, noun)
    if "embeddings" in board.pages:
        images, labels = dataset.batch(np.arange(min(EMBEDDED, len(dataset))))
        features = outputs_of(model, paddle.to_tensor(images), ["max_pool2"])["max_pool2"]
        board.embeddings(features.reshape(len(features), -1), labels.ravel(), noun)
    board.hparams(config.binding(), scores, step)
    board.graph(MNIST, [None, 1, SIZE, SIZE])


def draw(
    model: nn.Layer, dataset: MnistDataset, found: Evaluation, history: figures.History
) -> dict[str, figures.Figure]:
    """The figures of a run, by name. found: what the model made of `dataset`."""
    classes = figures.drawable(dataset.data.classes)
    first = int(np.argmax(found.labels == found.predictions))  # that was read rightly
    batch, _ = dataset.batch(np.array([first]))
    maps = {name: maps[0] for name, maps in _maps(model, batch).items()}
    said = found.predictions[first]
    share = found.probabilities[first, said]
    answer = f"{classes.one(found.labels[first])}, read as {classes[said]} ({share:.1%})"
    worst = figures.worst(found.labels, found.probabilities)
    wrong = np.count_nonzero(found.labels != found.predictions)
    drawn = {
        "curves": figures.curves(history),
        "learning_rate": figures.learning_rate(history),
        "confusion_matrix": figures.confusion(found.confusion_matrix, classes),
        "per_class": figures.per_class(found.labels, found.predictions, classes),
        "kernels": figures.kernels(model.conv1.weight.numpy()),
        "feature_maps": figures.feature_maps(batch[0, 0], maps, answer),
        "mistakes": figures.mistakes(
            *(dataset.batch(worst)[0][:, 0], found.labels[worst], found.probabilities[worst]),
            f"{wrong} of {found.count} images read wrongly"
            + (f"; the {len(worst)} it was most sure about" if len(worst) < wrong else ""),
            classes=classes,
        ),
        "health": figures.health(history),
    }
    return {name: figure for name, figure in drawn.items() if figure}


def missing_figures(run: RunDirectory) -> list[str]:
    """The names of the figure files that a finished run should have and has not."""
    missing = [name for name in FIGURE_FILES if not (run.figures / name).exists()]
    if any(name.startswith("health") for name in missing):
        watched = figures.watched(read_history(run.metrics))
        missing = [name for name in missing if watched or not name.startswith("health")]
    return missing


def draw_runs(
    runs: Sequence[Path], output: Optional[str], device: str, only: Collection[str] = ()
) -> list[Path]:
    """Draw the figures of each run, and all of them over one another if there are several.

    output: the folder; by default each run's own, and the first one's for the comparison. With
    several runs each has a folder in it, by its path from where they part. only: these files
    alone, as `curves.png`. Gives the folders and files that were written.
    Raises ConfigError for a file that is not drawn, DataError for a folder that is no run, and what
    `score_checkpoint` raises.
    """
    histories, written = {}, []
    for name in only:
        if name not in (*FIGURE_FILES, *COMPARED_FILES):
            raise ConfigError(unknown_name("--only", name, (*FIGURE_FILES, *COMPARED_FILES)))
        if name in COMPARED_FILES and len(runs) < 2:
            raise ConfigError(f"{name} is of several runs; expected more than {runs[0]}")
    each = not only or set(only) - set(COMPARED_FILES)
    common = os.path.commonpath([path.resolve().parent for path in runs])
    for path in runs:
        run = RunDirectory(path)
        histories[str(path)] = read_history(run.metrics)
        if not histories[str(path)]:
            raise DataError(f"{path}: no metrics.jsonl with lines; expected a run directory")
        if each:
            folder = run.figures
            if output:
                near = os.path.relpath(path.resolve(), common) if len(runs) > 1 else "."
                folder = Path(output, near)
            limit = run.read_config().eval_limit
            scored = score_checkpoint(str(run.path), device=device, limit=limit)
            drawn = draw(scored.model, scored.dataset, scored.found, histories[str(path)])
            figures.save(drawn, folder, only)
            written.append(folder)
    if len(histories) > 1 and (not only or set(only) & set(COMPARED_FILES)):
        folder = Path(output) if output else RunDirectory(runs[0]).figures
        figures.save({"compare": figures.compare(histories)}, folder, only)
        written += [folder / name for name in COMPARED_FILES if not only or name in only]
    elif len(histories) > 1:
        log.info("each run is drawn by itself; to draw them over one another: --only compare.png")
    return written


def _maps(model: nn.Layer, images: np.ndarray) -> dict[str, np.ndarray]:
    return outputs_of(model, paddle.to_tensor(images), ON_THE_WAY)


def _grey(images: np.ndarray) -> np.ndarray:
    """Shares of white as uint8."""
    return np.round(255 * images).astype(np.uint8)
