"""Compute the loss and the metrics of a batch, in training and in evaluation.

`paddle_mnist.nn.schedule` decides when to step the learning-rate schedule.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Optional, Union

import numpy as np
import paddle
from paddle import nn
from paddle.metric import Metric

from paddle_mnist.data.structures import describe_batch, explained
from paddle_mnist.errors import ConfigError, DataError
from paddle_mnist.interfaces import StepOutputs
from paddle_mnist.metrics.paddle_metrics import Gathered, MetricFunction, metric_functions
from paddle_mnist.metrics.sums import Mean, as_sums
from paddle_mnist.nn.losses import (
    CrossEntropy,
    has_ignored_nll,
    is_cross_entropy,
    is_elementwise,
    label_weight,
    mean_options,
    reduction_of,
    summed_nll,
    usable_labels,
)
from paddle_mnist.system.arrays import as_array
from paddle_mnist.system.devices import autocast
from paddle_mnist.training.batch_errors import labels_checked

log = logging.getLogger("paddle_mnist")

# (model, batch) -> {"loss": mean loss [] or `Mean`, and metrics by name}; `fit` documents it.
Step = Callable[[Any, Any], Mapping[str, object]]
Loss = Callable[[Any, Any], Union[paddle.Tensor, Mean]]  # (outputs, labels) -> the mean loss []
Metrics = Mapping[str, Union[MetricFunction, Metric]]  # by name


CHOOSE_OUTPUT = "choose one output, as in loss=lambda outputs, labels: loss(outputs[0], labels)"
NUMBER_CLASSES = "number the classes from 0, as int64"


class SupervisedStep:
    """The step of a net whose loss compares its outputs with labels.

    loss: (outputs, labels) -> the mean loss [] over the samples, or a `Mean`. The count of Paddle's
        own losses, if it is not the samples, is computed (`paddle_mnist.nn.losses`).
    metrics: by name, (outputs, labels) -> a metric, or None if it is undefined for the batch.
    autocast: returns the context of the model's forward pass
        (`paddle_mnist.system.devices.autocast`); the loss is computed outside it, in float32.

    A batch is (inputs, labels), or (input, input, ..., labels) for a model of several inputs.

    A net may have a method `fused_loss(loss, labels, *inputs)`, which computes the loss together
    with the outputs: it returns (mean loss [], outputs), or None to be called as other nets are.
    The graph of the loss ends at the net's parameters; the outputs do not need one.

    inputs: (attribute) the number of the model's inputs, once it has computed a batch.
    """

    inputs: Optional[int] = None

    def __init__(
        self,
        loss: Loss,
        metrics: Optional[Mapping[str, MetricFunction]] = None,
        autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ):
        self.loss = loss
        # The layers of a trained loss follow the model's mode. A frozen loss, such as a perceptual
        # one, keeps its own mode.
        self._switched: list[nn.Layer] = []
        if isinstance(loss, nn.Layer) and any(
            not parameter.stop_gradient for parameter in loss.parameters()
        ):
            layers = loss.sublayers(include_self=True)
            self._switched = [layer for layer in layers if layer.training]
        self.is_elementwise = is_elementwise(loss)
        self.is_cross_entropy = isinstance(loss, CrossEntropy) or is_cross_entropy(loss)
        self.has_known_mean = self.is_cross_entropy or self.is_elementwise
        self._warned_of_shapes = False
        self._undefined: set[str] = set()  # metrics, once logged as undefined
        self.metrics = metrics or {}
        self.autocast = autocast

    def __call__(self, model: nn.Layer, batch: Any) -> dict[str, object]:
        """Return the loss and the metrics of a batch.

        Raises DataError for a batch of another structure, a label that is not a class, and outputs
        and labels that an elementwise loss would broadcast.
        """
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            description = f"{len(batch)} values" if hasattr(batch, "__len__") else "one value"
            raise DataError(
                f"a batch is a {type(batch).__name__} of {description}; expected (inputs, labels); "
                "for another structure, pass a custom step"
            )
        *inputs, labels = batch
        self.inputs = len(inputs)
        for layer in self._switched:
            layer.training = model.training
        with self.autocast():
            # Look in the class: on a layer, a missing attribute is slow to find.
            has_fused_loss = hasattr(type(model), "fused_loss")
            fused = model.fused_loss(self.loss, labels, *inputs) if has_fused_loss else None
            outputs = fused[1] if fused else model(*inputs)
        outputs = _in_float32(outputs)
        self._check_shapes(outputs, labels)
        with labels_checked():
            loss = fused[0] if fused else mean_loss(self.loss, outputs, labels)
        values: dict[str, object] = {"loss": loss}
        for name, metric in self.metrics.items():
            with explained((outputs, labels), f"the metric {name!r}", "it got"):
                value = metric(outputs, labels)
            if value is not None:
                values[name] = value
            elif name not in self._undefined:
                self._undefined.add(name)
                log.info("the metric %r is None for a batch; such batches do not count", name)
        return values

    def _check_shapes(self, outputs: Any, labels: Any) -> None:
        """Raise for shapes that an elementwise loss would broadcast; warn for other losses.

        Raises ConfigError if the loss is Paddle's and these are not tensors.
        """
        if not isinstance(outputs, paddle.Tensor) or not isinstance(labels, paddle.Tensor):
            if getattr(self.loss, "__module__", "").startswith("paddle.nn."):
                kinds = type(outputs).__name__, type(labels).__name__
                raise ConfigError(
                    f"the loss takes tensors, but the model's output is a {kinds[0]}, and the "
                    f"labels are a {kinds[1]}; "
                    + (NUMBER_CLASSES if isinstance(outputs, paddle.Tensor) else CHOOSE_OUTPUT)
                )
            return
        shapes = list(outputs.shape), list(labels.shape)
        if shapes[0] == shapes[1]:
            return
        if self.is_elementwise:
            name = getattr(self.loss, "__name__", type(self.loss).__name__)
            raise DataError(
                f"{name} compares outputs {shapes[0]} with labels {shapes[1]} element by element, "
                "and Paddle would broadcast them to one shape; expected equal shapes: give "
                f"the label of a sample the shape {shapes[0][1:]}, or reshape the outputs"
            )
        if self.is_cross_entropy and labels.is_floating_point():
            raise DataError(
                f"the labels of a cross-entropy are {describe_batch(labels)}; expected whole "
                f"numbers, int64, or shares of the classes, {shapes[0]}"
            )
        if self.has_known_mean or self._warned_of_shapes:
            return
        if shapes[1] and shapes[1][0] > 1 and shapes[0] == [*shapes[1], 1]:
            self._warned_of_shapes = True
            log.warning(
                "the outputs are %s and the labels %s: a loss that compares them element by "
                "element broadcasts them to %s; if yours does, give labels of shape [1]",
                *shapes,
                [*shapes[1], shapes[1][-1]],
            )


def mean_loss(loss: Loss, outputs: Any, labels: Any) -> Union[paddle.Tensor, Mean]:
    """Return the loss of a batch, as a `Mean` if a loss of Paddle's is not over the samples."""
    options = mean_options(loss)
    if options is None:
        return loss(outputs, labels)
    labels = usable_labels(options, outputs, labels)
    is_sum = has_ignored_nll(options, labels)
    value = summed_nll(options, outputs, labels) if is_sum else loss(outputs, labels)
    count = label_weight(options, labels)  # after the loss, which raises for invalid labels
    if count is None or isinstance(value, Mean):
        return value
    return Mean(value, count) if is_sum else Mean.from_value(value, count)


