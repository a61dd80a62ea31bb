"""A view, such as `images[i]`, becomes NumPy at the cost of its own size, wherever it does.

Paddle copies for it all of the tensor behind it, so no view may be asked for its values.
"""

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F

from paddle_mnist import MNIST, DigitPredictor, Gathered, evaluate, export_run, fit, predict_run
from paddle_mnist.system.arrays import as_array, copied_array

SAMPLES, FEW = 100, 8


@pytest.fixture(scope="module")
def images():
    return paddle.to_tensor(np.random.RandomState(0).rand(SAMPLES, 1, 28, 28).astype("float32"))


@pytest.fixture
def copied_views(images, monkeypatch):
    """The shapes of the views of the images that were asked for their values."""
    copied = []
    numpy = paddle.Tensor.numpy

    def counted(tensor, *args):
        if tensor._is_shared_buffer_with(images) and tensor.shape != images.shape:
            copied.append(tensor.shape)
        return numpy(tensor, *args)

    monkeypatch.setattr(paddle.Tensor, "numpy", counted)
    return copied


def build_net():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 2))


def test_view_costs_its_own_size_in_training_and_inference(images, copied_views, tmp_path):
    labels = paddle.to_tensor(np.arange(SAMPLES).reshape(-1, 1) % 2)
    data = paddle.io.Subset(paddle.io.TensorDataset([images, labels]), [*range(FEW)])

    def batches():
        return iter([(images[at : at + 4], labels[at : at + 4]) for at in range(0, FEW, 4)])

    result = fit(
        model=build_net,
        train=data,
        valid=batches,
        loss=F.cross_entropy,
        optimizer=lambda parameters: paddle.optimizer.SGD(0.1, parameters),
        metrics={"gathered": Gathered(lambda *_: 0.0)},
        epochs=1,
        batch_size=4,
        output=tmp_path / "run",
    )
    predict_run(result.weights, build_net, data, batch_size=4)
    export_run(result.weights, build_net, tmp_path / "net", images[:FEW])
    evaluate(MNIST(), batches)
    DigitPredictor("pretrained").prepare(images[:FEW])
    assert not copied_views
    np.asarray(images[7])
    assert len(copied_views) == 1  # so they are counted


def test_arrays_of_views_have_the_same_bits_and_copies_share_no_memory(images):
    views = (images[7], images[3:9:2], images.transpose([0, 2, 3, 1])[5], images[0:0])
    for values in (*views, images, images.numpy(), paddle.zeros([])):
        assert np.array_equal(as_array(values), np.asarray(values))
        before = as_array(values).copy()
        copy = copied_array(values)
        assert np.array_equal(copy, before) and copy.dtype == before.dtype
        copy += 1
        assert np.array_equal(as_array(values), before)
    assert as_array(paddle.full([2], 0.5, "bfloat16")).dtype == np.uint16
    assert as_array([1, 2.5]).tolist() == [1, 2.5]
