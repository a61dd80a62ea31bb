"""A loss is the mean that it says: neither it nor its gradients depend on how data are divided."""

import functools
import logging

import numpy as np
import paddle
import pytest
from fit_rows import CLASSES, WIDTH
from flat_options import grouped
from paddle import nn
from paddle.nn import functional as F

from paddle_mnist import Mean, evaluate_run, fit
from paddle_mnist.checkpoint.weights import load
from paddle_mnist.errors import ConfigError, DataError
from paddle_mnist.plots.history import read_history

IGNORED, WORDS, SENTENCES = 255, 6, 12


class Tokens(paddle.io.Dataset):
    """Sentences of one to six words, each of a class; what follows them is ignored."""

    def __init__(self, is_empty=lambda index: False):
        random_state = np.random.RandomState(3)
        self.words = random_state.randn(SENTENCES, WORDS, WIDTH).astype("float32")
        self.labels = self.words[..., :CLASSES].argmax(axis=-1)
        for index, labels in enumerate(self.labels):
            labels[0 if is_empty(index) else 1 + index % WORDS :] = IGNORED

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return self.words[index], self.labels[index]


def per_token(outputs, labels):
    """A mean that the caller computes."""
    counts = (labels != IGNORED).astype("float32")
    loss = F.cross_entropy(outputs, labels, ignore_index=IGNORED, reduction="none")
    return Mean((loss.squeeze(-1) * counts).sum(), counts.sum())


def per_positive(outputs, labels):
    """The sum over all words, divided by those of class 1: some parts have none."""
    return Mean(per_token(outputs, labels).total, (labels == 1).sum())


def over_positives(outputs, labels):
    """The mean over the words of class 1; NaN, without a graph, where there are none."""
    chosen = labels == 1
    if not chosen.any():
        return Mean(paddle.to_tensor(float("nan")), 0)
    return Mean((outputs[chosen] ** 2).sum(), chosen.sum())


def linear():
    return nn.Linear(WIDTH, CLASSES)


LOSSES = {
    "ignore_index": nn.CrossEntropyLoss(ignore_index=IGNORED),
    "weights": nn.CrossEntropyLoss(paddle.to_tensor([0.1, 1.0, 10.0]), IGNORED),
    "Mean over positives": per_positive,
    "Mean or NaN": over_positives,
}
DIVISIONS = [{"batch_size": 6, "grad_shards": 4}, {"batch_size": 1, "accumulate": 6}]


def train(output, model=linear, data=None, **options):
    data = Tokens() if data is None else data
    valid = options.pop("valid", data)
    defaults = {
        "optimizer": lambda parameters: paddle.optimizer.Momentum(0.5, parameters=parameters),
        "epochs": 2,
        "batch_size": 6,
        "shuffle": False,
        "visualdl": (),
        "figures": False,
        "fresh": True,
        "output": output,
    }
    return fit(model=model, train=data, valid=valid, **grouped(**{**defaults, **options}))


@pytest.fixture
def warnings(lines, caplog):
    return lambda: [
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    ]


@pytest.mark.parametrize("kind", LOSSES)
def test_fit_divided_batches_train_and_evaluate_as_whole_ones(tmp_path, kind):
    loss = LOSSES[kind]
    whole = train(tmp_path / "whole", loss=loss)
    weights = load(whole.weights)
    for division in DIVISIONS:
        divided = train(tmp_path / "divided", loss=loss, **division)
        for name, values in load(divided.weights).items():
            np.testing.assert_allclose(values, weights[name], rtol=1e-4, atol=1e-6)
        assert divided.metrics["valid/loss"] == pytest.approx(whole.metrics["valid/loss"], rel=1e-5)
    for batch_size in (1, 5):
        options = {"loss": loss, "batch_size": batch_size}
        metrics = evaluate_run(tmp_path / "whole", linear, Tokens(), **options)
        assert metrics["loss"] == pytest.approx(whole.metrics["valid/loss"], rel=1e-6)


@pytest.mark.parametrize("kind", ["ignore_index", "Mean or NaN"])
def test_fit_step_in_which_nothing_counts_is_skipped_and_logged(kind, tmp_path, warnings):
    """The first six sentences have no label: the weights are as after the others alone."""
    data = Tokens(is_empty=lambda index: index < 6)
    loss = LOSSES[kind]
    train(tmp_path / "all", data=data, loss=loss, epochs=1)
    shards = train(tmp_path / "shards", data=data, loss=loss, epochs=1, grad_shards=3)
    others = paddle.io.Subset(data, range(6, 12))
    alone = train(tmp_path / "alone", data=others, loss=loss, epochs=1)
    for name, values in load(alone.weights).items():
        assert np.array_equal(load(tmp_path / "all/model.pdparams")[name], values)
        np.testing.assert_allclose(load(shards.weights)[name], values, rtol=1e-4, atol=1e-6)
    assert any("train/skipped_steps" in line for line in warnings())
    assert not any("is undefined" in line for line in warnings())
    history = read_history(tmp_path / "all/metrics.jsonl")
    assert [row["value"] for row in history if row["tag"] == "train/skipped_steps"] == [1.0]


