"""Collect the contents of a checkpoint from a model and its optimizer, and load them again."""

from collections.abc import Mapping
from typing import Any, Optional

import paddle
from paddle import nn

from paddle_mnist.checkpoint.manifest import EXTRA, OPTIMIZER, PARAMS, TRAINING, Checkpoint
from paddle_mnist.checkpoint.statefile import SavedState
from paddle_mnist.hidden_state.extra_state import ExtraState
from paddle_mnist.hidden_state.optimizer_state import (
    load_optimizer,
    parameters_with_state,
    structured_state,
)
from paddle_mnist.nn.ema import NO_AVERAGE, WeightAverage
from paddle_mnist.nn.schedule import schedule_numbers
from paddle_mnist.nn.state_dict import load_weights, matching_weights


def optimizer_entries(
    model: nn.Layer, optimizer: paddle.optimizer.Optimizer, extra: Optional[ExtraState] = None
) -> dict[str, Any]:
    """Return the entries of a manifest that are needed to load the saved optimizer."""
    parameters = extra.parameters if extra else dict(model.named_parameters())
    return {
        "names": {name: parameter.name for name, parameter in parameters.items()},
        "optimizer": type(optimizer).__name__,
        "optimizer_parameters": parameters_with_state(optimizer, parameters),
        "schedule": schedule_numbers(optimizer, finite=True),
    }


def saved_optimizer(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the optimizer in a checkpoint, for `load_optimizer`. Raises CheckpointError."""
    manifest = checkpoint.manifest
    names = {name: structured for structured, name in manifest["names"].items()}
    return {
        "class": manifest["optimizer"],
        "names": manifest["names"],
        "parameters": manifest["optimizer_parameters"],
        "state": structured_state(checkpoint.load(OPTIMIZER), names),
        "schedule": manifest["schedule"],
    }


def optimizer_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the optimizer's state in a checkpoint, by structured names.

    `{"conv1.weight velocity": float32 [20, 1, 5, 5], ..., "LR_Scheduler last_epoch": 10, ...}`,
    arrays as NumPy's. Raises CheckpointError if it is damaged.
    """
    entries = {}
    for key, value in saved_optimizer(checkpoint)["state"].items():
        if isinstance(value, Mapping):  # the schedule
            entries.update({f"{key} {name}": number for name, number in value.items()})
        else:
            entries[key] = value
    return entries


def load_weights_and_average(
    checkpoint: Checkpoint, model: nn.Layer, average: WeightAverage = NO_AVERAGE
) -> None:
    """Load the weights in a checkpoint into a model, and their average, one file at a time.

    Raises CheckpointError, with a diff, unless they match exactly.
    """
    in_training = TRAINING if checkpoint.has_file(TRAINING) else PARAMS
    load_weights(model, checkpoint.load(in_training), checkpoint.path.with_suffix(in_training))
    if average is not NO_AVERAGE:
        averaged = checkpoint.load(PARAMS)
        average.load(matching_weights(model, averaged, checkpoint.path.with_suffix(PARAMS)))


def load_checkpoint(
    checkpoint: Checkpoint,
    model: nn.Layer,
    optimizer: paddle.optimizer.Optimizer,
    average: WeightAverage = NO_AVERAGE,
) -> None:
    """Load a checkpoint without extra state into a model and its optimizer.

    Raises CheckpointError unless everything matches exactly. Do not use the objects after that,
    since some may have been loaded.
    """
    saved, path = saved_optimizer(checkpoint), checkpoint.path.with_suffix(OPTIMIZER)
    load_optimizer(optimizer, saved, dict(model.named_parameters()), path)
    load_weights_and_average(checkpoint, model, average)


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
