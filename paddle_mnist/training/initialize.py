"""Read the starting point of a new run: another run, or two files that `paddle.save` wrote."""

import contextlib
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from paddle import nn

from paddle_mnist.checkpoint.manifest import OPTIMIZER, PARAMS, Checkpoint
from paddle_mnist.checkpoint.names import EXPECTED, TO_RESUME, SavedWeights, find_weights
from paddle_mnist.checkpoint.safe_load import safe_load
from paddle_mnist.checkpoint.weights import load_into
from paddle_mnist.errors import WEIGHTS_ALONE, CheckpointError, ConfigError, listed
from paddle_mnist.hidden_state.optimizer_state import structured_state
from paddle_mnist.nn.state_dict import NAME_TABLE, compare_entries, without_name_table
from paddle_mnist.train_state import TrainState
from paddle_mnist.training.arguments import StartFrom
from paddle_mnist.training.callbacks import Training

log = logging.getLogger("paddle_mnist")


def load_what_fits(model: nn.Layer, weights: SavedWeights) -> None:
    """Load the weights that match the model; warn of others. Raises CheckpointError without any."""
    missing, unexpected, mismatched = load_into(model, weights.values, strict=False)
    if len(missing) + len(mismatched) == len(model.state_dict()):
        raise CheckpointError(
            f"{weights.path}: none of its weights match the model; expected at least one with the "
            "same name and shape"
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
    weights = find_weights(start.path, expected=EXPECTED if start.weights_only else TO_RESUME)
    if start.weights_only:
        return weights
    if not weights.checkpoint:
        raise CheckpointError(
            f"{weights.path}: holds only weights, and no checkpoint with its optimizer's state is "
            "there; expected a checkpoint, or a run that still has its final one; "
            f"{WEIGHTS_ALONE}"
        )
    return replace(weights, checkpoint=weights.checkpoint.load_all())


def read_pair(training: Training, stem: Path) -> Checkpoint:
    """Return a pair of files that `paddle.save` wrote as a checkpoint after an epoch, loaded.

    Raises ConfigError for an epoch that is unknown or beyond the end, CheckpointError for files
    that do not fit the net.
    """
    epochs, steps = training.arguments.start_epoch, training.loader.steps_per_epoch
    if epochs is None and (number := re.search(r"epoch_?(\d{1,9})$", stem.name)):
        epochs = int(number[1]) + 1
    if epochs is None or steps is None:
        what = "after which epoch its files were saved; expected start_epoch, such as 1"
        if epochs is not None:
            what = "how many steps an epoch has; expected steps_per_epoch (of Loading)"
        raise ConfigError(f"{stem}: no manifest says {what}")
    params, optimizer = safe_load(f"{stem}{PARAMS}"), safe_load(f"{stem}{OPTIMIZER}")
    names = params.get(NAME_TABLE, {})
    differing = [*chain(*compare_entries(without_name_table(params), training.model.state_dict()))]
    are_names = isinstance(names, dict) and all(isinstance(name, str) for name in names.values())
    if not (names and are_names):
        differing.append(NAME_TABLE)
    if differing:
        raise CheckpointError(
            f"{stem}{PARAMS}: not the weights of this net: {listed(differing)} differ; "
            "expected what paddle.save wrote of its state_dict()"
        )
    entries = structured_state(optimizer, {name: key for key, name in names.items()})
    with_state = {key.rpartition(" ")[0] for key in entries}
    log.warning(
        "%s: no manifest lists these files, so it is unknown whether they are intact, belong "
        "together, and match the data and the settings; taken as the end of epoch %d, with the "
        "optimizer and schedule of %s, and with this run's order of the data and random numbers",
        stem,
        epochs,
        OPTIMIZER,
    )
    return Checkpoint(
        Path(f"{stem}.json"),
        {
            "files": {},
            "state": TrainState(epoch=epochs, step=epochs * steps).as_dict(),
            "names": names,
            "optimizer": type(training.optimizer).__name__,
            "optimizer_parameters": [*with_state.intersection(names)],
            "schedule": {},
            "config": dict(training.compared),
            "metrics_lines": 0,
        },
        {PARAMS: params, OPTIMIZER: optimizer},
    )


@contextlib.contextmanager
def pair_explained(training: Training, checkpoint: Checkpoint) -> Iterator[None]:
    """Rewrite an error in loading a pair so that it says which optimizer was expected."""
    try:
        yield
    except CheckpointError as error:
        if not checkpoint.is_pair:
            raise
        first = str(error).splitlines()[1:2] or [str(error)]
        raise CheckpointError(
            f"{checkpoint.path.with_suffix(OPTIMIZER)}: not of this net's "
            f"{type(training.optimizer).__name__} and schedule: {' '.join(first[0].split())}; "
            f"expected the optimizer and schedule of that training, or {WEIGHTS_ALONE}"
        ) from error
