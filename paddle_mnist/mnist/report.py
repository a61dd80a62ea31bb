"""`DigitReport`, the callback that evaluates and shows a run on digits."""

import logging
import math
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
import paddle

from paddle_mnist.checkpoint.run import TRAINED_WITH
from paddle_mnist.data.seeding import generators_restored
from paddle_mnist.errors import spelled
from paddle_mnist.interfaces import View
from paddle_mnist.metrics.visualdl import ABOUT_RUN
from paddle_mnist.mnist.config import TRAINER, TrainConfig
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.evaluation import EvaluatedModel, evaluate
from paddle_mnist.mnist.figures import DIGIT_FIGURES, worst
from paddle_mnist.mnist.images import Images
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.mnist.run_figures import digit_figures_of
from paddle_mnist.mnist.splits import CLASSES, SIZE, noun_of
from paddle_mnist.monitor.hooks import outputs_of
from paddle_mnist.parallel.world import SINGLE_PROCESS, World
from paddle_mnist.plots.figure import AnyFigure
from paddle_mnist.system.environment import versions
from paddle_mnist.training.bundled import Figures, VisualDL
from paddle_mnist.training.callbacks import FitResult, Training, is_rehearsal

log = logging.getLogger("paddle_mnist")

DATASET_NAMES = {"mnist": "MNIST", "digits": "scikit-learn's digits, not MNIST"}
SHOWN_IMAGES = 16  # on the dashboard, before training
EMBEDDED_IMAGES = 1000  # whose features the dashboard shows


