"""The contents of a checkpoint: from a model and its optimizer, and back into them."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Optional

import paddle
from paddle import nn
from paddle.utils import unique_name

from paddle_mnist._exports import lazy_exports
from paddle_mnist.checkpoint.manifest import OPTIMIZER, PARAMS, TRAINING, Checkpoint
from paddle_mnist.checkpoint.weights import (
    load_weights,
    matching_weights,
    require_match,
    without_name_table,
)
from paddle_mnist.errors import CheckpointError
from paddle_mnist.nn.ema import NO_AVERAGE, WeightAverage
from paddle_mnist.nn.schedule import STATE, load_state, schedule_numbers

__getattr__ = lazy_exports(__name__, {})[0]  # names that are in `weights` now


def parameter_names(model: nn.Layer) -> dict[str, str]:
    """Map structured to generated parameter names: `{"conv1.weight": "conv2d_0.w_0", ...}`."""
    return {name: parameter.name for name, parameter in model.named_parameters()}


def manifest_entries(model: nn.Layer, optimizer: paddle.optimizer.Optimizer) -> dict[str, Any]:
    """Return the entries of a manifest without which the saved optimizer cannot be loaded."""
    return {
        "names": parameter_names(model),
        "optimizer": type(optimizer).__name__,
        "optimizer_parameters": _parameters_with_state(model, optimizer),
        "schedule": schedule_numbers(optimizer),
    }


def _parameters_with_state(model: nn.Layer, optimizer: paddle.optimizer.Optimizer) -> list[str]:
    """Return the structured names of the parameters for which an optimizer has a state.

    Paddle creates it in the first step that has a gradient for the parameter.
    """
    structured_names = {name: structured for structured, name in parameter_names(model).items()}
    owners = {_owner(key, structured_names) for key in optimizer.state_dict()}
    return [name for name, generated in parameter_names(model).items() if generated in owners]


def load_optimizer(
    optimizer: paddle.optimizer.Optimizer,
    checkpoint: Checkpoint,
    model: nn.Layer,
    schedule: bool = True,
) -> None:
    """Load an optimizer's state from a checkpoint, matched by structured parameter names.

    schedule: whether to load the learning-rate schedule too; else it stays where it is.

    Changes the model's weights, so load those afterwards. Raises CheckpointError unless every entry
    matches: with a diff, or for an optimizer of another class with the names of the two classes.
    """
    saved = checkpoint.load(OPTIMIZER)
    saved_names = {name: structured for structured, name in _saved_names(checkpoint).items()}
    _create_state(optimizer, model, _parameters_without_state(checkpoint, optimizer))
    current = optimizer.state_dict()
    if not schedule:
        saved = {key: value for key, value in saved.items() if key != STATE}
        if STATE in current:
            saved[STATE] = current[STATE]
    structured_names = {name: structured for structured, name in parameter_names(model).items()}
    current_keys = {
        _structured_key(key, structured_names): key for key in without_name_table(current)
    }
    entries = {
        _structured_key(key, saved_names): value for key, value in without_name_table(saved).items()
    }
    try:
        require_match(
            entries,
            {structured: current[key] for structured, key in current_keys.items()},
            f"{checkpoint.path.with_suffix(OPTIMIZER)} does not fit the optimizer",
        )
    except CheckpointError as error:
        _explain_other_class(checkpoint, optimizer, error)
        raise
    load_state(
        optimizer,
        {current_keys[name]: value for name, value in entries.items()},
        checkpoint.manifest.get("schedule", {}) if schedule else {},
    )


def _explain_other_class(
    checkpoint: Checkpoint, optimizer: paddle.optimizer.Optimizer, error: CheckpointError
) -> None:
    """Raise CheckpointError if a state does not match because it is of another class's optimizer.

    Formats before 4 do not tell. Classes of the same entries, as Adam's and AdamW's, do match.
    """
    saved, current = checkpoint.manifest.get("optimizer"), type(optimizer).__name__
    if saved not in (None, current):
        raise CheckpointError(
            f"{checkpoint.path.with_suffix(OPTIMIZER)}: the optimizers differ: {saved} there, "
            f"{current} now, which keeps another state; expected {saved}; or start a new run with "
            "init_from, which takes the weights alone"
        ) from error


def _parameters_without_state(
    checkpoint: Checkpoint, optimizer: paddle.optimizer.Optimizer
) -> set[str]:
    """Return the structured names of the parameters that never had a gradient before the save.

    For them an optimizer of the same class has no state; formats before 4 do not tell.
    """
    manifest = checkpoint.manifest
    is_same_class = manifest.get("optimizer") == type(optimizer).__name__
    if not is_same_class or "optimizer_parameters" not in manifest:
        return set()
    return {*manifest["names"]} - {*manifest["optimizer_parameters"]}


def _create_state(
    optimizer: paddle.optimizer.Optimizer, model: nn.Layer, left_out: Collection[str]
) -> None:
    """Have an optimizer create its state, for all trainable parameters but those left out.

    Paddle does so in the first step, and before that accepts any state. So a step with zero
    gradients is taken; what is loaded afterwards must have the entries it creates.
    """
    chosen = [
        parameter
        for name, parameter in model.named_parameters()
        if not parameter.stop_gradient and name not in left_out
    ]
    if not chosen:
        return
    for parameter in chosen:
        parameter.grad = paddle.zeros_like(parameter)
    with unique_name.guard():
        optimizer.step()
    optimizer.clear_grad()


def optimizer_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the optimizer's state in a checkpoint, by structured names.

    `{"conv1.weight velocity": float32 [20, 1, 5, 5], ..., "LR_Scheduler last_epoch": 10, ...}`,
    arrays as NumPy's. Raises CheckpointError if it is damaged.
    """
    structured_names = {name: structured for structured, name in _saved_names(checkpoint).items()}
    entries = {}
    for key, value in without_name_table(checkpoint.load(OPTIMIZER)).items():
        if isinstance(value, Mapping):  # the schedule
            entries.update({f"{key} {name}": number for name, number in value.items()})
        else:
            entries[_structured_key(key, structured_names)] = value
    return entries


