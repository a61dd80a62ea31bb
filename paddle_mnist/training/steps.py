"""The step of a training: what is computed of a batch, in training and in evaluation."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Optional

import paddle
from paddle import nn

from paddle_mnist.errors import ConfigError, DataError
from paddle_mnist.metrics.paddle_metrics import GatheredOutputs, MetricFunction, metric_functions
from paddle_mnist.metrics.sums import Mean, as_sums
from paddle_mnist.nn.cross_entropy import compiled_cross_entropy
from paddle_mnist.parallel.gradients import StepOutputs
from paddle_mnist.system.devices import autocast
from paddle_mnist.training.batch_errors import reraise

# (model, batch) -> {"loss": mean loss [], and metrics by name}; `fit` documents it.
Step = Callable[[nn.Layer, Any], Mapping[str, Any]]


class SupervisedStep:
    """The step of a net whose loss compares its outputs with labels.

    loss: (outputs, labels) -> mean loss []. metrics: (outputs, labels) -> a metric, by name, or
        None where it has no meaning.
    autocast: returns the context of the model's forward pass
        (`paddle_mnist.system.devices.autocast`); the loss is computed outside it, in float32.

    A batch is (inputs, labels), or (input, input, ..., labels) for a model of several inputs.

    The cross-entropy of a net of fast convolution blocks, and its gradients, are computed in one
    compiled pass (`paddle_mnist.nn.cross_entropy`); the outputs then have no graph.
    """

    def __init__(
        self,
        loss: Callable[[Any, Any], paddle.Tensor],
        metrics: Optional[Mapping[str, MetricFunction]] = None,
        autocast: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
    ):
        self.loss = loss
        self.metrics = metrics or {}
        self.autocast = autocast

    def __call__(self, model: nn.Layer, batch: Any) -> dict[str, Any]:
        """Return the loss and the metrics of a batch.

        Raises DataError for another structure, or a label that is not a class.
        """
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            description = f"{len(batch)} values" if hasattr(batch, "__len__") else "one value"
            raise DataError(
                f"a batch is a {type(batch).__name__} of {description}; expected (inputs, labels); "
                "for another structure give a step of your own"
            )
        *inputs, labels = batch
        with self.autocast():
            compiled = None
            if len(inputs) == 1:
                compiled = compiled_cross_entropy(model, inputs[0], labels, self.loss)
            outputs = compiled[1] if compiled else model(*inputs)
        outputs = _in_float32(outputs)
        try:
            values = {"loss": compiled[0] if compiled else self.loss(outputs, labels)}
        except Exception as error:  # whatever a loss raises
            reraise(error, self.loss, outputs, labels)
        for name, metric in self.metrics.items():
            value = metric(outputs, labels)
            if value is not None:
                values[name] = value
        return values


def _in_float32(outputs: Any) -> Any:
    """Return a tensor of lower precision in float32; anything else as it is."""
    is_low = isinstance(outputs, paddle.Tensor) and outputs.dtype in (
        paddle.float16,
        paddle.bfloat16,
    )
    return outputs.astype("float32") if is_low else outputs


def num_correct(logits: paddle.Tensor, labels: paddle.Tensor) -> Optional[Mean]:
    """Return the accuracy of logits [B, classes] against labels [B, 1].

    Returns None for labels that are no whole numbers, such as those of a regression.
    """
    if not isinstance(labels, paddle.Tensor) or labels.is_floating_point():
        return None
    hits = (logits.detach().argmax(axis=1) == labels.flatten()).sum()
    return Mean(hits, labels.shape[0])


def run_step(step: Step, model: nn.Layer, batch: Any, samples: int) -> StepOutputs:
    """Run a step on a batch and check what it returns. samples: in the batch.

    Raises ConfigError unless that is a mapping with a "loss" of one element and numbers.
    """
    values = step(model, batch)
    if not isinstance(values, Mapping) or "loss" not in values:
        names = f" of {', '.join(map(str, values))}" if isinstance(values, Mapping) else ""
        raise ConfigError(
            f"the step returned a {type(values).__name__}{names}; expected a dict with the mean "
            'loss as "loss", and metrics by name'
        )
    loss = values["loss"]
    if not isinstance(loss, paddle.Tensor) or loss.size != 1:
        shape = f" of shape {list(loss.shape)}" if isinstance(loss, paddle.Tensor) else ""
        raise ConfigError(
            f"the loss is a {type(loss).__name__}{shape}; expected a tensor of one element, the "
            "mean over the batch"
        )
    metrics = {
        name: as_sums(value, name, max(1, samples))
        for name, value in values.items()
        if name != "loss" and not isinstance(value, GatheredOutputs)
    }
    return StepOutputs(loss, metrics)


class _AutocastStep:
    """A step of the caller's own in mixed precision."""

    def __init__(self, step: Step, level: str):
        self.step, self.autocast = step, autocast(level)

    def __call__(self, model: nn.Layer, batch: Any) -> Mapping[str, Any]:
        with self.autocast():
            return self.step(model, batch)


def check_task(
    loss: Optional[Callable], metrics: Optional[Mapping[str, Any]], step: Optional[Step]
) -> None:
    """Raise ConfigError unless there is either a loss, perhaps with metrics, or a step."""
    if (loss is None) == (step is None):
        both = "both are" if loss else "neither is"
        raise ConfigError(f"one of loss and step is expected, but {both} given")
    if step and metrics:
        raise ConfigError("metrics belong to loss; a step returns its own beside the loss")


def build_step(
    loss: Optional[Callable],
    metrics: Optional[Mapping[str, Any]],
    step: Optional[Step],
    amp: str = "off",
) -> Step:
    """Return the step that the arguments of `fit` stand for. Raises ConfigError, DeviceError."""
    check_task(loss, metrics, step)
    context = autocast(amp)  # raises where the device cannot
    if step:
        return step if amp == "off" else _AutocastStep(step, amp)
    return SupervisedStep(loss, metric_functions(metrics or {}), context)
