"""Load a state_dict into a model, and report how two state_dicts differ."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from paddle_mnist.errors import CheckpointError

if TYPE_CHECKING:
    from paddle import nn

NAME_TABLE = "StructuredToParameterName@@"  # Paddle's entry of the names that it generated


class IncompatibleKeys(NamedTuple):
    """The entries that `load_into(strict=False)` could not load, by structured name.

    missing_keys: entries of the model that the weights lack.
    unexpected_keys: entries of the weights that the model lacks.
    mismatched_keys: entries of both, of different shape or dtype.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]
    mismatched_keys: list[str]


def load_weights(model: "nn.Layer", weights: Mapping[str, Any], origin: Any) -> None:
    """Load weights into a model. Raises CheckpointError, with a diff, unless they match exactly.

    `Layer.set_state_dict` alone only warns of entries that are missing or of another shape, and
    ignores unexpected ones.

    origin: where the weights come from, for the error.
    """
    model.set_state_dict(matching_weights(model, weights, origin))


def matching_weights(model: "nn.Layer", weights: Mapping[str, Any], origin: Any) -> dict[str, Any]:
    """Return weights without Paddle's name table.

    Raises CheckpointError, with a diff, unless they match the model exactly.
    """
    weights = without_name_table(weights)
    require_match(weights, model.state_dict(), f"{origin} does not fit the model")
    return weights


def without_name_table(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state_dict without Paddle's entry of generated names."""
    return {name: value for name, value in weights.items() if name != NAME_TABLE}


def compare_entries(entries: Mapping[str, Any], expected: Mapping[str, Any]) -> IncompatibleKeys:
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
    missing, unexpected, mismatched = compare_entries(entries, expected)
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
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        dtype = str(value.dtype).rpartition(".")[2].replace("uint16", "bfloat16")  # as NumPy has it
        return f"{list(value.shape)} {dtype}"
    return type(value).__name__
