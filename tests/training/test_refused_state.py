"""Before its first step `fit` refuses state that it cannot save, and parameters nobody trains."""

import functools
import itertools
from decimal import Decimal
from pathlib import Path

import numpy as np
import paddle
import pytest
from fit_rows import momentum, train
from paddle import nn
from paddle.nn import functional as F
from small_nets import CLASSES, WIDTH, Points, perceptron
from stateful_rows import CenterLoss

from paddle_mnist.errors import ConfigError


def with_step(step, **others):
    return {"step": step, "loss": None, "metrics": None, **others}


class Net(nn.Layer):
    """Has a layer that Paddle does not know of, or one that the first pass makes."""

    def __init__(self, heads=()):
        super().__init__()
        self.body, self.heads, self.head = nn.Linear(WIDTH, 8), [*heads], None

    def forward(self, points):
        hidden = F.relu(self.body(points))
        if self.heads:
            return self.heads[0](hidden)
        self.head = self.head or nn.Linear(hidden.shape[-1], CLASSES)
        return self.head(hidden)


def step_with_parameters():
    weigh = CenterLoss()
    return with_step(lambda model, batch: {"loss": weigh(model(batch[0]), batch[1])})


def scaled_step(start, change, number=float):
    """Return a step whose loss is scaled by a value, which each training step changes."""
    scale = start

    def step(model, batch):
        nonlocal scale
        loss = F.cross_entropy(model(batch[0]), batch[1]) * number(scale)
        if model.training:
            scale = change(scale)
        return {"loss": loss}

    return with_step(step)


def cycle_of_two():
    """Two steps bring this back to where it was."""
    weights = itertools.cycle([1.0, 3.0])
    return scaled_step(1.0, lambda scale: next(weights))


def gradients_left_over():
    """The loss of the model leaves gradients in another net, to which its next step adds."""
    other = nn.Linear(CLASSES, 1)
    optimizer = paddle.optimizer.SGD(0.1, parameters=other.parameters())

    def step(model, batch):
        outputs = model(batch[0])
        if model.training:
            other(outputs.detach()).square().mean().backward()
            optimizer.step()
            optimizer.clear_grad()
        return {"loss": (other(outputs) - 1).square().mean()}

    return with_step(step)


def gradients_added_up(count, first=1, pause=0):
    """Another net learns once in some steps, from the sum of the gradients since the first."""
    other, done = nn.Linear(CLASSES, 1), [0]
    optimizer = paddle.optimizer.SGD(0.1, parameters=other.parameters())

    def step(model, batch):
        outputs = model(batch[0])
        if model.training:
            number = done[0] % (count + pause) + 1
            done[0] += 1
            if first <= number <= count:
                other(outputs.detach()).square().mean().backward()
            if number == count:
                optimizer.step()
                optimizer.clear_grad()
        return {"loss": F.cross_entropy(outputs, batch[1]) + other(outputs).detach().mean()}

    return with_step(step)


class AddsUp(paddle.optimizer.SGD):
    """Steps every second time, with the sum of the gradients."""

    calls = 0

    def step(self):
        self.calls += 1
        if self.calls % 2 == 0:
            super().step()
            super().clear_grad()

    def clear_grad(self, set_to_zero=True):
        """Leave it to `step`."""


class CachesNoise(Points):
    """Keeps samples after their random augmentation."""

    def __init__(self):
        super().__init__()
        self.cache = {}

    def __getitem__(self, index):
        point, label = super().__getitem__(index)
        if index not in self.cache:
            self.cache[index] = point + 0.3 * np.random.randn(WIDTH).astype("float32")
        return self.cache[index], label


def batches_that_steps_change():
    """Each epoch has the same batches, larger than what a snapshot of data copies."""
    points = [paddle.rand([4, WIDTH, 2**15]) for _ in range(3)]

    def step(model, batch):
        loss = F.cross_entropy(model(batch[0].mean(axis=-1)), batch[1])
        if model.training:
            batch[0].scale_(1.1)
        return {"loss": loss}

    batches = [(each, paddle.zeros([4, 1], "int64")) for each in points]
    return with_step(step, train=lambda: iter(batches), valid=None)


class HalfAState:
    def state_dict(self):
        return {}


