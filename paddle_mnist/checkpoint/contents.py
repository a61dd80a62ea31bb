"""Collect the contents of a checkpoint from a model and its optimizer, and load them again."""

from collections.abc import Mapping
from typing import Any, Optional

import paddle
from paddle import nn

from paddle_mnist.checkpoint.manifest import (
    EXTRA,
    FORMAT,
    LATER_FORMAT,
    OPTIMIZER,
    PARAMS,
    TRAINING,
    Checkpoint,
)
from paddle_mnist.checkpoint.statefile import SavedState
from paddle_mnist.errors import WEIGHTS_ALONE, CheckpointError
from paddle_mnist.hidden_state.extra_state import LOSS, ExtraState
from paddle_mnist.hidden_state.optimizer_state import (
    Parameters,
    load_structured_state,
    parameters_with_state,
    structured_state,
)
from paddle_mnist.hidden_state.packing import unpack
from paddle_mnist.nn.ema import NO_AVERAGE, WeightAverage
from paddle_mnist.nn.schedule import STATE, schedule_numbers
from paddle_mnist.nn.state_dict import load_weights, matching_weights


def optimizer_entries(
    model: nn.Layer,
    optimizer: paddle.optimizer.Optimizer,
    extra: Optional[ExtraState] = None,
) -> dict[str, Any]:
    """Return the entries of a manifest without which the saved optimizer cannot be loaded."""
    parameters = extra.parameters if extra else dict(model.named_parameters())
    return {
        "format": LATER_FORMAT if extra and extra.is_later else FORMAT,
        "names": {name: parameter.name for name, parameter in parameters.items()},
        "optimizer": type(optimizer).__name__,
        "optimizer_parameters": parameters_with_state(optimizer, parameters),
        "schedule": schedule_numbers(optimizer, finite=True),
    }


def _load_optimizer(
    optimizer: paddle.optimizer.Optimizer,
    checkpoint: Checkpoint,
    parameters: Parameters,
    schedule: bool,
) -> None:
    """Load an optimizer's state from a checkpoint, matched by structured parameter names.

    parameters: those that the optimizer may have, by these names. schedule: see `load_checkpoint`.

    This changes the weights, so load those afterwards. Raises CheckpointError unless every entry
    matches: with a diff or, for an optimizer of another class, with the names of the two classes.
    """
    manifest, path = checkpoint.manifest, checkpoint.path.with_suffix(OPTIMIZER)
    saved_class, own_class = manifest["optimizer"], type(optimizer).__name__
    saved = _saved_state(checkpoint)
    if not schedule:
        saved.pop(STATE, None)
    with_state, without_state = set[str](), set[str]()
    if saved_class == own_class:  # of another class, any parameter may have state
        with_state = {*manifest["optimizer_parameters"]}  # those that have had a gradient
        without_state = {*manifest["names"]} - with_state
    try:
        load_structured_state(
            optimizer,
            saved,
            parameters,
            with_state,
            without_state,
            f"{path} does not fit the optimizer",
            manifest["schedule"] if schedule else {},
            keeps_schedule=not schedule,
        )
    except CheckpointError as error:  # classes with the same entries match, as Adam and AdamW
        if saved_class == own_class:
            raise
        raise CheckpointError(
            f"{path}: the optimizers differ: {saved_class} there, {own_class} now, which keeps "
            f"another state; expected {saved_class}; or start a new run: {WEIGHTS_ALONE}"
        ) from error


def optimizer_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the optimizer's state in a checkpoint, by structured names.

    `{"conv1.weight velocity": float32 [20, 1, 5, 5], ..., "LR_Scheduler last_epoch": 10, ...}`,
    arrays as NumPy's. Raises CheckpointError if it is damaged.
    """
    entries = {}
    for key, value in _saved_state(checkpoint).items():
        if isinstance(value, Mapping):  # the schedule
            entries.update({f"{key} {name}": number for name, number in value.items()})
        else:
            entries[key] = value
    return entries


def _saved_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the optimizer's state in a checkpoint, by structured names as they were saved."""
    names = {name: structured for structured, name in checkpoint.manifest["names"].items()}
    return structured_state(checkpoint.load(OPTIMIZER), names)


def load_checkpoint(
    checkpoint: Checkpoint,
    model: nn.Layer,
    optimizer: paddle.optimizer.Optimizer,
    average: WeightAverage = NO_AVERAGE,
    schedule: bool = True,
    extra: Optional[ExtraState] = None,
    is_own: bool = True,
) -> None:
    """Load a checkpoint into a model, the moving average of its weights, and its optimizer.

    schedule: whether to load the learning-rate schedule, too; otherwise it stays as it is.
    extra: the rest of the state. is_own: whether the checkpoint is of the same run; of another
        run's extra state, only the part that belongs to the optimizer is loaded.

    Raises CheckpointError unless everything matches exactly. Do not use the objects after that,
    since some may have been loaded.
    """
    parameters = extra.parameters if extra else dict(model.named_parameters())
    _load_optimizer(optimizer, checkpoint, parameters, schedule)
    saved = read_extra(checkpoint, extra) if extra else None
    if extra and saved:
        extra.load_optimizers(saved, is_own)
    # One file at a time is in memory.
    in_training = TRAINING if checkpoint.has_file(TRAINING) else PARAMS
    load_weights(model, checkpoint.load(in_training), checkpoint.path.with_suffix(in_training))
    if average is not NO_AVERAGE:
        averaged = checkpoint.load(PARAMS)
        average.load(matching_weights(model, averaged, checkpoint.path.with_suffix(PARAMS)))
    if extra and saved:
        extra.load_values(saved, schedule, is_own)


def checkpoint_files(
    model: nn.Layer,
    optimizer: paddle.optimizer.Optimizer,
    average: WeightAverage = NO_AVERAGE,
    extra: Optional[ExtraState] = None,
) -> dict[str, SavedState]:
    """Return the contents of a checkpoint's files, by their suffixes."""
    files = {
        PARAMS: SavedState(average.weights(model)),
        OPTIMIZER: SavedState(optimizer.state_dict()),
    }
    if average is not NO_AVERAGE:
        files[TRAINING] = SavedState(model.state_dict())
    if extra and (packed := extra.packed()):
        files[EXTRA] = SavedState(packed)
    return files


def read_extra(checkpoint: Checkpoint, extra: ExtraState) -> dict[str, Any]:
    """Return the extra state in a checkpoint. Raises CheckpointError."""
    packed = checkpoint.load(EXTRA) if checkpoint.has_file(EXTRA) else {}
    return extra.unpacked(packed, checkpoint.path.with_suffix(EXTRA))


def read_loss(checkpoint: Optional[Checkpoint]) -> Optional[dict[str, Any]]:
    """Return the state of the loss in a checkpoint, or None. Raises CheckpointError."""
    if checkpoint is None or not checkpoint.has_file(EXTRA):
        return None
    saved = unpack(checkpoint.load(EXTRA), None, checkpoint.path.with_suffix(EXTRA), None)
    state: Optional[dict[str, Any]] = saved["named"].get(LOSS)
    return state
