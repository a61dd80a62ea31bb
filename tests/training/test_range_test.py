"""The range test of the learning rate: what it finds, and that it leaves nothing behind."""

import random

import numpy as np
import paddle
import pytest
from fit_rows import arguments, bits, train
from paddle.nn import functional as F
from small_nets import Points, perceptron

from paddle_mnist import find_learning_rate, is_rehearsal
from paddle_mnist.errors import ConfigError


def values_of(row, **options):
    """Return the arguments of a row of the table, as for `fit`."""
    values = {**arguments(row, "nowhere"), **options}
    return {name: value for name, value in values.items() if name not in ("output", "callbacks")}


def test_rates_rise_until_the_loss_diverges(tmp_path, lines):
    result = find_learning_rate(**values_of("SGD with clipping"), figure=tmp_path / "lr.png")
    ratios = result.rates[1:] / result.rates[:-1]
    assert result.rates[0] == pytest.approx(1e-6) and np.allclose(ratios, ratios[0])
    assert len(result.rates) == len(result.losses) == len(result.smoothed) <= 100
    assert 1e-3 < result.suggestion < 10
    assert [path.name for path in tmp_path.iterdir()] == ["lr.png"]
    assert "falls the fastest at" in lines()[-1]


@pytest.mark.parametrize("row", ["Adam", "BatchNorm", "dropout", "EMA", "accumulation", "GAN"])
def test_nothing_is_changed_by_a_test(row, tmp_path):
    """A run after it has the same bits, also where model and optimizer are objects."""
    expected = bits(train(row, tmp_path / "expected"))
    values = values_of(row)
    if row != "GAN":  # whose objects are in `state`
        paddle.seed(5)
        random.seed(5)
        np.random.seed(5)
        model = values["model"]()
        optimizer = values["optimizer"](model.parameters())
        values |= {"model": model, "optimizer": optimizer}
    before = paddle.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    find_learning_rate(**values, steps=20, highest=0.1)
    assert random.getstate() == before[1] and np.random.get_state()[1].tolist() == before[2]
    names = {"model", "optimizer", "state", "step"} & {*values}
    others = {name: values[name] for name in names}
    assert bits(train(row, tmp_path / "run", **others)) == expected


def test_rate_of_an_optimizer_that_is_an_object_is_restored():
    model = perceptron()
    optimizer = paddle.optimizer.SGD(0.25, model.parameters())
    find_learning_rate(model, Points(), loss=F.cross_entropy, optimizer=optimizer, steps=10)
    assert optimizer.get_lr() == 0.25
    before = model.parameters()[0].numpy()
    model(paddle.ones([1, 6])).sum().backward()
    gradient = model.parameters()[0].grad.numpy()
    optimizer.step()
    assert np.allclose(before - model.parameters()[0].numpy(), 0.25 * gradient)


def test_steps_know_that_it_is_a_trial():
    def step(model, batch):
        assert is_rehearsal()
        return {"loss": F.cross_entropy(model(batch[0]), batch[1])}

    options = {"step": step, "loss": None, "metrics": None}
    find_learning_rate(**values_of("SGD with clipping", **options), steps=10)


def test_loss_that_diverges_at_once_raises():
    with pytest.raises(ConfigError) as raised:
        find_learning_rate(**values_of("BatchNorm"), lowest=1e6, highest=1e7)
    (line,) = str(raised.value).splitlines()
    assert line.startswith("the loss diverges at once: ") and "expected a lower `lowest`" in line


@pytest.mark.parametrize(
    "options", [{"lowest": 0}, {"lowest": 1, "highest": 1}, {"steps": 3}, {"figure": "lr.gif"}]
)
def test_impossible_option_raises_one_line(options):
    with pytest.raises(ConfigError, match="expected") as raised:
        find_learning_rate(**values_of("SGD with clipping"), **options)
    assert "\n" not in str(raised.value)


def test_argument_that_fit_lacks_raises():
    with pytest.raises(TypeError, match="learning_rat"):
        find_learning_rate(**values_of("Adam"), learning_rat=1)
