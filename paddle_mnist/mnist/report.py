"""`DigitReport`, the callback that evaluates and shows a run on digits; the figures of runs."""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import paddle

from paddle_mnist.checkpoint.run import TRAINED_WITH, RunDirectory
from paddle_mnist.errors import ConfigError, DataError, unknown_name
from paddle_mnist.metrics.visualdl import ABOUT
from paddle_mnist.mnist import figures
from paddle_mnist.mnist.arrays import SIZE, noun_of
from paddle_mnist.mnist.config import TRAINER, TrainConfig, read_config
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.evaluation import EvaluatedModel, evaluate, load_and_evaluate
from paddle_mnist.mnist.images import Images
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.monitor.hooks import outputs_of
from paddle_mnist.parallel.world import SINGLE_PROCESS, World
from paddle_mnist.plots import classes as class_plots
from paddle_mnist.plots import curves
from paddle_mnist.plots.figure import (
    COMPARED,
    FIGURES,
    files_of,
    save_figures,
)
from paddle_mnist.plots.history import History, read_history
from paddle_mnist.system.environment import versions
from paddle_mnist.training.bundled import Figures, VisualDL
from paddle_mnist.training.callbacks import FitResult, Training

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("paddle_mnist")

DATASET_NAMES = {"mnist": "MNIST", "digits": "scikit-learn's digits, not MNIST"}
SHOWN = 16  # images that the dashboard shows before training
EMBEDDED = 1000  # images whose features the dashboard shows
LAYERS = ("conv1", "relu1", "max_pool1", "conv2", "relu2", "max_pool2")  # whose outputs are drawn
# Of y axes: by the name of a metric, and by the tag of what runs are compared by.
LABELS = {"loss": "loss (nats)", "acc": "accuracy (share)"}
COMPARED_LABELS = {
    "train/loss": "training loss (nats)",
    "valid/acc": "validation accuracy (share)",
}