def _saved_names(checkpoint: Checkpoint) -> Mapping[str, str]:
    """Return the parameters' structured to generated names at the time of saving."""
    names = checkpoint.manifest.get("names")
    if not isinstance(names, dict):
        raise CheckpointError(f"{checkpoint.path}: has no parameter names; use another checkpoint")
    return names


def _structured_key(key: str, structured_names: Mapping[str, str]) -> str:
    """Translate `conv2d_0.w_0_moment1_0` to `conv1.weight moment1`; return other keys as they are.

    The number at the end counts the optimizers of a process; it is no part of the state's name.
    """
    owner = _owner(key, structured_names)
    if owner is None:
        return key
    return f"{structured_names[owner]} {key[len(owner) + 1 :].rpartition('_')[0]}"


def _owner(key: str, generated_names: Iterable[str]) -> Optional[str]:
    """Return the generated name of the parameter to which an optimizer's entry belongs."""
    owners = [name for name in generated_names if key.startswith(f"{name}_")]
    return max(owners, key=len, default=None)


def load_checkpoint(
    checkpoint: Checkpoint,
    model: nn.Layer,
    optimizer: paddle.optimizer.Optimizer,
    average: WeightAverage = NO_AVERAGE,
    schedule: bool = True,
) -> None:
    """Load a checkpoint into a model, the moving average of its weights, and its optimizer.

    schedule: whether to load the learning-rate schedule too; else it stays where it is.

    Raises CheckpointError unless all match exactly; use none of the objects then, for some may
    have been loaded.
    """
    weights = averaged = checkpoint.load(PARAMS)
    weights_suffix = PARAMS
    if checkpoint.has_file(TRAINING):
        weights_suffix = TRAINING
        weights = checkpoint.load(TRAINING)
    params_path, weights_path = (
        checkpoint.path.with_name(checkpoint.name + suffix) for suffix in (PARAMS, weights_suffix)
    )
    load_optimizer(optimizer, checkpoint, model, schedule)
    load_weights(model, weights, weights_path)
    average.load(matching_weights(model, averaged, params_path))
