"""A view, such as `images[i]`, becomes NumPy at the cost of its own size, wherever it does.

Paddle copies for it all of the tensor behind it, so no view may be asked for its values.
"""

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F

from paddle_mnist import MNIST, Gathered, evaluate
from paddle_mnist.data.collate import stack_samples
from paddle_mnist.data.external import ExternalLoader
from paddle_mnist.data.loader import BatchLoader
from paddle_mnist.data.workers import _packed
from paddle_mnist.inference.export_run import _example
from paddle_mnist.inference.exported import Input
from paddle_mnist.inference.predict_run import _as_array
from paddle_mnist.inference.predictor import _as_input
from paddle_mnist.metrics.paddle_metrics import metric_functions
from paddle_mnist.mnist.predictor import as_pixels
from paddle_mnist.system.arrays import as_array, copied_array
from paddle_mnist.training.description import describe_data
from paddle_mnist.training.evaluator import evaluate_step
from paddle_mnist.training.steps import SupervisedStep

SAMPLES, FEW = 100, 8


@pytest.fixture(scope="module")
def images():
    return paddle.to_tensor(np.random.RandomState(0).rand(SAMPLES, 1, 28, 28).astype("float32"))


@pytest.fixture(scope="module")
def labels():
    return paddle.to_tensor(np.arange(SAMPLES).reshape(-1, 1) % 2)


@pytest.fixture
def whole_copies(images, labels, monkeypatch):
    """The names of the two, one for each time that it is copied as a whole."""
    copies = []
    numpy = paddle.Tensor.numpy

    def counted(tensor, *args):
        for name, whole in (("images", images), ("labels", labels)):
            if tensor._is_shared_buffer_with(whole):
                copies.append(name)
        return numpy(tensor, *args)

    monkeypatch.setattr(paddle.Tensor, "numpy", counted)
    return copies


def tensor_dataset(images, labels):
    return paddle.io.TensorDataset([images, labels])


def first_batches(images, labels):
    """Return a function that yields a few batches, as views."""
    return lambda: iter([(images[at : at + 4], labels[at : at + 4]) for at in range(0, FEW, 4)])


def with_metrics(model, batch):
    inputs, labels = batch
    outputs = model(inputs)
    metrics = metric_functions({"p": paddle.metric.Precision(), "g": Gathered(lambda *_: 0.0)})
    values = {name: metric(F.sigmoid(outputs[:, :1]), labels) for name, metric in metrics.items()}
    return {"loss": F.cross_entropy(outputs, labels), **values}


PLACES = {
    "an array of a tensor": lambda images, labels: as_array(images[7]),
    "a batch of samples": lambda images, labels: stack_samples(
        [(images[i], 0) for i in range(FEW)]
    ),
    "what a worker sends": lambda images, labels: _packed((images[:FEW], labels[:FEW])),
    "an epoch of a dataset": lambda images, labels: [
        *BatchLoader(paddle.io.Subset(tensor_dataset(images, labels), [*range(FEW)]), 4)
    ],
    "a hash of the data": lambda images, labels: describe_data(tensor_dataset(images, labels), 1),
    "batches that are views": lambda images, labels: [
        leaf.numpy()
        for batch in ExternalLoader(first_batches(images, labels)).epoch(0)
        for leaf in batch
    ],
    "a metric of views": lambda images, labels: evaluate_step(
        with_metrics,
        nn.Sequential(nn.Flatten(), nn.Linear(784, 2)),
        ExternalLoader(first_batches(images, labels)),
    ),
    "an evaluation": lambda images, labels: evaluate(MNIST(), first_batches(images, labels)),
    "the compiled net": lambda images, labels: MNIST()(images[:FEW]),
    "the compiled loss": lambda images, labels: SupervisedStep(F.cross_entropy)(
        MNIST(), (images[:FEW], labels[:FEW])
    ),
    "an input to predict": lambda images, labels: _as_input(
        images[:FEW], Input("x", "float32", (1, 28, 28)), "inputs are"
    ),
    "an example to export": lambda images, labels: _example(images[:FEW], "x"),
    "an output": lambda images, labels: _as_array(images[:FEW]),
    "pictures": lambda images, labels: as_pixels(images[:FEW]),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_view_costs_its_own_size(place, images, labels, whole_copies):
    PLACES[place](images, labels)
    assert not whole_copies
    np.asarray(images[7]), labels[7].numpy()
    assert whole_copies == ["images", "labels"]  # so they are counted


def test_arrays_of_views_are_the_same_bits(images):
    for view in (images[7], images[3:9:2], images.transpose([0, 2, 3, 1])[5], images[0:0]):
        assert np.array_equal(as_array(view), np.asarray(view)) and as_array(view).shape == tuple(
            view.shape
        )
    assert as_array(paddle.full([2], 0.5, "bfloat16")).dtype == np.uint16
    assert as_array([1, 2.5]).tolist() == [1, 2.5]


def test_copies_share_no_memory(images):
    for values in (images, images[7], images.numpy(), paddle.zeros([]), paddle.zeros([2, 0])):
        before = as_array(values).copy()
        copy = copied_array(values)
        assert np.array_equal(copy, before) and copy.dtype == before.dtype
        copy += 1
        assert np.array_equal(as_array(values), before)


def test_a_batch_keeps_its_graph():
    weight = paddle.ones([2])
    weight.stop_gradient = False
    (batch,) = ExternalLoader([weight * 2]).epoch(0)
    batch.sum().backward()
    assert weight.grad.tolist() == [2, 2]
