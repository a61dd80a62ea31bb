"""NumPy arrays of whatever holds numbers."""

import sys
from typing import Any

import numpy as np


def as_array(values: Any) -> np.ndarray:
    """Return values as a NumPy array; those of a tensor at the cost of their own size.

    For the array of a view, such as `images[i]`, Paddle copies all of the tensor behind it, so that
    an epoch of views would take time in proportion to the square of their number.
    """
    if _is_tensor(values):
        # bfloat16 comes as uint16, as `to_tensor` takes it
        array: np.ndarray = own_memory(values.detach()).numpy()
        return array
    return np.asarray(values)


def copied_array(values: Any) -> np.ndarray:
    """Return a NumPy array that shares no memory with the values; of a tensor with one copy."""
    array = as_array(values)
    return array if _is_tensor(values) else array.copy()  # Paddle has copied a tensor's


def _is_tensor(values: Any) -> bool:
    paddle = sys.modules.get("paddle")  # whoever has no tensors need not import it
    return paddle is not None and isinstance(values, paddle.Tensor)


def own_memory(tensor: Any) -> Any:
    """Return a dense tensor that is no view: the same, or a copy of its values."""
    if not tensor.is_dense() or not tensor.size:  # Paddle 2 cannot copy one without elements
        return tensor
    size = tensor.size * tensor.element_size()
    owns_all = hasattr(tensor, "_holder_size") and tensor._holder_size() == size  # not in Paddle 2
    return tensor if owns_all else tensor.clone()
