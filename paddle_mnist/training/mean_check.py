"""Check that a loss is a mean over samples: compare a batch with its halves."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from paddle import nn

from paddle_mnist.data.collate import leaves, num_samples, rebuilt
from paddle_mnist.data.seeding import reseed
from paddle_mnist.errors import ConfigError, PeerError, StoppedError, summary
from paddle_mnist.metrics.sums import as_float
from paddle_mnist.training.steps import Step, run_step

log = logging.getLogger("paddle_mnist")

# How far the mean of the halves may be from the whole's, relative to the largest of the three.
# Rounding of float32 gives 1e-6 to 1e-5, of bfloat16 up to 1e-2.
TOLERANCE, LOW_PRECISION_TOLERANCE = 1e-3, 3e-2


def check_mean(
    step: Step, model: nn.Layer, batch: Any, is_divided: bool, is_low_precision: bool = False
) -> None:
    """Check that the loss of a batch is the weighted mean of those of its halves.

    Only then do metrics and gradients not depend on how samples are divided into batches, shards
    and processes. The model must be in evaluation mode, without gradients. Not checked: Paddle's
    own losses, whose mean is known; a batch of one sample, or one that cannot be halved because
    not every tensor has a row for each sample, or because the step needs all of it; a loss that
    draws random numbers.

    is_divided: whether this training divides its steps into several passes.
    Where the training is divided, raises ConfigError for a loss that is no mean over samples. Else
    such a loss is warned of.
    """
    if getattr(step, "has_known_mean", False):
        return
    halves = _halves(batch)
    if halves is None:
        return
    try:
        whole, again = (_loss(step, model, batch, seed) for seed in (0, 1))
        first, second = (_loss(step, model, half, 0) for half in halves)
    except (StoppedError, PeerError):
        raise
    except Exception as error:  # whatever a step raises that needs whole batches, or training
        log.info(
            "whether the loss is a mean over samples is not checked: in evaluation mode, or of "
            "half a batch, it fails with %s",
            summary(error),
        )
        return
    values = [mean.value for mean in (whole, again, first, second) if mean.count]
    if len(values) < 4 or not np.isfinite(values).all():
        return
    if not any(values):  # of a batch whose labels are all ignored, say
        level = logging.WARNING if is_divided else logging.INFO
        log.log(
            level, "the loss of the first batch is 0, which does not show what it is a mean over"
        )
        return
    tolerance = LOW_PRECISION_TOLERANCE if is_low_precision else TOLERANCE
    allowed = tolerance * max(map(abs, values)) + 1e-7
    if abs(whole.value - again.value) > allowed:
        return
    count = first.count + second.count
    mean = (first.value * first.count + second.value * second.count) / count
    if abs(mean - whole.value) > allowed:
        _refuse_or_warn(whole, (first, second), mean, allowed, is_divided)


def _refuse_or_warn(
    whole: "_Loss", halves: Sequence["_Loss"], mean: float, allowed: float, is_divided: bool
) -> None:
    values = " and ".join(f"{half.value:.4g}" for half in halves)
    is_sum = abs(sum(half.value for half in halves) - whole.value) <= allowed
    is_sum &= all(half.value for half in halves)  # nothing added to the whole shows nothing
    what = "a sum" if is_sum else f"no mean over the samples, which would be {mean:.4g}"
    problem = (
        f"the loss of the first batch is {whole.value:.4g}, of its halves {values}: it is {what}, "
        "so its value depends on how the samples are divided into batches"
    )
    remedy = "the mean over the samples, or Mean(total, count) with what it is a mean over"
    if is_divided:
        raise ConfigError(
            f"{problem}, and grad_shards, accumulate or several processes would change the "
            f"result; expected {remedy}; or whole batches in one process"
        )
    log.warning("%s; expected %s", problem, remedy)


@dataclass(frozen=True)
class _Loss:
    """The loss of a batch. count: what it is a mean over."""

    value: float
    count: float


def _loss(step: Step, model: nn.Layer, batch: Any, seed: int) -> _Loss:
    reseed(seed, 0)
    samples = num_samples(batch)
    outputs = run_step(step, model, batch, samples)
    count = samples if outputs.count is None else outputs.count
    return _Loss(as_float(outputs.loss), count)


def _halves(batch: Any) -> Optional[list[Any]]:
    """Return the two halves of a batch; None if it cannot be divided by samples."""
    size = num_samples(batch)
    arrays = [leaf for leaf in leaves(batch) if hasattr(leaf, "shape")]
    if size < 2 or any(not len(leaf.shape) or leaf.shape[0] != size for leaf in arrays):
        return None
    parts = (slice(0, size // 2), slice(size // 2, size))
    return [_part(batch, part, size) for part in parts]


def _part(structure: Any, part: slice, size: int) -> Any:
    if isinstance(structure, Mapping):
        return {key: _part(value, part, size) for key, value in structure.items()}
    is_list = isinstance(structure, list) and len(structure) == size
    if is_list and all(isinstance(value, (str, bytes)) for value in structure):
        return structure[part]
    if isinstance(structure, (tuple, list)):
        return rebuilt(structure, [_part(value, part, size) for value in structure])
    return structure[part] if hasattr(structure, "shape") else structure
