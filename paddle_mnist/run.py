"""`train_and_evaluate`: the only place where the concrete parts meet."""

import functools
import logging
import os
import shlex
import shutil
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

import numpy
import paddle

import paddle_mnist
from paddle_mnist.checkpoint.checkpointer import StoreCheckpointer
from paddle_mnist.checkpoint.contents import load_checkpoint, load_weights
from paddle_mnist.checkpoint.policy import Keep, SaveWhen
from paddle_mnist.checkpoint.safe_load import safe_load
from paddle_mnist.checkpoint.store import PARAMS, Checkpoint
from paddle_mnist.config import TrainConfig
from paddle_mnist.data import Data, open_data
from paddle_mnist.data.dataset import BatchLoader, MnistDataset
from paddle_mnist.device import select_device
from paddle_mnist.errors import ConfigError, DataError
from paddle_mnist.evaluator import EpochEvaluator, evaluate
from paddle_mnist.model import MNIST
from paddle_mnist.optim import build_optimizer, build_schedule, cross_entropy
from paddle_mnist.randomness import reseed
from paddle_mnist.rundir import RunDirectory, find_checkpoint
from paddle_mnist.state import TrainState
from paddle_mnist.trainer import Trainer
from paddle_mnist.writers import (
    BarWriter,
    JsonlWriter,
    LogWriter,
    ManyWriters,
    VisualDLWriter,
    log_to_console,
)

log = logging.getLogger("paddle_mnist")

DEFAULT_OUTPUT = "work/output/default"


