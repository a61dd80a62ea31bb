"""`Numerics`: how a step computes, beside the net and its optimizer."""

from dataclasses import dataclass
from typing import Literal

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
