"""The range test of the learning rate: train a few steps while it rises, and look at the loss."""

import inspect
import itertools
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
import paddle
from paddle.optimizer.lr import LRScheduler

from paddle_mnist.data.seeding import generators_restored
from paddle_mnist.errors import ConfigError
from paddle_mnist.hidden_state.snapshot import data_snapshot
from paddle_mnist.interfaces import Loader
from paddle_mnist.metrics.console import log_to_console
from paddle_mnist.metrics.writers import ManyWriters
from paddle_mnist.nn.schedule import Schedule
from paddle_mnist.plots.curves import range_test
from paddle_mnist.plots.figure import KINDS, save_figures
from paddle_mnist.system import signals
from paddle_mnist.training.arguments import FitArguments
from paddle_mnist.training.build import build_training
from paddle_mnist.training.callbacks import Training, rehearsing
from paddle_mnist.training.fit import fit
from paddle_mnist.training.initial_state import InitialState, restored
from paddle_mnist.training.initialize import initialize
from paddle_mnist.training.parts import new_loop, new_state

log = logging.getLogger("paddle_mnist")

SMOOTHING = 0.9  # of the losses: the weight of the earlier ones
DIVERGED = 1.5  # times the first loss
LEAST = 10  # steps of a test that says anything
UNUSED = ("callbacks", "fresh", "must_match", "override", "resume", "saving", "start_epoch")


@dataclass(frozen=True)
class RangeTest:
    """The result of a range test.

    rates: the learning rate of each step. losses: that of the step's batch, before its update.
    smoothed: the losses, averaged over about ten steps.
    suggestion: the rate at which the smoothed loss falls the fastest; None if it does not fall.
    """

    rates: np.ndarray
    losses: np.ndarray
    smoothed: np.ndarray
    suggestion: Optional[float]


def find_learning_rate(
    model: Any,
    train: Any,
    *,
    lowest: float = 1e-6,
    highest: float = 10.0,
    steps: int = 100,
    figure: Union[str, Path, None] = None,
    **arguments: Any,
) -> RangeTest:
    """Train some steps with a rising learning rate, to see which rates the loss falls with.

    Everything is then restored: weights, optimizer, data and generators. `is_rehearsal()` is true
    meanwhile. The schedule of the optimizer is not used.

    model, train, arguments: those of `fit`; epochs, output, callbacks and others that do not affect
        the first steps may be missing.
    lowest, highest: the first and the last rate; it rises by the same factor in each step.
    steps: how many. The test ends before, once the smoothed loss exceeds the first one by half, or
        a loss is not finite.
    figure: a path that ends in .png or .svg, to draw the losses there.

    Raises ConfigError for options that are not possible, and if the loss diverges at once; the
    errors of `fit` for the model, the data and others.
    """
    if not (0 < lowest < highest < math.inf and steps >= LEAST):
        raise ConfigError(
            f"lowest is {lowest}, highest {highest}, steps {steps}; expected 0 < lowest < highest, "
            f"and at least {LEAST} steps"
        )
    path = None if figure is None else Path(figure)
    if path and path.suffix[1:] not in KINDS:
        raise ConfigError(f"figure is {str(path)!r}; expected a name that ends in .png or .svg")
    log_to_console()
    kept = {name: value for name, value in arguments.items() if name not in UNUSED}
    bound = inspect.signature(fit).bind(model, train, **{"epochs": 1, "output": ".", **kept})
    bound.apply_defaults()
    device = paddle.device.get_device()
    rates = np.geomspace(lowest, highest, steps)
    try:
        with generators_restored(), signals.interruptible():
            given = FitArguments(**bound.arguments)
            single = replace(given.processes, nprocs=1, gpus=None)
            losses, samples = _losses(build_training(replace(given, processes=single)), rates)
    finally:
        paddle.device.set_device(device)
    result = _result(rates[: len(losses)], np.array(losses), np.array(samples))
    if path:
        save_figures({path.stem: range_test(**vars(result))}, path.parent, [path.name])
    return result


class _Rates(LRScheduler):
    """A schedule that returns given rates."""

    def __init__(self, rates: np.ndarray):
        self.rates = rates
        super().__init__()

    def get_lr(self) -> float:
        return float(self.rates[min(self.last_epoch, len(self.rates) - 1)])


def _losses(training: Training, rates: np.ndarray) -> tuple[list[float], list[int]]:
    """Train a step with each rate until the loss diverges, and restore everything.

    Returns the loss and the number of samples of each step.
    """
    inner = training.schedule.optimizer
    former = inner._learning_rate  # as `scheduler_of`, which says why
    initial = InitialState(training.model, training.extra, training.average)
    losses: list[float] = []
    samples: list[int] = []
    try:
        with rehearsing(), restored(data_snapshot(training.extra.data)), restored(initial):
            if training.arguments.start:
                initialize(training, training.arguments.start)
            inner.set_lr_scheduler(_Rates(rates))
            training.schedule = Schedule(training.optimizer)
            loop = new_loop(training, new_state(training.arguments), ManyWriters([]))
            training.model.train()
            for batch in itertools.islice(_batches(training.loader), len(rates)):
                result = loop.forward_backward_step(batch)
                losses.append(float(result.mean))
                samples.append(result.samples)
                if _has_diverged(losses, samples):
                    break
                loop.optimizer_step(result)
    finally:
        training.loader.close()
        inner._learning_rate = former
        if isinstance(former, float):
            inner.set_lr(former)  # the tensor that its steps read
    return losses, samples


def _batches(loader: Loader) -> Iterator[Any]:
    for epoch in itertools.count():
        yield from loader.epoch(epoch)


def _smoothed(losses: Any, samples: Any) -> np.ndarray:
    """Return running means over samples, in which earlier steps count exponentially less."""
    count, weights = len(losses), SMOOTHING ** np.arange(len(losses))
    sums = np.convolve(np.multiply(losses, samples), weights)[:count]
    means: np.ndarray = sums / np.convolve(samples, weights)[:count]
    return means


def _has_diverged(losses: list[float], samples: list[int]) -> bool:
    if not math.isfinite(losses[-1]):
        return True
    first = losses[0]
    return bool(_smoothed(losses, samples)[-1] > first + (DIVERGED - 1) * abs(first))


def _result(rates: np.ndarray, losses: np.ndarray, samples: np.ndarray) -> RangeTest:
    """Return the result; raise ConfigError if the loss diverged at once."""
    if len(losses) < LEAST:
        raise ConfigError(
            f"the loss diverges at once: {', '.join(f'{loss:.4g}' for loss in losses)} at learning "
            f"rates from {rates[0]:.3g} to {rates[-1]:.3g}; expected a lower `lowest`, or inputs "
            "and a loss of usual size"
        )
    finite = np.isfinite(losses)
    rates, losses = rates[finite], losses[finite]
    smoothed = _smoothed(losses, samples[finite])
    end = int(smoothed.argmin())
    slopes = np.gradient(smoothed)[LEAST : end + 1]  # the first means are of few losses
    falls = len(slopes) > 0 and slopes.min() < 0
    suggestion = float(rates[LEAST + slopes.argmin()]) if falls else None
    log.info(
        "range test of the learning rate: %d steps, from %.3g to %.3g; the smoothed loss is lowest "
        "at %.3g%s",
        len(rates),
        rates[0],
        rates[-1],
        rates[end],
        f", and falls the fastest at {suggestion:.3g}" if suggestion else "; it does not fall",
    )
    return RangeTest(rates, losses, smoothed, suggestion)
