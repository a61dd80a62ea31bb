"""When the schedule of an optimizer is stepped, and that all of it is saved."""

import paddle
import pytest
from paddle import nn
from paddle.optimizer import lr

from paddle_mnist.errors import ConfigError
from paddle_mnist.nn.schedule import Schedule, load_schedule_numbers, schedule_numbers


def sgd(rate):
    return paddle.optimizer.SGD(rate, nn.Linear(1, 1).parameters())


@pytest.mark.parametrize(("every", "expected"), [("step", 0.001), ("epoch", 0.1)])
def test_schedule_is_stepped_after_every_step_or_every_epoch(every, expected):
    optimizer = sgd(lr.ExponentialDecay(1.0, 0.1))
    schedule = Schedule(optimizer, every)
    for _ in range(3):
        schedule.after_step()
    schedule.after_epoch({})
    assert optimizer.get_lr() == pytest.approx(expected)
    schedule.move_to(step=2, epoch=2)
    assert optimizer.get_lr() == pytest.approx(0.01)


def test_rate_that_is_a_number_stays():
    optimizer = sgd(0.5)
    schedule = Schedule(optimizer)
    schedule.after_step()
    schedule.after_epoch({"valid/loss": 1.0})
    schedule.move_to(1, 1)
    assert optimizer.get_lr() == 0.5
    assert schedule_numbers(optimizer) == {}


def test_plateau_is_given_the_metric_of_each_evaluation():
    optimizer = sgd(lr.ReduceOnPlateau(1.0, factor=0.5, patience=1))
    schedule = Schedule(optimizer, monitor="valid/loss")
    for loss in (1.0, 1.0, None, 1.0):
        schedule.after_step()
        schedule.after_epoch({} if loss is None else {"valid/loss": loss})
    assert optimizer.get_lr() == 0.5


def test_plateau_without_a_metric_is_refused():
    with pytest.raises(ConfigError, match="ReduceOnPlateau"):
        Schedule(sgd(lr.ReduceOnPlateau(0.1)))


def test_unknown_time_to_step_is_refused():
    with pytest.raises(ConfigError, match="'batch'; expected step or epoch"):
        Schedule(sgd(0.1), every="batch")


SCHEDULES = {
    "warm restarts": lambda: lr.CosineAnnealingWarmRestarts(1.0, T_0=2, T_mult=2),
    "warm-up": lambda: lr.LinearWarmup(lr.StepDecay(1.0, 2), 3, 0.0, 1.0),
    "plateau": lambda: lr.ReduceOnPlateau(1.0, factor=0.5, patience=0),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("steps", [1, 4])
def test_numbers_and_state_together_continue_any_schedule(name, steps):
    def advance(optimizer, count):
        schedule, rates = Schedule(optimizer, monitor="loss"), []
        for _ in range(count):
            schedule.after_step()
            schedule.after_epoch({"loss": 1.0})
            rates.append(optimizer.get_lr())
        return rates

    unbroken = advance(sgd(SCHEDULES[name]()), 9)
    first, second = sgd(SCHEDULES[name]()), sgd(SCHEDULES[name]())
    rates = advance(first, steps)
    second.set_state_dict(first.state_dict())
    load_schedule_numbers(second, schedule_numbers(first))
    assert rates + advance(second, 9 - steps) == unbroken
