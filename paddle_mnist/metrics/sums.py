"""Metrics as sums that add up over samples, batches and processes, and are divided once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import paddle

from paddle_mnist.errors import ConfigError
from paddle_mnist.system.arrays import as_array

Number = Union[int, float, paddle.Tensor]  # a tensor of one element


def as_float(value: Any) -> float:
    """Return a number as Python's, from one of NumPy's or a tensor of one element too."""
    number: float = value.item() if hasattr(value, "item") else value
    return number


class Sums:
    """Numbers that add up over samples, and the metric that follows from their totals.

    values: K numbers, or tensors of one element; or a tensor or an array [K].
    compute: (totals, float64 [K]) -> the metric, a float; NaN where it is not defined.
    """

    def __init__(
        self,
        values: Union[Sequence[Number], np.ndarray, paddle.Tensor],
        compute: Callable[[np.ndarray], float],
    ):
        self.compute = compute
        self._values: Union[list[Number], np.ndarray, paddle.Tensor]
        if isinstance(values, paddle.Tensor):
            self._values = values.detach()
        elif isinstance(values, np.ndarray):
            self._values = values
        else:
            self._values = [
                value.detach() if isinstance(value, paddle.Tensor) else value for value in values
            ]

    def with_values(self, values: paddle.Tensor) -> "Sums":
        """Return the same metric of other numbers, a tensor [K]."""
        return Sums(values, self.compute)

    def detach(self) -> "Sums":
        """Return the same sums without the graph that they were computed by."""
        return Sums(self._values, self.compute)

    def to_array(self) -> np.ndarray:
        """Return the numbers, float64 [K]. Waits for the device."""
        if isinstance(self._values, (paddle.Tensor, np.ndarray)):
            return as_array(self._values).astype(np.float64).reshape(-1)
        return np.array([as_float(value) for value in self._values], np.float64)

    def to_tensor(self, dtype: paddle.dtype = paddle.float32) -> paddle.Tensor:
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

    total: the sum; of a loss a tensor, with its graph. count: the number of units in the sum, or
    the sum of their weights. Where it is 0, there is nothing to take a mean of, and the total is
    not looked at: it may be NaN.
    """

    def __init__(self, total: Number, count: Number):
        super().__init__([total, count], ratio)
        self.total, self.count = total, count

    @classmethod
    def from_value(cls, value: Number, count: Number) -> "Mean":
        """Return the mean that has this very value, which a division of the total would round."""
        mean = cls(value * count, count)
        mean._value = value
        return mean

    _value: Optional[Number] = None

    @property
    def value(self) -> Number:
        """The mean, with its graph. Not to be asked for where the count is 0."""
        return self.total / self.count if self._value is None else self._value

    def detach(self) -> "Mean":
        """Return the same mean without the graph that it was computed by."""
        total, count = self._values
        return Mean(total, count)

    def to_array(self) -> np.ndarray:
        total, count = super().to_array()
        if self._value is not None and count:
            total = as_float(self._value) * count  # in float64
        return np.array([total if count else 0.0, count])

    def to_tensor(self, dtype: paddle.dtype = paddle.float32) -> paddle.Tensor:
        values = super().to_tensor(dtype)
        if not isinstance(self.count, paddle.Tensor) and self.count:
            return values
        return paddle.where(values[1] == 0, paddle.zeros_like(values), values)


def ratio(totals: np.ndarray) -> float:
    """Return a total divided by its count; NaN if there is nothing to count."""
    return float(totals[0] / totals[1]) if totals[1] else float("nan")


def total(totals: np.ndarray) -> float:
    """Return the only total."""
    return float(totals[0])


def as_sums(value: Any, name: str, samples: int) -> Sums:
    """Return the sums that a metric of a batch stands for.

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
            f"the step gave a {type(value).__name__}{shape} as {name!r}; expected one number, its "
            "mean over the batch, or Mean(total, count)"
        )
    return Mean(value * samples, samples)


def compute_all(
    totals: Mapping[str, Sequence[float]], functions: Mapping[str, Callable[[np.ndarray], float]]
) -> dict[str, float]:
    """Return metrics by name. totals: of sums, by name. functions: their `compute`, or `ratio`."""
    return {
        name: functions.get(name, ratio)(np.asarray(values, np.float64))
        for name, values in totals.items()
    }