class DigitReport(Figures):
    """Evaluates the net on the config's `final_split`, and shows what is specific to digits.

    images, replayed: those of the training, and those of an earlier one that are replayed.
    data_seconds: the time until they were loaded.
    """

    names = figures.DIGIT_FIGURES

    def __init__(
        self, config: TrainConfig, images: Images, replayed: Optional[Images], data_seconds: float
    ):
        super().__init__(config.figures.draw)
        self.config, self.images, self.replayed = config, images, replayed
        self.data_seconds = data_seconds
        self.options = (config.images, config.loss)
        self._evaluated: Optional[EvaluatedModel] = None  # at the end of the training

    @property
    def must_match(self) -> dict[str, Any]:
        """The values that a resume compares of the images: their contents, not where they are."""
        return {
            "data": self.images.hash[:12],
            "replay_data": self.replayed and self.replayed.hash[:12],
            "valid": None,  # comes with the data, and with eval_limit
        }

    def config_entries(self) -> Mapping[str, Any]:
        """Return the options of a run on digits, with their data by where they are."""
        return {
            **self.config.as_dict(),
            "data": self.images.path,
            "replay_data": self.replayed and self.replayed.path,
            "resume": "auto",
            "override": [],
            TRAINED_WITH: TRAINER,
        }

    def manifest_entries(self) -> Mapping[str, Any]:
        return {
            "data_hash": self.images.hash,
            "replay_hash": self.replayed and self.replayed.hash,
            "dataset": self.images.name,
        }

    def run_opened(self, training: Training) -> None:
        """Log what is trained on, and what is unusual about it."""
        config, options = self.config, self.config.images
        for line in self._descriptions():
            log.info("%s", line)
        if not training.world.is_main_process:
            return
        if config.start and not config.start.weights_only and not self.replayed:
            log.info("what the net forgets of its earlier images is measured with replay_data only")
        if unbalanced := self._dataset("train").limit_warning():
            log.warning("train_limit is %d: %s", options.train_limit, unbalanced)

    def before_first_step(self, training: Training) -> None:
        """Show the first images on the dashboard, with lines that say what they are."""
        board, dataset = VisualDL.board(training), self._dataset("train")
        board.text(ABOUT, "\n".join(self._descriptions()))
        if "images" in board.pages:
            board.images("inputs", _pixels(dataset, np.arange(min(SHOWN, len(dataset)))))

    def final_metrics(self, training: Training) -> Mapping[str, float]:
        """Return accuracy and loss on the final split, and on that of the replayed data."""
        split: str = self.config.images.final_split
        self._evaluated = self._evaluate(training, training.world)
        evaluations = {split: self._evaluated.evaluation}
        if self.replayed:
            replayed = MnistDataset(split, self.replayed, self.config.images.eval_limit)
            name = "replay" if split == "valid" else "replay_eval"  # as during the training
            evaluations[name] = evaluate(training.model, replayed, training.world)
        return {
            f"{name}/{metric}": value
            for name, evaluation in evaluations.items()
            for metric, value in (("acc", evaluation.accuracy), ("loss", evaluation.loss))
        }

    def result_entries(self, training: Training, result: FitResult) -> Mapping[str, Any]:
        """Return what `result.json` also holds of a run on digits.

        dataset: "mnist", "digits", or the name of the files. Accuracies are shares, losses in nats;
        those of a split that is not scored are left out. params: the number of parameters.
        train_seconds: the time spent in steps, summed over all starts of the run; data_seconds: the
        time until the images were there, in the process that ended it. images_used,
        images_available: by split, how many images the figures are of, and how many there are; they
        differ where `train_limit` or `eval_limit` leaves some out.
        """
        state = training.state
        assert state is not None  # the training is over
        datasets = {
            mode: self._dataset(mode) for mode in ("train", "valid", self.config.images.final_split)
        }
        scores = {
            f"{split}_{metric}": result.metrics[f"{split}/{metric}"]
            for split in ("eval", "valid", "replay_eval")
            for metric in ("acc", "loss")
            if f"{split}/{metric}" in result.metrics
        }
        return {
            "dataset": self.images.name,
            **scores,
            "params": sum(parameter.size for parameter in training.model.parameters()),
            "seed": self.config.seed,
            "world_size": training.world.size,
            "device": training.device,
            "train_seconds": result.seconds,
            "data_seconds": round(self.data_seconds, 3),
            "samples_per_second": round(state.samples / state.train_seconds, 1),
            **versions(),
            "images_used": {mode: len(dataset) for mode, dataset in datasets.items()},
            "images_available": {mode: dataset.available for mode, dataset in datasets.items()},
        }

    def has_result(self, entries: Mapping[str, Any]) -> bool:
        return {f"{self.config.images.final_split}_acc", "samples_per_second"} <= {*entries}

    def summary(self, training: Training, result: FitResult) -> str:
        """Return the line about the evaluation."""
        dataset = DATASET_NAMES.get(self.images.name, self.images.name)
        split = self.config.images.final_split
        accuracy, loss = result.metrics[f"{split}/acc"], result.metrics[f"{split}/loss"]
        extent = self._dataset(split).extent
        of = f"{dataset}, {extent}" if extent else dataset
        line = f"{split} accuracy {accuracy:.4f}, loss {loss:.4f} ({of})"
        if split != "eval":
            line += "; the eval split is not scored (final_split is valid)"
        if "replay_eval/acc" in result.metrics:
            line += f"; on the replayed images: accuracy {result.metrics['replay_eval/acc']:.4f}"
        return line

    def draw_figures(self, training: Training) -> Mapping[str, "Figure"]:
        return figures_of(training.run, self._evaluated or self._evaluate(training))

    def after_training(self, training: Training, result: FitResult) -> None:
        """Draw the figures and the dashboard's pages. Raises OutputError."""
        super().after_training(training, result)
        assert self._evaluated is not None  # in `final_metrics`
        dataset, evaluation = self._evaluated.dataset, self._evaluated.evaluation
        labels, probabilities = evaluation.labels, evaluation.probabilities
        board, noun = VisualDL.board(training), noun_of(dataset.data.name)
        if "images" in board.pages:
            board.images("mistakes", _pixels(dataset, figures.worst(labels, probabilities)))
        board.curves(labels, probabilities, result.steps, noun)
        if "embeddings" in board.pages:
            images, first = dataset.batch(np.arange(min(EMBEDDED, len(dataset))))
            features = outputs_of(training.model, paddle.to_tensor(images), ["max_pool2"])
            rows = features["max_pool2"].reshape(len(images), -1)
            board.embeddings(rows, first.ravel(), noun)
        board.graph(MNIST, [None, 1, SIZE, SIZE], step=result.steps)

    def _dataset(self, mode: str) -> MnistDataset:
        """Return a split of the training's own images, limited as in the training."""
        options = self.config.images
        limit = options.train_limit if mode == "train" else options.eval_limit
        return MnistDataset(mode, self.images, limit)

    def _evaluate(self, training: Training, world: World = SINGLE_PROCESS) -> EvaluatedModel:
        """Evaluate the net on the final split."""
        dataset = self._dataset(self.config.images.final_split)
        evaluation = evaluate(training.model, dataset, world)
        return EvaluatedModel(str(training.run.weights), training.model, dataset, evaluation)

    def _descriptions(self) -> list[str]:
        """Return lines that say where the images come from, and how many of each split are used."""
        options, lines = self.config.images, []
        for name, images in (("data", self.images), ("replayed", self.replayed)):
            if images:
                limits: dict[str, Optional[int]] = dict.fromkeys(images.splits, options.eval_limit)
                limits["train"] = options.train_limit if name == "data" else None
                datasets = [MnistDataset(mode, images, limit) for mode, limit in limits.items()]
                counts = " / ".join(
                    " of ".join(map(str, dict.fromkeys([len(dataset), dataset.available])))
                    for dataset in datasets
                )
                lines.append(f"{name}: {images.name}, from {images.source}; {counts} images")
        return lines


