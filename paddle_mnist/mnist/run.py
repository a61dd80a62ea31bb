"""`train_and_evaluate`: build MNIST's parts, and train them with the engine."""

import contextlib
import logging
import time
from dataclasses import dataclass, replace
from typing import Optional

from paddle_mnist.checkpoint.contents import load_weights
from paddle_mnist.checkpoint.manifest import Checkpoint
from paddle_mnist.checkpoint.safe_load import safe_load
from paddle_mnist.metrics.console import log_to_console
from paddle_mnist.metrics.visualdl import VisualDLWriter
from paddle_mnist.mnist.config import TrainConfig
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.mnist.report import (
    FinalEvaluation,
    draw,
    introduce,
    missing_figures,
    write_report,
)
from paddle_mnist.mnist.result import Result, finished_result, log_result, read_result
from paddle_mnist.mnist.setup import TrainingImages, batches_to_print, build_job
from paddle_mnist.parallel.process_count import fast_conv_threads, hint, processes_to_start
from paddle_mnist.parallel.world import World, join, spawn
from paddle_mnist.plots.figure import save_figures
from paddle_mnist.plots.history import read_history
from paddle_mnist.state import TrainState
from paddle_mnist.system import signals
from paddle_mnist.system.devices import autocast, own_device, select_device
from paddle_mnist.training.evaluator import Evaluation, evaluate
from paddle_mnist.training.initialize import versions
from paddle_mnist.training.run_directory import DEFAULT_OUTPUT, RunDirectory
from paddle_mnist.training.session import (
    TrainingJob,
    load_final_weights,
    open_run,
    resume_or_initialize,
    resume_point,
    train_epochs,
)

log = logging.getLogger("paddle_mnist")

# Options of what only the main process does, switched off for the others.
MAIN_PROCESS_ONLY = {
    "visualdl": (),
    "figures": False,
    "watch": 0,
    "profile": 0,
    "check_shape": (),
    "check_content": (),
}


@dataclass(frozen=True)
class MnistTraining:
    """A training on digits: what was asked for, the images, and the job for the engine.

    config: without what only the main process does, in any other. data_seconds: the time until the
    images were there.
    """

    config: TrainConfig
    images: TrainingImages
    job: TrainingJob
    data_seconds: float

    @property
    def world(self) -> World:
        return self.job.world

    @property
    def model(self) -> MNIST:
        return self.job.parts.model


def train_and_evaluate(config: TrainConfig, fresh: bool = False) -> Result:
    """Train as `config` says, evaluate on the eval split, and return the result.

    The run directory decides what is left to do: an unfinished run resumes, and the result of a
    finished one is returned at once. fresh: move what is there aside, and start over.
    Raises any PaddleMnistError.
    """
    log_to_console()
    with signals.handlers_installed(), signals.deferred():
        nprocs = processes_to_start(config)
        if nprocs > 1:
            return _train_in_processes(config, fresh, nprocs)
        training = prepare(config)
        output = config.output or DEFAULT_OUTPUT
        with open_run(output, training.world, MNIST.checkpoint_name, fresh) as run:
            _announce(training)
            checkpoint = resume_point(training.job, run)
            result = _result_so_far(training, run, checkpoint)
            if result:
                return _repeat(training, run, result)
            return _train(training, run, checkpoint)


def _train_in_processes(config: TrainConfig, fresh: bool, nprocs: int) -> Result:
    """Train in several processes, each of which calls `train_and_evaluate`.

    The result is read from `result.json`: little travels between processes.
    """
    spawn(
        train_and_evaluate,
        (replace(config, nprocs=1, gpus=None), fresh),
        nprocs,
        config.gpus,
        hang_timeout=config.hang_timeout,
        device=config.device,
    )
    return read_result(RunDirectory(config.output or DEFAULT_OUTPUT))


def prepare(config: TrainConfig) -> MnistTraining:
    """Join the other processes, choose the device, open the images and build the parts.

    Whatever is wrong with them is raised here, before a file is touched.
    """
    world = join(config.hang_timeout, config.device)
    device = select_device(own_device(config.device) if world.size > 1 else config.device)
    autocast(config.amp)  # raises, before anything is read
    with signals.interruptible():
        started = time.perf_counter()
        images = TrainingImages.open(config)  # cached by whoever is first, under a lock
        world.require_same(images.hashes, "the images")
        data_seconds = time.perf_counter() - started
        if not world.is_main_process:
            config = replace(config, **MAIN_PROCESS_ONLY)
        job = build_job(config, images, world, device)
    samples = job.steps * config.batch_size
    suggestion = hint(config, samples, fast_conv_threads(config))
    if world.size == 1 and suggestion:
        log.info(suggestion)
    return MnistTraining(config, images, job, data_seconds)


