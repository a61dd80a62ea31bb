"""`Incremental`, the callback that softens a net before new data, and measures what it forgets.

It imports paddle only where it is used: `--help` lists the callback's options without paddle.
"""

import itertools
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from paddle_mnist.errors import ConfigError, unknown_name
from paddle_mnist.options import BOOLEANS, Options, option
from paddle_mnist.train_state import HIGHEST_IS_BEST
from paddle_mnist.training.callbacks import Callback, FitResult, Training

log = logging.getLogger("paddle_mnist")

METRICS_BEFORE = "metrics_before"  # of result.json
TOLERANCE = 0.01  # a smaller loss is not reported: chance alone moves an accuracy as much
LAYER = "fc"  # whose outputs are divided if `soften` is true
TEMPERATURES = (1, 1.5, 2, 3, 5, 7, 10)  # 10 leaves a net that is sure and wrong nearly undecided
BATCHES = 16  # of the first epoch, on which the temperature is chosen


def _parse_layer(value: Any) -> Any:
    """Read the name of a layer; true means `LAYER`, false means none."""
    is_softened = BOOLEANS.get(str(value).lower())
    return value if is_softened is None else LAYER if is_softened else None


@dataclass(eq=False)
class Incremental(Callback, Options):
    """Measures what a net forgets when it continues another run, and may soften it first.

    `result.json` contains the metrics from before the first step, and by how much each accuracy has
    fallen; to measure it on old data, pass them to `fit` as a second split. A net that starts from
    weights alone may be softened, but is not measured.

    soften: the name of the layer that computes the outputs, which are made less confident where
        they are wrong about the new data, by temperature scaling; True for "fc".
    """

    heading = "start"

    soften: Optional[str] = option(
        None,
        "with incremental_from and init_from: the layer whose outputs become less confident; "
        "false: none",
        bare=LAYER,
        parse=_parse_layer,
    )
    _before: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    def check_training(self, training: Training) -> None:
        """Raise ConfigError for an unknown layer, and for data that cannot be read twice."""
        if not self.soften or not training.arguments.start:
            return
        layers = dict(training.model.named_sublayers())
        if self.soften not in layers:
            raise ConfigError(unknown_name("soften", self.soften, layers))
        if not training.loader.is_indexed:
            raise ConfigError(
                "soften reads the first training batches twice, which this training data does not "
                "allow; expected a paddle.io.Dataset"
            )

    def before_training(self, training: Training) -> None:
        start = training.arguments.start
        if start and not training.resumed_from:
            if not start.weights_only:
                metrics = training.evaluator.metrics(training.model)
                self._before = {tag: n for tag, n in metrics.items() if math.isfinite(n)}
                words = ", ".join(f"{tag} {value:.4g}" for tag, value in self._before.items())
                log.info("before this training: %s", words or "not evaluated")
            if self.soften:
                _soften(training, self.soften)

    def state_dict(self) -> dict[str, Any]:
        return {METRICS_BEFORE: dict(self._before)}

    def set_state_dict(self, state: Mapping[str, Any]) -> None:
        self._before = dict(state[METRICS_BEFORE])

    def result_entries(self, training: Training, result: FitResult) -> Mapping[str, Any]:
        if not self._before:
            return {}
        return {METRICS_BEFORE: dict(self._before), "lost": self._lost(result.metrics)}

    def after_training(self, training: Training, result: FitResult) -> None:
        for tag in self._lost(result.metrics) if training.world.is_main_process else ():
            log.warning(
                "%s has fallen from %.4f before this training to %.4f: the net has forgotten; "
                "replay more of the old data, train more epochs, or lower the learning rate",
                tag,
                self._before[tag],
                result.metrics[tag],
            )

    def _lost(self, after: Mapping[str, float]) -> dict[str, float]:
        """Return how far each accuracy has fallen, by tag; small losses are left out."""
        losses = {
            tag: value - after[tag]
            for tag, value in self._before.items()
            if tag in after and tag.rpartition("/")[2] in HIGHEST_IS_BEST
        }
        return {tag: loss for tag, loss in losses.items() if loss > TOLERANCE}


def _soften(training: Training, name: str) -> None:
    """Divide the net's outputs by the temperature that fits the new data best.

    name: of the layer that computes the outputs; its weights and its bias are divided. That changes
        no prediction of a classifier, only its confidence (temperature scaling: Guo et al., "On
        Calibration of Modern Neural Networks", 2017). The temperature is the one of `TEMPERATURES`
        with the lowest loss on the first batches; 1 for a net that predicts them correctly.

    A net that is sure of wrong answers first unlearns its features: to make its outputs smaller it
    shrinks its features, and with ReLU those that reach 0 do not recover.
    """
    import paddle

    from paddle_mnist.data.external import ExternalLoader
    from paddle_mnist.training.evaluator import evaluate_step

    layer = dict(training.model.named_sublayers())[name]
    weights = [(parameter, parameter.detach().clone()) for parameter in layer.parameters()]

    def divide(temperature: float) -> None:
        for parameter, values in weights:
            parameter.set_value(values / paddle.full([], temperature, values.dtype))

    def choose() -> tuple[float, dict[float, float]]:
        loader: Any = training.loader  # of a dataset: `check_training` has refused others
        first = ExternalLoader(list(itertools.islice(loader.sharded(None).epoch(0), BATCHES)))
        losses: dict[float, float] = {}
        for temperature in TEMPERATURES:
            divide(temperature)
            results = evaluate_step(training.step, training.model, first, "train")
            losses[temperature] = results["loss"]
        return min(losses, key=losses.__getitem__), losses

    temperature, losses = training.world.run_on_main(choose)
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
