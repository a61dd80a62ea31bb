"""`train_and_evaluate`: the only place where the concrete parts meet."""

import logging
import os
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

import numpy
import paddle

import paddle_mnist
from paddle_mnist.checkpoint.checkpointer import EpochCheckpointer
from paddle_mnist.checkpoint.contents import load_checkpoint, load_weights
from paddle_mnist.checkpoint.policy import EveryEpochs
from paddle_mnist.checkpoint.safe_load import safe_load
from paddle_mnist.checkpoint.store import PARAMS, Checkpoint
from paddle_mnist.config import TrainConfig
from paddle_mnist.data import Data, open_data
from paddle_mnist.data.dataset import BatchLoader, MnistDataset
from paddle_mnist.device import select_device
from paddle_mnist.errors import ConfigError
from paddle_mnist.evaluator import EpochEvaluator, evaluate
from paddle_mnist.model import MNIST
from paddle_mnist.optim import build_optimizer, build_schedule, cross_entropy
from paddle_mnist.rundir import RunDirectory, find_checkpoint
from paddle_mnist.state import TrainState
from paddle_mnist.trainer import Trainer
from paddle_mnist.writers import (
    BarWriter,
    JsonlWriter,
    LogWriter,
    ManyWriters,
    VisualDLWriter,
    cut_jsonl,
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
    if int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) > 1:
        raise ConfigError(
            "started as one of several processes; expected one: training is not distributed yet; "
            "start it with plain python"
        )
    device = select_device(config.device)
    started = time.perf_counter()
    data = open_data(config.data)
    data_seconds = time.perf_counter() - started

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
        run.write_config(config)
        model, state = _train(config, data, run, checkpoint, device)
        result = _result(config, data, model, state, device, data_seconds)
        run.write_result(asdict(result))
        _say(result, run, config)
        return result


def _train(
    config: TrainConfig,
    data: Data,
    run: RunDirectory,
    checkpoint: Optional[Checkpoint],
    device: str,
) -> tuple[MNIST, TrainState]:
    paddle.seed(config.seed)
    model = MNIST()
    train_set = MnistDataset("train", data, config.train_limit)
    valid_set = MnistDataset("valid", data, config.eval_limit)
    loader = BatchLoader(train_set, config.batch_size, config.seed, config.shuffle)
    total_steps = len(loader) * config.epochs
    schedule = build_schedule(config, total_steps)
    optimizer = build_optimizer(config, model, schedule)

    state = TrainState()
    if checkpoint:
        load_checkpoint(checkpoint, model, optimizer)
        state = checkpoint.state
        if config.override:
            schedule.step(state.step)  # the rate of the new schedule, not the one that was saved
        log.info("resuming after epoch %d, from %s", state.epoch, checkpoint.path)
    cut_jsonl(run.metrics, state.step)

    writers = [
        LogWriter(config.epochs, len(loader)),
        JsonlWriter(run.metrics),
        BarWriter(total_steps),
    ]
    if config.visualdl:
        writers.append(VisualDLWriter(run.new_visualdl_folder()))
    writer = ManyWriters(writers)
    run.checkpoints.context.update(_context(config, data, device))
    trainer = Trainer(
        run.weights,
        model,
        optimizer,
        loss_fn=cross_entropy(config.label_smoothing),
        evaluator=EpochEvaluator(valid_set, config.eval_every_epochs, config.epochs),
        checkpointer=EpochCheckpointer(
            run.checkpoints, EveryEpochs(config.save_every_epochs, config.epochs)
        ),
        writer=writer,
        state=state,
        log_every=config.log_every,
    )
    try:
        trainer.train(loader, state.epoch, config.epochs)
    finally:
        writer.close()
    return model, state


def _versions() -> dict[str, str]:
    return {
        "paddle": paddle.__version__,
        "numpy": numpy.__version__,
        "package": paddle_mnist.__version__,
    }


def _context(config: TrainConfig, data: Data, device: str) -> dict[str, Any]:
    """What every manifest of the run binds beside its state."""
    return {
        "config": config.binding(),
        "dataset": data.name,
        "data_hash": data.hash,
        "device": device,
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "world_size": 1,
        "versions": _versions(),
    }


def _result(config, data, model, state, device, data_seconds) -> Result:
    found = evaluate(model, MnistDataset("eval", data, config.eval_limit))
    return Result(
        dataset=data.name,
        eval_acc=found.accuracy,
        eval_loss=found.loss,
        valid_acc=state.metrics["valid/acc"],
        valid_loss=state.metrics["valid/loss"],
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
    program = "visualdl" if shutil.which("visualdl") or not beside.exists() else str(beside)
    return f"{program} --logdir {folder} --port 8080 --language en --disable-telemetry"


def evaluate_checkpoint(
    checkpoint: str,
    output: str = DEFAULT_OUTPUT,
    data: Optional[str] = None,
    split: str = "eval",
    device: str = "auto",
) -> dict[str, Any]:
    """What a checkpoint makes of a split: `Evaluation.report`, and what was evaluated on what.

    checkpoint: "latest" or "best" of the run at `output`, or the path of a checkpoint or of a bare
        `.pdparams`, such as the tutorial writes.
    data: by default the run's, or "auto" where there is none.
    Raises CheckpointError if it is missing, damaged or does not fit the net; DataError.
    """
    run = RunDirectory(output)
    path = Path(checkpoint)
    if path.suffix == PARAMS and path.exists() and not path.with_suffix(".json").exists():
        name, weights, trained_on = str(path), safe_load(path), None
    else:
        found = find_checkpoint(checkpoint, run)
        name, weights = str(found.path.with_suffix(PARAMS)), found.load(PARAMS)
        trained_on = found.manifest.get("data_hash")
        owner = RunDirectory(found.path.parent.parent)
        if data is None and owner.config.exists():
            data = owner.read_config().data
    device = select_device(device)
    model = MNIST()
    load_weights(model, weights, name)
    images = open_data(data or "auto")
    if trained_on not in (None, images.hash):
        log.warning("%s was trained on other data than %s", name, images.source)
    report = evaluate(model, MnistDataset(split, images)).report()
    return {"checkpoint": name, "dataset": images.name, "split": split, **report}
