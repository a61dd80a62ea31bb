"""Random distortions and the moving average: what they compute, and that they repeat."""

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_mnist import MNIST
from paddle_mnist.mnist.augment import Distortion
from paddle_mnist.nn.ema import NO_AVERAGE, ExponentialMovingAverage

ALL = {"rotate": 15, "shear": 10, "shift": 2, "scale": 0.1, "elastic": 1}


def images(count=8, seed=0):
    return paddle.to_tensor(np.random.RandomState(seed).rand(count, 1, 28, 28).astype("float32"))


@given(st.permutations(range(8)), st.integers(1, 7), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_a_sample_is_changed_alike_in_whatever_batch_it_comes(order, cut, epoch, seed):
    """A function of (seed, epoch, sample): what a resumed run, or another rank, needs."""
    change, order = Distortion(ALL, seed), np.array(order)
    for made in (change.matrices, change.displacements):
        together = made(change.draw(epoch, np.arange(8)))
        apart = [made(change.draw(epoch, part)) for part in (order[:cut], order[cut:])]
        assert np.array_equal(np.concatenate(apart), together[order])


def test_another_seed_epoch_or_sample_is_another_change():
    for made in (Distortion.matrices, Distortion.displacements):
        drawn = [
            made(change, change.draw(epoch, np.array([index]))).tobytes()
            for change in [Distortion(ALL, seed) for seed in range(3)]
            for epoch in range(3)
            for index in range(20)
        ]
        assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize(
    ("amounts", "distance"),
    [
        # pixel (10, 14) of a lone dot is to be found within these distances afterwards
        ({"shift": 3}, 3 * 2**0.5),
        ({"rotate": 20}, 4.1 * np.tan(np.radians(20)) + 1),
        ({"scale": 0.2}, 4.1 * 0.25 + 1),
        ({"shear": 20}, 4.1 * np.tan(np.radians(20)) + 1),
    ],
)
def test_amounts_are_limits(amounts, distance):
    dot = np.zeros((50, 1, 28, 28), np.float32)
    dot[:, 0, 10, 14] = 1
    moved = Distortion(amounts, 1)(paddle.to_tensor(dot), 0, np.arange(50)).numpy()[:, 0]
    centres = [np.array(np.unravel_index(image.argmax(), (28, 28))) for image in moved]
    distances = [np.linalg.norm(centre - (10, 14)) for centre in centres]
    assert max(distances) <= distance + 1
    assert len({tuple(centre) for centre in centres}) > 2  # and it moves


def test_shift_is_in_pixels():
    dot = np.zeros((400, 1, 28, 28), np.float32)
    dot[:, 0, 14, 14] = 1
    moved = Distortion({"shift": 2}, 1)(paddle.to_tensor(dot), 0, np.arange(400)).numpy()[:, 0]
    rows = (moved.sum(2) * np.arange(28)).sum(1) / moved.sum((1, 2)) - 14
    assert -2 <= rows.min() < -1.9 and 1.9 < rows.max() <= 2


def test_what_is_drawn_is_what_numpy_promises():
    """And so is the same in any version of this package: runs are resumed from old checkpoints."""
    distortion = Distortion({"rotate": 10, "scale": 0.1}, 7)
    angles = distortion.matrices(distortion.draw(3, np.array([5, 49_999])))
    for index, matrix in zip((5, 49_999), angles):
        raw = np.random.Philox(key=[7, 3], counter=[0, index, 0, 0]).random_raw(5)
        angle, _, size, *_ = 2 * ((raw >> np.uint64(11)) * 2.0**-53) - 1
        assert matrix[1, 0] == np.float32(np.sin(np.radians(10) * angle) / (1 + 0.1 * size))


def test_the_affine_is_that_of_paddle():
    changed = Distortion({**ALL, "elastic": 0}, 1)
    theta = paddle.to_tensor(changed.matrices(changed.draw(2, np.arange(8))))
    grid = paddle.nn.functional.affine_grid(theta, [8, 1, 28, 28], align_corners=False)
    expected = paddle.nn.functional.grid_sample(images(), grid, align_corners=False)
    moved = changed(images(), 2, np.arange(8))
    assert np.allclose(moved.numpy(), expected.numpy(), atol=1e-4)


def test_elastic_displaces_every_pixel_alike_and_its_neighbours_with_it():
    bent = Distortion({"elastic": 1.5}, 1)
    fields = 14 * bent.displacements(bent.draw(0, np.arange(3000)))  # in pixels
    assert fields.std(axis=0) == pytest.approx(np.full((28, 28, 2), 1.5), rel=0.1)
    assert np.abs(fields.mean(axis=0)).max() < 0.15
    x, y = fields[..., 0].ravel(), fields[..., 1].ravel()
    assert abs(np.corrcoef(x, y)[0, 1]) < 0.02
    for distance in (1, 4, 8):  # numbers under a Gaussian of 4 pixels correlate by another's
        inner = fields[:, :, 10:18]  # the edges are nearer to each other, as if mirrored
        one, other = inner[:, : 28 - distance].ravel(), inner[:, distance:].ravel()
        expected = np.exp(-((distance / 4) ** 2) / 4)
        assert np.corrcoef(one, other)[0, 1] == pytest.approx(expected, abs=0.1)


def test_elastic_is_applied_as_it_is_drawn():
    """To where each pixel is taken from, after the affine, which is the same without it."""
    dot = np.zeros((200, 1, 28, 28), np.float32)
    dot[:, 0, 14, 14] = 1
    indices, bent = np.arange(200), Distortion({"elastic": 1}, 1)
    fields = 14 * bent.displacements(bent.draw(0, indices))
    moved = bent(paddle.to_tensor(dot), 0, indices).numpy()[:, 0]
    weights = moved / moved.sum((1, 2), keepdims=True)
    rows = (weights.sum(2) * np.arange(28)).sum(1) - 14
    columns = (weights.sum(1) * np.arange(28)).sum(1) - 14
    assert np.corrcoef(columns, -fields[:, 14, 14, 0])[0, 1] > 0.9
    assert np.corrcoef(rows, -fields[:, 14, 14, 1])[0, 1] > 0.9
    affine = {name: amount for name, amount in ALL.items() if name != "elastic"}
    all_of_them, without = Distortion(ALL, 1), Distortion(affine, 1)
    drawn = all_of_them.draw(0, indices), without.draw(0, indices)
    assert np.array_equal(all_of_them.matrices(drawn[0]), without.matrices(drawn[1]))


def test_no_amount_changes_nothing():
    given_images = images()
    same = Distortion({}, 1)(given_images, 0, np.arange(8))
    assert np.allclose(same.numpy(), given_images.numpy(), atol=1e-5)


# ------------------------------------------------------------------ the average


def step(model, by):
    with paddle.no_grad():
        for parameter in model.parameters():
            parameter.set_value(parameter + by)


def test_average_by_hand():
    model = MNIST()
    average = ExponentialMovingAverage(model, 0.9)
    expected = model.fc.bias.numpy().astype("float64")
    for number in range(200):
        step(model, 0.1)
        average.update(model, number)
        decay = min(0.9, (1 + number) / (10 + number))
        expected = decay * expected + (1 - decay) * model.fc.bias.numpy()
        assert np.allclose(average.weights(model)["fc.bias"].numpy(), expected, rtol=1e-5)


def test_average_is_used_and_given_back_also_after_an_error():
    model = MNIST()
    average = ExponentialMovingAverage(model, 0.9)
    step(model, 1)
    average.update(model, 500)
    trained = {name: value.numpy() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError), average.apply(model):
        for name, value in average.weights(model).items():
            assert np.array_equal(model.state_dict()[name].numpy(), value.numpy())
            assert not np.array_equal(value.numpy(), trained[name])
        raise ValueError
    for name, value in model.state_dict().items():
        assert np.array_equal(value.numpy(), trained[name])


def test_averages_of_whole_numbers_are_the_newest():
    model = paddle.nn.Linear(2, 2)
    model.register_buffer("seen", paddle.zeros([1], "int64"))
    average = ExponentialMovingAverage(model, 0.9)
    model.seen.set_value(paddle.ones([1], "int64") * 7)
    average.update(model, 1)
    assert average.weights(model)["seen"].item() == 7


def test_no_average_is_the_model():
    model = MNIST()
    with NO_AVERAGE.apply(model):
        assert NO_AVERAGE.weights(model).keys() == model.state_dict().keys()
