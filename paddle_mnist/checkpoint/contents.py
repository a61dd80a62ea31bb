"""What goes into a checkpoint, and back out of it into a model and its optimizer."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union

import numpy as np
import paddle
from paddle import nn
from paddle.utils import unique_name

from paddle_mnist.checkpoint.safe_load import NAME_TABLE, safe_load
from paddle_mnist.checkpoint.store import (
    DATA,
    OPTIMIZER,
    PARAMS,
    TRAINING,
    Checkpoint,
    read_manifest,
)
from paddle_mnist.errors import CheckpointError
from paddle_mnist.nn.ema import NO_AVERAGE, Average

_SCHEDULE = "LR_Scheduler"


def saved_bytes(state_dict: Mapping[str, Any]) -> bytes:
    """What `paddle.save` writes for a state_dict, to be read with plain `paddle.load`."""
    buffer = io.BytesIO()
    paddle.save(state_dict, buffer)
    return buffer.getvalue()


def parameter_names(model: nn.Layer) -> dict[str, str]:
    """Structured to generated names, `{"conv1.weight": "conv2d_0.w_0", ...}`."""
    return {name: parameter.name for name, parameter in model.named_parameters()}


def load(path: Union[str, Path]) -> dict[str, Any]:
    """The weights in a file, `{"conv1.weight": float32 [20, 1, 5, 5], ...}`, as NumPy arrays.

    path: of a checkpoint, with any suffix or none, whose files are verified; or of a bare
    `.pdparams`, such as the tutorial writes. Runs nothing of what the file says.
    Raises CheckpointError.
    """
    path = Path(path)
    stem = path.with_suffix("") if path.suffix in (*DATA, ".json") else path
    manifest = stem.with_name(f"{stem.name}.json")
    weights = read_manifest(manifest).load(PARAMS) if manifest.exists() else safe_load(path)
    return {name: value for name, value in weights.items() if name != NAME_TABLE}


def load_into(
    model: nn.Layer, weights: Union[str, Path, Mapping[str, Any]], strict: bool = True
) -> list[str]:
    """Put weights, or those in a file (see `load`), into a model; gives what was left out.

    strict: all must fit; else entries that are missing, too much, or of another shape or dtype are
    left as they are, and named in the list that is given back. Raises CheckpointError.
    """
    origin = "the mapping" if isinstance(weights, Mapping) else weights
    found = weights if isinstance(weights, Mapping) else load(weights)
    if strict:
        load_weights(model, found, origin)
        return []
    ours = model.state_dict()
    fit = {name for name in ours if name in found and _form(found[name]) == _form(ours[name])}
    model.set_state_dict({name: found[name] if name in fit else ours[name] for name in ours})
    return sorted({name for name in {*ours, *found} if name != NAME_TABLE} - fit)


def load_weights(model: nn.Layer, weights: Mapping[str, Any], origin: Any) -> None:
    """Put weights into a model. Raises CheckpointError, with a diff, unless they fit exactly.

    `Layer.set_state_dict` alone only warns of what is missing or of another shape, and says
    nothing of what is too much.
    """
    model.set_state_dict(fitting(model, weights, origin))


def fitting(model: nn.Layer, weights: Mapping[str, Any], origin: Any) -> dict[str, Any]:
    """The entries of a state_dict that fit a model exactly. Raises CheckpointError, with a diff."""
    weights = {name: value for name, value in weights.items() if name != NAME_TABLE}
    _must_match(weights, model.state_dict(), f"{origin} does not fit the model")
    return weights


def load_optimizer(
    optimizer: paddle.optimizer.Optimizer,
    saved: Mapping[str, Any],
    saved_names: Mapping[str, str],
    model: nn.Layer,
    origin: Any,
    schedule: bool = True,
) -> None:
    """Put an optimizer's saved state back, matched by structured parameter names.

    saved_names: the parameters' structured to generated names when it was saved.
    schedule: whether the rate's schedule goes on too; else it stays where it is.
    Changes the model's weights: load those afterwards. Raises CheckpointError, with a diff,
    unless every entry has its place.

    Paddle creates an optimizer's state in its first step, and before that accepts anything. So a
    step without gradients is done first; what it creates is what must have been saved.
    """
    for parameter in model.parameters():
        parameter.grad = paddle.zeros_like(parameter)
    with unique_name.guard():
        optimizer.step()
    optimizer.clear_grad()

    expected = optimizer.state_dict()
    if not schedule:
        saved = {key: value for key, value in saved.items() if key != _SCHEDULE}
        if _SCHEDULE in expected:
            saved[_SCHEDULE] = expected[_SCHEDULE]
    ours = {name: structured for structured, name in parameter_names(model).items()}
    theirs = {name: structured for structured, name in saved_names.items()}
    key_of = {_structured(key, ours): key for key in expected if key != NAME_TABLE}
    found = {_structured(key, theirs): value for key, value in saved.items() if key != NAME_TABLE}
    _must_match(
        found,
        {structured: expected[key] for structured, key in key_of.items()},
        f"{origin} does not fit the optimizer",
    )
    optimizer.set_state_dict({key_of[structured]: value for structured, value in found.items()})


def optimizer_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a checkpoint holds of its optimizer, by structured names.

    `{"conv1.weight velocity": float32 [20, 1, 5, 5], ..., "LR_Scheduler last_epoch": 10, ...}`,
    arrays as NumPy's. Raises CheckpointError if it is damaged.
    """
    theirs = {name: structured for structured, name in _saved_names(checkpoint).items()}
    values = {}
    for key, value in checkpoint.load(OPTIMIZER).items():
        if key == NAME_TABLE:
            continue
        if isinstance(value, Mapping):  # the schedule's
            values.update({f"{key} {name}": number for name, number in value.items()})
        else:
            values[_structured(key, theirs)] = value
    return values


