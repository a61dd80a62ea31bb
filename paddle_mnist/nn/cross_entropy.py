"""The cross-entropy; of compiled nets together with its gradients, in one pass over the batch."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from paddle_mnist.nn.fast_layers import (
    call_hooks,
    fast_net,
    parameters_of,
    refuse_second_pass,
    threads_of,
)
from paddle_mnist.nn.layers import hooks_of, is_read_only
from paddle_mnist.system.arrays import as_array


class CrossEntropy:
    """The mean cross-entropy of logits [B, C] against labels [B, 1], in nats.

    With label_smoothing s the label's share is 1 - s + s/C and every other class's s/C (Szegedy et
    al., "Rethinking the Inception Architecture", 2016, section 7).
    """

    def __init__(self, label_smoothing: float = 0.0):
        self.label_smoothing = label_smoothing

    # reduction="mean" would look, on Paddle 2.6.2, at a value, which waits for the device.
    def __call__(self, logits: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
        if not self.label_smoothing:
            return F.cross_entropy(logits, labels, reduction="none").mean()
        # F.cross_entropy(label_smoothing=...) fails on whole-number labels (Paddle 3.3.1, CPU).
        shares = F.label_smooth(
            F.one_hot(labels.flatten(), logits.shape[-1]), epsilon=self.label_smoothing
        )
        return F.cross_entropy(logits, shares, soft_label=True, reduction="none").mean()


def compiled_cross_entropy(
    model: nn.Layer,
    inputs: paddle.Tensor,
    labels: paddle.Tensor,
    loss: Callable[..., object],
) -> Optional[tuple[paddle.Tensor, paddle.Tensor]]:
    """Compute a model's loss with compiled loops; None where Paddle has to compute it.

    Returns the mean loss [], and the logits [B, C] without a graph. The gradients are computed in
    the same pass; the loss's `backward`, which works once, gives them to the parameters.

    The model says by a method `layers_in_order` which layers it is a chain of, and by `fast_conv`
    whether they may be compiled (`paddle_mnist.nn.conv_blocks.ConvBlocks`); all of them have to be.
    loss: a `CrossEntropy`, or `paddle.nn.functional.cross_entropy`. Computed in float64 inside, it
    is exact where Paddle's loss is capped at 64 nats a sample.
    """
    layers = _chain(model)
    smoothing = _label_smoothing(loss)
    if layers is None or smoothing is None or not paddle.is_grad_enabled():
        return None
    net = fast_net(layers, inputs)
    if net is None or net.layers < len(layers) or not net.classes or net.input_gradient:
        return None
    parameters = parameters_of(layers)
    values = _class_numbers(labels, len(inputs), net.classes)
    if values is None or all(parameter.stop_gradient for parameter in parameters):
        return None
    if len({id(parameter) for parameter in parameters}) < len(parameters):
        return None  # a layer that stands twice: Paddle's graph adds up its gradients
    from paddle_mnist.nn.compiled_net import compiled_net  # which imports numba

    # All hooks only read. Paddle's types leave out that arguments come as a tuple.
    pre_hooks: Iterable[Callable[..., Any]] = model._forward_pre_hooks.values()
    post_hooks: Iterable[Callable[..., Any]] = model._forward_post_hooks.values()
    for hook in pre_hooks:
        hook(model, (inputs,))
    call_hooks(layers, inputs)
    flat = np.concatenate([parameter.numpy().ravel() for parameter in parameters])
    mean, logits, gradients = compiled_net(net).cross_entropy(
        as_array(inputs), values, flat, smoothing, threads_of(model.fast_conv)
    )
    outputs = paddle.to_tensor(logits)
    for hook in post_hooks:
        hook(model, (inputs,), outputs)
    shaped = list(zip(parameters, net.parameter_shapes))
    return _with_gradients(mean, shaped, gradients), outputs


def _chain(model: nn.Layer) -> Optional[Sequence[nn.Layer]]:
    """Return the layers whose chain is the model; None if it does anything else."""
    if getattr(model, "fast_conv", "off") in ("off", 0) or not hasattr(model, "layers_in_order"):
        return None
    if "forward" in vars(model) or not all(is_read_only(hook) for hook in hooks_of([model])):
        return None
    layers: Optional[Sequence[nn.Layer]] = model.layers_in_order()
    return layers


def _label_smoothing(loss: Callable[..., object]) -> Optional[float]:
    """Return how much a loss smooths the labels; None if it is not a mean cross-entropy."""
    if type(loss) is CrossEntropy:  # a subclass may compute something else
        return float(loss.label_smoothing)
    return 0.0 if loss is F.cross_entropy else None


def _class_numbers(labels: Any, count: int, classes: int) -> Optional[np.ndarray]:
    """Return labels as int64 [B]; None if Paddle has to say what they mean, or what is wrong."""
    if (
        not isinstance(labels, paddle.Tensor)
        or labels.dtype != paddle.int64
        or not labels.place.is_cpu_place()
        or labels.shape not in ([count], [count, 1])
    ):
        return None
    values = as_array(labels).ravel()
    # a negative number, such as the -100 of labels to be ignored, is a large one without its sign
    return values if values.view(np.uint64).max() < classes else None


def _with_gradients(
    value: np.float32,
    parameters: Sequence[tuple[paddle.Tensor, tuple[int, ...]]],
    gradients: np.ndarray,
) -> paddle.Tensor:
    """Return a loss whose backward pass gives the parameters these gradients, which are flat.

    parameters: with their shapes, which take long to read from a tensor.

    The loss is a leaf of Paddle's graph. Its hook starts a backward pass at the parameters, which
    calls their hooks and adds to the gradients that they have.
    """
    loss = paddle.to_tensor(value)
    loss.stop_gradient = False
    refuse = refuse_second_pass()

    def hook(gradient: paddle.Tensor) -> None:
        refuse(gradient)
        scaled = paddle.to_tensor(gradients * np.float32(gradient))
        parts = paddle.split(scaled, [math.prod(shape) for _, shape in parameters])
        pairs = [
            (parameter, part.reshape(shape))
            for (parameter, shape), part in zip(parameters, parts)
            if not parameter.stop_gradient
        ]
        paddle.autograd.backward(*map(list, zip(*pairs)))

    loss.register_hook(hook)
    return loss