@dataclass(frozen=True)
class Result:
    """What a training came to, as `result.json` holds it.

    dataset: "mnist", "digits", or the name of the files. Accuracies are shares, losses nats.
    train_seconds: spent in steps, over all processes of the run; data_seconds: until the images
    were there, in the process that ended it.
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


def train_and_evaluate(config: TrainConfig, fresh: bool = False) -> Result:
    """Train as `config` says, evaluate on the eval split, and give the result.

    The run directory decides what is left to do: an unfinished run is gone on with, a finished
    one's result is given back at once. fresh: move what is there aside and start over.
    Raises any PaddleMnistError.
    """
    log_to_console()
    if int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) > 1:
        raise ConfigError(
            "started as one of several processes; expected one: training is not distributed yet; "
            "start it with plain python"
        )
    device = select_device(config.device)
    started = time.perf_counter()
    data = open_data(config.data)
    data_seconds = time.perf_counter() - started
    parts = _build(config, data)  # what is wrong with the config is said before a file is touched

    with RunDirectory(config.output or DEFAULT_OUTPUT).opened(fresh) as run:
        counts = " / ".join(str(len(data[mode])) for mode in data.splits)
        log.info("data: %s, from %s; %s images", data.name, data.source, counts)
        checkpoint = run.resume_point(config, data.hash)
        if checkpoint and checkpoint.state.epoch == config.epochs:
            found = run.read_result(checkpoint)
            if found:
                result = Result(**found)
                _say(result, run, config)
                log.info("this run is finished; to train anew: --fresh, or another --output")
                return result
        state = _resume(config, parts, checkpoint)
        run.start_history(checkpoint)
        run.write_config(config, data.location)
        run.checkpoints.context.update(_context(config, data, device, run, checkpoint))
        evaluator = EpochEvaluator(
            MnistDataset("valid", data, config.eval_limit), config.eval_every_epochs, config.epochs
        )
        state = _train(config, parts, run, state, evaluator)
        result = _result(config, data, parts.model, state, evaluator, device, data_seconds)
        run.write_result(asdict(result))
        _say(result, run, config)
        return result


@dataclass(frozen=True)
class _Parts:
    """What is trained, by what, on what."""

    model: MNIST
    loader: BatchLoader
    schedule: paddle.optimizer.lr.LRScheduler
    optimizer: paddle.optimizer.Optimizer


def _build(config: TrainConfig, data: Data) -> _Parts:
    paddle.seed(config.seed)
    model = MNIST()
    train_set = MnistDataset("train", data, config.train_limit)
    loader = BatchLoader(train_set, config.batch_size, config.seed, config.shuffle)
    schedule = build_schedule(config, len(loader) * config.epochs)
    return _Parts(model, loader, schedule, build_optimizer(config, model, schedule))


def _resume(config: TrainConfig, parts: _Parts, checkpoint: Optional[Checkpoint]) -> TrainState:
    """The state to go on from, and with it the model, the optimizer and the schedule."""
    if not checkpoint:
        return TrainState()
    state = checkpoint.state
    if state.step != state.epoch * len(parts.loader) + state.position:
        raise ConfigError(
            f"{checkpoint.path}: step {state.step} is number {state.position} of epoch "
            f"{state.epoch + 1}, but an epoch now has {len(parts.loader)} steps; expected as many "
            "as in the run: batch_size, train_limit and the number of images cannot be "
            "overridden; choose another --output"
        )
    load_checkpoint(checkpoint, parts.model, parts.optimizer)
    if config.override:
        parts.schedule.step(state.step)  # the new schedule's rate, not the one that was saved
    log.info("resuming after step %d, from %s", state.step, checkpoint.path)
    return state


def _train(
    config: TrainConfig,
    parts: _Parts,
    run: RunDirectory,
    state: TrainState,
    evaluator: EpochEvaluator,
) -> TrainState:
    writers = [
        LogWriter(config.epochs, len(parts.loader)),
        JsonlWriter(run.metrics),
        BarWriter(len(parts.loader) * config.epochs),
    ]
    if config.visualdl:
        writers.append(VisualDLWriter(run.new_visualdl_folder()))
    writer = ManyWriters(writers)
    trainer = Trainer(
        run.weights,
        parts.model,
        parts.optimizer,
        loss_fn=cross_entropy(config.label_smoothing),
        evaluator=evaluator,
        checkpointer=StoreCheckpointer(run.checkpoints, *_saving(config)),
        writer=writer,
        state=state,
        log_every=config.log_every,
        reseed=functools.partial(reseed, config.seed),
    )
    try:
        return trainer.train(parts.loader, state.epoch, config.epochs)
    finally:
        writer.close()


def _saving(config: TrainConfig) -> tuple[SaveWhen, Keep]:
    """When to save, and what to keep."""
    when = SaveWhen(
        config.epochs, config.save_every_epochs, config.save_every_steps, config.save_every_seconds
    )
    keep = Keep(config.keep_epochs, config.keep_last, config.keep_every_minutes, config.keep_best)
    return when, keep


def _versions() -> dict[str, str]:
    return {
        "paddle": paddle.__version__,
        "numpy": numpy.__version__,
        "package": paddle_mnist.__version__,
    }


def _context(
    config: TrainConfig,
    data: Data,
    device: str,
    run: RunDirectory,
    checkpoint: Optional[Checkpoint],
) -> dict[str, Any]:
    """What every manifest of the run binds beside its state."""
    before = checkpoint.manifest if checkpoint else {}
    if checkpoint and checkpoint.path.resolve().parent == run.checkpoints.folder.resolve():
        run_id, parent = before.get("run_id"), before.get("parent")
    else:  # a new run; with --resume PATH the child of another
        run_id, parent = uuid.uuid4().hex, before.get("run_id")
    return {
        "run_id": run_id,
        "parent": parent,
        "config": config.binding(),
        "dataset": data.name,
        "data_hash": data.hash,
        "device": device,
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "world_size": 1,
        "versions": _versions(),
    }


def _result(config, data, model, state, evaluator, device, data_seconds) -> Result:
    # where nothing was left to train, no validation came with it
    valid = state.metrics or evaluator.after_epoch(state, model)
    found = evaluate(model, MnistDataset("eval", data, config.eval_limit))
    return Result(
        dataset=data.name,
        eval_acc=found.accuracy,
        eval_loss=found.loss,
        valid_acc=valid["valid/acc"],
        valid_loss=valid["valid/loss"],
        epochs=state.epoch,
        steps=state.step,
        params=sum(parameter.size for parameter in model.parameters()),
        seed=config.seed,
        world_size=1,
        device=device,
        train_seconds=round(state.train_seconds, 3),
        data_seconds=round(data_seconds, 3),
        samples_per_second=round(state.samples / state.train_seconds, 1),
        checkpoint=f"mnist_epoch{state.epoch - 1}",
        **_versions(),
    )


def _say(result: Result, run: RunDirectory, config: TrainConfig) -> None:
    note = {"mnist": "MNIST", "digits": "scikit-learn's digits, not MNIST"}
    log.info(
        "eval accuracy %.4f, loss %.4f (%s); trained %d epochs in %.1f s",
        *(result.eval_acc, result.eval_loss, note.get(result.dataset, result.dataset)),
        *(result.epochs, result.train_seconds),
    )
    log.info("weights: %s   everything else: %s", run.weights, run.path)
    if config.visualdl:
        log.info("dashboard: %s", dashboard_command(run.visualdl))


def dashboard_command(folder: Path) -> str:
    """The command that shows a run in VisualDL, as one types it here.

    The language is given because the pages fail for browsers that ask for neither English nor
    Chinese; telemetry is switched off because it is on unasked.
    """
    beside = Path(sys.executable).with_name("visualdl")
    if beside.is_relative_to(Path.cwd()):
        beside = beside.relative_to(Path.cwd())
    program = "visualdl" if shutil.which("visualdl") or not beside.exists() else str(beside)
    options = "--port 8080 --language en --disable-telemetry"
    return f"{shlex.join([program, '--logdir', str(folder)])} {options}"


def evaluate_checkpoint(
    checkpoint: str,
    output: Optional[str] = None,
    data: Optional[str] = None,
    split: str = "eval",
    device: str = "auto",
) -> dict[str, Any]:
    """What a checkpoint makes of a split: `Evaluation.report`, and what was evaluated on what.

    checkpoint: "latest" or "best" of the run at `output`, or the path of a checkpoint or of a bare
        `.pdparams`, such as the tutorial writes.
    output: by default `work/output/default`, or `work/output/digits` where only that is.
    data: by default the run's; "auto" for weights that are not a run's.
    Raises CheckpointError if it is missing, damaged or does not fit the net; DataError, also when
    the run's images are no longer found.
    """
    name, weights, manifest, owner = _weights(checkpoint, output)
    device = select_device(device)
    model = MNIST()
    load_weights(model, weights, name)
    wanted = data or (owner.read_config().data if "config" in manifest else "auto")
    images = open_data(wanted)
    if not data and manifest.get("data_hash") not in (None, images.hash):
        raise DataError(
            f"{images.source}: other images than {name} was trained with; name the ones to "
            "evaluate on with --data"
        )
    report = evaluate(model, MnistDataset(split, images)).report()
    return {"checkpoint": name, "dataset": images.name, "split": split, **report}


def _weights(
    checkpoint: str, output: Optional[str]
) -> tuple[str, dict[str, Any], Mapping[str, Any], RunDirectory]:
    """The name and contents of weights, the manifest they belong to, and the run it is of."""
    path = Path(checkpoint)
    if path.suffix == PARAMS and path.exists() and not path.with_suffix(".json").exists():
        owner = RunDirectory(path.parent)
        newest = owner.checkpoints.all()[-1:]  # of a run's `mnist.pdparams`; else there is none
        return str(path), safe_load(path), newest[0].manifest if newest else {}, owner
    if output is None:
        other = DEFAULT_OUTPUT.replace("default", "digits")
        output = other if Path(other).exists() and not Path(DEFAULT_OUTPUT).exists() else None
    found = find_checkpoint(checkpoint, RunDirectory(output or DEFAULT_OUTPUT))
    owner = RunDirectory(found.path.parent.parent)
    return str(found.path.with_suffix(PARAMS)), found.load(PARAMS), found.manifest, owner
