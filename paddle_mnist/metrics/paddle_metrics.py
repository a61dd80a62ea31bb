"""Convert `paddle.metric`s to sums, or gather outputs for metrics that need all of them at once."""

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import numpy as np
import paddle
from paddle.metric import Accuracy, Auc, Metric, Precision, Recall

from paddle_mnist.data.structures import require_one_shape
from paddle_mnist.errors import ConfigError
from paddle_mnist.metrics.sums import Mean, Sums
from paddle_mnist.system.arrays import as_array

log = logging.getLogger("paddle_mnist")

# A metric of a batch: its mean over the samples, or a metric that adds up; None: undefined.
MetricValue = Union[int, float, np.generic, paddle.Tensor, Sums, "Gathered", None]
MetricFunction = Callable[[Any, Any], MetricValue]  # (outputs of the model, labels) -> the metric

# The attributes in which Paddle's metrics count, and from which they compute their value.
COUNTERS = {
    Accuracy: ("total", "count"),  # for each k
    Precision: ("tp", "fp"),
    Recall: ("tp", "fn"),
    Auc: ("_stat_pos", "_stat_neg"),
}


# Inputs that Paddle's metrics expect; with logits they would compute nonsense, or fail.
EXPECTED = {
    Auc.update: "probabilities [N, 2] of two classes",
    Precision.update: "probabilities [N, 1] of the positive class",
    Recall.update: "probabilities [N, 1] of the positive class",
}
TOLERANCE = 1e-3  # for probabilities below 0 or above 1, in low precision


class Gathered:
    """A metric computed on all outputs of an evaluation at once, not from sums over batches.

    metric: (outputs, labels) -> a number, both NumPy arrays [N, ...] of all samples in the order of
        the data; or a `paddle.metric.Metric`.

    The outputs of the whole evaluation must fit into the memory of every process. The metric is not
    computed during training.

    values: the outputs gathered so far, and the labels: tensors or arrays [N, ...].
    """

    def __init__(
        self,
        metric: Union[Callable[..., float], Metric],
        values: Sequence[Union[np.ndarray, paddle.Tensor]] = (),
    ):
        if isinstance(metric, Accuracy) and len(metric.topk) > 1:
            raise ConfigError(
                "the gathered metric is an Accuracy of several k, which has several values; "
                "use it without Gathered, since it adds up"
            )
        self.metric = metric
        self._values = values

    def __call__(self, outputs: Any, labels: Any) -> "Gathered":
        """Gather the outputs and labels of a batch. Raises ConfigError unless they are tensors."""
        values = [*_as_list(outputs), labels]
        other = next((value for value in values if not isinstance(value, paddle.Tensor)), None)
        if other is not None:
            raise ConfigError(
                f"a gathered metric is given a {type(other).__name__}; expected a tensor, or a "
                "model with several outputs; for others, write a custom step"
            )
        return self.with_values(values)

    def compute(self) -> float:
        """Compute the metric from the gathered outputs. Waits for the device."""
        values = self.to_numpy()
        if not isinstance(self.metric, Metric):
            return float(self.metric(*values))
        metric = copy.deepcopy(self.metric)
        metric.reset()
        _update(metric, [paddle.to_tensor(value) for value in values])
        return float(metric.accumulate())

    def with_values(self, values: Sequence[Union[np.ndarray, paddle.Tensor]]) -> "Gathered":
        """Return the same metric with other outputs."""
        return Gathered(self.metric, values)

    def plus(self, *others: "Gathered") -> "Gathered":
        """Append the outputs of other batches, in this order. Raises DataError if they differ."""
        batches = [metric.to_numpy() for metric in (self, *others)]
        for batch in batches:
            require_one_shape(batch, batches[0], "the gathered values of a batch")
        return self.with_values([np.concatenate(column) for column in zip(*batches)])

    def to_numpy(self) -> list[np.ndarray]:
        """Return the values as arrays. Waits for the device."""
        # a net may have squeezed away the dimension of a batch of one sample
        return [np.atleast_1d(as_array(value)) for value in self._values]


