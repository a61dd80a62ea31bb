"""Build the parts of a training on digits from its configuration."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Optional

import paddle

from paddle_mnist.data.loader import BatchLoader
from paddle_mnist.data.sampler import ShardSpec
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.arrays import Data
from paddle_mnist.mnist.augment import Distortion
from paddle_mnist.mnist.cache import open_data
from paddle_mnist.mnist.config import TrainConfig, amounts
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.mnist.training_set import ReplayOrder, TrainingSet
from paddle_mnist.nn.cross_entropy import CrossEntropy
from paddle_mnist.nn.ema import NO_AVERAGE, ExponentialMovingAverage
from paddle_mnist.nn.optim import build_optimizer, build_schedule
from paddle_mnist.nn.schedule import Schedule
from paddle_mnist.parallel.process_count import fast_conv_threads
from paddle_mnist.parallel.world import ALONE, World
from paddle_mnist.system.devices import autocast
from paddle_mnist.training.arguments import RunConfig
from paddle_mnist.training.evaluator import EpochEvaluator
from paddle_mnist.training.initialize import TrainingParts
from paddle_mnist.training.steps import SupervisedStep, num_correct

log = logging.getLogger("paddle_mnist")

# The fields of a configuration that `fit` takes as they are.
PASSED_ON = (
    "epochs batch_size seed ema resume override init_from init_partial incremental_from "
    "save_every_epochs save_every_steps save_every_seconds save_on_exception keep_epochs keep_last "
    "keep_every_minutes keep_best keep_breakpoints early_stop_patience log_every watch profile "
    "visualdl grad_shards hang_timeout"
).split()
TUTORIAL_BATCHES = {"check_shape": 0, "check_content": 401}  # in which the tutorial prints


@dataclass(frozen=True)
class TrainingImages:
    """The images of a training, and those of an earlier one that are replayed, or None."""

    new: Data
    replayed: Optional[Data] = None

    @classmethod
    def open(cls, config: TrainConfig) -> "TrainingImages":
        """Open, and if need be fetch and cache, what a configuration names. Raises DataError."""
        replayed = open_data(config.replay_data) if config.replay_data else None
        return cls(open_data(config.data), replayed)

    @property
    def hashes(self) -> dict[str, Optional[str]]:
        """The entries of a manifest that bind the contents, wherever they come from."""
        return {"data_hash": self.new.hash, "replay_hash": self.replayed and self.replayed.hash}

    def dataset(self, mode: str, limit: Optional[int] = None) -> MnistDataset:
        """Return a split of the training's own images."""
        return MnistDataset(mode, self.new, limit)

    def replay_dataset(self, mode: str, limit: Optional[int] = None) -> Optional[MnistDataset]:
        """Return a split of the replayed images; None where there are none."""
        return MnistDataset(mode, self.replayed, limit) if self.replayed else None

    def descriptions(self, config: TrainConfig) -> list[str]:
        """Return lines that say where the images come from, and how many of each split are used."""
        lines = []
        for name, images in (("data", self.new), ("replayed", self.replayed)):
            if images:
                train_limit = config.train_limit if images is self.new else None
                counts = []
                for mode in images.splits:
                    limit = train_limit if mode == "train" else config.eval_limit
                    used, available = len(MnistDataset(mode, images, limit)), len(images[mode])
                    counts.append(f"{used} of {available}" if used < available else f"{available}")
                line = f"{name}: {images.name}, from {images.source}; {' / '.join(counts)} images"
                lines.append(line)
        return lines


def build(
    config: TrainConfig, data: Data, replay: Optional[Data], world: World = ALONE
) -> TrainingParts:
    """Build the parts as they are before the first step, in one of the processes of `world`."""
    paddle.seed(config.seed)
    model = MNIST()
    model.fast_conv = fast_conv_threads(config)
    model.dropout_rate = config.dropout
    is_sharded = config.grad_shards or world.size > 1
    shards = ShardSpec(config.grad_shards or world.size, world.rank, world.size)
    loader = BatchLoader(
        training_set(config, data, replay),
        config.batch_size,
        config.seed,
        config.shuffle,
        order=replay_order(config, data, replay) if replay else None,
    ).sharded(shards if is_sharded else None)
    total_steps = len(loader) * config.epochs
    batches_to_print(config, total_steps)  # raises, before anything is written
    optimizer = build_optimizer(config, model, build_schedule(config, total_steps))
    average = ExponentialMovingAverage(model, config.ema) if config.ema else NO_AVERAGE
    return TrainingParts(model, loader, Schedule(optimizer), optimizer, average)


