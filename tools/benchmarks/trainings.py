"""Trainings on digits: the configuration of a recipe, batches without end, and timed runs."""

import itertools
from collections.abc import Iterator
from typing import Any

from benchmarks.timing import PartTimer
from paddle_mnist.mnist.config import TrainConfig, read_recipe


def config_of(recipe: str, **changes: Any) -> TrainConfig:
    """Return the configuration of a recipe, with these changes."""
    return TrainConfig.from_mapping({**read_recipe(recipe), **changes})


def endless_batches(loader) -> Iterator:
    """Yield the batches of one epoch after the other."""

    for epoch in itertools.count():
        yield from loader.epoch(epoch)


def timed_training(config: TrainConfig) -> dict[str, list[float]]:
    """Train, and return the seconds of each part of each step, and of the "step" with its batch."""
    from paddle_mnist import Callback

    timer = PartTimer()

    class Timing(Callback):
        def profiler(self) -> PartTimer:
            return timer

    train(config, Timing())
    return timer.seconds


def train(config: TrainConfig, *callbacks: Any, **arguments: Any) -> None:
    """Train with `fit`, with callbacks besides those of the configuration."""
    from paddle_mnist import fit
    from paddle_mnist.mnist.setup import parts

    given = {**parts(config), **arguments}
    fit(**{**given, "callbacks": [*given["callbacks"], *callbacks]})