def _announce(training: MnistTraining) -> None:
    """Log what is trained on, and what is unusual about it."""
    training.images.log_counts()
    if not training.world.is_main_process:
        return
    if unbalanced := training.job.parts.loader.dataset.limit_warning():
        log.warning("train_limit is %d: %s", training.config.train_limit, unbalanced)
    batches_to_print(training.config, training.job.steps, report=log.info)  # says what it replaces


def _result_so_far(
    training: MnistTraining, run: RunDirectory, checkpoint: Optional[Checkpoint]
) -> Optional[Result]:
    """Return the result of a run that is finished; None if something is left to do."""
    if not checkpoint or not training.job.is_complete(checkpoint):
        return None
    return training.world.run_on_main(lambda: finished_result(run, checkpoint))


def _repeat(training: MnistTraining, run: RunDirectory, result: Result) -> Result:
    """Log the result of a finished run, and draw the figures that it lacks."""
    log_result(result, run, has_visualdl=bool(training.job.options.visualdl))
    log.info("this run is finished; to train anew: --fresh, or another --output")
    missing = missing_figures(run) if training.config.figures else []
    if missing:  # the disk was full, say
        log.info("drawing what is missing in %s: %s", run.figures, ", ".join(missing))
        with signals.interruptible():
            load_weights(training.model, safe_load(run.weights), run.weights)
            dataset = training.images.dataset("eval", training.config.eval_limit)
            evaluation = evaluate(training.model, dataset)
            drawn = draw(training.model, dataset, evaluation, read_history(run.metrics))
            save_figures(drawn, run.figures, missing)
    return result


def _train(training: MnistTraining, run: RunDirectory, checkpoint: Optional[Checkpoint]) -> Result:
    """Train what is left, evaluate, and report."""
    config, job = training.config, training.job
    start = resume_or_initialize(job, run, checkpoint)
    pages = job.options.visualdl
    board = VisualDLWriter(
        run.new_visualdl_folder() if pages else run.visualdl,
        pages,
        config.watch or config.log_every,
    )
    with contextlib.closing(board):
        introduce(board, config, job.parts.loader.dataset, job.device)
        state = train_epochs(job, run, start, board)
        checkpoint_name = load_final_weights(job, run, state)
        scores, evaluation = _score(training, state)
        result = _make_result(training, state, checkpoint_name, scores)
        training.world.run_on_main(lambda: run.write_result(result.as_dict()))
        log_result(result, run, has_visualdl=bool(pages))
        with signals.interruptible():  # a result is not lost with its pictures
            dataset = training.images.dataset("eval", config.eval_limit)
            final = FinalEvaluation(training.model, dataset, evaluation, scores, state.step)
            write_report(board, run, config, final)
    return result


def _score(training: MnistTraining, state: TrainState) -> tuple[dict[str, float], Evaluation]:
    """Evaluate the final weights; return the figures of the result, and the eval split's answers.

    The validation that the training ended with is not repeated.
    """
    model, limit = training.model, training.config.eval_limit
    valid = state.metrics or training.job.evaluator.metrics(model)
    evaluation = evaluate(model, training.images.dataset("eval", limit), training.world)
    scores = {
        "valid_acc": valid["valid/acc"],
        "valid_loss": valid["valid/loss"],
        "eval_acc": evaluation.accuracy,
        "eval_loss": evaluation.loss,
    }
    replayed = training.images.replay_dataset("eval", limit)
    if replayed:
        replay_evaluation = evaluate(model, replayed, training.world)
        scores["replay_eval_acc"] = replay_evaluation.accuracy
        scores["replay_eval_loss"] = replay_evaluation.loss
    return scores, evaluation


def _make_result(
    training: MnistTraining, state: TrainState, checkpoint: str, scores: dict[str, float]
) -> Result:
    return Result(
        dataset=training.images.new.name,
        **scores,
        epochs=state.epoch,
        steps=state.step,
        params=sum(parameter.size for parameter in training.model.parameters()),
        seed=training.config.seed,
        world_size=training.world.size,
        device=training.job.device,
        train_seconds=round(state.train_seconds, 3),
        data_seconds=round(training.data_seconds, 3),
        samples_per_second=round(state.samples / state.train_seconds, 1),
        checkpoint=checkpoint,
        **versions(),
    )