def training_set(config: TrainConfig, data: Data, replay: Optional[Data] = None) -> TrainingSet:
    """Return the images that a configuration trains on, those to be replayed after the new ones."""
    distortion = amounts(config.augment)
    return TrainingSet(
        MnistDataset("train", data, config.train_limit),
        MnistDataset("train", replay) if replay else None,
        Distortion(distortion, config.seed) if distortion else None,
    )


def replay_order(config: TrainConfig, data: Data, replay: Data) -> ReplayOrder:
    """Return the order of the images of `training_set`, of which some of the old are replayed."""
    return ReplayOrder(
        len(MnistDataset("train", data, config.train_limit)),
        len(MnistDataset("train", replay)),
        config.replay_fraction,
        config.seed,
        config.shuffle,
    )


def fit_arguments(
    config: TrainConfig, images: TrainingImages, world: World = ALONE
) -> dict[str, Any]:
    """Return the arguments of `fit` for a training on digits, but for its output and device.

    Raises before any file is touched.
    """
    parts = build(config, images.new, images.replayed, world)
    validation = {"valid": images.dataset("valid", config.eval_limit)}
    if images.replayed:
        validation["replay"] = images.replay_dataset("valid", config.eval_limit)
    evaluator = EpochEvaluator(
        validation,
        every_epochs=config.eval_every_epochs,
        epochs=config.epochs,
        patience=config.early_stop_patience,
        world=world,
    )
    step = SupervisedStep(
        CrossEntropy(config.label_smoothing), {"acc": num_correct}, autocast(config.amp)
    )
    return {
        "model": parts.model,
        "optimizer": parts.optimizer,
        "train": parts.loader,
        "step": step,
        "evaluator": evaluator,
        "monitor": "valid/acc",
        "config": _run_config(config, images),
        "soften": "fc" if config.incremental_from and config.soften else None,
        "save_initial": False,  # the initial weights follow from the seed
        "figures": False,  # MnistReport's show more
        **batches_to_print(config, len(parts.loader) * config.epochs),
        **{name: getattr(config, name) for name in PASSED_ON},
    }


def _run_config(config: TrainConfig, images: TrainingImages) -> RunConfig:
    return RunConfig(
        binding=config.binding(),
        text=_lasting(config, images).as_yaml(),
        manifest={**images.hashes, "config": config.binding(), "dataset": images.new.name},
        hashes=images.hashes,
        # A field that is younger than a run had its default, or what there was before it.
        defaults=TrainConfig(fast_conv="off").binding(),
    )


def _lasting(config: TrainConfig, images: TrainingImages) -> TrainConfig:
    """Return the configuration of a run: its data by where they are, nothing of this one start."""
    replay_data = images.replayed and images.replayed.location
    return replace(
        config, data=images.new.location, replay_data=replay_data, resume="auto", override=()
    )


def batches_to_print(
    config: TrainConfig, total: int, report: Callable[[str], None] = lambda line: None
) -> dict[str, tuple[int, ...]]:
    """Return the batches in which `check_shape` and `check_content` print, by these names.

    total: the number of batches in the training, over all epochs; batches count from 0. An option
    without numbers stands for the tutorial's batch; a training that does not have it prints in its
    last one, and `report` is called with a line about that.
    Raises ConfigError for a number that is too large.
    """
    batches, last = {}, total - 1
    for name, usual in TUTORIAL_BATCHES.items():
        numbers = getattr(config, name)
        if numbers is True:
            numbers = (min(usual, last),)
            if usual > last:
                report(f"{name}: no batch {usual} in {total} batches; printing in the last, {last}")
        for number in numbers:
            if number > last:
                raise ConfigError(
                    f"{name} names batch {number}, but this training has {total}, counted from 0; "
                    f"expected one of them, as in --{name} {last}"
                )
        batches[name] = numbers
    return batches
