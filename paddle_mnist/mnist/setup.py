"""Where a training starts: anew, from its own checkpoint, or from what another has learned."""

import hashlib
import json
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

import numpy
import paddle

import paddle_mnist
from paddle_mnist.checkpoint.contents import load_checkpoint, load_weights
from paddle_mnist.checkpoint.manifest import Checkpoint
from paddle_mnist.data.loader import BatchLoader, Replay, no_augmentation
from paddle_mnist.data.sampler import ShardSpec
from paddle_mnist.errors import CheckpointError, ConfigError
from paddle_mnist.mnist.arrays import Data
from paddle_mnist.mnist.augment import Affine
from paddle_mnist.mnist.config import TrainConfig, amounts
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.nn.ema import NO_AVERAGE, ExponentialMovingAverage, WeightAverage
from paddle_mnist.nn.optim import build_optimizer, build_schedule
from paddle_mnist.parallel.process_count import fast_conv_threads
from paddle_mnist.parallel.world import ALONE, World
from paddle_mnist.state import TrainState
from paddle_mnist.training.run_directory import find_weights

log = logging.getLogger("paddle_mnist")

TUTORIAL_BATCHES = {"check_shape": 0, "check_content": 401}  # in which the tutorial prints


@dataclass(frozen=True)
class TrainingParts:
    """What is trained, by what, on what."""

    model: MNIST
    loader: BatchLoader
    schedule: paddle.optimizer.lr.LRScheduler
    optimizer: paddle.optimizer.Optimizer
    average: WeightAverage


def build(
    config: TrainConfig, data: Data, replay: Optional[Data], world: World = ALONE
) -> TrainingParts:
    """The parts as they are before the first step, in one of the processes of `world`."""
    paddle.seed(config.seed)
    several = config.grad_shards or world.size > 1
    model = MNIST()
    model.fast_conv = fast_conv_threads(config)
    model.dropout_rate = config.dropout
    drawn = amounts(config.augment)
    loader = BatchLoader(
        MnistDataset("train", data, config.train_limit),
        config.batch_size,
        config.seed,
        config.shuffle,
        augment=Affine(drawn, config.seed) if drawn else no_augmentation,
        replay=replay and Replay(MnistDataset("train", replay), config.replay_fraction),
        shard_spec=ShardSpec(config.grad_shards or world.size, world.rank, world.size)
        if several
        else None,
        on_device=paddle.device.get_device() != "cpu",
        spec=model.item_spec,
    )
    batches_to_print(config, len(loader) * config.epochs)  # raises, before anything is written
    schedule = build_schedule(config, len(loader) * config.epochs)
    average = ExponentialMovingAverage(model, config.ema) if config.ema else NO_AVERAGE
    return TrainingParts(model, loader, schedule, build_optimizer(config, model, schedule), average)


def batches_to_print(
    config: TrainConfig, total: int, say: Callable[[str], None] = lambda line: None
) -> dict[str, tuple[int, ...]]:
    """The batches in which `check_shape` and `check_content` print, by these names.

    total: the number of batches in the training, over all epochs; batches count from 0. Where no
    number is given, it is the tutorial's; a training without that batch takes its last one, and
    `say` is called with a line about it. Raises ConfigError for a given number that is too large.
    """
    batches, last = {}, total - 1
    for name, usual in TUTORIAL_BATCHES.items():
        numbers = getattr(config, name)
        if numbers is True:
            numbers = (min(usual, last),)
            if usual > last:
                say(f"{name}: no batch {usual} in {total} batches; printing in the last, {last}")
        for number in numbers:
            if number > last:
                raise ConfigError(
                    f"{name} names batch {number}, but this training has {total}, counted from 0; "
                    f"expected one of them, as in --{name} {last}"
                )
        batches[name] = numbers
    return batches


def restore(config: TrainConfig, parts: TrainingParts, checkpoint: Checkpoint) -> TrainState:
    """Put a checkpoint into the parts; gives the state to go on from. Raises CheckpointError."""
    state = checkpoint.state
    if state.step != state.epoch * len(parts.loader) + state.position:
        raise ConfigError(
            f"{checkpoint.path}: step {state.step} is number {state.position} of epoch "
            f"{state.epoch + 1}, but an epoch now has {len(parts.loader)} steps; expected as many "
            "as in the run: batch_size, train_limit and the number of images cannot be "
            "overridden; choose another --output"
        )
    load_checkpoint(checkpoint, parts.model, parts.optimizer, parts.average)
    if config.override:
        parts.schedule.step(state.step)  # the new schedule's rate, not the one that was saved
    log.info("resuming after step %d, from %s", state.step, checkpoint.path)
    return state


def initialize_from_run(
    config: TrainConfig, parts: TrainingParts, world: World = ALONE
) -> Mapping[str, Any]:
    """Put in what another training has learned, if that is asked for; gives its manifest.

    init_from: its weights; incremental_from: its optimizer's state too, but for the rate, whose
    schedule starts anew. Rank 0 reads them, and hands them to the others.
    Raises CheckpointError unless they fit.
    """
    if config.init_from:
        weights = world.run_on_main(lambda: find_weights(config.init_from))
        load_weights(parts.model, weights.values, weights.path)
        manifest = weights.manifest
        log.info("starting from the weights in %s", weights.path)
    elif config.incremental_from:
        checkpoint = world.run_on_main(lambda: _with_optimizer(config.incremental_from))
        load_checkpoint(checkpoint, parts.model, parts.optimizer, schedule=False)
        manifest = checkpoint.manifest
        log.info("starting from the weights and optimizer of %s", checkpoint.path.with_suffix(""))
    else:
        return {}
    parts.average.load(parts.model.state_dict())
    return manifest


def _with_optimizer(name: str) -> Checkpoint:
    """The checkpoint of the weights that a name stands for, in memory. Raises CheckpointError."""
    weights = find_weights(name)
    if not weights.checkpoint:
        raise CheckpointError(
            f"{weights.path}: holds weights alone, and no checkpoint with its optimizer's state is "
            "there; expected a checkpoint, or a run that still has the one it ended with; "
            "--init_from takes weights alone"
        )
    return weights.checkpoint.read_into_memory()


def fingerprint(parts: TrainingParts, state: TrainState) -> str:
    """SHA-256 of all that the next step depends on: weights, optimizer, average, state."""
    digest = hashlib.sha256(json.dumps(state.as_dict(), sort_keys=True).encode())
    for values in (
        parts.model.state_dict(),
        parts.optimizer.state_dict(),
        parts.average.weights(parts.model),
    ):
        for key in sorted(values):
            value = values[key]
            digest.update(value.numpy().tobytes() if hasattr(value, "numpy") else b"")
            digest.update(key.encode() if hasattr(value, "numpy") else f"{key} {value}".encode())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    return {
        "paddle": paddle.__version__,
        "numpy": numpy.__version__,
        "package": paddle_mnist.__version__,
    }


def lineage(own: Optional[Checkpoint], before: Mapping[str, Any]) -> dict[str, Any]:
    """run_id and parent: of the run that goes on from its own checkpoint, else of a new one.

    before: the manifest that a new run comes from, or an empty one.
    """
    if own:
        return {key: own.manifest.get(key) for key in ("run_id", "parent")}
    return {"run_id": uuid.uuid4().hex, "parent": before.get("run_id")}
