"""The weights of a model: into files, out of them, and into a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Union

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.checkpoint.safe_load import NAME_TABLE
from paddle_mnist.checkpoint.saved_state import SavedState
from paddle_mnist.checkpoint.saved_weights import find_weights
from paddle_mnist.errors import CheckpointError
from paddle_mnist.system.files import PendingFile


def write_weights(path: Path, weights: Mapping[str, Any]) -> None:
    """Write a state_dict as `paddle.save` does, whole or not at all. Raises OutputError."""
    with PendingFile(path) as file:
        SavedState(weights).write_to(file)
        file.finish()
        file.publish()


class IncompatibleKeys(NamedTuple):
    """The entries that `load_into(strict=False)` could not load, by structured name.

    missing_keys: entries of the model that the weights lack.
    unexpected_keys: entries of the weights that the model lacks.
    mismatched_keys: entries of both, of different shape or dtype.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]
    mismatched_keys: list[str]


def load(path: Union[str, Path], run: Union[str, Path, None] = None) -> dict[str, Any]:
    """Load saved weights: `{"conv1.weight": float32 [20, 1, 5, 5], ...}`, NumPy arrays.

    path: of a run, for the weights it ended with; of a checkpoint, with any suffix or none, whose
        files are verified; or of a bare `.pdparams`, such as the tutorial writes; or "latest",
        "best" or the name of a checkpoint of `run`; or "pretrained".
    run: by default the newest in work/output.

    Runs no code from the file. Raises CheckpointError.
    """
    return without_name_table(find_weights(path, run).values)


def load_into(
    model: nn.Layer, weights: Union[str, Path, Mapping[str, Any]], strict: bool = True
) -> IncompatibleKeys:
    """Load weights, or those of a run, a checkpoint or a file (see `load`), into a model.

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
    entries, current = without_name_table(entries), model.state_dict()
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
    weights = without_name_table(weights)
    require_match(weights, model.state_dict(), f"{origin} does not fit the model")
    return weights


def without_name_table(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state_dict without Paddle's entry of generated names."""
    return {name: value for name, value in weights.items() if name != NAME_TABLE}


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


def require_match(entries: Mapping[str, Any], expected: Mapping[str, Any], error: str) -> None:
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
