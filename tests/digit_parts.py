"""The parts of a training on digits: its net, loader and optimizer, for tests that look at them."""

import inspect

from paddle_mnist import fit
from paddle_mnist.mnist.setup import parts
from paddle_mnist.training.arguments import FitArguments
from paddle_mnist.training.build import build_job


def job_of(config):
    """Return the job of a training as it is before the first step; nothing is written."""
    defaults = {name: one.default for name, one in inspect.signature(fit).parameters.items()}
    return build_job(FitArguments(**{**defaults, **parts(config)}))


def build(config):
    return job_of(config).parts
