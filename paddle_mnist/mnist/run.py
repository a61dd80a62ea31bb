"""`train_and_evaluate`: the only place where the concrete parts meet."""

import contextlib
import functools
import json
import logging
import os
import shlex
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Optional

from paddle_mnist.checkpoint.checkpointer import NO_CHECKPOINTER, StoreCheckpointer
from paddle_mnist.checkpoint.contents import load_weights, saved_bytes
from paddle_mnist.checkpoint.manifest import PARAMS, Checkpoint
from paddle_mnist.checkpoint.policy import RetentionPolicy, SavePolicy
from paddle_mnist.checkpoint.safe_load import safe_load
from paddle_mnist.errors import CheckpointError
from paddle_mnist.metrics.console import BarWriter, LogWriter, log_to_console
from paddle_mnist.metrics.visualdl import VisualDLWriter
from paddle_mnist.metrics.writers import ManyWriters
from paddle_mnist.mnist.arrays import Data
from paddle_mnist.mnist.cache import open_data
from paddle_mnist.mnist.config import TrainConfig
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.mnist.report import (
    FinalEvaluation,
    draw,
    introduce,
    missing_figures,
    write_report,
)
from paddle_mnist.mnist.setup import (
    TrainingParts,
    batches_to_print,
    build,
    fingerprint,
    initialize_from_run,
    lineage,
    restore,
    versions,
)
from paddle_mnist.monitor.print_layers import print_in_batches
from paddle_mnist.monitor.profiler import NO_PROFILE, Profile
from paddle_mnist.monitor.watch import watch
from paddle_mnist.nn.optim import cross_entropy
from paddle_mnist.nn.seeding import reseed
from paddle_mnist.parallel.gradients import build_gradient_exchange
from paddle_mnist.parallel.process_count import hint, processes_to_start
from paddle_mnist.parallel.world import World, join, spawn
from paddle_mnist.plots.figure import save_figures
from paddle_mnist.plots.history import read_history
from paddle_mnist.state import Observer, TrainState, Writer
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.system.devices import autocast, own_device, select_device
from paddle_mnist.system.files import write_atomically
from paddle_mnist.training.evaluator import EpochEvaluator, Evaluation, evaluate
from paddle_mnist.training.run_directory import DEFAULT_OUTPUT, NoRunDirectory, RunDirectory
from paddle_mnist.training.trainer import Trainer

log = logging.getLogger("paddle_mnist")


@dataclass(frozen=True)
class Result:
    """What a training came to, as `result.json` holds it.

    dataset: "mnist", "digits", or the name of the files. Accuracies are shares, losses nats.
    train_seconds: spent in steps, over all processes of the run; data_seconds: until the images
    were there, in the process that ended it. epochs, steps: trained; checkpoint: the one with these
    weights. replay_eval_acc, replay_eval_loss: on the eval split of `replay_data`, where given.
    """

    dataset: str
    eval_acc: float
    eval_loss: float
    valid_acc: float
    valid_loss: float
    epochs: int
    steps: int
    params: int
    seed: int
    world_size: int
    device: str
    train_seconds: float
    data_seconds: float
    samples_per_second: float
    checkpoint: str
    paddle: str
    numpy: str
    package: str
    replay_eval_acc: Optional[float] = None
    replay_eval_loss: Optional[float] = None


def train_and_evaluate(config: TrainConfig, fresh: bool = False) -> Result:
    """Train as `config` says, evaluate on the eval split, and give the result.

    The run directory decides what is left to do: an unfinished run is gone on with, a finished
    one's result is given back at once. fresh: move what is there aside and start over.
    Raises any PaddleMnistError.
    """
    log_to_console()
    with signals.handlers_installed(), signals.deferred():
        nprocs = processes_to_start(config)
        if nprocs > 1:
            return _train_in_processes(config, fresh, nprocs)
        world = join(config.hang_timeout, config.device)
        device = select_device(own_device(config.device) if world.size > 1 else config.device)
        autocast(config.amp)  # raises, before anything is read
        with signals.interruptible():
            started = time.perf_counter()
            data = _images(config)  # fetched and cached by whoever is first, under a lock
            world.require_same(data.hashes, "the images")
            seconds = time.perf_counter() - started
            parts = build(config, data.new, data.old, world)  # before a file is touched
        faster = hint(config, len(parts.loader) * config.batch_size * config.epochs)
        if world.size == 1 and faster:
            log.info(faster)
        if not world.is_main_process:  # what is looked at is looked at in rank 0
            config = replace(config, visualdl=(), figures=False, watch=0, profile=0)
            config = replace(config, check_shape=(), check_content=())
        run = (RunDirectory if world.is_main_process else NoRunDirectory)(
            config.output or DEFAULT_OUTPUT, MNIST.checkpoint_name
        )
        with contextlib.ExitStack() as stack:
            stack.callback(heartbeat.pause_watchdog)  # the caller may take its time
            world.run_on_main(lambda: stack.enter_context(run.opened(fresh)) and None)
            return _train_in(run, config, parts, data, world, device, seconds)


