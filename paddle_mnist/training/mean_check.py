"""Check that a loss is a mean over samples: compare a batch with its halves."""

import logging
from typing import Any, Optional

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.data.collate import leaves, mapped, num_samples
from paddle_mnist.data.seeding import reseed
from paddle_mnist.errors import ConfigError, PeerError, StoppedError, summary
from paddle_mnist.metrics.sums import as_float
from paddle_mnist.nn.modes import evaluation_mode
from paddle_mnist.training.steps import Step, run_step

log = logging.getLogger("paddle_mnist")

# How far the mean of the halves may be from the whole's, relative to the largest of the three.
# Rounding of float32 gives 1e-6 to 1e-5, of bfloat16 up to 1e-2.
TOLERANCE, LOW_PRECISION_TOLERANCE = 1e-3, 3e-2
REMEDY = "expected the mean over the samples, or Mean(total, count) with what it is a mean over"


def check_mean(
    step: Step, model: nn.Layer, batch: Any, is_low_precision: bool, split: Optional[str] = None
) -> None:
    """Check that the loss of a batch is the weighted mean of those of its halves.

    Only then do metrics and gradients not depend on how samples are divided into batches, shards
    and processes. Not checked: Paddle's own losses, whose mean is known; a batch of one sample, or
    one that cannot be halved because not every tensor has a row for each sample, or because the
    step needs all of it; a loss that draws random numbers. The model is in evaluation mode.

    split: of which the batch is evaluated; None for a batch of training steps that are divided.
    Raises ConfigError for a loss of these that is no mean over samples; of a split's it warns.
    """
    halves = None if getattr(step, "has_known_mean", False) else _halves(batch)
    if halves is None:
        return
    try:
        with evaluation_mode(model), paddle.no_grad():
            seeded = [(batch, 0), (batch, 1), *((half, 0) for half in halves)]
            losses, counts = np.array([_loss(step, model, *one) for one in seeded]).T
    except (StoppedError, PeerError):
        raise
    except Exception as error:  # whatever a step raises that needs whole batches, or training
        log.info(
            "whether the loss is a mean over samples is not checked: in evaluation mode, or of "
            "half a batch, it fails with %s",
            summary(error),
        )
        return
    name = f"the first batch of {split}" if split else "the first batch"
    if not counts.all() or not np.isfinite(losses).all():
        return
    if not losses.any():  # of a batch whose labels are all ignored, for example
        level = logging.INFO if split else logging.WARNING
        log.log(level, "the loss of %s is 0, which does not show what it is a mean over", name)
        return
    whole, again, *of_halves = losses
    mean = np.average(of_halves, weights=counts[2:])
    tolerance = LOW_PRECISION_TOLERANCE if is_low_precision else TOLERANCE
    allowed = tolerance * abs(losses).max() + 1e-7
    if abs(whole - again) > allowed or abs(mean - whole) <= allowed:
        return
    # A half of 0 shows no sum.
    is_sum = all(of_halves) and abs(sum(of_halves) - whole) <= allowed
    what = "a sum" if is_sum else f"no mean over the samples, which would be {mean:.4g}"
    values = " and ".join(f"{value:.4g}" for value in of_halves)
    problem = (
        f"the loss of {name} is {whole:.4g}, of its halves {values}: it is {what}, so its value "
        "depends on how the samples are divided into batches"
    )
    if not split:
        raise ConfigError(
            f"{problem}, and grad_shards, accumulate or several processes would change the "
            f"result; {REMEDY}; or whole batches in one process"
        )
    log.warning("%s; %s", problem, REMEDY)


def _loss(step: Step, model: nn.Layer, batch: Any, seed: int) -> tuple[float, float]:
    """Return the loss of a batch, and the count that it is a mean over."""
    reseed(seed, 0)
    samples = num_samples(batch)
    outputs = run_step(step, model, batch, samples)
    return as_float(outputs.loss), samples if outputs.count is None else outputs.count


def _halves(batch: Any) -> Optional[list[Any]]:
    """Return the two halves of a batch; None if it cannot be divided by samples."""
    size = num_samples(batch)

    def has_no_rows(leaf: Any) -> bool:
        return isinstance(leaf, (str, bytes)) or list(getattr(leaf, "shape", [size]))[:1] != [size]

    if size < 2 or any(map(has_no_rows, leaves(batch))):
        return None

    def rows(part: slice) -> Any:
        return mapped(batch, lambda leaf: leaf[part] if hasattr(leaf, "shape") else leaf)

    return [rows(slice(0, size // 2)), rows(slice(size // 2, size))]
