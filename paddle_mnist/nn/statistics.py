"""Find what a forward pass changes in a net: buffers, running statistics of normalization."""

from collections.abc import Mapping
from typing import Optional

import paddle
from paddle import nn

NORMALIZATION = "paddle.nn.layer.norm"  # the module of Paddle's normalization layers
INTEGERS = (paddle.int32, paddle.int64)

Buffers = Mapping[nn.Layer, Mapping[str, Optional[paddle.Tensor]]]  # of each layer, by name


def layer_buffers(model: nn.Layer) -> Buffers:
    """Return the tensors that each layer of a model has as its buffers now."""
    return {layer: dict(layer._buffers) for layer in model.sublayers(include_self=True)}


def keep_buffers_in_place(buffers: Buffers) -> None:
    """Move the values of buffers that a pass has replaced into the tensors that they were."""
    for layer, tensors in buffers.items():
        for name, tensor in tensors.items():
            current = layer._buffers.get(name)
            if current is None or tensor is None or current is tensor:
                continue
            if current.shape == tensor.shape and current.dtype == tensor.dtype:
                tensor.set_value(current.detach())
                layer._buffers[name] = tensor


def running_statistics(model: nn.Layer) -> list[paddle.Tensor]:
    """Return the tensors that a forward pass in training may change, those of numbers.

    They are the model's buffers, and what Paddle's normalization layers keep as parameters without
    a gradient: BatchNorm its running mean and variance, SpectralNorm its vectors. Frozen weights of
    other layers are left out: no pass changes them. So are truth values and integers of few bits:
    no counters.
    """
    tensors = list(model.buffers())
    for layer in model.sublayers(include_self=True):
        if any(base.__module__ == NORMALIZATION for base in type(layer).__mro__):
            own = layer.parameters(include_sublayers=False)
            tensors += [parameter for parameter in own if parameter.stop_gradient]
    distinct = {id(tensor): tensor for tensor in tensors}
    return [
        tensor
        for tensor in distinct.values()
        # An LSTM's buffer for cuDNN's dropout has no memory before it is used.
        if (tensor.is_floating_point() or tensor.dtype in INTEGERS) and tensor._is_initialized()
    ]
