"""Metrics add up: over any division into batches they are those of all data at once."""

import functools
import json

import numpy as np
import paddle
import pytest
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle.metric import Accuracy, Auc, Metric, Precision, Recall
from sklearn.metrics import f1_score

from paddle_mnist.errors import ConfigError
from paddle_mnist.metrics.paddle_metrics import Gathered, metric_functions
from paddle_mnist.metrics.running import RunningMetrics
from paddle_mnist.metrics.sums import Mean, Sums, as_sums
from paddle_mnist.metrics.writers import NewestMetrics
from paddle_mnist.parallel.gradients import StepResult
from paddle_mnist.train_state import RunningSums, TrainState

CLASSES = 4


class Halved(Recall):
    """A subclass that counts as Recall does, of other values."""

    def compute(self, outputs, labels):
        return outputs / 2, labels


ADAPTED = {
    "Accuracy": (Accuracy, "classes"),
    "Accuracy, labels [N]": (Accuracy, "flat"),
    "Accuracy, one-hot": (Accuracy, "one-hot"),
    "Accuracy, k = 2": (lambda: Accuracy(topk=(2,)), "classes"),
    "Accuracy, several k": (lambda: Accuracy(topk=(3, 1)), "classes"),
    "Precision": (Precision, "binary"),
    "Recall": (Recall, "binary"),
    "Auc": (Auc, "two columns"),
    "Auc, coarse": (lambda: Auc(num_thresholds=15), "two columns"),
    "a subclass with another compute": (Halved, "binary"),
}


def data(form, samples, seed):
    """Outputs and labels of a net, as the metrics take them."""
    generator = np.random.RandomState(seed)
    if form in ("classes", "flat", "one-hot"):
        outputs = generator.randn(samples, CLASSES).astype("float32")
        labels = generator.randint(0, CLASSES, (samples, 1))
        if form == "one-hot":
            labels = np.eye(CLASSES, dtype="float32")[labels[:, 0]]
        return outputs, labels[:, 0] if form == "flat" else labels
    outputs = generator.rand(samples, 1).astype("float32")
    if form == "two columns":
        outputs = np.concatenate([1 - outputs, outputs], axis=1)
    return outputs, generator.randint(0, 2, (samples, 1))


def batches(outputs, labels, cuts):
    bounds = [0, *sorted({cut % len(outputs) for cut in cuts} - {0}), len(outputs)]
    for first, end in zip(bounds, bounds[1:]):
        yield paddle.to_tensor(outputs[first:end]), paddle.to_tensor(labels[first:end])


def value_of_all(metric, outputs, labels):
    """Return the value of Paddle's metric over all data, used as Paddle's own `Model` does."""
    metric.reset()
    computed = metric.compute(paddle.to_tensor(outputs), paddle.to_tensor(labels))
    metric.update(*(computed if isinstance(computed, (list, tuple)) else [computed]))
    return metric.accumulate()


cuts = st.lists(st.integers(1, 100), max_size=5)


@pytest.mark.parametrize("name", ADAPTED)
@settings(max_examples=10)
@given(st.integers(1, 30), cuts, st.integers(0, 99))
def test_metric_functions_over_any_batches_compute_as_paddle_of_all_data(name, samples, cuts, seed):
    make, form = ADAPTED[name]
    outputs, labels = data(form, samples, seed)
    metric = make()
    functions = metric_functions({"m": metric})
    totals = {}
    for batch in batches(outputs, labels, cuts):
        for tag, function in functions.items():
            sums = function(*batch)
            totals[tag] = totals[tag] + sums if tag in totals else sums
    expected = value_of_all(make(), outputs, labels)
    if isinstance(expected, list):
        assert list(functions) == ["m_top3", "m_top1"]
    else:
        expected = [expected]
    assert [total.compute() for total in totals.values()] == pytest.approx(expected, rel=1e-6)
    assert metric.accumulate() == make().accumulate()  # the caller's has counted nothing


def test_sums_as_a_tensor_and_back_compute_the_same():
    """There sums travel as float32, and come back as a tensor."""
    for name, (make, form) in ADAPTED.items():
        function = next(iter(metric_functions({"m": make()}).values()))
        sums = function(*map(paddle.to_tensor, data(form, 9, seed=1)))
        back = sums.with_values(sums.to_tensor())
        assert back.compute() == sums.compute(), name


class F1(Precision):
    """A metric as people write it: it counts something more, which Precision's counters lack."""

    def __init__(self):
        super().__init__()
        self.fn = 0

    def update(self, outputs, labels):
        super().update(outputs, labels)
        self.fn += int(((outputs < 0.5) & (labels == 1)).sum())

    def accumulate(self):
        return 2 * self.tp / max(1, 2 * self.tp + self.fp + self.fn)


def macro_f1(outputs, labels):
    return sklearn.metrics.f1_score(labels.numpy(), outputs.numpy(), average="macro")


def local_f1(outputs, labels):
    from sklearn.metrics import f1_score as score

    return score(labels.numpy(), outputs.numpy())


OF_SKLEARN = {
    "the function": f1_score,
    "a partial": functools.partial(f1_score, average="macro"),
    "through the module": macro_f1,
    "imported inside": local_f1,
    "in a lambda": lambda outputs, labels: f1_score(labels.numpy(), outputs.numpy()),
}


@pytest.mark.parametrize("kind", OF_SKLEARN)
def test_metric_functions_of_sklearn_log_that_they_are_averaged(kind, lines):
    metric = OF_SKLEARN[kind]
    metric_functions({"all": Gathered(metric), "mine": spread, "acc": Accuracy()})
    assert not lines()
    metric_functions({"f1": metric})
    (line,) = lines()
    assert line.startswith("the metric 'f1' is from sklearn.metrics, averaged over batches")