@dataclass(frozen=True)
class _Images:
    """What is trained on, and what is replayed from an earlier training."""

    new: Data
    old: Optional[Data]

    @property
    def hashes(self) -> dict[str, Optional[str]]:
        """What manifests bind: the contents, wherever they come from."""
        return {"data_hash": self.new.hash, "replay_hash": self.old and self.old.hash}

    def datasets(self, mode: str, limit: Optional[int]) -> dict[str, MnistDataset]:
        """A split of both, by the names of their metrics."""
        found = {"valid": self.new, "replay": self.old}
        return {name: MnistDataset(mode, data, limit) for name, data in found.items() if data}


def _images(config: TrainConfig) -> _Images:
    replayed = open_data(config.replay_data) if config.replay_data else None
    return _Images(open_data(config.data), replayed)


def _train_in(
    run: RunDirectory,
    config: TrainConfig,
    parts: TrainingParts,
    data: _Images,
    world: World,
    device: str,
    data_seconds: float,
) -> Result:
    for what, images in (("data", data.new), ("replayed", data.old)):
        if images:
            counts = " / ".join(str(len(images[mode])) for mode in images.splits)
            log.info("%s: %s, from %s; %s images", what, images.name, images.source, counts)
    if world.is_main_process and (unbalanced := parts.loader.dataset.limit_warning()):
        log.warning("train_limit is %d: %s", config.train_limit, unbalanced)
    evaluator = EpochEvaluator(
        data.datasets("valid", config.eval_limit),
        *(config.eval_every_epochs, config.epochs, config.early_stop_patience, world),
    )
    checkpoint = world.run_on_main(lambda: _resume_point(run, config, data))
    done = checkpoint and (
        checkpoint.state.epoch == config.epochs or evaluator.should_stop(checkpoint.state)
    )
    result = world.run_on_main(lambda: _finished(run, checkpoint)) if done else None
    if result:
        _say(result, run, config)
        log.info("this run is finished; to train anew: --fresh, or another --output")
        if config.figures:  # only in rank 0
            _draw_missing_figures(run, config, parts.model, data)
        return result

    if checkpoint:
        state, before = restore(config, parts, checkpoint), checkpoint.manifest
    else:
        state, before = TrainState(), initialize_from_run(config, parts, world)
    if world.size > 1:
        digest = fingerprint(parts, state)
        world.require_same(
            digest, "the weights, the optimizer's state or the place in the training"
        )
        log.info("%d processes start from the same: SHA-256 %s", world.size, digest)
    world.run_on_main(lambda: run.start_history(checkpoint))
    world.run_on_main(
        lambda: run.write_config(config, data.new.location, data.old and data.old.location)
    )
    own = checkpoint if checkpoint and run.owns(checkpoint) else None
    run.checkpoints.context.update(
        lineage(own, before),
        **data.hashes,
        config=config.binding(),
        dataset=data.new.name,
        device=device,
        threads=os.environ.get("OMP_NUM_THREADS"),
        world_size=world.size,
        versions=versions(),
    )
    board = VisualDLWriter(
        run.new_visualdl_folder() if config.visualdl else run.visualdl,
        *(config.visualdl, config.watch or config.log_every),
    )
    with contextlib.closing(board):
        introduce(board, config, parts.loader.dataset, device)
        with contextlib.closing(_writers(config, parts, run, world)) as files:
            writer = ManyWriters([files, board])
            collaborators = (evaluator, own and own.state, writer, board, world)
            state = _train(config, parts, run, state, *collaborators)
        name, state.metrics = world.run_on_main(
            lambda: (_use_final_weights(config, parts, run, state), state.metrics)
        )
        world.broadcast(parts.model.state_dict().values())
        scores, found = _scores(config, parts, data, state, evaluator)
        result = Result(
            dataset=data.new.name,
            **scores,
            epochs=state.epoch,
            steps=state.step,
            params=sum(parameter.size for parameter in parts.model.parameters()),
            seed=config.seed,
            world_size=world.size,
            device=device,
            train_seconds=round(state.train_seconds, 3),
            data_seconds=round(data_seconds, 3),
            samples_per_second=round(state.samples / state.train_seconds, 1),
            checkpoint=name,
            **versions(),
        )
        written = {key: value for key, value in asdict(result).items() if value is not None}
        world.run_on_main(lambda: run.write_result(written))
        _say(result, run, config)
        with signals.interruptible():  # a result is not lost with its pictures
            dataset = data.datasets("eval", config.eval_limit)["valid"]
            final = FinalEvaluation(parts.model, dataset, found, scores, state.step)
            write_report(board, run, config, final)
    return result


