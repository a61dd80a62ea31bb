"""Write the weights of a model to a file, read them, and load them into a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union

from paddle import nn

from paddle_mnist.checkpoint.names import find_weights
from paddle_mnist.checkpoint.statefile import SavedState
from paddle_mnist.nn.state_dict import (
    IncompatibleKeys,
    compare_entries,
    load_weights,
    without_name_table,
)
from paddle_mnist.system.files import PendingFile


def write_weights(path: Path, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Write a state_dict as `paddle.save` does; return the file's size and SHA-256.

    Completely or not at all. Raises OutputError.
    """
    with PendingFile(path) as file:
        SavedState(weights).write_to(file)
        entry = file.finish()
        file.publish()
    return entry


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
    incompatible = compare_entries(entries, current)
    kept = {*incompatible.missing_keys, *incompatible.mismatched_keys}
    model.set_state_dict({name: (current if name in kept else entries)[name] for name in current})
    return incompatible
