"""Train on digits: make the arguments of `fit` from a configuration, and call it."""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Optional

from paddle import nn

from paddle_mnist.checkpoint.run import DEFAULT_OUTPUT
from paddle_mnist.data.loading import Loading
from paddle_mnist.metrics.console import console_level
from paddle_mnist.mnist.augment import Distortion
from paddle_mnist.mnist.config import GROUPS, TrainConfig
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.evaluation import METRICS, summed_cross_entropy
from paddle_mnist.mnist.images import Images, open_data
from paddle_mnist.mnist.incremental import Incremental
from paddle_mnist.mnist.options import distortion_amounts
from paddle_mnist.mnist.report import DigitReport
from paddle_mnist.mnist.training_set import ReplayOrder, TrainingSet
from paddle_mnist.nn.losses import CrossEntropy
from paddle_mnist.system.devices import autocast
from paddle_mnist.training.bundled import Figures
from paddle_mnist.training.callbacks import Callback, FitResult
from paddle_mnist.training.fit import fit
from paddle_mnist.training.steps import SupervisedStep

EVALUATION = SupervisedStep(summed_cross_entropy, METRICS)


def train_and_evaluate(config: TrainConfig, fresh: bool = False, quiet: bool = False) -> FitResult:
    """Train as `config` says, evaluate on its `final_split`, and return the result.

    If the run directory holds an unfinished run, it resumes; if it holds a finished one, its result
    is returned at once. It is `fit(**fit_arguments(config))`. The option `max_restarts` has no
    effect here: the command `train` restarts a run.

    fresh: move an existing run aside, and start over.
    quiet: print warnings only; the run's `train.log` still gets every line.
    Raises any PaddleMnistError.
    """
    with console_level(logging.WARNING if quiet else logging.INFO):
        return fit(**fit_arguments(config), fresh=fresh)


def fit_arguments(config: TrainConfig) -> dict[str, Any]:
    """Return the arguments of `fit` for a run on digits. Raises DataError, ConfigError."""
    started = time.perf_counter()
    images = open_data(config.images.data)
    replayed = open_data(config.images.replay_data) if config.images.replay_data else None
    report = DigitReport(config, images, replayed, time.perf_counter() - started)
    limit = config.images.eval_limit
    valid = {"valid": MnistDataset("valid", images, limit)}
    if replayed:
        valid["replay"] = MnistDataset("valid", replayed, limit)
    train = _training_set(config, images, replayed)
    loading = _loading(config, train)
    samples = len(loading.order(0)) if loading.order else len(train)
    if loading.drop_last:
        samples -= samples % config.batch_size
    steps = -(-samples // (config.batch_size * config.numerics.accumulate))
    total = config.epochs  # advances of the schedule
    if config.numerics.schedule_every == "step":
        total *= loading.steps_per_epoch or steps
        total = min(total, loading.max_steps or total)
    return {
        "model": config.net,
        "train": train,
        "valid": valid,
        "optimizer": replace(config.optimizer, total_steps=total),
        "step": DigitStep(config.loss.label_smoothing, config.numerics.amp),
        "epochs": config.epochs,
        "batch_size": config.batch_size,
        "seed": config.seed,
        "output": config.output or DEFAULT_OUTPUT,
        "name": config.name,
        "monitor": "valid/acc",
        "device": config.device,
        "resume": config.resume,
        "start_epoch": config.start_epoch,
        "override": config.override,
        "must_match": report.must_match,
        "callbacks": [*_callbacks(config), report],
        "saving": config.saving,
        "loading": loading,
        "evaluating": config.evaluating,
        "start": config.start,
        "processes": config.processes,
        "numerics": config.numerics,
    }


class DigitStep:
    """Computes the cross-entropy and the accuracy of a batch, (images, labels)."""

    has_known_mean = True

    def __init__(self, label_smoothing: float = 0.0, amp: str = "off"):
        """label_smoothing, amp: for training steps; see `CrossEntropy` and `autocast`.

        Evaluation measures the cross-entropy with unchanged labels, in float32.
        Raises DeviceError if the device cannot compute with `amp`.
        """
        self._training = SupervisedStep(CrossEntropy(label_smoothing), METRICS, autocast(amp))

    def __call__(self, model: nn.Layer, batch: Any) -> Mapping[str, Any]:
        """Return the loss and the accuracy; see `SupervisedStep`."""
        step = self._training if model.training else EVALUATION
        return step(model, batch)


def _training_set(config: TrainConfig, images: Images, replayed: Optional[Images]) -> TrainingSet:
    amounts = distortion_amounts(config.images.augment)
    return TrainingSet(
        MnistDataset("train", images, config.images.train_limit),
        MnistDataset("train", replayed) if replayed else None,
        Distortion(amounts, config.seed) if amounts else None,
    )


def _callbacks(config: TrainConfig) -> list[Callback]:
    """Return new copies of the groups that are callbacks; `DigitReport` draws the figures."""
    unused = (Figures,) if config.start else (Figures, Incremental)
    return [
        replace(getattr(config, name))
        for name, kind in GROUPS.items()
        if issubclass(kind, Callback) and not issubclass(kind, unused)
    ]


def _loading(config: TrainConfig, train: TrainingSet) -> Loading:
    """Return the options for reading the training images, some of the replayed ones per epoch."""
    if train.replayed is None:
        return config.loading
    order = ReplayOrder(
        len(train.new),
        len(train.replayed),
        config.images.replay_fraction,
        config.seed,
        config.loading.shuffle,
    )
    return replace(config.loading, order=order)
