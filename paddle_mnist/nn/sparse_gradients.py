"""Gradients that an embedding with `sparse=True` gives by rows."""

from collections.abc import Sequence
from typing import Optional

import paddle


def dense_gradient(parameter: paddle.Tensor) -> Optional[paddle.Tensor]:
    """Return a parameter's gradient, in full where an embedding has given only some rows."""
    gradient = parameter.grad
    return gradient if gradient is None else densify(gradient, parameter.shape)


def densify(gradient: paddle.Tensor, shape: Sequence[int]) -> paddle.Tensor:
    """Return a gradient in full, of a parameter of this shape; rows that occur twice are added."""
    if not gradient.is_selected_rows():
        return gradient
    rows = paddle.to_tensor(gradient.rows()).reshape([-1, 1])
    values = paddle.to_tensor(gradient.numpy())  # Paddle's own to_dense does not take them
    return paddle.scatter_nd_add(paddle.zeros(shape, values.dtype), rows, values)


def remove_gradient(parameter: paddle.Tensor) -> None:
    """Leave a parameter without a gradient, so that the next may be dense or sparse."""
    is_sparse = parameter.grad is not None and parameter.grad.is_selected_rows()
    parameter.clear_gradient(False)
    if is_sparse:  # else Paddle keeps the place for rows, and refuses a dense one
        parameter._set_grad_type(paddle.base.core.VarDesc.VarType.LOD_TENSOR)
