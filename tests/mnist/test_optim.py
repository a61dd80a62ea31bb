"""Losses, schedules and optimizers against their formulas, in NumPy."""

import functools
import math

import paddle
import pytest
from paddle import nn

from paddle_mnist.mnist.options import OptimizerOptions

RATE, END, STEPS = 0.01, 0.001, 41


def half_cosine(start, end, share):
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def onecycle(step):
    up = 0.3 * STEPS - 1  # Paddle's phases, on steps counted from 0
    if step <= up:
        return half_cosine(RATE / 25, RATE, step / up)
    return half_cosine(RATE, END, (step - up) / (STEPS - 1 - up))


SCHEDULES = {
    "constant": lambda step: RATE,
    "polynomial": lambda step: RATE + (END - RATE) * step / (STEPS - 1),
    "cosine": lambda step: half_cosine(RATE, END, step / (STEPS - 1)),
    "onecycle": onecycle,
}


def polynomial(options, step):
    """Paddle's formula, with the values that it has by default here: straight, over all steps."""
    period, power = options.get("decay_steps", STEPS - 1), options.get("power", 1)
    if options.get("cycle"):
        period *= max(1, math.ceil(step / period))
    return END + (RATE - END) * (1 - min(step, period) / period) ** power


POLYNOMIALS = [
    {"power": 2},
    {"decay_steps": 10},
    {"decay_steps": 10, "cycle": True},
    {"decay_steps": 7, "cycle": True, "power": 0.5},
    {"decay_steps": 1000, "power": 3.0},
]


@pytest.mark.parametrize(
    ("name", "options", "formula"),
    [
        *((name, {}, formula) for name, formula in SCHEDULES.items()),
        *(("polynomial", some, functools.partial(polynomial, some)) for some in POLYNOMIALS),
    ],
)
def test_schedule_follows_its_formula(name, options, formula):
    schedule = OptimizerOptions(
        lr_schedule=name, learning_rate=RATE, end_lr=END, total_steps=STEPS, **options
    ).schedule()
    for step in range(STEPS):
        assert schedule() == pytest.approx(formula(step), rel=1e-6), step
        schedule.step()


def test_schedule_of_very_few_steps_stays_within_the_rate():
    for name in SCHEDULES:
        for steps in (1, 2, 3):
            options = OptimizerOptions(lr_schedule=name, learning_rate=RATE, total_steps=steps)
            schedule = options.schedule()
            for _ in range(steps):
                assert 0 <= schedule() <= RATE, (name, steps)
                schedule.step()


# One parameter, three steps of the textbook's formula on given gradients.
GRADIENTS = [0.5, -0.2, 0.1]


def sgd(w, config):
    for gradient in GRADIENTS:
        w -= RATE * (gradient + config.weight_decay * w)
    return w


def momentum(w, config):
    velocity = 0
    for gradient in GRADIENTS:
        velocity = config.momentum * velocity + gradient + config.weight_decay * w
        w -= RATE * velocity
    return w


def adagrad(w, config):
    squares = 0
    for gradient in GRADIENTS:
        gradient += config.weight_decay * w
        squares += gradient**2
        w -= RATE * gradient / (math.sqrt(squares) + 1e-6)
    return w


def adadelta(w, config):
    squares = updates = 0
    for gradient in GRADIENTS:
        gradient += config.weight_decay * w
        squares = 0.95 * squares + 0.05 * gradient**2
        update = math.sqrt((updates + 1e-6) / (squares + 1e-6)) * gradient
        updates = 0.95 * updates + 0.05 * update**2
        w -= RATE * update
    return w


def adam(w, config, decoupled=0.0):
    mean = square = 0
    for t, gradient in enumerate(GRADIENTS, 1):
        if not decoupled:
            gradient += config.weight_decay * w
        w -= RATE * decoupled * w
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        w -= RATE * (mean / (1 - 0.9**t)) / (math.sqrt(square / (1 - 0.999**t)) + 1e-8)
    return w


def adamw(w, config):
    return adam(w, config, decoupled=config.weight_decay)


FORMULAS = {"sgd": sgd, "momentum": momentum, "adagrad": adagrad, "adadelta": adadelta}
FORMULAS |= {"adam": adam, "adamw": adamw}


class Two(nn.Layer):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1, 1), nn.Linear(1, 1)
        for parameter in self.parameters():
            parameter.set_value(paddle.full(parameter.shape, 2.0))


DECAYING = {  # by weight_decay_layers: the parameters
    "": {"a.weight", "a.bias", "b.weight", "b.bias"},
    "b": {"b.weight", "b.bias"},
    "a.bias,b": {"a.bias", "b.weight", "b.bias"},
}


@pytest.mark.parametrize(
    ("name", "names"),
    [*((name, "b") for name in FORMULAS), ("momentum", ""), ("momentum", "a.bias,b")],
)
def test_optimizer_follows_its_formula_and_decays_the_chosen_layers(name, names):
    config = OptimizerOptions(
        optimizer=name,
        learning_rate=RATE,
        lr_schedule="constant",
        weight_decay=0.3,
        weight_decay_layers=names,
    )
    model = Two()
    optimizer = config.build(dict(model.named_parameters()))
    for gradient in GRADIENTS:
        for parameter in model.parameters():
            parameter.grad = paddle.full(parameter.shape, gradient)
        optimizer.step()
        optimizer.clear_grad()
    plain = OptimizerOptions(optimizer=name, weight_decay=0)
    for key, parameter in model.named_parameters():
        expected = FORMULAS[name](2.0, config if key in DECAYING[names] else plain)
        assert parameter.numpy().item() == pytest.approx(expected, rel=1e-5), key
