"""The step of a training on digits."""

from collections.abc import Mapping
from typing import Any

import paddle
from paddle import nn
from paddle.nn import functional as F

from paddle_mnist.metrics.sums import Mean
from paddle_mnist.nn.losses import CrossEntropy
from paddle_mnist.system.devices import autocast
from paddle_mnist.training.steps import SupervisedStep, num_correct


def summed_cross_entropy(logits: paddle.Tensor, labels: paddle.Tensor) -> Mean:
    """Return the cross-entropy of logits [B, classes] against labels [B, 1], in nats.

    For evaluations, where the sum of a batch must not be rounded by a division.
    """
    return Mean(F.cross_entropy(logits, labels, reduction="sum"), len(labels))


METRICS = {"acc": num_correct}
EVALUATION = SupervisedStep(summed_cross_entropy, METRICS)


class DigitStep:
    """Computes the cross-entropy and the accuracy of a batch, (images, labels)."""

    has_known_mean = True

    def __init__(self, label_smoothing: float = 0.0, amp: str = "off"):
        """label_smoothing, amp: of the training; see `CrossEntropy` and `autocast`.

        Evaluation measures the cross-entropy with the labels as they are, in float32.
        Raises DeviceError where the device cannot compute with `amp`.
        """
        self._training = SupervisedStep(CrossEntropy(label_smoothing), METRICS, autocast(amp))

    def __call__(self, model: nn.Layer, batch: Any) -> Mapping[str, Any]:
        """Return the loss and the accuracy; see `SupervisedStep`."""
        step = self._training if model.training else EVALUATION
        return step(model, batch)
