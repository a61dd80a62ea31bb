"""What the code does now: the losses of a short training, by which stored results are known.

A result stays one of "this code" while the code computes the same, however it is written; a hash of
its text would throw hours of training away for a name that was changed.
"""

import dataclasses
import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddle_mnist.mnist.config import TrainConfig, read_recipe

SHORT = {"epochs": 2, "train_limit": 640, "eval_limit": 200, "seed": 1, "threads": 1}
# Another machine's rounding moves the first losses by about 1e-7, and grows from step to step: at
# the highest rate of `ladder` by a factor of ten in eight steps, to 1e-3 in forty.
TOLERANCE, GROWN = 1e-4, 2e-2


def same(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two behaviours are one: all but equal in their first quarter, alike to the end."""
    if len(one) != len(other):
        return False
    first = len(one) // 4
    return np.allclose(one[:first], other[:first], rtol=TOLERANCE, atol=0) and np.allclose(
        one[first:], other[first:], rtol=GROWN, atol=0
    )


@functools.cache
def behaviour(recipe: str = "default", told: tuple[tuple[str, Any], ...] = ()) -> list[float]:
    """The loss of each step, and of each validation, of a short training on the digits in the box.

    told: what differs from the recipe; lengths and the seed are as in `SHORT`.
    """
    from paddle_mnist import MnistDataset, Trainer
    from paddle_mnist.checkpoint.checkpointer import NO_CHECKPOINTER
    from paddle_mnist.mnist.cache import open_data
    from paddle_mnist.mnist.embedded_digits import digits_by_label
    from paddle_mnist.mnist.setup import build
    from paddle_mnist.nn.optim import cross_entropy
    from paddle_mnist.nn.seeding import reseed
    from paddle_mnist.training.evaluator import EpochEvaluator

    config = TrainConfig.from_mapping({**read_recipe(recipe), **dict(told), **SHORT})
    # By label, as they were when most of the stored results were made.
    data = dataclasses.replace(open_data("digits"), splits=digits_by_label())
    parts = build(config, data, None)
    losses = _Losses()
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            *(Path(folder, "mnist.pdparams"), parts.model, parts.optimizer),
            loss_fn=cross_entropy(config.label_smoothing),
            average=parts.average,
            evaluator=EpochEvaluator(
                {"valid": MnistDataset("valid", data, config.eval_limit)}, 1, config.epochs
            ),
            checkpointer=NO_CHECKPOINTER,
            writer=losses,
            log_every=1,
            reseed=functools.partial(reseed, config.seed),
        ).train(parts.loader, 0, config.epochs)
    return losses.found


class _Losses:
    """A writer that keeps them."""

    def __init__(self):
        self.found: list[float] = []

    def write(self, state, values) -> None:
        self.found += [value for tag, value in values.items() if tag.endswith("/loss")]

    def advance(self, state) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""