def _resume_point(run: RunDirectory, config: TrainConfig, data: _Images) -> Optional[Checkpoint]:
    found = run.resume_point(config, data.hashes)
    return (
        found and found.read_into_memory()
    )  # it goes to other processes, whose disks may be others


def _train_in_processes(config: TrainConfig, fresh: bool, nprocs: int) -> Result:
    """The same in several processes, each of which calls `train_and_evaluate`.

    What they came to is in `result.json`: little travels between processes.
    """
    one = replace(config, nprocs=1, gpus=None)
    spawn(
        *(train_and_evaluate, (one, fresh), nprocs, config.gpus),
        hang_timeout=config.hang_timeout,
        device=config.device,
    )
    run = RunDirectory(config.output or DEFAULT_OUTPUT, MNIST.checkpoint_name)
    return Result(**json.loads(run.result.read_text(encoding="utf-8")))


def _finished(run: RunDirectory, checkpoint: Checkpoint) -> Optional[Result]:
    """The result of a run that ended with this checkpoint, if all that it came to is there."""
    found = run.read_result(checkpoint)
    if not found or not run.weights.exists():
        return None
    try:
        return Result(**found)
    except TypeError as error:  # damaged, or of another version of this package
        log.warning("%s is not a result (%s); evaluating again", run.result, error)
        return None


def _draw_missing_figures(
    run: RunDirectory, config: TrainConfig, model: MNIST, data: _Images
) -> None:
    """Draw the figures that a finished run lacks, say because the disk was full."""
    missing = missing_figures(run)
    if not missing:
        return
    log.info("drawing what is missing in %s: %s", run.figures, ", ".join(missing))
    with signals.interruptible():
        load_weights(model, safe_load(run.weights), run.weights)
        dataset = data.datasets("eval", config.eval_limit)["valid"]
        drawn = draw(model, dataset, evaluate(model, dataset), read_history(run.metrics))
        save_figures(drawn, run.figures, missing)


def _train(
    config: TrainConfig,
    parts: TrainingParts,
    run: RunDirectory,
    state: TrainState,
    evaluator: EpochEvaluator,
    saved: Optional[TrainState],
    writer: Writer,
    board: VisualDLWriter,
    world: World,
) -> TrainState:
    store = StoreCheckpointer(
        run.checkpoints, *_saving(config), parts.average, saved, run.manifest_entries
    )
    profile = Profile(run.profile, config.profile) if config.profile else NO_PROFILE
    trainer = Trainer(
        run.weights,
        parts.model,
        parts.optimizer,
        loss_fn=cross_entropy(config.label_smoothing),
        evaluator=evaluator,
        average=parts.average,
        checkpointer=store if world.is_main_process else NO_CHECKPOINTER,
        writer=writer,
        observers=[*_watching(config, parts, state), board],
        profile=profile,
        state=state,
        log_every=config.log_every,
        reseed=functools.partial(reseed, config.seed),
        autocast=autocast(config.amp),
        exchange=build_gradient_exchange(parts.model, world, config.grad_shards),
    )
    with contextlib.closing(profile):
        return trainer.train(parts.loader, state.epoch, config.epochs)


def _writers(
    config: TrainConfig, parts: TrainingParts, run: RunDirectory, world: World
) -> ManyWriters:
    if not world.is_main_process:
        return ManyWriters([])
    return ManyWriters(
        [
            LogWriter(config.epochs, len(parts.loader)),
            run.open_history(),
            BarWriter(len(parts.loader) * config.epochs),
        ]
    )


