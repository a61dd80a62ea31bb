"""Reads what `paddle.save` writes without running any code from the file.

A `.pdparams` or `.pdopt` is a pickle, and a pickle is a program: `pickle.load`, and so
`paddle.load`, call whatever function a file names. `pickle_interpreter` knows only what
`paddle.save` needs; everything else is refused with a CheckpointError.
"""

import io
import os
from pathlib import Path
from typing import Any, Union

import numpy as np

from paddle_mnist.checkpoint.pickle_interpreter import (
    RefusedError,
    Source,
    UnfinishedArray,
    interpret,
)
from paddle_mnist.errors import CheckpointError

# What paddle.save writes of how a tensor over 1 GiB was sliced under pickle protocols 2 and 3.
_SLICED_TENSORS = "UnpackBigParamInfor@@"

_MAX_DEPTH = 8  # of nested containers; a state_dict has 2


def safe_load(path: Union[str, Path]) -> dict[str, Any]:
    """Load the dictionary in a file written by `paddle.save` (Paddle 2.x, 3.x; protocols 2 to 4).

    Tensors become NumPy arrays; the name table, if there is one, stays (`NAME_TABLE`).
    Raises CheckpointError for a file that is unreadable, damaged, or holds anything else.
    """
    try:
        with open(path, "rb") as file:
            return load_from(file, os.fstat(file.fileno()).st_size, path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}; expected a readable file") from error


def safe_loads(data: bytes, origin: Union[str, Path] = "checkpoint") -> dict[str, Any]:
    """Load the dictionary in bytes, as `safe_load` does. origin: names them in errors."""
    return load_from(io.BytesIO(data), len(data), origin)


def load_from(file: Source, size: int, origin: Union[str, Path]) -> dict[str, Any]:
    """Load the dictionary in an open file of this size, as `safe_load` does.

    The arrays are views of the bytes that are read: no other copy is made.
    """
    try:
        state_dict = _to_plain(interpret(file, size))
        if not isinstance(state_dict, dict):
            raise RefusedError(f"holds a {type(state_dict).__name__}")
        return _join_slices(state_dict, size)
    except RefusedError as refusal:
        raise CheckpointError(
            f"{origin}: {refusal}; expected tensors and plain containers as paddle.save writes "
            "them; do not open it with paddle.load, which would run it"
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise CheckpointError(
            f"{origin}: damaged, or not a file of paddle.save ({error!s:.200}); fall back on "
            "another checkpoint"
        ) from error


def _to_plain(value: Any) -> Any:
    """Replace unfinished arrays by NumPy arrays. Raises RefusedError for containers too deep.

    Shared containers are refused too, because each of their places would be visited, which takes
    exponential time; `paddle.save` shares none but tied tensors.
    """
    seen: set[int] = set()

    def convert(value: Any, depth: int) -> Any:
        if isinstance(value, UnfinishedArray):
            if value.value is None:
                raise ValueError("an array without contents")
            return value.value
        if isinstance(value, (dict, list, tuple)):
            if _is_named_tensor(value):  # one of several places, if weights are tied
                return convert(value[1], depth + 1)
            if depth > _MAX_DEPTH or (value and id(value) in seen):
                raise RefusedError("containers nested too deep, or in several places")
            seen.add(id(value))
            if isinstance(value, dict):
                return {key: convert(item, depth + 1) for key, item in value.items()}
            return type(value)(convert(item, depth + 1) for item in value)
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            return value
        raise RefusedError(f"holds a {type(value).__name__}")

    return convert(value, depth=0)


def _is_named_tensor(value: Any) -> bool:
    """Return whether it is (name, array), as Paddle saves a tensor outside of a state_dict."""
    return type(value) is not dict and list(map(type, value)) == [str, UnfinishedArray]


def _join_slices(state_dict: dict[str, Any], max_bytes: int) -> dict[str, Any]:
    """Join the tensors that were saved in slices.

    max_bytes: of all slices together, so that one array cannot stand for many of them.
    """
    for name, sliced in state_dict.pop(_SLICED_TENSORS, {}).items():
        slices = [state_dict.pop(key) for key in sliced["slices"]]
        if not all(isinstance(values, np.ndarray) for values in slices):
            raise RefusedError("a tensor in pieces that are no arrays")
        max_bytes -= sum(values.nbytes for values in slices)
        if max_bytes < 0:
            raise RefusedError("tensors in pieces with more bytes than it has")
        joined = np.concatenate([np.ravel(values) for values in slices])
        state_dict[name] = joined.reshape(sliced["OriginShape"])
    return state_dict
