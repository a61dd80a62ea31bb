"""The contents of a checkpoint: from a model and its optimizer, and back into them."""

from collections.abc import Mapping
from typing import Any, Optional

import paddle
from paddle import nn

from paddle_mnist.checkpoint.further_state import FurtherState
from paddle_mnist.checkpoint.manifest import OPTIMIZER, PARAMS, TRAINING, Checkpoint
from paddle_mnist.checkpoint.optimizer_state import (
    Parameters,
    load_structured_state,
    parameters_with_state,
    structured_state,
)
from paddle_mnist.checkpoint.weights import load_weights, matching_weights
from paddle_mnist.errors import CheckpointError
from paddle_mnist.nn.ema import NO_AVERAGE, WeightAverage
from paddle_mnist.nn.schedule import STATE, schedule_numbers
from paddle_mnist.system.program import weights_alone


def manifest_entries(
    model: nn.Layer,
    optimizer: paddle.optimizer.Optimizer,
    further: Optional[FurtherState] = None,
) -> dict[str, Any]:
    """Return the entries of a manifest without which the saved optimizer cannot be loaded."""
    parameters = further.parameters if further else dict(model.named_parameters())
    return {
        "names": {name: parameter.name for name, parameter in parameters.items()},
        "optimizer": type(optimizer).__name__,
        "optimizer_parameters": parameters_with_state(optimizer, parameters),
        "schedule": schedule_numbers(optimizer),
    }


def load_optimizer(
    optimizer: paddle.optimizer.Optimizer,
    checkpoint: Checkpoint,
    parameters: Parameters,
    schedule: bool = True,
) -> None:
    """Load an optimizer's state from a checkpoint, matched by structured parameter names.

    parameters: those that it may have, by these names. schedule: whether to load the learning-rate
    schedule too; else it stays where it is.

    Changes the weights, so load those afterwards. Raises CheckpointError unless every entry
    matches: with a diff, or for an optimizer of another class with the names of the two classes.
    """
    saved = _saved_state(checkpoint)
    if not schedule:
        saved.pop(STATE, None)
    try:
        load_structured_state(
            optimizer,
            saved,
            parameters,
            *_parameters_with_and_without_state(checkpoint, optimizer),
            f"{checkpoint.path.with_suffix(OPTIMIZER)} does not fit the optimizer",
            checkpoint.manifest["schedule"] if schedule else {},
            keeps_schedule=not schedule,
        )
    except CheckpointError as error:  # not for classes of the same entries, as Adam's and AdamW's
        there, now = checkpoint.manifest["optimizer"], type(optimizer).__name__
        if there == now:
            raise
        raise CheckpointError(
            f"{checkpoint.path.with_suffix(OPTIMIZER)}: the optimizers differ: {there} there, "
            f"{now} now, which keeps another state; expected {there}; or start a new run from "
            f"the weights alone, with {weights_alone()}"
        ) from error


def _parameters_with_and_without_state(
    checkpoint: Checkpoint, optimizer: paddle.optimizer.Optimizer
) -> tuple[set[str], set[str]]:
    """Return the structured names of the parameters that had a gradient before the save, or none.

    For the latter an optimizer of the same class has no state; for another class, both are empty.
    """
    manifest = checkpoint.manifest
    if manifest["optimizer"] != type(optimizer).__name__:
        return set(), set()
    with_state = {*manifest["optimizer_parameters"]}
    return with_state, {*manifest["names"]} - with_state


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
    """Return the optimizer's state in a checkpoint, by the structured names of then."""
    names = {name: structured for structured, name in checkpoint.manifest["names"].items()}
    return structured_state(checkpoint.load(OPTIMIZER), names)


def load_checkpoint(
    checkpoint: Checkpoint,
    model: nn.Layer,
    optimizer: paddle.optimizer.Optimizer,
    average: WeightAverage = NO_AVERAGE,
    schedule: bool = True,
    further: Optional[FurtherState] = None,
    is_own: bool = True,
) -> None:
    """Load a checkpoint into a model, the moving average of its weights, and its optimizer.

    schedule: whether to load the learning-rate schedule too; else it stays where it is.
    further: what else the checkpoint holds. is_own: whether it is of the same training; of
        another's further state only what belongs to the optimizer is loaded.

    Raises CheckpointError unless all match exactly; use none of the objects then, for some may
    have been loaded.
    """
    parameters = further.parameters if further else dict(model.named_parameters())
    load_optimizer(optimizer, checkpoint, parameters, schedule)
    saved = further.read(checkpoint) if further else None
    if further and saved:
        further.load_optimizers(saved, is_own)
    # One file at a time is in memory.
    in_training = TRAINING if checkpoint.has_file(TRAINING) else PARAMS
    load_weights(model, checkpoint.load(in_training), checkpoint.path.with_suffix(in_training))
    if average is not NO_AVERAGE:
        averaged = checkpoint.load(PARAMS)
        average.load(matching_weights(model, averaged, checkpoint.path.with_suffix(PARAMS)))
    if further and saved:
        further.load_first(saved, schedule, is_own)
