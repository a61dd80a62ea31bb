"""Evaluation is exact, of data of any kind, in batches of any size: every sample counts once."""

import random

import numpy as np
import paddle
import pytest
from fit_rows import CLASSES, SAMPLES, Points, perceptron, with_batch_norm
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle.nn import functional as F

from paddle_mnist import BatchLoader, Gathered, Mean, Sums, evaluate_run
from paddle_mnist.errors import DataError, DivergedError


def all_samples():
    points, labels = zip(*(Points()[index] for index in range(SAMPLES)))
    return np.stack(points), np.stack(labels)


def range_of(outputs, labels):
    return outputs.max() - outputs.min() + len(labels)


def per_class(outputs, labels):
    """Sums of an array: the recall of each class, averaged."""
    hits = (outputs.argmax(axis=1) == labels.flatten()).numpy()
    labels = labels.numpy().ravel()
    counts = [np.bincount(labels, weight, CLASSES) for weight in (hits.astype(float), None)]
    return Sums(np.concatenate(counts), lambda totals: np.mean(totals[:CLASSES] / totals[CLASSES:]))


METRICS = {
    "acc": paddle.metric.Accuracy(topk=(1, 2)),
    "entropy": F.cross_entropy,
    "recall": per_class,
    "words": lambda outputs, labels: Mean(outputs.sum(), 5 * len(labels)),
    "range": Gathered(range_of),
    "gathered acc": Gathered(paddle.metric.Accuracy()),
}
TASK = {"loss": F.cross_entropy, "metrics": METRICS}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The path of the weights of a net."""
    paddle.seed(3)
    path = tmp_path_factory.mktemp("weights") / "net.pdparams"
    paddle.save(perceptron().state_dict(), str(path))
    return path


@pytest.fixture(scope="module")
def expected(trained):
    """Every metric in float64, over all samples at once."""
    points, labels = all_samples()
    model = perceptron()
    model.set_state_dict(paddle.load(str(trained)))
    logits = model(paddle.to_tensor(points)).numpy().astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    entropy = -log_p[np.arange(SAMPLES), labels[:, 0]].mean()
    ranks = (np.argsort(-logits, axis=1) == labels).argmax(axis=1)
    recalls = [(ranks[labels[:, 0] == kind] == 0).mean() for kind in range(CLASSES)]
    return {
        "loss": entropy,
        "acc_top1": (ranks == 0).mean(),
        "acc_top2": (ranks < 2).mean(),
        "entropy": entropy,
        "recall": np.mean(recalls),
        "words": logits.sum() / (5 * SAMPLES),
        "range": logits.max() - logits.min() + SAMPLES,
        "gathered acc": (ranks == 0).mean(),
    }


@settings(max_examples=20)
@given(st.one_of(st.integers(1, SAMPLES + 3), st.sampled_from([8, 16, 32])), st.booleans())
def test_evaluate_run_batches_do_not_change_the_result(trained, expected, batch_size, shuffle):
    loader = BatchLoader(Points(), batch_size, shuffle=shuffle)
    metrics = evaluate_run(trained, perceptron, loader, **TASK)
    assert metrics == pytest.approx(expected, rel=2e-6)
    for name in ("acc_top1", "acc_top2", "recall", "gathered acc"):  # of counts
        assert metrics[name] == pytest.approx(expected[name], rel=1e-15)


def seed_and_draw(between=lambda: None):
    """Return a number of each generator, drawn after a call that should not touch them."""
    paddle.seed(3), random.seed(3), np.random.seed(3)
    between()
    return paddle.rand([1]).item(), random.random(), np.random.rand()


def drawn(outputs, labels):
    """Draw numbers where a net is evaluated, as a diffusion net does."""
    return paddle.rand([1]).item() + random.random() + float(np.random.rand())


def test_evaluate_run_changes_nothing_and_repeats_its_numbers(tmp_path):
    path, model, results = tmp_path / "net.pdparams", with_batch_norm(), []
    paddle.save(model.state_dict(), str(path))
    model.eval()
    model[1].train()
    modes = [layer.training for layer in model.sublayers(include_self=True)]
    task = {"loss": F.cross_entropy, "metrics": {"drawn": drawn}}

    def run():
        results.append(evaluate_run(path, model, Points(), batch_size=8, **task))

    assert seed_and_draw(run) == seed_and_draw()
    run()
    assert results[0] == results[1]
    before = paddle.load(str(path))
    assert all((before[name] == value).all() for name, value in model.state_dict().items())
    assert [layer.training for layer in model.sublayers(include_self=True)] == modes
    assert all(parameter.grad is None for parameter in model.parameters())


def giving(*values):
    """Return a step whose loss is the value with the number in the batch, and that data."""

    def step(model, batch):
        return {"loss": paddle.to_tensor(values[int(batch[0, 0])]), "m": float("nan")}

    return step, lambda: (paddle.full([1, 1], number) for number in range(len(values)))


def test_evaluate_run_loss_that_is_not_finite_raises(trained):
    for value in ("nan", "-inf"):
        step, data = giving(1.0, float(value), 3.0)
        with pytest.raises(DivergedError, match=f"the loss is {value} on the data"):
            evaluate_run(trained, perceptron, data, step=step)


def test_evaluate_run_adds_large_losses_in_float64_and_keeps_a_metric_of_nan(trained):
    step, data = giving(2.0**24, 1.0, 1.0)
    metrics = evaluate_run(trained, perceptron, data, step=step)
    assert metrics["loss"] == (2.0**24 + 2) / 3 and np.isnan(metrics["m"])


def test_evaluate_run_gathered_values_of_other_lengths_raise_at_their_batch(trained):
    read = []

    def batches():
        for length in (3, 3, 5, 5):
            read.append(length)
            yield paddle.rand([2, length, 6]), paddle.zeros([2, length, 1], "int64")

    metrics = {"range": Gathered(range_of)}
    with pytest.raises(DataError, match=r"\[2, 5, 3\], int64 \[2, 5, 1\]\], those of the first"):
        evaluate_run(trained, perceptron, batches, loss=F.cross_entropy, metrics=metrics)
    assert read[-3:] == [3, 3, 5]
