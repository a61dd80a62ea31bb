"""Layers of any net: modes, read-only hooks, statistics, sparse gradients, what computes them."""

import collections
import contextlib
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional, TypeVar

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.errors import listed
from paddle_mnist.system.arrays import ArrayCopies, TensorCopies

log = logging.getLogger("paddle_mnist")

NORMALIZATION = "paddle.nn.layer.norm"  # the module of Paddle's normalization layers
INTEGERS = (paddle.int32, paddle.int64)
PADDLE = "Paddle"
CONVOLUTION = "convolution"  # named in manifests even if no layer of the net does

Buffers = Mapping[nn.Layer, Mapping[str, Optional[paddle.Tensor]]]  # of each layer, by name
Hook = TypeVar("Hook", bound=Callable[..., Any])


@contextlib.contextmanager
def training_mode_begins(model: nn.Layer, warns: bool = True) -> Iterator[None]:
    """Put a model in training mode; warn of those of its layers that were in evaluation mode.

    There is no warning for layers that return to it within the context, or if the whole model was
    in evaluation mode.
    """
    kept = {n: layer for n, layer in model.named_sublayers() if model.training > layer.training}
    model.train()
    yield
    undone = {name: layer for name, layer in kept.items() if layer.training}
    outermost = [name for name in undone if name.rpartition(".")[0] not in undone]
    if outermost and warns:
        log.warning(
            "%s: in evaluation mode, but each epoch begins with model.train(), which undoes it; to "
            "freeze BatchNorm, set use_global_stats=True, or give the model a train() that keeps "
            "these layers in evaluation mode",
            listed(outermost),
        )


@contextlib.contextmanager
def evaluation_mode(model: nn.Layer) -> Iterator[None]:
    """Put a model in evaluation mode, and each of its layers back in its own mode afterwards."""
    modes = [(layer, layer.training) for layer in model.sublayers(include_self=True)]
    model.eval()
    try:
        yield
    finally:
        for layer, training in modes:
            layer.training = training


# ------------------------------------------------------------------ hooks

# How often this package has registered hooks of a gradient, by the `id` of the parameter.
own_gradient_hooks: collections.Counter[int] = collections.Counter()


def read_only(hook: Hook) -> Hook:
    """Mark a hook as one that changes neither inputs nor outputs."""
    vars(hook)["is_read_only"] = True
    return hook


def is_read_only(hook: Callable[..., Any]) -> bool:
    """Return whether a hook says of itself that it changes neither inputs nor outputs."""
    return getattr(hook, "is_read_only", False)


def hooks_of(layers: Sequence[nn.Layer]) -> Iterator[Callable[..., Any]]:
    """Yield the layers' hooks."""
    for layer in layers:
        yield from layer._forward_pre_hooks.values()
        yield from layer._forward_post_hooks.values()


# ------------------------------------------------------------------ what a pass changes


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


class KeptBuffers:
    """The buffers and running statistics of a model as they were before a pass.

    copies: how to copy them.
    statistics: (attribute) the numeric ones, see `running_statistics`.
    places: (attribute) the buffers of each layer.
    """

    def __init__(self, model: nn.Layer, copies: type[TensorCopies] = ArrayCopies):
        self.statistics = running_statistics(model)
        self.places: Buffers = {}
        self._layers, self._kind = model.sublayers(include_self=True), copies
        trained = set(map(id, model.parameters()))
        self._parameters = [tensor for tensor in self.statistics if id(tensor) in trained]
        self._ids: list[int] = []  # of the tensors that are copied
        self._copies = copies([])

    def keep(self) -> None:
        """Copy the present values."""
        self.places = {layer: dict(layer._buffers) for layer in self._layers if layer._buffers}
        tensors = [*self.statistics]
        for buffers in self.places.values():
            for tensor in buffers.values():
                if tensor is not None and tensor._is_initialized():
                    tensors.append(tensor)
        ids = [*map(id, tensors)]
        if ids != self._ids:
            self._ids, distinct = ids, dict(zip(ids, tensors))
            self._copies = self._kind(distinct.values())
        if ids:
            self._copies.renew()

    def before(self, tensor: paddle.Tensor) -> paddle.Tensor:
        """Return the copy of one of the statistics, with `TensorCopies`."""
        values: paddle.Tensor = self._copies.values[id(tensor)]
        return values

    def checksum(self) -> int:
        """Return the CRC-32 of the present values, without buffers that `state_dict` leaves out."""
        tensors = [
            layer._buffers.get(name)
            for layer, kept in self.places.items()
            for name in kept
            if name not in layer._non_persistable_buffer_names_set
        ]
        checksum = 0
        for tensor in (*self._parameters, *tensors):
            if tensor is not None and tensor._is_initialized():
                values = np.ascontiguousarray(self._copies.present(tensor)).data
                checksum = zlib.crc32(values, checksum)
        return checksum

    def restore(self) -> None:
        """Give the model its buffers of before the pass, with their values."""
        for layer, tensors in self.places.items():
            layer._buffers.update(tensors)
        self._copies.restore()


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


# ------------------------------------------------------------------ gradients by rows


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


# ------------------------------------------------------------------ the code that computes them


def computed_by(model: nn.Layer) -> dict[str, str]:
    """Return the code that computes the parts of a net in this process, by part.

    Other code may round differently, so manifests hold these names, and a resume warns of others. A
    layer names its code by a method `computed_by`, which returns it by part, such as
    `{"attention": "my kernel, version 2"}`, or `PADDLE` where Paddle computes the part after all.
    """
    names: dict[str, set[str]] = {CONVOLUTION: set()}
    for layer in model.sublayers(include_self=True):
        if hasattr(layer, "computed_by"):
            for part, name in layer.computed_by().items():
                names.setdefault(part, set()).add(name)
    return {part: " and ".join(sorted(found - {PADDLE})) or PADDLE for part, found in names.items()}


def warn_of_other_code(manifest: Mapping[str, Any], current: Mapping[str, str]) -> None:
    """Log a warning for each part that other code computes than in a checkpoint's run.

    current: of this process, as `computed_by` returns it.
    """
    for part, name in current.items():
        before = manifest.get("computed_by", {}).get(part, name)
        if before != name:
            log.warning(
                "the %s was computed by %s up to step %d, and is by %s now, which rounds "
                "differently: the run continues, but its result differs from that of an unbroken "
                "one",
                part,
                before,
                manifest["state"]["step"],
                name,
            )
