"""Start a run from the weights of another run."""

import logging
from dataclasses import replace

from paddle import nn

from paddle_mnist.checkpoint.contents import load_checkpoint
from paddle_mnist.checkpoint.manifest import Manifest
from paddle_mnist.checkpoint.names import SavedWeights, find_weights
from paddle_mnist.checkpoint.weights import load_into
from paddle_mnist.errors import WEIGHTS_ALONE, CheckpointError
from paddle_mnist.hidden_state.plain_data import digest_of
from paddle_mnist.nn.state_dict import load_weights
from paddle_mnist.training.arguments import StartFrom
from paddle_mnist.training.callbacks import Training

log = logging.getLogger("paddle_mnist")


def initialize(training: Training, start: StartFrom) -> Manifest:
    """Load the weights that another run has trained; return its manifest, {} if it has none.

    The main process reads and broadcasts them. Raises CheckpointError if they are missing or do not
    fit.
    """
    weights = training.world.run_on_main(lambda: find_start(start))
    if start.weights_only:
        if start.partial:
            _load_what_fits(training.model, weights)
        else:
            load_weights(training.model, weights.values, weights.path)
        log.info("starting from the weights in %s", weights.path)
        return weights.manifest
    checkpoint = weights.checkpoint
    assert checkpoint is not None  # `find_start` has checked it
    # Without the learning rate: the schedule starts from its beginning.
    load_checkpoint(
        checkpoint,
        training.model,
        training.optimizer,
        schedule=False,
        extra=training.extra,
        is_own=False,
    )
    log.info("starting from the weights and optimizer of %s", checkpoint.path.with_suffix(""))
    return checkpoint.manifest


def _load_what_fits(model: nn.Layer, weights: SavedWeights) -> None:
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


def state_digest(training: Training) -> str:
    """Return the SHA-256 of the weights, the optimizer, the average and all other state.

    Processes that train together compare it before they start.
    """
    return digest_of(
        [
            training.state.as_dict(),
            training.model.state_dict(),
            dict(sorted(training.optimizer.state_dict().items())),
            training.average.weights(training.model),
            training.extra.digests(),
        ]
    )
