"""`train_and_evaluate`: train on digits with `fit`."""

import logging

from paddle_mnist.metrics.console import console_level
from paddle_mnist.mnist.config import TrainConfig
from paddle_mnist.mnist.setup import parts
from paddle_mnist.training.callbacks import FitResult
from paddle_mnist.training.fit import fit


def train_and_evaluate(config: TrainConfig, fresh: bool = False, quiet: bool = False) -> FitResult:
    """Train as `config` says, evaluate on its `final_split`, and return the result.

    If the run directory holds an unfinished run, it resumes; if it holds a finished one, its result
    is returned at once. It is `fit(**parts(config))`: see `paddle_mnist.mnist.setup.parts`. The
    option `max_restarts` has no effect here: it is the command `train` that restarts a training.

    fresh: move an existing run aside, and start over.
    quiet: print warnings only; the run's `train.log` still gets every line.
    Raises any PaddleMnistError.
    """
    with console_level(logging.WARNING if quiet else logging.INFO):
        return fit(**parts(config), fresh=fresh)
