"""Build the parts of a training on digits from its configuration."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Optional

import paddle

from paddle_mnist.checkpoint.policy import RetentionPolicy, SavePolicy
from paddle_mnist.data.loader import BatchLoader, Replay, no_augmentation
from paddle_mnist.data.sampler import ShardSpec
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.arrays import Data
from paddle_mnist.mnist.augment import Affine
from paddle_mnist.mnist.cache import open_data
from paddle_mnist.mnist.config import TrainConfig, amounts
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.mnist.pretrained import find_weights
from paddle_mnist.nn.ema import NO_AVERAGE, ExponentialMovingAverage
from paddle_mnist.nn.optim import build_optimizer, build_schedule, cross_entropy
from paddle_mnist.nn.schedule import Schedule
from paddle_mnist.parallel.process_count import fast_conv_threads
from paddle_mnist.parallel.world import ALONE, World
from paddle_mnist.system.devices import autocast
from paddle_mnist.training.evaluator import EpochEvaluator
from paddle_mnist.training.initialize import TrainingParts
from paddle_mnist.training.resume import ResumeRequest
from paddle_mnist.training.session import TrainingJob, TrainingOptions
from paddle_mnist.training.steps import SupervisedStep, num_correct

log = logging.getLogger("paddle_mnist")

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

    def log_counts(self) -> None:
        """Log where the images come from, and how many there are of each split."""
        for name, images in (("data", self.new), ("replayed", self.replayed)):
            if images:
                counts = " / ".join(str(len(images[mode])) for mode in images.splits)
                log.info("%s: %s, from %s; %s images", name, images.name, images.source, counts)


def build(
    config: TrainConfig, data: Data, replay: Optional[Data], world: World = ALONE
) -> TrainingParts:
    """Build the parts as they are before the first step, in one of the processes of `world`."""
    paddle.seed(config.seed)
    model = MNIST()
    model.fast_conv = fast_conv_threads(config)
    model.dropout_rate = config.dropout
    affine = amounts(config.augment)
    is_sharded = config.grad_shards or world.size > 1
    shards = ShardSpec(config.grad_shards or world.size, world.rank, world.size)
    loader = BatchLoader(
        MnistDataset("train", data, config.train_limit),
        config.batch_size,
        config.seed,
        config.shuffle,
        augment=Affine(affine, config.seed) if affine else no_augmentation,
        replay=replay and Replay(MnistDataset("train", replay), config.replay_fraction),
        shard_spec=shards if is_sharded else None,
        on_device=paddle.device.get_device() != "cpu",
        spec=model.item_spec,
    )
    total_steps = len(loader) * config.epochs
    batches_to_print(config, total_steps)  # raises, before anything is written
    optimizer = build_optimizer(config, model, build_schedule(config, total_steps))
    average = ExponentialMovingAverage(model, config.ema) if config.ema else NO_AVERAGE
    return TrainingParts(model, loader, Schedule(optimizer), optimizer, average)


def build_job(
    config: TrainConfig, images: TrainingImages, world: World, device: str
) -> TrainingJob:
    """Build everything that this process trains with. Raises before any file is touched."""
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
    return TrainingJob(
        parts=parts,
        options=training_options(config, len(parts.loader) * config.epochs),
        evaluator=evaluator,
        step=SupervisedStep(
            cross_entropy(config.label_smoothing), {"acc": num_correct}, autocast(config.amp)
        ),
        world=world,
        device=device,
        request=ResumeRequest(
            resume=config.resume,
            epochs=config.epochs,
            config=config.binding(),
            hashes=images.hashes,
            override=config.override,
            # A field that is younger than a run had its default, or what there was before it.
            defaults=TrainConfig(fast_conv="off").binding(),
        ),
        config=_lasting(config, images).as_yaml(),
        manifest={**images.hashes, "config": config.binding(), "dataset": images.new.name},
        find_weights=find_weights,
    )


def _lasting(config: TrainConfig, images: TrainingImages) -> TrainConfig:
    """Return the configuration of a run: its data by where they are, nothing of this one start."""
    replay_data = images.replayed and images.replayed.location
    return replace(
        config, data=images.new.location, replay_data=replay_data, resume="auto", override=()
    )


def training_options(config: TrainConfig, total_steps: int) -> TrainingOptions:
    """Return the options of the engine that a configuration stands for."""
    batches = batches_to_print(config, total_steps)
    return TrainingOptions(
        epochs=config.epochs,
        seed=config.seed,
        grad_shards=config.grad_shards,
        init_from=config.init_from,
        incremental_from=config.incremental_from,
        new_schedule=bool(config.override),
        ends_with_best=bool(config.early_stop_patience),
        save_policy=SavePolicy(
            every_epochs=config.save_every_epochs,
            every_steps=config.save_every_steps,
            every_seconds=config.save_every_seconds,
            on_error=config.save_on_exception,
            on_best=config.keep_best,
        ),
        retention=RetentionPolicy(
            epochs=config.keep_epochs,
            last=config.keep_last,
            every_minutes=config.keep_every_minutes,
            best=config.keep_best,
            breakpoints=config.keep_breakpoints,
        ),
        log_every=config.log_every,
        watch=config.watch,
        print_shapes=batches["check_shape"],
        print_contents=batches["check_content"],
        profile=config.profile,
        visualdl=config.visualdl,
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
