"""Fingerprints: what code computes in a short probe, by which stored results are bound to it.

A result took minutes or hours to measure. It counts as a result of the code that is there as long
as a probe of that code, which takes a second or less, comes to the fingerprint that was stored with
it. Docstrings, comments, names, modules and internal structure may change; what is computed may
not.

A training's probe is the first steps of the same recipe with the same options on the embedded
digits: the loss of each step and of each validation. An experiment's probe is the experiment itself
at a tiny scale, less what depends on timing.

What this guarantees: a change that shows in the first steps, or at the tiny scale, by more than
rounding does, voids the results that depend on it, and only these. What it does not: changes that
show later only (a later epoch, a larger image set), that are smaller than the tolerance, or that
concern speed. `tools/reproduce.py --anew` measures everything again, whatever is stored.

Fingerprints are numbers and short texts in JSON, the same for each version of Python. Numbers are
compared with a tolerance, because processors round differently.
"""

import functools
import logging
import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measuring.parts import build_parts

from paddle_mnist.metrics.writers import NewestMetrics
from paddle_mnist.mnist.config import TrainConfig, read_recipe

LENGTHS = {"epochs", "train_limit", "eval_limit"}  # options that a step does not depend on
SHORT = {"epochs": 2, "train_limit": 128, "eval_limit": 20, "seed": 1, "threads": 1}
# Another processor's rounding moves the first loss by about 1e-7, and grows from step to step: at
# the highest learning rate of `ladder` by a factor of ten in eight steps.
TOLERANCE, GROWTH, LARGEST_TOLERANCE = 1e-4, 10 ** (1 / 8), 2e-2


def same(one: Any, other: Any, tolerance: float = TOLERANCE) -> bool:
    """Return whether two fingerprints are equal but for rounding.

    Floats are compared with a relative tolerance, which grows along a sequence; all else exactly.
    """
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=tolerance)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(
            same(a, b, min(TOLERANCE * GROWTH**step, LARGEST_TOLERANCE))
            for step, (a, b) in enumerate(zip(one, other))
        )
    return type(one) is type(other) and one == other


@contextmanager
def quiet():
    """Log nothing meanwhile."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def quiet_folder():
    """Give a temporary folder; meanwhile nothing is logged."""
    with quiet(), tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def of_training(recipe: str, options: Sequence[tuple[str, Any]] = ()) -> list[float]:
    """Return the losses of the first steps and validations of a training on the embedded digits.

    options: what differs from the recipe; their lengths and seed are replaced by `SHORT`.
    """
    short = {**SHORT, "data": "digits"}
    return _losses(TrainConfig.from_mapping({**read_recipe(recipe), **dict(options), **short}))


@functools.cache
def _losses(config: TrainConfig) -> list[float]:
    from paddle_mnist import BatchLoader, Trainer
    from paddle_mnist.checkpoint.checkpointer import NO_CHECKPOINTER
    from paddle_mnist.data.seeding import reseed
    from paddle_mnist.mnist.setup import parts as parts_of
    from paddle_mnist.mnist.step import DigitStep
    from paddle_mnist.nn.cross_entropy import CrossEntropy
    from paddle_mnist.training.evaluator import EpochEvaluator

    arguments = parts_of(config)
    parts = build_parts(arguments)
    valid = BatchLoader(arguments["valid"]["valid"], 500)
    writer = _LossWriter()
    with quiet_folder() as folder:
        Trainer(
            folder / "mnist.pdparams",
            parts.model,
            parts.optimizer,
            loss_fn=CrossEntropy(config.loss.label_smoothing),
            average=parts.average,
            evaluator=EpochEvaluator(DigitStep(), {"valid": valid}),
            checkpointer=NO_CHECKPOINTER,
            writer=writer,
            log_every=1,
            reseed=functools.partial(reseed, config.seed),
        ).train(parts.loader, 0, config.epochs)
    return writer.losses


class _LossWriter(NewestMetrics):
    """A writer that keeps the losses."""

    def __init__(self):
        super().__init__()
        self.losses: list[float] = []

    def write(self, state, values) -> None:
        self.losses += [value for tag, value in values.items() if tag.endswith("/loss")]
