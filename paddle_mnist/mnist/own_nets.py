"""Runs of `fit` where the tutorial's net is expected: their nets only their callers can build."""

from paddle_mnist.checkpoint.run_files import RunFiles
from paddle_mnist.errors import CheckpointError


def refuse_own_net(run: RunFiles, function: str) -> None:
    """Raise CheckpointError if `fit` has trained a run.

    function: of `paddle_mnist`, which does for any net what is not done here.
    """
    if run.is_of_fit:
        raise CheckpointError(
            f"{run.path}: trained by paddle_mnist.fit, whose net only your own code can build; "
            f"expected a run on digits; in Python use paddle_mnist.{function} with the function "
            "that builds it"
        )
