"""Temperature scaling: reduce overconfidence before a net continues with new data."""

import itertools
import logging
from typing import Any

import paddle
from paddle import nn

from paddle_mnist.data.external import ExternalLoader
from paddle_mnist.parallel.world import World
from paddle_mnist.training.evaluator import evaluate_step
from paddle_mnist.training.steps import Step

log = logging.getLogger("paddle_mnist")

TEMPERATURES = (1, 1.5, 2, 3, 5, 7, 10)  # 10 leaves a net that is sure and wrong nearly undecided
BATCHES = 16  # of the first epoch, on which the temperature is chosen


def soften(model: nn.Layer, name: str, step: Step, loader: Any, world: World) -> float:
    """Divide a model's outputs by the temperature that fits new data best; return it.

    name: of the layer that computes the outputs; its weights and its bias are divided. That changes
        no prediction of a classifier, only its confidence (temperature scaling: Guo et al., "On
        Calibration of Modern Neural Networks", 2017). The temperature is the one of `TEMPERATURES`
        with the least loss on the first batches of `loader`; of a net that is right about them, 1.

    A net that is sure of wrong answers unlearns what its layers compute before it learns better:
    to make its outputs small it makes its features small, and with ReLU those do not come back.
    """
    layer = dict(model.named_sublayers())[name]
    weights = [(parameter, parameter.detach().clone()) for parameter in layer.parameters()]

    def divide(temperature: float) -> None:
        for parameter, values in weights:
            parameter.set_value(values / paddle.full([], temperature, values.dtype))

    def choose() -> tuple[float, dict[float, float]]:
        first = ExternalLoader(list(itertools.islice(loader.sharded(None).epoch(0), BATCHES)))
        losses: dict[float, float] = {}
        for temperature in TEMPERATURES:
            divide(temperature)
            losses[temperature] = evaluate_step(step, model, first, "train")["loss"]
        return min(losses, key=losses.__getitem__), losses

    temperature, losses = world.run_on_main(choose)
    divide(temperature)
    if temperature != 1:
        log.info(
            "the net is too sure of its answers about the new data: the outputs of %s are divided "
            "by %g, which changes no prediction; the loss is %.4g instead of %.4g",
            name,
            temperature,
            losses[temperature],
            losses[1],
        )
    return temperature
