"""Read and set the state of objects that have a state_dict."""

import math
from typing import Any

from paddle import nn

from paddle_mnist.errors import ConfigError
from paddle_mnist.hidden_state.plain_data import is_plain
from paddle_mnist.nn.state_dict import load_weights


def has_state(part: Any) -> bool:
    """Return whether an object can return its state and load it again."""
    takes = hasattr(part, "set_state_dict") or hasattr(part, "load_state_dict")
    return hasattr(part, "state_dict") and takes and not isinstance(part, type)


def set_state(part: Any, state: Any, origin: Any) -> None:
    """Load the state that the object's `state_dict` returned. origin: the file, for errors."""
    if isinstance(part, nn.Layer):
        load_weights(part, state, origin)  # Paddle's own method only warns of a mismatch
        return
    load = getattr(part, "set_state_dict", None) or part.load_state_dict
    load(state)


def state_of(part: Any, name: str) -> Any:
    """Return the state of an object as plain data. Raises ConfigError if it is not plain."""
    return require_plain(dict(part.state_dict()), f"the state_dict of {name}")


def require_plain(value: Any, what: str) -> Any:
    """Return a value. Raises ConfigError if it is not plain data. what: the value, for errors."""
    if not is_plain(value, most_items=math.inf):
        raise ConfigError(
            f"{what} is a {type(value).__name__} that cannot be saved; expected numbers, strings, "
            "arrays, tensors, and lists, dicts and sets of them"
        )
    return value