def _in_float32(outputs: Any) -> Any:
    """Convert a tensor of lower precision to float32; return anything else unchanged."""
    is_low = isinstance(outputs, paddle.Tensor) and outputs.dtype in (
        paddle.float16,
        paddle.bfloat16,
    )
    return outputs.astype("float32") if is_low else outputs


def num_correct(logits: paddle.Tensor, labels: paddle.Tensor) -> Optional[Mean]:
    """Return the accuracy of logits [B, classes] against labels [B, 1].

    Returns None for labels that are not integers, such as those of a regression.
    """
    if not isinstance(labels, paddle.Tensor) or labels.is_floating_point():
        return None
    count = labels.shape[0]
    if logits.place.is_cpu_place() and labels.place.is_cpu_place():
        # A fifth of the time of Paddle's five operators, which pass over a NaN; NumPy finds it.
        values, numbers = as_array(logits), as_array(labels).reshape(-1)
        is_known = values.dtype.kind == "f" and not np.isnan(values).any()  # bfloat16 is uint16
        if is_known and values.ndim == 2 and len(values) == len(numbers):
            return Mean(int(np.count_nonzero(values.argmax(axis=1) == numbers)), count)
    hits = (logits.detach().argmax(axis=1) == labels.flatten()).sum()
    return Mean(hits, count)


