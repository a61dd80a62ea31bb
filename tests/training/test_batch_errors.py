"""Errors of batches say in one line what is wrong: the sample, its value, what was expected."""

import contextlib
import functools

import numpy as np
import paddle
import pytest
from fit_rows import CLASSES, SAMPLES, WIDTH, Points, perceptron, train
from paddle import nn
from paddle.nn import functional as F

from paddle_mnist import MNIST, evaluate
from paddle_mnist.data.external import open_loader
from paddle_mnist.data.sampler import ShardSpec
from paddle_mnist.errors import ConfigError, DataError
from paddle_mnist.nn.cross_entropy import CrossEntropy
from paddle_mnist.training.batch_errors import located
from paddle_mnist.training.evaluator import evaluate_step
from paddle_mnist.training.first_batch import try_first_batch
from paddle_mnist.training.steps import SupervisedStep
from paddle_mnist.training.trainer import Trainer

WRONG = 21  # the sample with the label that is not a class


@contextlib.contextmanager
def says(text):
    """Expect a DataError that begins with a text."""
    with pytest.raises(DataError) as failure:
        yield
    assert str(failure.value).startswith(text) and "\n" not in str(failure.value)


class Mislabelled(Points):
    """Points of which one has another label, or is another point."""

    def __init__(self, label, at=WRONG, shape=None):
        super().__init__()
        self.label, self.at, self.shape = label, at, shape

    def __getitem__(self, index):
        point, label = super().__getitem__(index)
        if index != self.at:
            return point, label
        return (np.ones(self.shape, "float32") if self.shape else point), np.array([self.label])


def batch_of(index, batch_size, seed=5, epoch=0):
    """The number, from 1, of the batch with a sample, in the order of a training."""
    loader = open_loader(Points(), batch_size, seed, shuffle=True)
    numbers = range(len(loader))
    return 1 + next(n for n in numbers if index in loader.indices(epoch, n))


@pytest.mark.parametrize("label", [CLASSES, 255, -1, -99])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"grad_shards": 4}, {"accumulate": 2}])
def test_fit_names_the_sample_whose_label_is_not_a_class(label, options, tmp_path):
    batch = batch_of(WRONG, 8 * options.get("accumulate", 1))
    of = "the training data" if batch == 1 else "epoch 1"
    with pytest.raises(DataError) as failure:
        train("Adam", tmp_path / "run", train=Mislabelled(label), valid=None, **options)
    assert str(failure.value) == (
        f"batch {batch} of {of}: the label of sample {WRONG} of Mislabelled is {label}; expected 0 "
        "to 2, or -100, which is ignored"
    )
    assert isinstance(failure.value.__cause__, (IndexError, ValueError))  # Paddle's


def test_fit_names_the_sample_of_the_data_to_evaluate_on(tmp_path):
    with says(f"batch 3 of the data 'valid': the label of sample {WRONG} of Mislabelled is 7; exp"):
        train("Adam", tmp_path / "run", valid=Mislabelled(7))
    with says("batch 1 of the data 'valid': the label of sample 2 of Mislabelled is 7; expected"):
        train("Adam", tmp_path / "run", valid=Mislabelled(7, at=2), fresh=True)