def _pixels(dataset: MnistDataset, indices: np.ndarray) -> np.ndarray:
    """Return images of a dataset as uint8 [N, 28, 28], 0 to 255."""
    return np.round(255 * dataset.batch(indices)[0][:, 0]).astype(np.uint8)


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
    noun = noun_of(dataset.data.name)
    counts, extent = evaluation.confusion_matrix, dataset.extent or ""
    valid = MnistDataset("valid", dataset.data, dataset.limit).extent
    return {
        **curves.figures_of(history, LABELS, {"valid": f"valid: {valid}"} if valid else {}),
        "confusion_matrix": class_plots.confusion(counts, noun, extent),
        "per_class": class_plots.per_class(counts, noun, extent),
        "kernels": figures.kernels(evaluated.model.conv1.weight.numpy()),
        "feature_maps": _feature_maps(evaluated, noun),
        "mistakes": _mistakes(evaluated),
    }


def _feature_maps(evaluated: EvaluatedModel, noun: str) -> "Figure":
    """Draw the way of the first image that is predicted correctly."""
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
    return figures.feature_maps(images[0, 0], maps, title)


def _mistakes(evaluated: EvaluatedModel) -> "Figure":
    dataset, evaluation = evaluated.dataset, evaluated.evaluation
    labels, probabilities = evaluation.labels, evaluation.probabilities
    worst = figures.worst(labels, probabilities)
    wrong = np.count_nonzero(labels != evaluation.predictions)
    title = f"{wrong:,} of {dataset.extent or f'{evaluation.count:,} images'} misclassified"
    if len(worst) < wrong:
        title += f"; the {len(worst)} with the highest confidence"
    images = dataset.batch(worst)[0][:, 0]
    return figures.mistakes(images, labels[worst], probabilities[worst], title)


def plot_runs(
    paths: Sequence[Path], output: Optional[str], device: str, only: Collection[str] = ()
) -> Path:
    """Draw the figures of a run, or a chart that compares several; return their folder.

    paths: of runs on digits or of any other net. device: see `figures_of`.
    output: a folder; by default the figures of the run, or of the first of several.
    only: draw only these files, as `curves.png`.
    Raises ConfigError for a file that is not drawn, DataError for a folder that is not a run, and
    what `load_and_evaluate` raises.
    """
    runs = [RunDirectory(path) for path in paths]
    histories = [_history(run) for run in runs]
    names: tuple[str, ...] = (COMPARED,)
    if len(runs) == 1:
        names = FIGURES if runs[0].is_of_fit else figures.DIGIT_FIGURES
    if unknown := [file for file in only if file not in files_of(names)]:
        raise ConfigError(_not_drawn(unknown[0], names))
    folder = Path(output) if output else runs[0].figures
    if len(runs) > 1:
        save_figures({COMPARED: _compare(runs, histories)}, folder, only)
    else:
        save_figures(figures_of(runs[0], device=device), folder, only)
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
