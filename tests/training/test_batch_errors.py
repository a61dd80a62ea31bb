"""Errors of batches say in one line what is wrong: the sample, its value, what was expected."""

import re

import numpy as np
import paddle
import pytest
from fit_rows import CLASSES, SAMPLES, WIDTH, Points, perceptron, train
from paddle import nn
from paddle.nn import functional as F

from paddle_mnist import BatchLoader, Trainer
from paddle_mnist.errors import DataError

WRONG = 21  # the sample with the label that is not a class


def raises(text):
    return pytest.raises(DataError, match=f"^{re.escape(text)}[^\n]*$")


class Mislabelled(Points):
    """Points of which one has another label, or is another point."""

    def __init__(self, label, point=None):
        super().__init__()
        self.label, self.point = label, point

    def __getitem__(self, index):
        point, label = super().__getitem__(index)
        if index != WRONG:
            return point, label
        return point if self.point is None else self.point, np.array([self.label])


def batch_of(index, batch_size):
    """Return the number, from 1, of the batch with a sample, in the order of training."""
    loader = BatchLoader(Points(), batch_size, seed=5, shuffle=True)
    return 1 + next(n for n in range(len(loader)) if index in loader.indices(0, n))


@pytest.mark.parametrize(
    ("label", "options"),
    [
        (255, {"num_workers": 2}),
        (-1, {"grad_shards": 4}),
        (CLASSES, {"accumulate": 2}),
        (CLASSES, {"step": lambda *args: own_step(*args), "loss": None, "metrics": None}),
    ],
)
def test_fit_label_that_is_not_a_class_raises_with_its_sample(label, options, tmp_path):
    batch = batch_of(WRONG, 8 * options.get("accumulate", 1))
    where = "the training data" if batch == 1 else "epoch 1"
    text = f"batch {batch} of {where}: the label of sample {WRONG} of Mislabelled is {label}; "
    with raises(text + "expected 0 to 2") as failure:
        train("Adam", tmp_path / "run", train=Mislabelled(label), valid=None, **options)
    assert isinstance(failure.value.__cause__, (IndexError, ValueError))  # Paddle's


def in_batches(data):
    return lambda: (
        tuple(paddle.to_tensor(np.stack(values)) for values in zip(*map(data.__getitem__, part)))
        for part in np.array_split(np.arange(SAMPLES), 4)
    )


def own_step(model, batch):
    return {"loss": F.cross_entropy(model(batch[0]), batch[1])}


WIDE = np.ones(WIDTH + 1, "float32")


def flat_step(model, batch):
    return {"loss": F.nll_loss(F.log_softmax(model(batch[0])), batch[1].flatten())}


OWN_STEP = {"step": own_step, "loss": None, "metrics": None}
ONE_BY_ONE = {"eval_batch_size": 1, **OWN_STEP}
OF_EVALUATION = {  # data, options, and how the error begins after the number of the batch
    "labels": (Mislabelled(7), {}, "3", ": the label of sample 21 of Mislabelled is 7"),
    "function": (in_batches(Mislabelled(7)), {}, "3", ": the label of its sample"),
    "a custom step": (
        Mislabelled(7),
        OWN_STEP,
        "3",
        ": the label of sample 21 of Mislabelled is 7",
    ),
    "labels reshaped": (
        Mislabelled(7),
        {**OWN_STEP, "step": flat_step},
        "3",
        ": the label of sample 21 of Mislabelled is 7; expected 0 to 2",
    ),
    "shape": (Mislabelled(0, point=WIDE), ONE_BY_ONE, "22", " fails with "),
}


@pytest.mark.parametrize("kind", OF_EVALUATION)
def test_fit_batch_of_the_evaluation_that_fails_raises_with_its_number(kind, tmp_path):
    valid, options, number, text = OF_EVALUATION[kind]
    with raises(f"batch {number} of the data 'valid'{text}") as failure:
        train("Adam", tmp_path, valid=valid, epochs=1, **options)
    assert kind != "shape" or "float32 [1, 7]" in str(failure.value)


LOSSES = {
    "F.cross_entropy": (F.cross_entropy, -100),
    "CrossEntropyLoss": (nn.CrossEntropyLoss(ignore_index=255), 255),
    "lambda": (lambda outputs, labels: F.cross_entropy(outputs, labels, ignore_index=-7), -7),
    "nll": (lambda outputs, labels: F.nll_loss(F.log_softmax(outputs), labels.flatten()), -100),
}


def step_by_hand(model, loss, batch):
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    Trainer("unused", model, optimizer, loss_fn=loss).train_step(batch)


@pytest.mark.parametrize("kind", LOSSES)
def test_train_step_ignored_labels_are_not_reported(kind):
    loss, ignored = LOSSES[kind]
    second = 1 if kind == "nll" else ignored
    labels = paddle.to_tensor([[0], [second], [CLASSES], [1]])
    others = "" if ignored == -100 else f", or {ignored}"
    with raises(f"the label of sample 2 of a batch is 3; expected 0 to 2{others}"):
        step_by_hand(perceptron(), loss, (paddle.rand([4, WIDTH]), labels))