def test_metric_functions_wrong_metric_raises():
    for metrics, message in (
        ({"acc": Accuracy(), "mine": F1()}, r"'mine' is a F1.*Gathered\(metric\)"),
        ({"loss": Accuracy()}, 'a metric is called "loss"'),
        ({"acc": 3}, "'acc' is a int"),
    ):
        with pytest.raises(ConfigError, match=message):
            metric_functions(metrics)


def spread(outputs, labels):
    """A function of all outputs that no sums give."""
    return np.median(outputs) + 10 * np.median(labels) + len(labels)


GATHERED = {
    "a function": (lambda: spread, "two columns"),
    "a custom class": (F1, "binary"),
}


@pytest.mark.parametrize("name", GATHERED)
@settings(max_examples=10)
@given(st.integers(1, 30), cuts, st.integers(0, 99))
def test_gathered_over_any_batches_computes_as_of_all_data(name, samples, cuts, seed):
    make, form = GATHERED[name]
    outputs, labels = data(form, samples, seed)
    metric = make()
    function = metric_functions({"m": Gathered(metric)})["m"]
    kept = [function(*batch) for batch in batches(outputs, labels, cuts)]
    value = kept[0].plus(*kept[1:]).compute()
    if isinstance(metric, Metric):
        expected = value_of_all(make(), outputs, labels)
        assert metric.accumulate() == make().accumulate()
    else:
        expected = spread(outputs, labels)
    assert value == pytest.approx(expected, rel=1e-6)
    assert functools.reduce(Gathered.plus, kept).compute() == value  # one by one


def test_gathered_wrong_metric_or_outputs_raises():
    with pytest.raises(ConfigError, match="Accuracy of several k"):
        Gathered(Accuracy(topk=(1, 2)))
    with pytest.raises(ConfigError, match="given a dict; expected a tensor"):
        Gathered(spread)({"logits": paddle.ones([2])}, paddle.ones([2]))


VALUES = {
    "numbers": [1, 2.5, 3],
    "tensors of one element": [paddle.to_tensor([1]), paddle.to_tensor(2.5), 3],
    "a tensor": paddle.to_tensor([1, 2.5, 3]),
    "an integer array": np.array([1, 2, 3]),
}


def test_sums_of_any_kind_are_float64_here_and_float32_on_the_device():
    for kind, values in VALUES.items():
        sums = Sums(values, lambda totals: float(totals[0] - totals[2]))
        expected = [1, 2 if "integer" in kind else 2.5, 3]
        assert (sums.to_numpy().dtype, sums.to_numpy().tolist()) == (np.float64, expected)
        on_device = sums.to_tensor()
        assert (on_device.dtype, on_device.tolist()) == (paddle.float32, expected)
        assert sums.with_values(on_device).to_numpy().tolist() == expected
        assert sums.compute() == -2


def test_sums_of_a_loss_keep_no_graph():
    weight = paddle.ones([1])
    weight.stop_gradient = False
    for values in ([weight * 2, 1], weight * 2):
        assert Sums(values, sum).to_tensor().stop_gradient


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 99)), min_size=1, max_size=6))
def test_as_sums_of_batches_weigh_their_samples(batches):
    """Given as one number of a batch, a metric is the mean over its samples."""
    means = [as_sums(float(np.arange(first, first + n).mean()), "m", n) for n, first in batches]
    values = np.concatenate([np.arange(first, first + n) for n, first in batches])
    assert means[0].plus(*means[1:]).compute() == pytest.approx(values.mean())


def test_as_sums_one_number_of_any_kind_is_a_mean_and_others_raise():
    for value in (2, np.float32(2), paddle.to_tensor(2), paddle.ones([1]) * 2):
        assert as_sums(value, "m", 3).to_numpy().tolist() == [6, 3]
    for value, kind in (
        ("2", "a str"),
        (None, "a NoneType"),
        (paddle.ones([2]), r"a Tensor of shape \[2\]"),
        (np.ones(2), r"a ndarray of shape \[2\]"),
    ):
        with pytest.raises(ConfigError, match=f"{kind} as 'm'"):
            as_sums(value, "m", 3)


def test_sums_of_nothing_are_not_a_number_and_of_another_number_raise():
    assert np.isnan(Mean(0, 0).compute())
    with pytest.raises(ConfigError, match="computed from 2 and 3 sums in different batches"):
        Sums([1, 2, 3], sum) + Mean(1, 2)


def test_running_metrics_resumed_adds_to_the_totals():
    """The state is as JSON gives it, in the middle of a log line's steps."""
    totals = {"loss": [8.0, 4], "mean": [3.0, 4], "doubled": [3.0]}
    state = TrainState(step=1, running_sums=RunningSums(4, 0.1, totals))
    state = TrainState.from_dict(json.loads(json.dumps(state.as_dict())))
    running = RunningMetrics(state, NewestMetrics(), 2, {})
    doubled = Sums([4.0], lambda totals: 2 * float(totals[0]))
    metrics = {"mean": Mean(5.0, 4), "doubled": doubled, "new": Mean(1, 4)}
    running.add(StepResult(paddle.to_tensor(1.0), metrics, samples=4, count=4), lr=0.1)
    expected = {"loss": [12, 8], "mean": [8, 8], "doubled": [7], "new": [1, 4]}
    assert running.state.as_dict()["running_sums"]["totals"] == expected
    running.state.step = 2
    running.after_step()
    written = running.writer.values
    values = {name: written[f"train/{name}"] for name in expected}
    assert values == {"loss": 1.5, "mean": 1, "doubled": 14, "new": 0.25}
    assert running.state.running_sums == RunningSums()
