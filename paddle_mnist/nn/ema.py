"""A moving average of the weights, which is evaluated and exported in their place."""

import contextlib
from collections.abc import ItemsView, Iterator, Mapping
from typing import Any

import paddle
from paddle import nn


class WeightAverage:
    """Base class of averages of the weights; by itself it stands for the weights as they are."""

    def update(self, model: nn.Layer, step: int) -> None:
        """Update the average after a step. step: the number of steps done before it."""

    def weights(self, model: nn.Layer) -> Mapping[str, Any]:
        """Return the state_dict to use: the average, or the model's own."""
        return model.state_dict()

    def load(self, weights: Mapping[str, Any]) -> None:
        """Continue from saved values, which must match the model."""

    def apply(self, model: nn.Layer) -> contextlib.AbstractContextManager[None]:
        """Within the context, the model has the averaged weights."""
        return contextlib.nullcontext()


NO_AVERAGE = WeightAverage()


class ExponentialMovingAverage(WeightAverage):
    """Averages the weights: average = d average + (1 - d) weights after each step.

    d = min(decay, (1 + t)/(10 + t)), where t is the number of steps done before, so that the
    initial weights do not dominate the average (as TensorFlow's ExponentialMovingAverage does with
    num_updates). Entries that are not floating-point are copied. In float32, like the weights.
    """

    def __init__(self, model: nn.Layer, decay: float):
        self.decay = decay
        self._average = {name: value.clone().detach() for name, value in _entries(model)}
        for name, value in _entries(model):  # paddle.save writes these names
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
        for name, average in self._average.items():
            average.set_value(weights[name])

    @contextlib.contextmanager
    def apply(self, model: nn.Layer) -> Iterator[None]:
        original = {name: value.clone() for name, value in _entries(model)}
        model.set_state_dict(self._average)
        try:
            yield
        finally:
            model.set_state_dict(original)


def _entries(model: nn.Layer) -> ItemsView[str, paddle.Tensor]:
    return model.state_dict().items()
