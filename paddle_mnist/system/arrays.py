"""NumPy arrays of whatever holds numbers."""

import sys
from typing import Any

import numpy as np


def as_array(values: Any) -> np.ndarray:
    """Return values as a NumPy array; those of a tensor at the cost of their own size.

    For the array of a view, such as `images[i]`, Paddle copies all of the tensor behind it, so that
    an epoch of views would take time in proportion to the square of their number.
    """
    paddle = sys.modules.get("paddle")  # whoever has no tensors need not import it
    if paddle is not None and isinstance(values, paddle.Tensor):
        return values.detach().clone().numpy()  # bfloat16 as uint16, as `to_tensor` takes it
    return np.asarray(values)
