"""`Numerics`: options of precision, accumulation and averaging; and the check for NaN.

The check for NaN and infinite values is the one place that stops a run which has diverged.
Losses are checked when a log line or a checkpoint is due (`metrics.running`), after each
`Trainer.train_step`, and in evaluations; weights before they are saved (`checkpoint.checkpointer`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from paddle_mnist.errors import DivergedError
from paddle_mnist.options import Count, Fraction, Options, option


@dataclass(frozen=True)
class Numerics(Options):
    """Options for how a step computes, beside the net and its optimizer.

    accumulate: the number of batches per step.
    ema: the decay of a moving average of the weights, which is evaluated and saved instead of the
        weights; 0: no average.
    amp: "O1" or "O2", bfloat16 on GPUs.
    deterministic: use cuDNN's deterministic algorithms (not tested on a GPU).
    schedule_every: "step" or "epoch": when to advance the optimizer's `LRScheduler`.
    """

    heading = "training"

    accumulate: Count = option(1, "batches per step", must_match=True)
    ema: Fraction = option(
        0.0, "decay of the moving average of the weights; 0: no average", must_match=True
    )
    amp: Literal["off", "O1", "O2"] = option(
        "off",
        "bfloat16 on a GPU: O1 in safe operations, O2 nearly everywhere",
        must_match=True,
    )
    deterministic: bool = option(False, "use cuDNN's deterministic algorithms")
    schedule_every: Literal["step", "epoch"] = option(
        "step", "when to advance the learning-rate schedule", must_match=True
    )


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
        is_array = isinstance(value, np.ndarray)
        if not (is_array or value.is_floating_point() or value.is_complex()):
            continue  # Paddle has no `isfinite` for bool and most integers
        if not is_array and value.is_complex():
            value = value.as_real()  # nor Paddle 2.6.2 for these
        finite = np.isfinite(value) if is_array else value.isfinite()
        if not finite.all():
            raise DivergedError(
                f"{name} is no longer finite {where}; expected finite weights; {remedy}"
            )
