"""What a training on digits gives to `fit`: builders and datasets, made from its configuration."""

import time
from dataclasses import replace
from typing import Any

from paddle_mnist.checkpoint.run_files import DEFAULT_OUTPUT
from paddle_mnist.data.loader import BatchLoader, Replay, no_augmentation
from paddle_mnist.mnist.augment import Distortion
from paddle_mnist.mnist.cache import open_data
from paddle_mnist.mnist.config import TrainConfig, amounts
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.run_report import DigitReport
from paddle_mnist.mnist.step import DigitStep
from paddle_mnist.training.standard_callbacks import Figures


def parts(config: TrainConfig) -> dict[str, Any]:
    """Return the arguments of `fit` for a training on digits. Raises DataError, ConfigError."""
    started = time.perf_counter()
    images = open_data(config.images.data)
    replayed = open_data(config.images.replay_data) if config.images.replay_data else None
    report = DigitReport(config, images, replayed, time.perf_counter() - started)
    limit = config.images.eval_limit
    valid = {"valid": MnistDataset("valid", images, limit)}
    if replayed:
        valid["replay"] = MnistDataset("valid", replayed, limit)
    train = training_set(config, images, replayed)
    steps = -(-len(train) // config.numerics.accumulate)
    return {
        "model": config.net,
        "train": train,
        "valid": valid,
        "optimizer": replace(config.optimizer, total_steps=steps * config.epochs),
        "step": DigitStep(config.loss.label_smoothing, config.numerics.amp),
        "epochs": config.epochs,
        "batch_size": config.batch_size,
        "seed": config.seed,
        "output": config.output or DEFAULT_OUTPUT,
        "monitor": "valid/acc",
        "device": config.device,
        "resume": config.resume,
        "override": config.override,
        "must_match": report.must_match,
        "callbacks": [
            replace(config.early_stopping),
            replace(config.watch),
            replace(config.profile),
            replace(config.print_layers),
            replace(config.visualdl),
            replace(config.console),
            Figures(draw=False),  # the report's show more
            report,
        ],
        "saving": config.saving,
        "loading": config.loading,
        "evaluating": config.evaluating,
        "start": config.start,
        "processes": config.processes,
        "numerics": config.numerics,
    }


def training_set(config, images, replayed):
    options = config.images
    distortion = amounts(options.augment)
    return BatchLoader(
        MnistDataset("train", images, options.train_limit),
        config.batch_size,
        config.seed,
        config.loading.shuffle,
        augment=Distortion(distortion, config.seed) if distortion else no_augmentation,
        replay=replayed and Replay(MnistDataset("train", replayed), options.replay_fraction),
    )