class DigitReport(Figures):
    """Evaluates the net on the config's `final_split`, and shows what is specific to digits.

    images, replayed: the images of this run, and those of an earlier run to replay.
    data_seconds: the time it took to load them.
    """

    names = DIGIT_FIGURES

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
        """The values by which a resume compares the images: their contents, not their paths."""
        return {
            "data": self.images.hash[:12],
            "replay_data": self.replayed and self.replayed.hash[:12],
            "valid": None,  # comes with the data, and with eval_limit
        }

    def config_entries(self) -> Mapping[str, Any]:
        """Return the options of a run on digits, with the paths of its data."""
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
        """Log the training data, and anything unusual about them."""
        config, options = self.config, self.config.images
        for line in self._descriptions():
            log.info("%s", line)
        if not training.world.is_main_process:
            return
        if config.start and not config.start.weights_only and not self.replayed:
            log.info("without replay_data, forgetting of the earlier images is not measured")
        if unbalanced := self._dataset("train").limit_warning():
            log.warning("train_limit is %d: %s", options.train_limit, unbalanced)

    def before_first_step(self, training: Training) -> None:
        """Show the first images on the dashboard, with lines that describe them."""
        board, dataset = VisualDL.board(training), self._dataset("train")
        board.text(ABOUT_RUN, "\n".join(self._descriptions()))
        if "images" in board.pages:
            board.images("inputs", _pixels(dataset, np.arange(min(SHOWN_IMAGES, len(dataset)))))

    def after_step(self, view: View) -> None:
        """Warn if the weights that training starts from are sure of wrong answers."""
        start, chance = self.config.start, math.log(CLASSES)
        if view.step > 1 or not start or is_rehearsal() or (view.loss or 0) < 2 * chance:
            return
        log.warning(
            "the first loss is %.4g, where guessing gives %.4g: the net in %s is confident in "
            "wrong answers, and may lose what it has learned; use %s, or a lower learning rate",
            view.loss,
            chance,
            start.path,
            spelled("soften"),
        )

    def final_metrics(self, training: Training) -> Mapping[str, float]:
        """Return metrics and loss on the final split, and on that of the replayed data."""
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
            for metric, value in {**evaluation.metrics, "loss": evaluation.loss}.items()
        }

    def result_entries(self, training: Training, result: FitResult) -> Mapping[str, Any]:
        """Return the entries of `result.json` that only runs on digits have.

        dataset: "mnist", "digits", or the name of the files. Accuracies are shares, losses in nats;
        those of a split that is not scored are left out. params: the number of parameters.
        train_seconds: the time spent in steps, summed over all starts of the run; data_seconds: the
        time that the last start took to load the images. images_used, images_available: by split,
        the number of images used, and of all; they differ if `train_limit` or `eval_limit` leaves
        some out.
        """
        state = training.state
        assert state is not None  # the training is over
        datasets = {
            mode: self._dataset(mode) for mode in ("train", "valid", self.config.images.final_split)
        }
        scores = {
            tag.replace("/", "_"): value
            for split in ("eval", "valid", "replay_eval")
            for tag, value in result.metrics.items()
            if tag.startswith(f"{split}/")
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
        images = f"{dataset}, {extent}" if extent else dataset
        line = f"{split} accuracy {accuracy:.4f}, loss {loss:.4f} ({images})"
        if split != "eval":
            line += "; the eval split is not scored (final_split is valid)"
        if "replay_eval/acc" in result.metrics:
            line += f"; on the replayed images: accuracy {result.metrics['replay_eval/acc']:.4f}"
        return line

    def draw_figures(self, training: Training) -> Mapping[str, AnyFigure]:
        return digit_figures_of(training.run, self._evaluated or self._evaluate(training))

    def after_training(self, training: Training, result: FitResult) -> None:
        """Draw the figures and the dashboard's pages. Raises OutputError."""
        super().after_training(training, result)
        assert self._evaluated is not None  # in `final_metrics`
        dataset, evaluation = self._evaluated.dataset, self._evaluated.evaluation
        labels, probabilities = evaluation.labels, evaluation.probabilities
        board, noun = VisualDL.board(training), noun_of(dataset.data.name)
        if "images" in board.pages:
            board.images("mistakes", _pixels(dataset, worst(labels, probabilities)))
        board.curves(labels, probabilities, result.steps, noun)
        if "embeddings" in board.pages:
            images, first = dataset.batch(np.arange(min(EMBEDDED_IMAGES, len(dataset))))
            features = outputs_of(training.model, paddle.to_tensor(images), ["max_pool2"])
            rows = features["max_pool2"].reshape(len(images), -1)
            board.embeddings(rows, first.ravel(), noun)
        with generators_restored():  # a new net draws its weights
            board.graph(MNIST, [None, 1, SIZE, SIZE], step=result.steps)

    def _dataset(self, mode: str) -> MnistDataset:
        """Return a split of the run's images, limited as in the run."""
        options = self.config.images
        limit = options.train_limit if mode == "train" else options.eval_limit
        return MnistDataset(mode, self.images, limit)

    def _evaluate(self, training: Training, world: World = SINGLE_PROCESS) -> EvaluatedModel:
        """Evaluate the net on the final split."""
        dataset = self._dataset(self.config.images.final_split)
        evaluation = evaluate(training.model, dataset, world)
        return EvaluatedModel(str(training.run.weights), training.model, dataset, evaluation)

    def _descriptions(self) -> list[str]:
        """Return lines with the source of the images, and how many of each split are used."""
        options, lines = self.config.images, []
        for name, images in (("data", self.images), ("replayed", self.replayed)):
            if images:
                limits: dict[str, Optional[int]] = dict.fromkeys(images.splits, options.eval_limit)
                limits["train"] = options.train_limit if name == "data" else None
                splits = [MnistDataset(mode, images, limit) for mode, limit in limits.items()]
                counts = " / ".join(
                    f"{len(split)} of {split.available}" if split.extent else str(len(split))
                    for split in splits
                )
                lines.append(f"{name}: {images.name}, from {images.source}; {counts} images")
        return lines


def _pixels(dataset: MnistDataset, indices: np.ndarray) -> np.ndarray:
    """Return images of a dataset as uint8 [N, 28, 28], 0 to 255."""
    return np.round(255 * dataset.batch(indices)[0][:, 0]).astype(np.uint8)
