"""When the learning-rate schedule of an optimizer is stepped, and what of it is saved."""

from collections.abc import Mapping
from typing import Any, Optional

import paddle
from paddle.optimizer import lr

from paddle_mnist.errors import ConfigError

EVERY = ("step", "epoch")


class Schedule:
    """Steps the learning-rate schedule of an optimizer; does nothing where the rate is a number.

    every: "step" or "epoch".
    monitor: the metric that a `ReduceOnPlateau` is given, after each evaluation, whatever `every`
        says. Raises ConfigError if it needs one and there is none.
    needs_metric: (attribute) whether the schedule is stepped with a metric.
    """

    def __init__(
        self,
        optimizer: paddle.optimizer.Optimizer,
        every: str = "step",
        monitor: Optional[str] = None,
    ):
        if every not in EVERY:
            raise ConfigError(f"schedule_every is {every!r}; expected {' or '.join(EVERY)}")
        self.every = every
        self.monitor = monitor
        self.scheduler = scheduler_of(optimizer)
        self.needs_metric = isinstance(self.scheduler, lr.ReduceOnPlateau)
        if self.needs_metric and monitor is None:
            raise ConfigError(
                "the schedule is a ReduceOnPlateau, which is stepped with a metric; expected one "
                "that is a function of the step, or the name of a metric to monitor"
            )

    def after_step(self) -> None:
        """Step the schedule if it is stepped after every optimizer step."""
        if self.scheduler and self.every == "step" and not self.needs_metric:
            self.scheduler.step()

    def after_epoch(self, metrics: Mapping[str, float]) -> None:
        """Step the schedule if it is stepped after every epoch, or its metric was evaluated.

        metrics: of the epoch's evaluation; empty if there was none.
        """
        if self.needs_metric:
            if self.monitor in metrics:
                self.scheduler.step(metrics[self.monitor])
        elif self.scheduler and self.every == "epoch":
            self.scheduler.step()

    def move_to(self, step: int, epoch: int) -> None:
        """Take the learning rate that the schedule has after so many steps and epochs.

        It must not need a metric.
        """
        if self.scheduler:
            self.scheduler.step(step if self.every == "step" else epoch)


def schedule_numbers(optimizer: paddle.optimizer.Optimizer) -> dict[str, Any]:
    """Return all numbers of an optimizer's schedule, by name; {} if it has none.

    They are saved beside the schedule's `state_dict`, which leaves some out that change: `T_cur`
    and `T_i` of CosineAnnealingWarmRestarts (Paddle 3.3.1). Before the first step they are its
    arguments.
    """
    scheduler = scheduler_of(optimizer)
    return _numbers(scheduler) if scheduler else {}


def load_schedule_numbers(
    optimizer: paddle.optimizer.Optimizer, numbers: Mapping[str, Any]
) -> None:
    """Continue an optimizer's schedule from what `schedule_numbers` returned."""
    _set_numbers(scheduler_of(optimizer), numbers)


def scheduler_of(optimizer: paddle.optimizer.Optimizer) -> Optional[lr.LRScheduler]:
    """Return the schedule an optimizer was built with, or None if its rate is a number."""
    # Paddle has no public way to ask; its own hapi.Model reads this attribute too.
    schedule = optimizer._learning_rate
    return schedule if isinstance(schedule, lr.LRScheduler) else None


def _numbers(scheduler: lr.LRScheduler) -> dict[str, Any]:
    numbers = {}
    for name, value in sorted(vars(scheduler).items()):
        if isinstance(value, lr.LRScheduler):  # the one that follows a LinearWarmup
            numbers[name] = {"class": type(value).__name__, **_numbers(value)}
        elif isinstance(value, (int, float, str)) or _is_list_of_numbers(value):
            numbers[name] = value
    return numbers


def _is_list_of_numbers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(x, (int, float)) for x in value)


def _set_numbers(scheduler: Optional[lr.LRScheduler], numbers: Mapping[str, Any]) -> None:
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            _set_numbers(getattr(scheduler, name), value)
        elif name != "class":
            setattr(scheduler, name, value)
