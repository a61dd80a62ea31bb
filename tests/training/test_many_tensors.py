"""A net of many tensors: the calls that `fit` makes grow no faster than their number."""

import cProfile
import pstats
from pathlib import Path

import numpy as np
import paddle
from paddle import nn

import paddle_mnist
from paddle_mnist import Callback, Numerics, VisualDL, fit

PACKAGE = str(Path(paddle_mnist.__file__).parent)
DATA = [(np.ones(2, "float32"), np.array([number % 2])) for number in range(4)]


class Deep(nn.Layer):
    """A net of many layers, some of which are in evaluation mode."""

    def __init__(self, count):
        super().__init__()
        self.layers = nn.LayerList([nn.Linear(2, 2) for _ in range(count)])
        self.frozen = nn.LayerList([nn.BatchNorm1D(2) for _ in range(count)])
        for frozen in self.frozen:
            frozen.eval()

    def forward(self, inputs):
        for layer, frozen in zip(self.layers, self.frozen):
            inputs = inputs + 0.01 * frozen(layer(inputs))
        return inputs


class Head(Callback):
    """Trains parameters of its own, and keeps a value for each tensor of the net."""

    def __init__(self, count):
        self.layers = nn.LayerList([nn.Linear(2, 2) for _ in range(count)])
        self.optimizer = paddle.optimizer.Adam(0.01, parameters=self.layers.parameters())
        self.norms = {}

    def after_step(self, view):
        self.norms = {name: view.parameter(name) for name in view.parameters}
        for layer in self.layers:
            layer(paddle.ones([1, 2])).sum().backward()
        self.optimizer.step()
        self.optimizer.clear_grad()


class Step:
    """A step with parameters that the model does not have, and arrays that two lists share."""

    def __init__(self, count):
        self.head = nn.LayerList([nn.Linear(2, 2) for _ in range(count)])
        self.recent = [np.zeros(2) for _ in range(count)]
        self.kept = [*self.recent]

    def __call__(self, model, batch):
        outputs = model(batch[0])
        for layer in self.head:
            outputs = outputs + 0.01 * layer(outputs)
        self.recent[0] += 1
        return {"loss": nn.functional.cross_entropy(outputs, batch[1])}


def calls_of_fit(count, output):
    """Train a net of `count` layers; return how often the package's functions call others."""
    paddle.seed(1)
    step, head = Step(count), Head(count)
    parameters = step.head.parameters()
    with cProfile.Profile() as profile:
        fit(
            lambda: Deep(count),
            DATA,
            step=step,
            optimizer=lambda own: paddle.optimizer.Adam(0.01, parameters=[*own, *parameters]),
            epochs=1,
            batch_size=2,
            output=output,
            device="cpu",
            numerics=Numerics(ema=0.9),
            callbacks=[head, VisualDL(())],
        )
    return {
        f"{path}: {caller} calls {called}": calls
        for (_, _, called), (*_, callers) in pstats.Stats(profile).stats.items()
        for (path, _, caller), (calls, *_) in callers.items()
        if path.startswith(PACKAGE)
    }


def test_three_times_the_tensors_need_three_times_the_calls(tmp_path):
    few, many = (calls_of_fit(count, tmp_path / str(count)) for count in (3, 9))
    # Where a call is made for each pair of tensors, there are nine times as many.
    quadratic = {
        name: (few.get(name, 0), number)
        for name, number in many.items()
        if number > 36 and number > 4 * few.get(name, 0)
    }
    assert not quadratic
