"""The parts of a training, for those who take its steps one by one."""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from paddle_mnist.parallel.world import World
    from paddle_mnist.training.callbacks import Training


def build_parts(arguments: Mapping[str, Any], world: "Optional[World]" = None) -> "Training":
    """Build the net, the optimizer and the loader as they are before the first step of `fit`.

    arguments: those of `fit`, as `paddle_mnist.mnist.setup.parts` returns them.
    world: the processes that train together, of which this is one; by default this one alone.
    """
    from paddle_mnist import fit
    from paddle_mnist.parallel.world import ALONE
    from paddle_mnist.training.arguments import FitArguments
    from paddle_mnist.training.parts import new_training

    defaults = {name: one.default for name, one in inspect.signature(fit).parameters.items()}
    return new_training(FitArguments(**{**defaults, **arguments}), world or ALONE)