LOSSES = {
    "F.cross_entropy": (F.cross_entropy, -100),
    "CrossEntropyLoss": (nn.CrossEntropyLoss(ignore_index=255), 255),
    "partial": (functools.partial(F.cross_entropy, ignore_index=-1), -1),
    "lambda": (lambda outputs, labels: F.cross_entropy(outputs, labels, ignore_index=-7), -7),
    "own": (CrossEntropy(), -100),
    "own, smoothed": (CrossEntropy(0.1), None),
    "nll": (lambda outputs, labels: F.nll_loss(F.log_softmax(outputs), labels.flatten()), None),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_labels_to_be_ignored_are_not_blamed(kind):
    loss, ignored = LOSSES[kind]
    labels = paddle.to_tensor([[0], [1 if ignored is None else ignored], [CLASSES], [1]])
    with says(f"the label of sample 2 of a batch is 3; expected 0 to 2, or {ignored or -100}, "):
        SupervisedStep(loss)(perceptron(), (paddle.rand([4, WIDTH]), labels))


def test_the_classes_may_be_along_another_axis():
    labels = paddle.zeros([2, 5, 5], "int64")
    labels[1, 2, 3] = CLASSES
    for loss in (nn.CrossEntropyLoss(axis=1), lambda x, y: F.cross_entropy(x, y, axis=1)):
        with says("the label of sample 1 of a batch is 3; expected 0 to 2,"):
            SupervisedStep(loss)(nn.Conv2D(1, CLASSES, 1), (paddle.rand([2, 1, 5, 5]), labels))


def own_step(model, batch):
    return {"loss": F.cross_entropy(model(batch[0]), batch[1])}


def in_batches(data):
    return lambda: (
        tuple(paddle.to_tensor(np.stack(values)) for values in zip(*map(data.__getitem__, part)))
        for part in np.array_split(np.arange(SAMPLES), 4)
    )


def test_a_step_of_ones_own_and_other_data_have_the_batch_named():
    model, data = perceptron(), Mislabelled(7)
    with says("batch 3 of the data 'far' fails with IndexError: "):
        evaluate_step(own_step, model, open_loader(data, 8), "far")
    step = SupervisedStep(F.cross_entropy)
    with says("batch 3 of the data 'far': the label of its sample 4 is 7; expected 0 to 2"):
        evaluate_step(step, model, open_loader(in_batches(data), 8), "far")


def test_a_shape_that_differs_in_a_later_batch_is_said_with_it():
    data = Mislabelled(0, shape=[WIDTH + 1])
    with pytest.raises(DataError, match=r"^batch 22 of the data 'far' fails with .*\[1, 7\]"):
        evaluate_step(own_step, perceptron(), open_loader(data, 1), "far")


def test_the_tutorials_trainer_and_evaluate_say_it_too(tmp_path):
    model = MNIST()
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    labels = paddle.to_tensor([[0], [1], [2], [3], [10], [5]])
    data = paddle.io.TensorDataset([paddle.rand([6, 1, 28, 28]), labels])
    loader = paddle.io.DataLoader(data, batch_size=4)
    with says("batch 2 of epoch 3: the label of its sample 0 is 10; expected 0 to 9"):
        Trainer(tmp_path / "w.pdparams", model, optimizer).train_epoch(loader, epoch=2)
    with says("batch 2 of the data: the label of its sample 0 is 10; expected 0 to 9"):
        evaluate(model, loader)


def test_shards_of_other_processes_are_counted():
    """The sample's index is that in the dataset, whichever shard it is in."""

    def shards(data, rank):
        return open_loader(data, 8, seed=1, shuffle=True).sharded(ShardSpec(4, rank, 2))

    for rank in range(2):
        wrong = int(shards(Points(), rank).indices(0, 0, shard=2 * rank + 1)[0])
        loader = shards(Mislabelled(9, at=wrong), rank)
        (_, shard), *_ = loader.epoch(0)
        text = f"batch 1 of here: the label of sample {wrong} of Mislabelled is 9"
        with says(text), located([shard], loader, 0, 0, "here"):
            SupervisedStep(F.cross_entropy)(perceptron(), shard.batch)


@pytest.mark.parametrize("error", [KeyError("weight"), ZeroDivisionError(), ConfigError("no")])
def test_errors_of_the_code_stay_as_they_are(error):
    def loss(outputs, labels):
        if seen:
            raise error
        seen.append(1)
        return F.cross_entropy(outputs, labels)

    seen = []
    with pytest.raises(type(error)) as failure:
        evaluate_step(SupervisedStep(loss), perceptron(), open_loader(Points(), 8))
    assert failure.value is error


def test_a_first_batch_with_such_a_label_is_data_not_the_model():
    model = perceptron()
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    with says("batch 1 of the training data: the label of sample 0 of Mislabelled is -1"):
        loader = open_loader(Mislabelled(-1, at=0), 8)
        try_first_batch(SupervisedStep(F.cross_entropy), model, optimizer, loader, seed=1)
