"""Metrics that add up over samples, batches and processes, and are computed once, at the end."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
import paddle

from paddle_mnist.data.structures import explained
from paddle_mnist.errors import ConfigError
from paddle_mnist.interfaces import MetricSums
from paddle_mnist.system.arrays import as_array

if TYPE_CHECKING:
    from paddle._typing import DTypeLike  # which Paddle 2 lacks

Number = Union[int, float, paddle.Tensor]  # a tensor of one element


def as_float(value: Any) -> float:
    """Convert a number, NumPy's or a tensor of one element too, to Python's."""
    number: float = value.item() if hasattr(value, "item") else value
    return number


class Sums:
    """Numbers that add up over samples, and the metric that follows from their totals.

    values: K numbers, or tensors of one element; or a tensor or an array [K].
    compute: (totals, float64 [K]) -> the metric, a float; NaN where it is undefined.
    """

    def __init__(
        self,
        values: Union[Sequence[Number], np.ndarray, paddle.Tensor],
        compute: Callable[[np.ndarray], float],
    ):
        self._compute = compute
        self._values: Union[Sequence[Number], np.ndarray, paddle.Tensor]
        if isinstance(values, paddle.Tensor):
            self._values = values.detach()
        elif isinstance(values, np.ndarray):
            self._values = values
        else:
            self._values = [
                value.detach() if isinstance(value, paddle.Tensor) else value for value in values
            ]

    def compute(self) -> float:
        """Compute the metric from these totals. Waits for the device."""
        return self._compute(self.to_numpy())

    def with_values(self, values: Union[np.ndarray, paddle.Tensor]) -> "Sums":
        """Return the same metric with other numbers [K]."""
        return Sums(values, self._compute)

    def detach(self) -> "Sums":
        """Return the same sums, detached from the graph."""
        return Sums(self._values, self._compute)

    def plus(self, *others: MetricSums) -> "Sums":
        """Add the numbers of other batches to these; see `added`, which raises."""
        return self.with_values(added([metric.to_numpy() for metric in (self, *others)]))

    def __add__(self, other: MetricSums) -> "Sums":
        return self.plus(other)

    def to_numpy(self) -> np.ndarray:
        """Return the numbers, float64 [K]. Waits for the device."""
        if isinstance(self._values, (paddle.Tensor, np.ndarray)):
            return as_array(self._values).astype(np.float64).reshape(-1)
        return np.array([as_float(value) for value in self._values], np.float64)

    def to_tensor(self, dtype: "DTypeLike" = "float32") -> paddle.Tensor:
        """Return the numbers [K] on the device, by default as float32."""
        if isinstance(self._values, np.ndarray):
            return paddle.to_tensor(self._values.reshape(-1), dtype=dtype)
        if isinstance(self._values, paddle.Tensor):
            return self._values.astype(dtype).reshape([-1])
        return paddle.concat(
            [
                value.astype(dtype).reshape([1])
                if isinstance(value, paddle.Tensor)
                else paddle.to_tensor([value], dtype=dtype)
                for value in self._values
            ]
        )


class Mean(Sums):
    """A mean over samples, or over other units, such as words or pixels.

    total: the sum; for a loss a tensor, with its graph. count: the number of units in the sum, or
    the sum of their weights. Totals and counts are added separately, and divided once. With a count
    of 0, the total still counts (a detector's loss over all anchors where none is positive), except
    if it is NaN, the mean of nothing.
    """

    def __init__(self, total: Number, count: Number):
        super().__init__([total, count], ratio)
        self.total, self.count = total, count

    @classmethod
    def from_value(cls, value: Number, count: Number) -> "Mean":
        """Return a mean with exactly this value; dividing its total again would round it."""
        mean = cls(value * count, count)
        mean._value = value
        return mean

    _value: Optional[Number] = None

    @property
    def value(self) -> Number:
        """The mean, with its graph. Undefined when the count is 0."""
        return self.total / self.count if self._value is None else self._value

    def detach(self) -> "Mean":
        """Return the same mean, detached from the graph."""
        total, count = self._values
        return Mean(total, count)

    def to_numpy(self) -> np.ndarray:
        total, count = super().to_numpy()
        if self._value is not None and count:
            total = as_float(self._value) * count  # in float64
        return np.array([0.0 if not count and np.isnan(total) else total, count])

    def to_tensor(self, dtype: "DTypeLike" = "float32") -> paddle.Tensor:
        values = super().to_tensor(dtype)
        if not isinstance(self.count, paddle.Tensor) and self.count:
            return values
        is_nothing = (values[1] == 0) & values[0].isnan()
        return paddle.where(is_nothing, paddle.zeros_like(values), values)


def computed(metrics: Mapping[str, Any], source: str = "") -> dict[str, float]:
    """Compute metrics from their totals, by name: sums, or gathered outputs.

    Raises ConfigError that names a failing one.
    """
    values = {}
    for name, metric in metrics.items():
        with explained(metric.to_numpy(), f"the metric {name!r}{source}", "it got"):
            values[name] = metric.compute()
    return values


def added(values: Sequence[np.ndarray]) -> np.ndarray:
    """Add the numbers of batches, float64 [K] each, in their order.

    Raises ConfigError unless all have the same number of them.
    """
    sizes = set(map(len, values))
    if len(sizes) > 1:
        raise ConfigError(
            f"a metric is computed from {' and '.join(map(str, sorted(sizes)))} sums in "
            "different batches; expected the same number in all"
        )
    totals: Any = sum(values)
    return np.asarray(totals)


def ratio(totals: np.ndarray) -> float:
    """Return a total divided by its count; NaN if there is nothing to count."""
    return float(totals[0] / totals[1]) if totals[1] else float("nan")


def total(totals: np.ndarray) -> float:
    """Return the only total."""
    return float(totals[0])


def as_sums(value: Any, name: str, samples: int) -> Sums:
    """Convert a metric of a batch to sums.

    value: `Sums`; or a number or a tensor of one element, the mean over the batch's samples.
    Raises ConfigError for anything else.
    """
    if isinstance(value, Sums):
        return value
    is_scalar = isinstance(value, (int, float)) or (
        isinstance(value, (paddle.Tensor, np.generic)) and value.size == 1
    )
    if not is_scalar:
        shape = f" of shape {list(value.shape)}" if hasattr(value, "shape") else ""
        raise ConfigError(
            f"the step returned a {type(value).__name__}{shape} as {name!r}; expected one number, "
            "its mean over the batch, or Mean(total, count)"
        )
    if isinstance(value, paddle.Tensor) and value.dtype == paddle.bool:
        raise ConfigError(
            f"the metric {name!r} is a tensor of bool, which Paddle returns for the mean of "
            'comparisons; convert them first, as in (a == b).astype("float32").mean()'
        )
    return Mean(value * samples, samples)
