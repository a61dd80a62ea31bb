"""The step of a training on digits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import paddle
from paddle import nn
from paddle.nn import functional as F

from paddle_mnist.metrics.sums import Mean
from paddle_mnist.nn.cross_entropy import CrossEntropy
from paddle_mnist.system.devices import autocast
from paddle_mnist.training.steps import SupervisedStep, num_correct


def summed_cross_entropy(logits: paddle.Tensor, labels: paddle.Tensor) -> Mean:
    """Return the cross-entropy of logits [B, classes] against labels [B, 1], in nats.

    For evaluations, where the sum of a batch must not be rounded by a division.
    """
    return Mean(F.cross_entropy(logits, labels, reduction="sum"), len(labels))


METRICS = {"acc": num_correct}
EVALUATION = SupervisedStep(summed_cross_entropy, METRICS)


@dataclass(frozen=True)
class DigitStep:
    """Computes the cross-entropy and the accuracy of a batch, (images, labels).

    label_smoothing, amp: of the training; see `CrossEntropy` and `autocast`. Evaluation measures
    the cross-entropy with the labels as they are, in float32.
    Raises DeviceError where the device cannot compute with `amp`.
    """

    label_smoothing: float = 0.0
    amp: str = "off"
    has_known_mean: ClassVar[bool] = True
    _training: SupervisedStep = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        loss = CrossEntropy(self.label_smoothing)
        training = SupervisedStep(loss, METRICS, autocast(self.amp))
        object.__setattr__(self, "_training", training)  # as this is frozen

    def __call__(self, model: nn.Layer, batch: Any) -> Mapping[str, Any]:
        """Return the loss and the accuracy; see `SupervisedStep`."""
        step = self._training if model.training else EVALUATION
        return step(model, batch)
