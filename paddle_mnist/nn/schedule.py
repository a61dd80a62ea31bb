"""Step the learning-rate schedule of an optimizer when it is due, and save its state."""

import logging
import math
import warnings
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
import paddle
from paddle.optimizer import lr

from paddle_mnist.errors import CheckpointError, ConfigError
from paddle_mnist.options import plain

log = logging.getLogger("paddle_mnist")

EVERY = ("step", "epoch")
STATE = "LR_Scheduler"  # the entry of an optimizer's state_dict that holds its schedule's


class Schedule:
    """Steps the learning-rate schedule of an optimizer; does nothing where the rate is a number.

    every: "step" or "epoch".
    monitor: the metric that a `ReduceOnPlateau` is given, after each evaluation, whatever `every`
        says. Raises ConfigError if it needs one and there is none.
    needs_metric: (attribute) whether the schedule is stepped with a metric.
    follows_function: (attribute) whether a function of the step, without state, computes its rate.
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
        self.optimizer = stepping_optimizer(optimizer)
        self.scheduler = scheduler_of(optimizer)
        self.needs_metric = isinstance(self.scheduler, lr.ReduceOnPlateau)
        self.follows_function = _follows_function(self.scheduler)
        if self.needs_metric and monitor is None:
            raise ConfigError(
                "the schedule is a ReduceOnPlateau, which is stepped with a metric; expected one "
                "that is a function of the step, or the name of a metric to monitor"
            )

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        rate: float = self.optimizer.get_lr()
        return rate

    def after_step(self) -> None:
        """Step the schedule if it is stepped after every optimizer step."""
        if self.scheduler and self.every == "step" and not self.needs_metric:
            self.scheduler.step()

    def after_epoch(self, metrics: Mapping[str, float]) -> None:
        """Step the schedule if it is stepped after every epoch, or its metric was evaluated.

        metrics: of the epoch's evaluation; empty if there was none.
        """
        if isinstance(self.scheduler, lr.ReduceOnPlateau):
            value = metrics.get(self.monitor or "")
            # Paddle would keep a first NaN as the best value, which no later one is better than.
            if value is not None and not (math.isnan(value) and self.scheduler.best is None):
                self.scheduler.step(value)
        elif self.scheduler and self.every == "epoch":
            self.scheduler.step()

    def move_to(self, step: int, epoch: int) -> None:
        """Move the schedule to where it is after a number of steps and epochs.

        It must not need a metric.
        """
        if self.scheduler:
            self.scheduler.step(step if self.every == "step" else epoch)
            log.info(
                "the schedule has changed, and is moved to where it is after step %d: the next "
                "learning rate is %.4g",
                step,
                self.learning_rate,
            )


def _follows_function(scheduler: Any) -> bool:
    if isinstance(scheduler, lr.LinearWarmup):
        return _follows_function(scheduler.learning_rate)
    return type(scheduler) in (lr.LambdaDecay, lr.MultiplicativeDecay)


def own_length(scheduler: Any, warmup: int = 0) -> Optional[tuple[str, int, int]]:
    """Return the argument for the length of a schedule that ends or turns there; else None.

    Its name, its value, and the value with a warm-up that comes before.
    """
    if isinstance(scheduler, lr.LinearWarmup):
        return own_length(scheduler.learning_rate, warmup + scheduler.warmup_steps)
    names = {lr.CosineAnnealingDecay: "T_max", lr.OneCycleLR: "total_steps"}
    name = names.get(type(scheduler))
    return (name, getattr(scheduler, name), getattr(scheduler, name) + warmup) if name else None


def schedule_numbers(optimizer: paddle.optimizer.Optimizer, finite: bool = False) -> dict[str, Any]:
    """Return all numbers of an optimizer's schedule, by name; {} if it has none.

    finite: leave out NaN and infinity, which JSON lacks; checkpoints hold them as extra state.

    They are saved beside the schedule's `state_dict`, which leaves some out that change: `T_cur`
    and `T_i` of CosineAnnealingWarmRestarts (Paddle 3.3.1). Before the first step they are its
    arguments.
    """
    scheduler = scheduler_of(optimizer)
    return _numbers(scheduler, finite) if scheduler else {}


def load_state(
    optimizer: paddle.optimizer.Optimizer, state: Mapping[str, Any], numbers: Mapping[str, Any] = {}
) -> None:
    """Load an optimizer's state_dict, and its schedule's numbers, of `schedule_numbers`.

    Paddle only counts a schedule's entries, and so warns of unused values where a schedule adds
    entries of its own and loads them, as LinearWarmup does; that warning is left out.

    Raises CheckpointError for numbers that are not those of such a schedule.
    """
    scheduler = scheduler_of(optimizer)
    try:
        # Before plain numbers replace NumPy's.
        typed = _typed(numbers, scheduler) if scheduler else {}
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"the saved numbers of the schedule are not its own: {error}"
        ) from error
    with warnings.catch_warnings():
        if scheduler and _keys(state.get(STATE)) == _keys(scheduler.state_dict()):
            warnings.filterwarnings("ignore", message="There are some unused values in state_dict")
        optimizer.set_state_dict(state)
    _set_numbers(scheduler, typed)


def _keys(state: Any) -> Any:
    """Return the names in a schedule's state, and in that of the schedule inside it."""
    return {key: _keys(state[key]) for key in state} if isinstance(state, Mapping) else None