def _saved_names(checkpoint: Checkpoint) -> Mapping[str, str]:
    """The parameters' structured to generated names when it was saved. Raises CheckpointError."""
    names = checkpoint.manifest.get("names")
    if not isinstance(names, dict):
        raise CheckpointError(f"{checkpoint.path}: gives no parameter names; use another")
    return names


def _structured(key: str, names: Mapping[str, str]) -> str:
    """`conv2d_0.w_0_moment1_0` -> `conv1.weight moment1`; other keys as they are.

    The number at the end counts the optimizers of a process, and says nothing about the state.
    """
    owners = [name for name in names if key.startswith(f"{name}_")]
    if not owners:
        return key
    owner = max(owners, key=len)
    return f"{names[owner]} {key[len(owner) + 1 :].rpartition('_')[0]}"


def _must_match(found: Mapping[str, Any], expected: Mapping[str, Any], what: str) -> None:
    """Raise CheckpointError, naming every leaf that is missing, too much, or of another form."""
    lines = [f"  missing     {key}: {_form(expected[key])}" for key in expected if key not in found]
    lines += [f"  unexpected  {key}: {_form(found[key])}" for key in found if key not in expected]
    lines += [
        f"  different   {key}: {_form(found[key])}; expected {_form(expected[key])}"
        for key in expected
        if key in found and _form(found[key]) != _form(expected[key])
    ]
    if lines:
        raise CheckpointError("\n".join([f"{what}:", *lines]))


def _form(value: Any) -> str:
    """Shape and dtype, as `[20, 1, 5, 5] float32`."""
    if isinstance(value, paddle.Tensor):
        return f"{list(value.shape)} {str(value.dtype).rpartition('.')[2]}"
    if isinstance(value, np.ndarray):
        return f"{list(value.shape)} {value.dtype.name}"
    return type(value).__name__


def load_checkpoint(
    checkpoint: Checkpoint,
    model: nn.Layer,
    optimizer: paddle.optimizer.Optimizer,
    average: Average = NO_AVERAGE,
    schedule: bool = True,
) -> None:
    """Put a checkpoint back into a model, the average of its weights, and its optimizer.

    schedule: whether the rate's schedule goes on too; else it stays where it is.
    Raises CheckpointError unless all fit exactly; then none may be used on.
    """
    saved = checkpoint.load(OPTIMIZER)
    averaged = checkpoint.load(PARAMS)
    suffix = TRAINING if checkpoint.has(TRAINING) else PARAMS
    weights = checkpoint.load(suffix) if suffix == TRAINING else averaged
    origin = checkpoint.path.with_name(checkpoint.name + OPTIMIZER)
    names = _saved_names(checkpoint)
    load_optimizer(optimizer, saved, names, model, origin, schedule)
    load_weights(model, weights, checkpoint.path.with_name(checkpoint.name + suffix))
    average.load(fitting(model, averaged, checkpoint.path.with_name(checkpoint.name + PARAMS)))
