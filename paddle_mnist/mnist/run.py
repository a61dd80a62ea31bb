"""`train_and_evaluate`: build MNIST's parts, and give them to `fit`."""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Optional

from paddle_mnist.checkpoint.run_files import DEFAULT_OUTPUT
from paddle_mnist.checkpoint.safe_load import safe_load
from paddle_mnist.checkpoint.weights import load_weights
from paddle_mnist.metrics.console import console_level
from paddle_mnist.metrics.visualdl import ABOUT
from paddle_mnist.mnist.config import TrainConfig
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.report import (
    FinalEvaluation,
    draw,
    introduce,
    missing_figures,
    write_report,
)
from paddle_mnist.mnist.result import DATASET_NAMES, Result, has_result, read_result
from paddle_mnist.mnist.setup import TrainingImages, batches_to_print, fit_arguments
from paddle_mnist.nn.fast_layers import why_not_compiled
from paddle_mnist.parallel.process_count import fast_conv_threads, hint, processes_to_start
from paddle_mnist.parallel.world import World, join, spawn
from paddle_mnist.plots.figure import save_figures
from paddle_mnist.plots.history import read_history
from paddle_mnist.system import signals
from paddle_mnist.system.devices import autocast, own_device, select_device
from paddle_mnist.training.callbacks import Callback, FitResult, Training
from paddle_mnist.training.evaluator import Evaluation, evaluate
from paddle_mnist.training.fit import fit
from paddle_mnist.training.initialize import versions
from paddle_mnist.training.run_directory import RunDirectory

log = logging.getLogger("paddle_mnist")


def train_and_evaluate(config: TrainConfig, fresh: bool = False, quiet: bool = False) -> Result:
    """Train as `config` says, evaluate on its `final_split`, and return the result.

    If the run directory holds an unfinished run, it resumes; if it holds a finished one, its result
    is returned at once. fresh: move an existing run aside, and start over.
    quiet: print warnings only; the run's `train.log` still gets every line.
    Raises any PaddleMnistError.
    """
    output = config.output or DEFAULT_OUTPUT
    level = logging.WARNING if quiet else logging.INFO
    with console_level(level), signals.handlers_installed(), signals.deferred():
        nprocs = processes_to_start(config)
        if nprocs > 1:  # each of which calls this function
            spawn(
                train_and_evaluate,
                (replace(config, nprocs=1, gpus=None), fresh, quiet),
                nprocs,
                config.gpus,
                hang_timeout=config.hang_timeout,
                device=config.device,
            )
        else:
            world = join(config.hang_timeout, config.device)
            device = own_device(config.device) if world.size > 1 else config.device
            select_device(device)
            autocast(config.amp)  # raises, before anything is read
            with signals.interruptible():
                started = time.perf_counter()
                images = TrainingImages.open(config)  # cached by whoever is first, under a lock
                world.require_same(images.hashes, "the images")
                report = MnistReport(config, images, time.perf_counter() - started)
                arguments = fit_arguments(config, images, world)
            _suggest_processes(config, len(arguments["train"]), world)
            fit(**arguments, output=output, fresh=fresh, device=device, callbacks=[report])
    return read_result(RunDirectory(output))


def _suggest_processes(config: TrainConfig, steps_per_epoch: int, world: World) -> None:
    samples = steps_per_epoch * config.epochs * config.batch_size
    threads = fast_conv_threads(config)
    if threads and why_not_compiled() is not None:
        threads = 0  # Paddle's layers compute
    suggestion = hint(config, samples, threads)
    if world.size == 1 and suggestion:
        log.info(suggestion)