def stepping_optimizer(optimizer: paddle.optimizer.Optimizer) -> paddle.optimizer.Optimizer:
    """Return the optimizer inside one that wraps another, as LookAhead does; else itself."""
    wrapped = inner_optimizers(optimizer).values()
    return next(map(stepping_optimizer, wrapped), optimizer)


def inner_optimizers(
    optimizer: paddle.optimizer.Optimizer,
) -> dict[str, paddle.optimizer.Optimizer]:
    """Return the optimizers that are attributes of another, by their names."""
    kind = paddle.optimizer.Optimizer
    return {name: value for name, value in vars(optimizer).items() if isinstance(value, kind)}


def scheduler_of(optimizer: paddle.optimizer.Optimizer) -> Optional[lr.LRScheduler]:
    """Return the schedule an optimizer was built with, or None if its rate is a number.

    Of an optimizer that wraps another, the schedule of the latter.
    """
    # Paddle has no public way to ask; its own hapi.Model reads this attribute too.
    schedule = stepping_optimizer(optimizer)._learning_rate
    return schedule if isinstance(schedule, lr.LRScheduler) else None


def _numbers(scheduler: lr.LRScheduler, finite: bool) -> dict[str, Any]:
    numbers = {}
    for name, value in sorted(vars(scheduler).items()):
        if isinstance(value, lr.LRScheduler):  # the one that follows a LinearWarmup
            numbers[name] = {"class": type(value).__name__, **_numbers(value, finite)}
        elif isinstance(value, str) or _is_number(value, finite):
            numbers[name] = plain(value)
        elif isinstance(value, (list, tuple)) and all(_is_number(item, finite) for item in value):
            numbers[name] = plain(list(value))
    return numbers


def _is_number(value: Any, finite: bool) -> bool:
    is_of_numpy = isinstance(value, np.generic) or type(value) is np.ndarray
    is_of_numpy = is_of_numpy and value.dtype.kind in "biuf"
    is_number = is_of_numpy or isinstance(value, (int, float))
    return is_number and not (finite and not np.all(abs(value) < math.inf))


def _typed(numbers: Any, current: Any) -> Any:
    """Return plain numbers as NumPy's where the current ones are; others would round differently.

    numbers: one, a list, or those of a schedule by name. current: the number, list or schedule.
    """
    if isinstance(numbers, Mapping) and isinstance(current, lr.LRScheduler):
        named = {name: value for name, value in numbers.items() if name != "class"}
        return {name: _typed(value, getattr(current, name, None)) for name, value in named.items()}
    if isinstance(current, np.ndarray):
        return np.asarray(numbers, current.dtype)
    if isinstance(numbers, Mapping) or (current is not None and _kind(numbers) != _kind(current)):
        raise ValueError(f"{numbers!r:.40} in place of {current!r:.40}")
    if isinstance(numbers, list):
        is_list = isinstance(current, (list, tuple)) and len(current) == len(numbers)
        return list(map(_typed, numbers, current)) if is_list else numbers
    return type(current)(numbers) if isinstance(current, np.generic) else numbers


def _kind(value: Any) -> Any:
    kinds: tuple[Any, ...] = ((list, tuple), str, (int, float, np.generic))
    return next((kind for kind in kinds if isinstance(value, kind)), None)


def _set_numbers(scheduler: Optional[lr.LRScheduler], numbers: Mapping[str, Any]) -> None:
    for name, value in numbers.items():
        if name not in vars(scheduler):  # a file is not to name anything else
            continue
        if isinstance(value, Mapping):
            _set_numbers(getattr(scheduler, name), value)
        else:
            setattr(scheduler, name, value)