def run_step(step: Step, model: nn.Layer, batch: Any, samples: int) -> StepOutputs:
    """Run a step on a batch; check and convert its values. samples: their number in the batch."""
    return step_outputs(step(model, batch), samples)


def step_outputs(values: Any, samples: int) -> StepOutputs:
    """Check and convert the values that a step returned. samples: their number in its batch.

    Raises ConfigError unless they are a mapping with a "loss" of one element, or a `Mean` of one,
    and numbers.
    """
    if not isinstance(values, Mapping) or "loss" not in values:
        names = f" of {', '.join(map(str, values))}" if isinstance(values, Mapping) else ""
        raise ConfigError(
            f"the step returned a {type(values).__name__}{names}; expected a dict with the mean "
            'loss as "loss", and metrics by name'
        )
    loss, count = values["loss"], None
    if isinstance(loss, Mean):
        number: Any = loss.count
        count = float(number.item() if hasattr(number, "item") else number)
        if not 0 <= count < math.inf:
            raise ConfigError(
                f"the loss is a mean over a count of {count}; expected a number that is not "
                "negative"
            )
        loss = loss.value if count else loss.total
    if not isinstance(loss, paddle.Tensor) or math.prod(loss.shape) != 1:  # `size` takes longer
        shape = f" of shape {list(loss.shape)}" if isinstance(loss, paddle.Tensor) else ""
        raise ConfigError(
            f"the loss is a {type(loss).__name__}{shape}; expected a tensor of one element, the "
            "mean over the batch"
        )
    metrics = {
        name: as_sums(value, name, max(1, samples)).detach()
        for name, value in values.items()
        if name != "loss" and not isinstance(value, Gathered)
    }
    return StepOutputs(loss, metrics, count)


def check_task(
    loss: Optional[Loss],
    metrics: Optional[Metrics],
    step: Optional[Step],
) -> None:
    """Raise ConfigError unless there is either a loss, with or without metrics, or a step."""
    if (loss is None) == (step is None):
        both = "both are" if loss else "neither is"
        raise ConfigError(f"one of loss and step is expected, but {both} given")
    named = {f"metrics[{name!r}]": metric for name, metric in (metrics or {}).items()}
    for name, value in {"loss": loss, "step": step, **named}.items():
        if isinstance(value, type) and issubclass(value, (nn.Layer, Metric)):
            kind = value.__name__
            raise ConfigError(f"{name} is the class {kind}; expected an instance, {kind}()")
        if not (value is None or callable(value) or isinstance(value, Metric)):
            what = "the model and a batch" if name == "step" else "outputs and labels"
            raise ConfigError(f"{name} is {value!r:.60}; expected a function of {what}")
    if step and metrics:
        raise ConfigError("metrics go with loss; a step returns its own metrics with its loss")
    if loss and reduction_of(loss) == "sum":
        raise ConfigError(
            'the loss has reduction="sum", so that its gradients grow with the batch; expected '
            'reduction="mean", which is the default'
        )


def build_step(
    loss: Optional[Loss],
    metrics: Optional[Metrics],
    step: Optional[Step],
    amp: str = "off",
) -> Step:
    """Build the step from the arguments of `fit`. Raises ConfigError, DeviceError."""
    check_task(loss, metrics, step)
    context = autocast(amp)  # raises where the device cannot
    if loss:
        return SupervisedStep(loss, metric_functions(metrics or {}), context)
    assert step  # as `check_task` has seen
    return step if amp == "off" else _in_context(step, context)


def _in_context(step: Step, context: Callable[[], contextlib.AbstractContextManager[Any]]) -> Step:
    def step_in_context(model: nn.Layer, batch: Any) -> Mapping[str, object]:
        with context():
            return step(model, batch)

    return step_in_context