class MnistReport(Callback):
    """Evaluates the trained net on the config's `final_split`, and draws what is only of digits.

    data_seconds: the time until the images were there.
    """

    def __init__(self, config: TrainConfig, images: TrainingImages, data_seconds: float):
        self.config, self.images, self.data_seconds = config, images, data_seconds
        self._evaluation: Optional[Evaluation] = None

    def run_opened(self, training: Training) -> None:
        """Log what is trained on, and what is unusual about it."""
        for line in self.images.descriptions(self.config):
            log.info("%s", line)
        if not training.world.is_main_process:
            return
        if self.config.incremental_from and not self.images.replayed:
            log.info("what the net forgets of its earlier images is only measured on --replay_data")
        if unbalanced := self._train_dataset.limit_warning():
            log.warning("train_limit is %d: %s", self.config.train_limit, unbalanced)
        # says what it replaces
        batches_to_print(self.config, training.job.steps, report=log.info)

    def before_training(self, training: Training) -> None:
        """Say on the dashboard what the images are, and show the first."""
        training.board.text(ABOUT, "\n".join(self.images.descriptions(self.config)))
        introduce(training.board, self._train_dataset)

    def final_metrics(self, training: Training) -> Mapping[str, float]:
        """Return accuracy and loss on the final split, and on that of the replayed data."""
        split, limit = self.config.final_split, self.config.eval_limit
        self._evaluation = evaluate(training.model, self._final_dataset, training.world)
        metrics = {
            f"{split}/acc": self._evaluation.accuracy,
            f"{split}/loss": self._evaluation.loss,
        }
        if replayed := self.images.replay_dataset(split, limit):
            evaluation = evaluate(training.model, replayed, training.world)
            prefix = "replay" if split == "valid" else "replay_eval"  # as during the training
            metrics[f"{prefix}/acc"] = evaluation.accuracy
            metrics[f"{prefix}/loss"] = evaluation.loss
        return metrics

    @property
    def _train_dataset(self) -> MnistDataset:
        return self.images.dataset("train", self.config.train_limit)

    @property
    def _final_dataset(self) -> MnistDataset:
        return self.images.dataset(self.config.final_split, self.config.eval_limit)

    @property
    def _datasets(self) -> Mapping[str, MnistDataset]:
        """The splits that the result is of, limited as in the training."""
        config = self.config
        limits = {"train": config.train_limit, "valid": config.eval_limit}
        limits[config.final_split] = config.eval_limit
        return {mode: self.images.dataset(mode, limit) for mode, limit in limits.items()}

    def result_entries(self, training: Training, result: FitResult) -> Mapping[str, Any]:
        """Return the `Result`."""
        state, metrics = training.state, result.metrics
        return Result(
            dataset=self.images.new.name,
            eval_acc=metrics.get("eval/acc"),
            eval_loss=metrics.get("eval/loss"),
            valid_acc=metrics["valid/acc"],
            valid_loss=metrics["valid/loss"],
            epochs=result.epochs,
            steps=result.steps,
            params=sum(parameter.size for parameter in training.model.parameters()),
            seed=self.config.seed,
            world_size=training.world.size,
            device=training.job.device,
            train_seconds=result.seconds,
            data_seconds=round(self.data_seconds, 3),
            samples_per_second=round(state.samples / state.train_seconds, 1),
            checkpoint=result.checkpoint.name,
            **versions(),
            images_used={mode: len(dataset) for mode, dataset in self._datasets.items()},
            images_available={mode: dataset.available for mode, dataset in self._datasets.items()},
            replay_eval_acc=metrics.get("replay_eval/acc"),
            replay_eval_loss=metrics.get("replay_eval/loss"),
        ).as_dict()

    def has_result(self, entries: Mapping[str, Any]) -> bool:
        return has_result(entries, self.config.final_split)

    def summary(self, training: Training, result: FitResult) -> str:
        """Return the line about the evaluation; of a finished run's from its `result.json`."""
        if self._evaluation is None:
            values = read_result(training.run).as_dict()
        else:
            values = self.result_entries(training, result)
        dataset = DATASET_NAMES.get(values["dataset"], values["dataset"])
        split = self.config.final_split
        accuracy, loss = values[f"{split}_acc"], values[f"{split}_loss"]
        extent = self._final_dataset.extent
        of = f"{dataset}, {extent}" if extent else dataset
        line = f"{split} accuracy {accuracy:.4f}, loss {loss:.4f} ({of})"
        if "eval_acc" not in values:
            line += "; the eval split is not scored (final_split is valid)"
        if "replay_eval_acc" in values:
            line += f"; on the replayed data's: accuracy {values['replay_eval_acc']:.4f}"
        return line

    def after_training(self, training: Training, result: FitResult) -> None:
        """Draw the figures and the dashboard's pages."""
        final = FinalEvaluation(
            training.model,
            self._final_dataset,
            self._evaluation,
            {tag.replace("/", "_"): value for tag, value in result.metrics.items()},
            result.steps,
        )
        has_figures = self.config.figures and training.world.is_main_process
        write_report(training.board, training.run, replace(self.config, figures=has_figures), final)

    def already_finished(self, training: Training, result: FitResult) -> None:
        """Draw the figures that the run lacks: the disk was full, say."""
        run = training.run
        missing = missing_figures(run) if self.config.figures else []
        if not missing or not training.world.is_main_process:
            return
        log.info("drawing what is missing in %s: %s", run.figures, ", ".join(missing))
        load_weights(training.model, safe_load(run.weights), run.weights)
        dataset = self._final_dataset
        evaluation = evaluate(training.model, dataset)
        drawn = draw(training.model, dataset, evaluation, read_history(run.metrics))
        save_figures(drawn, run.figures, missing)