def metric_functions(
    metrics: Mapping[str, Union[MetricFunction, Metric]],
) -> dict[str, MetricFunction]:
    """Return functions (outputs, labels) -> sums for metrics by name.

    metrics: instances of `paddle.metric`'s Accuracy, Precision, Recall and Auc; `Gathered`
        metrics; or such functions, which return a number, the mean over the batch, or `Sums`. An
        Accuracy of several k gives a metric for each: `acc_top1`, `acc_top5`.
    Raises ConfigError for a metric that does not add up.
    """
    functions: dict[str, MetricFunction] = {}
    for name, metric in metrics.items():
        if name == "loss":
            raise ConfigError('a metric is called "loss", like the loss; choose another name')
        if isinstance(metric, Metric):
            functions.update(_adapted(name, metric))
        elif callable(metric):
            functions[name] = metric
            if _uses_sklearn(metric):
                log.info(
                    "the metric %r is from sklearn.metrics, averaged over batches: exact only if "
                    "it is a mean over samples; Gathered(...) computes it on all outputs at once",
                    name,
                )
        else:
            raise ConfigError(
                f"the metric {name!r} is a {type(metric).__name__}; expected a paddle.metric, or "
                "a function of (outputs, labels)"
            )
    return functions


def _uses_sklearn(function: Any) -> bool:
    """Return whether a function, or one that its code names, is from scikit-learn."""
    inner = getattr(function, "func", function)  # of a partial
    code = getattr(inner, "__code__", None)
    used = [inner, *(inner.__globals__.get(name, name) for name in code.co_names)] if code else []
    origins = (getattr(value, "__module__", getattr(value, "__name__", value)) for value in used)
    return any(str(origin).partition(".")[0] == "sklearn" for origin in origins)


def _adapted(name: str, metric: Metric) -> dict[str, MetricFunction]:
    """Convert one of Paddle's metrics, or a subclass that counts in the same way, to functions."""
    kind = next((kind for kind in COUNTERS if isinstance(metric, kind)), None)
    counting = ("update", "accumulate", "reset")
    if not kind or any(
        getattr(type(metric), method) is not getattr(kind, method) for method in counting
    ):
        raise ConfigError(
            f"the metric {name!r} is a {type(metric).__name__}, which cannot be computed from sums "
            "over batches; use Accuracy, Precision, Recall, Auc, a function that returns Sums, or "
            "Gathered(metric), which is computed on all outputs at once"
        )
    if isinstance(metric, Accuracy):
        return _accuracies(name, metric)
    return {name: _counted(metric, COUNTERS[kind])}


def _accuracies(name: str, metric: Accuracy) -> dict[str, MetricFunction]:
    def function(k: int) -> MetricFunction:
        def accuracy(outputs: Any, labels: Any) -> Mean:
            hits = metric.compute(*_as_list(outputs), labels)[..., :k]
            return Mean(hits.sum(), int(np.prod(hits.shape[:-1])))

        return accuracy

    if len(metric.topk) == 1:
        return {name: function(metric.topk[0])}
    return {f"{name}_top{k}": function(k) for k in metric.topk}


def _counted(metric: Metric, counters: Sequence[str]) -> MetricFunction:
    def count(outputs: Any, labels: Any) -> Sums:
        counting = copy.deepcopy(metric)
        counting.reset()
        _update(counting, [*_as_list(outputs), labels])
        return Sums(np.concatenate([_counter(counting, name) for name in counters]), compute)

    def compute(totals: np.ndarray) -> float:
        total = copy.deepcopy(metric)
        total.reset()
        parts = np.split(totals, np.cumsum([len(_counter(total, name)) for name in counters])[:-1])
        for name, part in zip(counters, parts):
            is_array = isinstance(getattr(total, name), np.ndarray)
            setattr(total, name, part if is_array else part.item())
        return float(total.accumulate())

    return count


def _counter(metric: Metric, name: str) -> np.ndarray:
    return np.atleast_1d(np.asarray(getattr(metric, name), np.float64))


def _update(metric: Metric, values: Sequence[paddle.Tensor]) -> None:
    """Update a metric with a batch, as Paddle's own `hapi.Model` does."""
    counted = _as_list(metric.compute(*values))
    expected = EXPECTED.get(type(metric).update)
    probabilities = np.asarray(counted[0])
    if expected and (
        bool((probabilities < -TOLERANCE).any() or (probabilities > 1 + TOLERANCE).any())
        or (isinstance(metric, Auc) and probabilities.shape[1:] != (2,))
    ):
        raise ValueError(
            f"expected {expected}, not logits: define a subclass whose compute(outputs, labels) "
            "returns them with the labels"
        )
    metric.update(*counted)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]