def test_fit_data_that_count_nothing_warn_of_each_undefined_loss(tmp_path, warnings):
    data = Tokens(is_empty=lambda index: True)
    result = train(tmp_path, linear, data, loss=per_positive, epochs=1)
    assert np.isnan(result.metrics["valid/loss"])
    *skipped, undefined = warnings()
    assert all("nothing in the batch counts" in line for line in skipped) and skipped
    assert "the loss on the data 'valid' is undefined: it is a mean over a count of 0" in undefined


class Numbers(paddle.io.Dataset):
    def __init__(self, shape=(1,)):
        self.points = np.random.RandomState(3).randn(SENTENCES, WIDTH).astype("float32")
        self.shape = shape

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return self.points[index], self.points[index].sum().reshape(self.shape)


def number():
    return nn.Linear(WIDTH, 1)


def squared(outputs, labels):
    return ((outputs - labels) ** 2).mean()


def spread(outputs, labels):
    """No mean over samples."""
    return ((outputs - labels) ** 2).mean().sqrt()


def noisy(outputs, labels):
    """A mean over samples, with random numbers."""
    return ((outputs + paddle.randn(outputs.shape) - labels) ** 2).mean()


def summed(outputs, labels):
    return ((outputs - labels) ** 2).sum()


def over_ones(outputs, labels):
    """A mean over the samples whose label is 1, without their count."""
    return ((outputs - labels) ** 2 * labels).sum() / labels.sum().clip(min=1)


# The second of each three samples has the label 1.
POSITIVES = [
    (point, np.array([index % 3 == 1], "float32"))
    for index, (point, _) in enumerate(map(Numbers().__getitem__, range(SENTENCES)))
]

REFUSED = {
    "Paddle's sum": ({"loss": nn.MSELoss(reduction="sum")}, 'reduction="sum"'),
    "a sum": ({"loss": summed, "accumulate": 2}, "it is a sum"),
    "no mean, in shards": ({"loss": spread, "grad_shards": 2}, "not the mean over the samples"),
    "a negative count": ({"loss": lambda outputs, labels: Mean(outputs.sum(), -1)}, "count of -1"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_fit_loss_that_is_not_a_mean_raises(tmp_path, kind):
    options, message = REFUSED[kind]
    with pytest.raises(ConfigError, match=message):
        train(tmp_path / "run", number, Numbers(), **options)
    assert not (tmp_path / "run").exists()


def own_step(model, batch):
    """A mean over the labels that count, without their count."""
    return {"loss": F.cross_entropy(model(batch[0]), batch[1], ignore_index=IGNORED)}


def whole_step(model, batch):
    """A step that needs whole batches, whose loss is not checked."""
    outputs = model(batch[0]).reshape([6, WORDS, CLASSES])
    return {"loss": F.cross_entropy(outputs, batch[1], ignore_index=IGNORED)}


def numbers(loss, shape=(1,), **options):
    return {"model": number, "data": Numbers(shape), "loss": loss, **options}


def words(step, is_empty, **options):
    return {"data": Tokens(is_empty), "step": step, **options}


# A run, and what is in its warning; nothing where it does not warn.
WARNINGS = {
    "no mean": (numbers(spread), "it is not the mean over the samples"),
    "a sum": (numbers(summed), "it is a sum"),
    "positives, as many in both halves": (
        {"model": number, "data": POSITIVES, "loss": over_ones},
        "it is not the mean over the samples",
    ),
    "half of the first batch": (words(own_step, lambda index: index % 6 < 3), "it is not the mean"),
    "none of the first batch": (
        words(own_step, lambda index: index < 6, accumulate=2),
        "which hides what it averages over",
    ),
    "shapes that it broadcasts": (numbers(squared, ()), "outputs are [6, 1] and the labels [6]"),
    "whole batches": (words(whole_step, lambda index: False), None),
    "random numbers": (numbers(noisy, grad_shards=2), None),
    "Paddle's": (numbers(nn.SmoothL1Loss(), grad_shards=2), None),
    "no evaluation": (numbers(spread, valid=None), None),
    "an evaluation in one batch": (numbers(spread, eval_batch_size=SENTENCES), None),
}


@pytest.mark.parametrize("kind", WARNINGS)
def test_fit_first_loss_that_is_not_a_mean_warns(kind, tmp_path, warnings):
    options, expected = WARNINGS[kind]
    train(tmp_path, **options)
    if expected:
        assert expected in " ".join(warnings())
    else:
        assert not warnings()


def test_evaluate_run_loss_that_is_not_a_mean_warns(tmp_path, warnings):
    weights, net = tmp_path / "net.pdparams", number()
    net.weight.set_value(paddle.zeros_like(net.weight))  # so that the halves differ clearly
    paddle.save(net.state_dict(), str(weights))
    for batch_size, count in ((SENTENCES, 0), (6, 1)):
        evaluate_run(weights, number, Numbers(), loss=spread, batch_size=batch_size)
        assert len(warnings()) == count
    assert "the first batch of data is" in warnings()[0]


def test_fit_shapes_that_paddle_would_broadcast_raise(tmp_path):
    with pytest.raises(
        DataError, match=r"outputs \[6, 1\] with labels \[6\].*label of a sample the shape \[1\]"
    ):
        train(tmp_path / "run", number, Numbers(shape=()), loss=functools.partial(F.mse_loss))
