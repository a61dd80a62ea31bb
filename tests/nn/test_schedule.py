"""The schedule of an optimizer is stepped when it is due, and all of it is saved."""

import json
import math

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.optimizer import lr

from paddle_mnist.errors import ConfigError
from paddle_mnist.nn.schedule import Schedule, load_state, schedule_numbers
from paddle_mnist.options import plain


def sgd(rate):
    return paddle.optimizer.SGD(rate, nn.Linear(1, 1).parameters())


@pytest.mark.parametrize(("every", "expected"), [("step", 0.001), ("epoch", 0.1)])
def test_schedule_steps_after_every_step_or_epoch(every, expected):
    optimizer = sgd(lr.ExponentialDecay(1.0, 0.1))
    schedule = Schedule(optimizer, every)
    for _ in range(3):
        schedule.after_step()
    schedule.after_epoch({})
    assert optimizer.get_lr() == pytest.approx(expected)
    schedule.move_to(step=2, epoch=2)
    assert optimizer.get_lr() == pytest.approx(0.01)


def test_schedule_plateau_follows_the_monitored_metric():
    optimizer = sgd(lr.ReduceOnPlateau(1.0, factor=0.5, patience=1))
    schedule = Schedule(optimizer, monitor="valid/loss")
    for loss in (1.0, 1.0, None, 1.0):
        schedule.after_step()
        schedule.after_epoch({} if loss is None else {"valid/loss": loss})
    assert optimizer.get_lr() == 0.5


def test_schedule_plateau_whose_metric_is_undefined_at_first_takes_the_first_number_as_best():
    optimizer = sgd(lr.ReduceOnPlateau(1.0, factor=0.5, patience=1))
    schedule = Schedule(optimizer, monitor="valid/loss")
    for loss in (math.nan, 2.0, 1.0, math.nan, 0.5):
        schedule.after_epoch({"valid/loss": loss})
    assert optimizer.get_lr() == 1.0 and schedule.scheduler.best == 0.5


def test_schedule_wrong_options_raises():
    with pytest.raises(ConfigError, match="ReduceOnPlateau"):
        Schedule(sgd(lr.ReduceOnPlateau(0.1)))
    with pytest.raises(ConfigError, match="'batch'"):
        Schedule(sgd(0.1), every="batch")


class Shrinking(lr.LRScheduler):
    """Computes its rate in NumPy's float32, from numbers of its own."""

    def __init__(self):
        self.rate, self.factors = np.float32(1.0), [np.float32(0.9), np.float32(0.7)]
        self.recent = np.zeros(2, "float32")
        super().__init__(1.0)

    def get_lr(self):
        self.rate = self.rate * self.factors[self.last_epoch % 2]
        self.recent = np.append(self.recent[1:], self.rate)
        return float(self.recent.mean())

    def state_keys(self):
        self.keys = ["last_epoch", "last_lr", "rate"]


# Of each kind of state one; tests of `fit` resume others.
SCHEDULES = {
    "LambdaDecay": lambda: lr.LambdaDecay(1.0, lambda step: 0.95**step),
    "LinearWarmup, then StepDecay": lambda: lr.LinearWarmup(lr.StepDecay(1.0, 2), 3, 0.0, 1.0),
    "LinearWarmup, twice": lambda: lr.LinearWarmup(
        lr.LinearWarmup(lr.NoamDecay(8, 4), 2, 0.0, 0.5), 3, 0.0, 1.0
    ),
    "MultiplicativeDecay": lambda: lr.MultiplicativeDecay(1.0, lambda step: 0.95),
    "ReduceOnPlateau": lambda: lr.ReduceOnPlateau(1.0, factor=0.5, patience=0),
    "NumPy's numbers": Shrinking,
}


def advance(optimizer, count):
    schedule, rates = Schedule(optimizer, monitor="loss"), []
    for _ in range(count):
        schedule.after_step()
        schedule.after_epoch({"loss": 1.0})
        rates.append(optimizer.get_lr())
    return rates


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", SCHEDULES)
def test_load_state_continues_any_schedule(name):
    unbroken = advance(sgd(SCHEDULES[name]()), 9)
    first, second = sgd(SCHEDULES[name]()), sgd(SCHEDULES[name]())
    rates = advance(first, 4)
    numbers = json.loads(json.dumps(schedule_numbers(first)))
    load_state(second, plain(first.state_dict()), numbers)
    assert rates + advance(second, 5) == unbroken
