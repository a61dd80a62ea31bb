"""Random distortions and the moving average: what they compute, and that they repeat."""

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_mnist import MNIST
from paddle_mnist.mnist.augment import Distortion
from paddle_mnist.nn.ema import ExponentialMovingAverage

ALL = {"rotate": 15, "shear": 10, "shift": 2, "scale": 0.1, "elastic": 1}


@given(st.permutations(range(8)), st.integers(1, 7), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_distortion_of_a_sample_is_the_same_in_any_batch(order, cut, epoch, seed):
    """A function of (seed, epoch, sample): what a resumed run, or another rank, needs."""
    change, order = Distortion(ALL, seed), np.array(order)
    for made in (change.matrices, change.displacements):
        together = made(change.draw(epoch, np.arange(8)))
        apart = [made(change.draw(epoch, part)) for part in (order[:cut], order[cut:])]
        assert np.array_equal(np.concatenate(apart), together[order])


def test_distortion_draws_what_numpy_promises():
    """And so is the same in any version of this package: runs are resumed from old checkpoints."""
    distortion = Distortion({"rotate": 10, "scale": 0.1}, 7)
    angles = distortion.matrices(distortion.draw(3, np.array([5, 49_999])))
    for index, matrix in zip((5, 49_999), angles):
        raw = np.random.Philox(key=[7, 3], counter=[0, index, 0, 0]).random_raw(5)
        angle, _, size, *_ = 2 * ((raw >> np.uint64(11)) * 2.0**-53) - 1
        assert matrix[1, 0] == np.float32(np.sin(np.radians(10) * angle) / (1 + 0.1 * size))


def step(model, by):
    with paddle.no_grad():
        for parameter in model.parameters():
            parameter.set_value(parameter + by)


def test_average_follows_its_formula():
    model = MNIST()
    average = ExponentialMovingAverage(model, 0.9)
    expected = model.fc.bias.numpy().astype("float64")
    for number in range(120):
        step(model, 0.1)
        average.update(model, number)
        decay = min(0.9, (1 + number) / (10 + number))
        expected = decay * expected + (1 - decay) * model.fc.bias.numpy()
        assert np.allclose(average.weights(model)["fc.bias"].numpy(), expected, rtol=1e-5)


def test_average_apply_restores_the_weights_after_an_error():
    model = MNIST()
    average = ExponentialMovingAverage(model, 0.9)
    step(model, 1)
    average.update(model, 500)
    trained = model.fc.bias.numpy()
    with pytest.raises(ValueError), average.apply(model):
        assert np.array_equal(model.fc.bias.numpy(), average.weights(model)["fc.bias"].numpy())
        assert not np.array_equal(model.fc.bias.numpy(), trained)
        raise ValueError
    assert np.array_equal(model.fc.bias.numpy(), trained)
