"""The contents of a checkpoint: from a model and its optimizer, and back into them."""

import io
import warnings
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import paddle
from paddle import nn
from paddle.utils import unique_name

from paddle_mnist.checkpoint.manifest import (
    DATA_SUFFIXES,
    OPTIMIZER,
    PARAMS,
    TRAINING,
    Checkpoint,
    read_manifest,
)
from paddle_mnist.checkpoint.safe_load import NAME_TABLE, safe_load
from paddle_mnist.errors import CheckpointError
from paddle_mnist.nn.ema import NO_AVERAGE, WeightAverage
from paddle_mnist.nn.schedule import load_schedule_numbers, schedule_numbers

_SCHEDULE = "LR_Scheduler"


def saved_bytes(state_dict: Mapping[str, Any]) -> bytes:
    """Return the bytes that `paddle.save` writes for a state_dict (`paddle.load` reads them)."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # an optimizer has no state before its first step
        warnings.filterwarnings("ignore", message="The input state dict is empty")
        paddle.save(state_dict, buffer)
    return buffer.getvalue()


def parameter_names(model: nn.Layer) -> dict[str, str]:
    """Map structured to generated parameter names: `{"conv1.weight": "conv2d_0.w_0", ...}`."""
    return {name: parameter.name for name, parameter in model.named_parameters()}


class IncompatibleKeys(NamedTuple):
    """What `load_into(strict=False)` could not load, by structured name.

    missing_keys: entries of the model that the weights lack.
    unexpected_keys: entries of the weights that the model lacks.
    mismatched_keys: entries of both, of different shape or dtype.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]
    mismatched_keys: list[str]


def load(path: Union[str, Path]) -> dict[str, Any]:
    """Load the weights in a file: `{"conv1.weight": float32 [20, 1, 5, 5], ...}`, NumPy arrays.

    path: of a checkpoint, with any suffix or none, whose files are verified; or of a bare
        `.pdparams`, such as the tutorial writes.

    Runs no code from the file. Raises CheckpointError.
    """
    path = Path(path)
    stem = path.with_suffix("") if path.suffix in (*DATA_SUFFIXES, ".json") else path
    manifest = stem.with_name(f"{stem.name}.json")
    weights = read_manifest(manifest).load(PARAMS) if manifest.exists() else safe_load(path)
    return _without_name_table(weights)


def load_into(
    model: nn.Layer, weights: Union[str, Path, Mapping[str, Any]], strict: bool = True
) -> IncompatibleKeys:
    """Load weights, or those in a file (see `load`), into a model.

    strict: raise CheckpointError, naming each entry that is missing, unexpected, or of another
        shape or dtype, and leave the model as it is. With `strict=False` load the entries that
        match and leave the others of the model as they are.

    Returns the names of the entries that did not match, as PyTorch's `load_state_dict` does; all
    lists are empty if `strict`. Unlike PyTorch, which raises for them even then, entries of
    another shape or dtype are listed too, as `mismatched_keys`.
    """
    origin = "the mapping" if isinstance(weights, Mapping) else weights
    entries = weights if isinstance(weights, Mapping) else load(weights)
    if strict:
        load_weights(model, entries, origin)
        return IncompatibleKeys([], [], [])
    entries, current = _without_name_table(entries), model.state_dict()
    incompatible = _compare(entries, current)
    kept = {*incompatible.missing_keys, *incompatible.mismatched_keys}
    model.set_state_dict({name: (current if name in kept else entries)[name] for name in current})
    return incompatible


def load_weights(model: nn.Layer, weights: Mapping[str, Any], origin: Any) -> None:
    """Load weights into a model. Raises CheckpointError, with a diff, unless they match exactly.

    `Layer.set_state_dict` alone only warns of entries that are missing or of another shape, and
    ignores unexpected ones.

    origin: where the weights come from, for the error.
    """
    model.set_state_dict(matching_weights(model, weights, origin))


def matching_weights(model: nn.Layer, weights: Mapping[str, Any], origin: Any) -> dict[str, Any]:
    """Return weights without Paddle's name table.

    Raises CheckpointError, with a diff, unless they match the model exactly.
    """
    weights = _without_name_table(weights)
    _require_match(weights, model.state_dict(), f"{origin} does not fit the model")
    return weights


def _without_name_table(weights: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in weights.items() if name != NAME_TABLE}


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

    Changes the model's weights, so load those afterwards. Raises CheckpointError, with a diff,
    unless every entry matches.
    """
    saved = checkpoint.load(OPTIMIZER)
    saved_names = {name: structured for structured, name in _saved_names(checkpoint).items()}
    _create_state(optimizer, model, _parameters_without_state(checkpoint, optimizer))
    current = optimizer.state_dict()
    if not schedule:
        saved = {key: value for key, value in saved.items() if key != _SCHEDULE}
        if _SCHEDULE in current:
            saved[_SCHEDULE] = current[_SCHEDULE]
    structured_names = {name: structured for structured, name in parameter_names(model).items()}
    current_keys = {
        _structured_key(key, structured_names): key for key in _without_name_table(current)
    }
    entries = {
        _structured_key(key, saved_names): value
        for key, value in _without_name_table(saved).items()
    }
    _require_match(
        entries,
        {structured: current[key] for structured, key in current_keys.items()},
        f"{checkpoint.path.with_suffix(OPTIMIZER)} does not fit the optimizer",
    )
    optimizer.set_state_dict({current_keys[name]: value for name, value in entries.items()})
    if schedule:
        load_schedule_numbers(optimizer, checkpoint.manifest.get("schedule", {}))


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
    for key, value in _without_name_table(checkpoint.load(OPTIMIZER)).items():
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


def _compare(entries: Mapping[str, Any], expected: Mapping[str, Any]) -> IncompatibleKeys:
    """Return what is missing, unexpected, or of another shape or dtype among the entries."""
    return IncompatibleKeys(
        missing_keys=[key for key in expected if key not in entries],
        unexpected_keys=[key for key in entries if key not in expected],
        mismatched_keys=[
            key
            for key in expected
            if key in entries and _shape_and_dtype(entries[key]) != _shape_and_dtype(expected[key])
        ],
    )


def _require_match(entries: Mapping[str, Any], expected: Mapping[str, Any], error: str) -> None:
    """Raise CheckpointError, with a diff, unless the entries match the expected ones exactly."""
    missing, unexpected, mismatched = _compare(entries, expected)
    lines = [f"  missing     {key}: {_shape_and_dtype(expected[key])}" for key in missing]
    lines += [f"  unexpected  {key}: {_shape_and_dtype(entries[key])}" for key in unexpected]
    lines += [
        f"  different   {key}: {_shape_and_dtype(entries[key])}; "
        f"expected {_shape_and_dtype(expected[key])}"
        for key in mismatched
    ]
    if lines:
        raise CheckpointError("\n".join([f"{error}:", *lines]))


def _shape_and_dtype(value: Any) -> str:
    """Return `[20, 1, 5, 5] float32` for a tensor or array, else the name of the type."""
    if isinstance(value, paddle.Tensor):
        return f"{list(value.shape)} {str(value.dtype).rpartition('.')[2]}"
    if isinstance(value, np.ndarray):
        return f"{list(value.shape)} {value.dtype.name}"
    return type(value).__name__


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