# Arguments of `fit`, built again for each call, and what the error must say.
REFUSED = {
    "layer made in the first pass": (lambda: {"model": Net}, ["head", "first"]),
    "layers in a list": (
        lambda: {"model": lambda: Net([nn.Linear(8, CLASSES)])},
        ["model.heads[0].weight", "optimizer"],
    ),
    "parameters without an optimizer": (
        lambda: {"optimizer": lambda parameters: momentum(parameters[:2])},
        ["2.weight", "optimizer", "stop_gradient"],
    ),
    "loss's parameters without an optimizer": (
        lambda: {"loss": CenterLoss(), "optimizer": lambda parameters: momentum(parameters[:4])},
        ["centers", "optimizer"],
    ),
    "step's parameters without an optimizer": (
        step_with_parameters,
        ["step.weigh.centers", "optimizer", "stop_gradient"],
    ),
    "object that no checkpoint can hold": (
        lambda: scaled_step(Decimal(1), lambda scale: scale * Decimal("1.1")),
        ["scale", "Decimal", "state="],
    ),
    "path": (
        lambda: scaled_step(Path("a"), lambda path: path / "b", lambda path: len(path.parts)),
        ["scale", "PosixPath"],
    ),
    "cycle of two": (cycle_of_two, ["weights"]),
    "batches that steps change": (batches_that_steps_change, ["repeating the first steps"]),
    "gradients left over": (gradients_left_over, ["gradient of step.other", "clear"]),
    **{
        f"gradients of {n} steps": (functools.partial(gradients_added_up, n), ["of step.other"])
        for n in (2, 3, 4, 6)
    },
    "gradients of the last two of 3 steps": (
        functools.partial(gradients_added_up, 3, first=2),
        ["of step.other"],
    ),
    "gradients of two of 4 steps": (
        functools.partial(gradients_added_up, 3, first=2, pause=1),
        ["of step.other"],
    ),
    "optimizer that adds up": (
        lambda: {"optimizer": lambda parameters: AddsUp(0.1, parameters=parameters)},
        ["gradient of model", "clear"],
    ),
    "cached augmentation": (lambda: {"train": CachesNoise(), "valid": Points()}, ["train.cache"]),
    "state without a state_dict": (
        lambda: {"state": {"teacher": object()}},
        ["teacher", "object", "state_dict"],
    ),
    "state that cannot be set": (
        lambda: {"state": {"teacher": HalfAState()}},
        ["teacher", "HalfAState", "set_state_dict"],
    ),
    "list of states": (lambda: {"state": [nn.Linear(2, 2)]}, ["state", "list", "dict"]),
}


def call(output, values):
    return train("SGD with clipping", output, **{"optimizer": momentum, "epochs": 1, **values})


@pytest.mark.parametrize("what", REFUSED)
def test_fit_state_that_cannot_be_saved_raises_with_the_remedy_before_anything_is_saved(
    what, tmp_path
):
    build, words = REFUSED[what]
    with pytest.raises(ConfigError) as refusal:
        call(tmp_path, build())
    text = str(refusal.value)
    assert not [word for word in words if word not in text], text
    assert "\n" not in text and len(text) < 700
    kinds = ("*.pdparams", "*.pdopt", "*.json")
    assert not [path for kind in kinds for path in tmp_path.rglob(kind)]
    with pytest.raises(ConfigError):  # nothing is left that the second call would resume
        call(tmp_path, build())


def test_fit_raises_with_the_names_of_large_values_if_a_repeated_step_fails(tmp_path, lines):
    """Each step reads what the step before has added to a dict."""
    memory, count = dict.fromkeys(range(20000), 1.0), [20_000]

    def step(model, batch):
        if model.training:
            memory[count[0]] = 0.9 * memory[count[0] - 1]
            count[0] += 1
        return {"loss": F.cross_entropy(model(batch[0]), batch[1])}

    with pytest.raises(ConfigError, match=r"KeyError: .*step\.memory \(20000 items\).*state"):
        call(tmp_path, with_step(step))
    assert any("step.memory (20000 items)" in line for line in lines())


def test_fit_step_may_train_a_layer_by_an_optimizer_in_state(tmp_path):
    model = perceptron()
    second = paddle.optimizer.Adam(0.01, parameters=model[-1].parameters())

    def step(model, batch):
        points, labels = batch
        if model.training:
            second.clear_grad()
            F.cross_entropy(model(points), labels).backward()
            second.step()
            model.clear_gradients()
        return {"loss": F.cross_entropy(model(points), labels)}

    optimizer, before = momentum(model[0].parameters()), model[-1].weight.numpy()
    values = with_step(step, model=model, optimizer=optimizer, state={"second": second})
    assert call(tmp_path, values).stopped == "finished"
    assert np.abs(model[-1].weight.numpy() - before).max() > 1e-3
