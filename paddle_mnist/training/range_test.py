"""The range test of the learning rate: train a few steps while it rises, and look at the loss."""

import inspect
import itertools
import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
import paddle
from paddle.optimizer.lr import LambdaDecay

from paddle_mnist.data.seeding import generators_restored
from paddle_mnist.errors import ConfigError
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
from paddle_mnist.training.parts import new_loop, new_state
from paddle_mnist.training.resume import load_start

log = logging.getLogger("paddle_mnist")

SMOOTHING = 0.9  # of the losses: the weight of the earlier ones
MIN_STEPS = 10  # of a useful test
# Arguments of `fit` that do not affect the steps.
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
    """Train some steps with a rising learning rate, to find rates at which the loss falls.

    Afterwards, restores everything: weights, optimizer, data and generators. During the test,
    `is_rehearsal()` is true. Does not use the schedule of the optimizer.

    model, train, arguments: those of `fit`; epochs and output may be missing, and callbacks are not
        called.
    lowest, highest: the first and the last rate; it rises by the same factor in each step.
    steps: the number of steps. The test ends earlier if the smoothed loss exceeds the first one by
        half, or a loss is not finite.
    figure: a path that ends in .png or .svg, to draw the losses there.

    Raises ConfigError for invalid options, and if the loss diverges at once; and the errors of
    `fit` for its arguments.
    """
    path = Path(figure or "rates.png")
    if not (0 < lowest < highest < math.inf and steps >= MIN_STEPS and path.suffix[1:] in KINDS):
        raise ConfigError(
            f"lowest is {lowest}, highest {highest}, steps {steps}, figure {figure!r}; expected "
            f"0 < lowest < highest, at least {MIN_STEPS} steps, and a figure ending in .png or .svg"
        )
    log_to_console()
    kept = {name: value for name, value in arguments.items() if name not in UNUSED}
    bound = inspect.signature(fit).bind(model, train, **{"epochs": 1, "output": ".", **kept})
    bound.apply_defaults()
    device, rates = paddle.device.get_device(), np.geomspace(lowest, highest, steps)
    try:
        with generators_restored(), signals.interruptible():
            fit_arguments = FitArguments(**bound.arguments)
            single = replace(fit_arguments.processes, nprocs=1, gpus=None)
            losses = _losses(build_training(replace(fit_arguments, processes=single)), rates)
    finally:
        paddle.device.set_device(device)
    result = _result(rates, np.array(losses))
    if figure is not None:
        save_figures({path.stem: range_test(**vars(result))}, path.parent, [path.name])
    return result


def _losses(training: Training, rates: np.ndarray) -> list[tuple[float, int]]:
    """Train a step with each rate until the loss diverges, and restore everything.

    Returns the loss and the number of samples of each step.
    """
    inner, loader = training.schedule.optimizer, training.loader
    former = inner._learning_rate  # as `scheduler_of`, which says why
    initial = InitialState(training.model, training.extra, training.average)
    losses: list[tuple[float, int]] = []
    try:
        with rehearsing(), restored(initial):
            if training.arguments.start:
                load_start(training, training.arguments.start)
            inner.set_lr_scheduler(LambdaDecay(1.0, lambda step: rates[min(step, len(rates) - 1)]))
            training.schedule = Schedule(training.optimizer)
            loop = new_loop(training, new_state(training.arguments), ManyWriters([]))
            training.model.train()
            epochs = (loader.epoch(number) for number in itertools.count())
            for batch in itertools.islice(itertools.chain.from_iterable(epochs), len(rates)):
                result = loop.forward_backward_step(batch)
                losses.append((float(result.mean), result.samples))
                first, last = losses[0][0], _smoothed(np.array(losses))[-1]
                if not last <= first + abs(first) / 2:  # or it is NaN
                    break
                loop.optimizer_step(result)
    finally:
        loader.close()
        inner._learning_rate = former
        if isinstance(former, float):
            inner.set_lr(former)  # the tensor that its steps read
    return losses


def _smoothed(losses: np.ndarray) -> np.ndarray:
    """Return running means over samples, in which earlier steps count exponentially less.

    losses: and the number of samples of each step, [N, 2].
    """
    count, weights = len(losses), SMOOTHING ** np.arange(len(losses))
    sums = np.convolve(losses.prod(axis=1), weights)[:count]
    means: np.ndarray = sums / np.convolve(losses[:, 1], weights)[:count]
    return means


def _result(rates: np.ndarray, losses: np.ndarray) -> RangeTest:
    """Return the result; raise ConfigError if the loss diverged at once."""
    if len(losses) < MIN_STEPS:
        raise ConfigError(
            f"the loss diverges at once: {', '.join(f'{loss:.4g}' for loss in losses[:, 0])} at "
            f"learning rates from {rates[0]:.3g} to {rates[len(losses) - 1]:.3g}; expected a lower "
            "`lowest`, or inputs and a loss of the usual size"
        )
    losses = losses[np.isfinite(losses[:, 0])]  # only the last may not be finite
    rates, smoothed = rates[: len(losses)], _smoothed(losses)
    end = int(smoothed.argmin())
    slopes = np.gradient(smoothed)[MIN_STEPS : end + 1]  # the first means average few losses
    falls = len(slopes) > 0 and slopes.min() < 0
    suggestion = float(rates[MIN_STEPS + slopes.argmin()]) if falls else None
    log.info(
        "range test of the learning rate: %d steps, from %.3g to %.3g; the smoothed loss is lowest "
        "at %.3g%s",
        len(rates),
        rates[0],
        rates[-1],
        rates[end],
        f", and falls the fastest at {suggestion:.3g}" if suggestion else "; it does not fall",
    )
    return RangeTest(rates, losses[:, 0], smoothed, suggestion)
