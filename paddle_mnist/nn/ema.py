"""A moving average of the weights, to be used in their place when the training is over."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import paddle
from paddle import nn


class Average(Protocol):
    """What the loop asks of an average."""

    def update(self, model: nn.Layer, step: int) -> None:
        """After a step: `step` ones were done before it."""

    def weights(self, model: nn.Layer) -> Mapping[str, Any]:
        """The state_dict to use: of the average, or the model's own."""

    def in_use(self, model: nn.Layer) -> contextlib.AbstractContextManager:
        """Inside, the model has the averaged weights."""


class ExponentialMovingAverage:
    """average = d average + (1 - d) weights after each step, with d = min(decay, (1 + t)/(10 + t)).

    t is the number of steps done before, so that the first ones do not hold the average back
    (as TensorFlow's ExponentialMovingAverage does with num_updates). Only of floating-point
    entries; others are taken as they are. In float32, like the weights.
    """

    def __init__(self, model: nn.Layer, decay: float):
        self.decay = decay
        self._average = {name: value.clone().detach() for name, value in _entries(model)}
        for name, value in _entries(model):  # paddle.save writes the names down
            self._average[name].name = value.name

    def update(self, model: nn.Layer, step: int) -> None:
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        with paddle.no_grad():
            for name, value in _entries(model):
                average = self._average[name]
                if value.is_floating_point():
                    average.set_value(average + share * (value - average))
                else:
                    average.set_value(value)

    def weights(self, model: nn.Layer) -> Mapping[str, Any]:
        return self._average

    def load(self, weights: Mapping[str, Any]) -> None:
        """Go on from saved values, which must have been checked against the model."""
        for name, average in self._average.items():
            average.set_value(weights[name])

    @contextlib.contextmanager
    def in_use(self, model: nn.Layer) -> Iterator[None]:
        before = {name: value.clone() for name, value in _entries(model)}
        model.set_state_dict(self._average)
        try:
            yield
        finally:
            model.set_state_dict(before)


def _entries(model: nn.Layer):
    return model.state_dict().items()


class _NoAverage:
    """The weights as they are."""

    def update(self, model: nn.Layer, step: int) -> None:
        """Nothing to do."""

    def weights(self, model: nn.Layer) -> Mapping[str, Any]:
        return model.state_dict()

    def load(self, weights: Mapping[str, Any]) -> None:
        """Nothing to do."""

    def in_use(self, model: nn.Layer) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()


NO_AVERAGE = _NoAverage()
