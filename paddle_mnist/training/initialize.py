"""Start a run from the weights of another run."""

import logging
from dataclasses import replace

from paddle import nn

from paddle_mnist.checkpoint.names import SavedWeights, find_weights
from paddle_mnist.checkpoint.weights import load_into
from paddle_mnist.errors import WEIGHTS_ALONE, CheckpointError
from paddle_mnist.training.arguments import StartFrom

log = logging.getLogger("paddle_mnist")


def load_what_fits(model: nn.Layer, weights: SavedWeights) -> None:
    """Load the weights that match the model; warn of others. Raises CheckpointError without any."""
    missing, unexpected, mismatched = load_into(model, weights.values, strict=False)
    if len(missing) + len(mismatched) == len(model.state_dict()):
        raise CheckpointError(
            f"{weights.path}: none of its weights match the model; expected some of the same name "
            "and shape"
        )
    for names, what in (
        (missing, "not in the file, so the model keeps its own"),
        (mismatched, "of another shape or dtype in the file, so the model keeps its own"),
        (unexpected, "in the file but not in the model, so not loaded"),
    ):
        if names:
            log.warning("%s: %s", ", ".join(names), what)


def find_start(start: StartFrom) -> SavedWeights:
    """Return the weights or the checkpoint to start from, loaded: processes may not share a disk.

    Raises CheckpointError if it is missing or damaged.
    """
    weights = find_weights(start.path)
    if start.weights_only:
        return weights
    if not weights.checkpoint:
        raise CheckpointError(
            f"{weights.path}: holds only weights, and no checkpoint with its optimizer's state is "
            "there; expected a checkpoint, or a run that still has the one it ended with; "
            f"{WEIGHTS_ALONE}"
        )
    return replace(weights, checkpoint=weights.checkpoint.load_all())
