"""The check for NaN and infinite values: the one place that stops a training which has diverged.

Losses are checked when a log line or a checkpoint is due (`metrics.running`), after each
`Trainer.train_step`, and in evaluations; weights before they are saved (`checkpoint.checkpointer`).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle

from paddle_mnist.errors import DivergedError


def require_finite_loss(loss: float, where: str, remedy: str) -> None:
    """Raise DivergedError unless the loss is a finite number.

    where: continues "the loss is nan", in the message. remedy: what the user can do.
    """
    if not math.isfinite(loss):
        raise DivergedError(f"the loss is {loss} {where}; expected a finite number; {remedy}")


def require_finite_weights(weights: Mapping[str, Any], where: str, remedy: str) -> None:
    """Raise DivergedError, which names the first bad one, unless all weights are finite.

    weights: Paddle tensors, which are checked on their device, or NumPy arrays, by name.
    where: continues "conv1.weight is no longer finite", in the message. remedy: what the user can
    do.
    """
    for name, value in weights.items():
        if isinstance(value, paddle.Tensor):
            finite = paddle.isfinite(value).all().item()
        else:
            finite = np.isfinite(value).all()
        if not finite:
            raise DivergedError(
                f"{name} is no longer finite {where}; expected finite weights; {remedy}"
            )