def _watching(config: TrainConfig, parts: TrainingParts, state: TrainState) -> list[Observer]:
    """What looks into the net while it trains."""
    where = {"start": state.step, "passes_per_step": parts.loader.passes_per_step}
    if config.check_shape or config.check_content:
        batches = batches_to_print(config, len(parts.loader) * config.epochs, log.info)
        shape, content = batches["check_shape"], batches["check_content"]
        print_in_batches(parts.model, shape, content, print_fn=log.info, **where)
    if not config.watch:
        return []
    return [watch(parts.model, every=config.watch, train_only=True, **where)]


def _saving(config: TrainConfig) -> tuple[SavePolicy, RetentionPolicy]:
    """When to save, and what to keep."""
    when = SavePolicy(
        every_epochs=config.save_every_epochs,
        every_steps=config.save_every_steps,
        every_seconds=config.save_every_seconds,
        on_error=config.save_on_exception,
        on_best=config.keep_best,
    )
    keep = RetentionPolicy(
        epochs=config.keep_epochs,
        last=config.keep_last,
        every_minutes=config.keep_every_minutes,
        best=config.keep_best,
        breakpoints=config.keep_breakpoints,
    )
    return when, keep


def _use_final_weights(
    config: TrainConfig, parts: TrainingParts, run: RunDirectory, state: TrainState
) -> str:
    """Put the weights into the model that the training came to; gives their checkpoint's name.

    They are the last ones, or their average; the best ones where a training may end early.
    """
    if not config.early_stop_patience:
        if config.ema:
            load_weights(parts.model, parts.average.weights(parts.model), "the average")
        return f"{MNIST.checkpoint_name}_epoch{state.epoch - 1}"
    best = run.checkpoints.best()
    if not best or (state.best and best.step != state.best[0]):
        raise CheckpointError(
            f"{run.checkpoints.folder}: the best checkpoint is not there any more; expected it of "
            f"[step, accuracy] {state.best}; put it back, or evaluate another with tools/eval.py"
        )
    load_weights(parts.model, best.load(PARAMS), best.path)
    write_atomically(run.weights, saved_bytes(parts.model.state_dict()))
    state.metrics = best.state.metrics
    log.info("the best of %d evaluations is %s", len(state.scores), best.name)
    return best.name


def _scores(
    config: TrainConfig,
    parts: TrainingParts,
    data: _Images,
    state: TrainState,
    evaluator: EpochEvaluator,
) -> tuple[dict[str, float], Evaluation]:
    """The accuracies and losses of a result, and what the model made of the eval split."""
    # where nothing was left to train, no validation came with it
    valid = state.metrics or evaluator.metrics(parts.model)
    scores = {"valid_acc": valid["valid/acc"], "valid_loss": valid["valid/loss"]}
    found = {}
    for name, dataset in data.datasets("eval", config.eval_limit).items():
        found[name] = evaluate(parts.model, dataset, evaluator.world)
        prefix = "replay_eval" if name == "replay" else "eval"
        scores |= {f"{prefix}_acc": found[name].accuracy, f"{prefix}_loss": found[name].loss}
    return scores, found["valid"]


def _say(result: Result, run: RunDirectory, config: TrainConfig) -> None:
    note = {"mnist": "MNIST", "digits": "scikit-learn's digits, not MNIST"}
    log.info(
        "eval accuracy %.4f, loss %.4f (%s); trained %d epochs in %.1f s",
        *(result.eval_acc, result.eval_loss, note.get(result.dataset, result.dataset)),
        *(result.epochs, result.train_seconds),
    )
    if result.replay_eval_acc is not None:
        log.info("on the replayed data's eval split: accuracy %.4f", result.replay_eval_acc)
    log.info("weights: %s   everything else: %s", run.weights, run.path)
    if config.visualdl and DASHBOARD.exists():  # it is not, where only the package is installed
        log.info("dashboard: %s", dashboard_command(run.path))


DASHBOARD = Path(__file__).parents[2] / "tools" / "dashboard.py"


def dashboard_command(run: Path) -> str:
    """The command that shows a run in VisualDL, as one types it here."""
    here = Path.cwd()
    python, tool = (
        path.relative_to(here) if path.is_relative_to(here) else path
        for path in (Path(sys.executable), DASHBOARD)
    )
    return shlex.join(["python" if python.is_absolute() else str(python), str(tool), str(run)])
