"""Blocks of convolution, ReLU and max pooling that CPUs compute several times faster than Paddle.

`ConvBlocks` is the layer for custom nets, and calls `run_layers`. Where a compiled net does not
serve, Paddle's own layers compute.
"""

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
import paddle
from paddle import nn
from paddle.autograd import PyLayer
from paddle.nn import functional as F

from paddle_mnist.errors import ConfigError
from paddle_mnist.nn.covered import (
    SWITCH,
    call_hooks,
    covered_net,
    parameters_of,
    refuse_second_pass,
    run_one_by_one,
    threads_of,
    why_not_compiled,
)
from paddle_mnist.nn.layers import PADDLE, hooks_of, is_read_only
from paddle_mnist.nn.layout import VERSION, Net
from paddle_mnist.nn.losses import CrossEntropy
from paddle_mnist.system.arrays import as_array

if TYPE_CHECKING:  # it imports numba
    from paddle_mnist.nn.compiled_net import CompiledNet


class FastConvSwitch(nn.Layer):
    """Gives a layer the attribute `fast_conv`. Raises ConfigError for an invalid value.

    Trainings call `fused_loss` and `computed_by` of any net that has them
    (`paddle_mnist.training.steps.SupervisedStep`, `paddle_mnist.nn.layers.computed_by`).
    """

    not_compared: tuple[str, ...] = ("_fast_conv",)  # by a resume, since it may change

    @property
    def fast_conv(self) -> Union[str, int]:
        """The choice of what computes the layer: "auto", "off", or a number of threads."""
        return self._fast_conv

    @fast_conv.setter
    def fast_conv(self, value: Union[str, int]) -> None:
        is_count = isinstance(value, numbers.Integral) and value >= 0
        if value not in ("auto", "off") and not is_count:
            raise ConfigError(
                f"fast_conv is {value!r}; expected 'auto', 'off', or a number of threads"
            )
        self._fast_conv = value

    def layers_in_order(self) -> Optional[list[nn.Layer]]:
        """Return the layers whose chain computes the outputs; None if anything else does.

        Each subclass defines it.
        """
        raise NotImplementedError  # only a subclass has layers

    def fused_loss(
        self, loss: Callable[..., object], labels: paddle.Tensor, *inputs: paddle.Tensor
    ) -> Optional[tuple[paddle.Tensor, paddle.Tensor]]:
        """Return the mean loss [] and the logits [B, C] of one compiled pass; None if not possible.

        The pass computes the gradients, too; the loss's `backward`, which works once, gives them to
        the parameters. The logits have no graph. Where this returns None, Paddle has to compute.

        loss: a `CrossEntropy`, or `paddle.nn.functional.cross_entropy`. Computed in float64 inside,
        it is exact where Paddle's loss is capped at 64 nats a sample.
        """
        layers, smoothing = self._compiled_chain(), _label_smoothing(loss)
        if layers is None or smoothing is None or len(inputs) != 1 or not paddle.is_grad_enabled():
            return None
        net = covered_net(layers, inputs[0])
        if net is None or net.layers < len(layers) or not net.classes or net.input_gradient:
            return None
        parameters = parameters_of(layers)
        values = _class_numbers(labels, inputs[0].shape[0], net.classes)
        if values is None or all(parameter.stop_gradient for parameter in parameters):
            return None
        if len({id(parameter) for parameter in parameters}) < len(parameters):
            return None  # a layer that stands twice: Paddle's graph adds up its gradients
        from paddle_mnist.nn.compiled_net import compiled_net  # which imports numba

        # All hooks only read. Paddle's types leave out that arguments come as a tuple.
        pre_hooks: Iterable[Callable[..., Any]] = self._forward_pre_hooks.values()
        post_hooks: Iterable[Callable[..., Any]] = self._forward_post_hooks.values()
        for hook in pre_hooks:
            hook(self, inputs)
        compiled = compiled_net(net)
        convolved = compiled.new_convolved(len(values)) if any(hooks_of(layers)) else None
        arrays = [parameter.numpy() for parameter in parameters]
        results = compiled.cross_entropy(
            as_array(inputs[0]), values, arrays, smoothing, threads_of(self.fast_conv), convolved
        )
        if convolved:
            call_hooks(layers, inputs[0], convolved)
        # As one tensor at first: NumPy's arrays become tensors slowly.
        shapes = [(), (len(values), net.classes), *net.parameter_shapes]
        parts = paddle.split(paddle.to_tensor(results), [*map(math.prod, shapes)])
        mean, outputs, *gradients = [
            part if len(shape) == 1 else part.reshape(shape) for part, shape in zip(parts, shapes)
        ]
        for hook in post_hooks:
            hook(self, inputs, outputs)
        return _with_gradients(mean, parameters, gradients), outputs

    def _compiled_chain(self) -> Optional[list[nn.Layer]]:
        """Return the layers whose chain computes the outputs, if they may be compiled."""
        if self.fast_conv in ("off", 0) or "forward" in vars(self):
            return None
        return self.layers_in_order() if all(map(is_read_only, hooks_of([self]))) else None

    def computed_by(self) -> dict[str, str]:
        """Return what computes the convolutions here: Paddle, or a version of the compiled net."""
        is_fast = self.fast_conv not in ("off", 0) and paddle.device.get_device() == "cpu"
        if not is_fast or why_not_compiled() is not None:
            return {"convolution": PADDLE}
        return {"convolution": f"compiled loops, version {VERSION}"}


class ConvBlocks(FastConvSwitch, nn.Sequential):
    """A `paddle.nn.Sequential` whose convolution blocks run several times faster on CPUs.

    It takes the same layers as `paddle.nn.Sequential`, gives its parameters the same names, and
    computes the same outputs up to float32 rounding error:

        features = ConvBlocks(
            nn.Conv2D(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2D(2, 2),
            nn.Conv2D(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2D(2, 2),
            nn.Flatten(), nn.Linear(64 * 8 * 8, 10),
        )  # fmt: skip

    A block is fast if it consists of `Conv2D` (square odd kernel, stride 1, zero padding of less
    than the kernel), `ReLU` and `MaxPool2D` (2x2, stride 2), with ReLU and pooling in either order.
    `Flatten` and one `Linear` after the last block are fast, too. Paddle's layers compute the rest,
    from the first other layer on. They compute everything for other dtypes and devices, in static
    graphs, and if a hook may change the values that pass through these layers. Only one backward
    pass is possible: a second one (`retain_graph=True`) and second derivatives raise a
    RuntimeError, which Paddle turns into an OSError; the message says how to switch to Paddle's
    layers.

    NaN and infinite values are propagated, even through pooling, where Paddle's layer may lose a
    NaN. If a pooling window has several largest values, the first one gets the gradient, as in
    Paddle.

    The net is compiled for the sizes of the layers and of the images. This takes a few seconds
    the first time; the machine code is cached on disk.

    fast_conv: "auto" uses one thread for each core that is available to this process, at most 16;
        "off" or 0 uses Paddle's layers; any other number is the number of threads. At most as many
        threads work as a batch has chunks, of 8 images in a batch of up to 256. The number of
        threads does not change the results. You can set the attribute at any time.
    """

    def __init__(self, *layers: nn.Layer, fast_conv: Union[str, int] = "auto"):
        super().__init__(*layers)
        self.fast_conv = fast_conv

    def layers_in_order(self) -> Optional[list[nn.Layer]]:
        """Return the layers that compute the outputs, in order.

        Returns None in a subclass that computes something else.
        """
        kind = type(self)
        if kind.forward is not ConvBlocks.forward or kind.__call__ is not nn.Layer.__call__:
            return None
        return list(self._sub_layers.values())  # `children()` lists a repeated layer only once

    def forward(self, inputs: paddle.Tensor) -> paddle.Tensor:
        return run_layers(list(self._sub_layers.values()), inputs, self.fast_conv)


def run_layers(
    layers: Sequence[nn.Layer], inputs: paddle.Tensor, fast_conv: Union[str, int]
) -> paddle.Tensor:
    """Compute layers one after another, as a compiled net where they are as in `ConvBlocks`.

    Hooks that only read see the convolutions that the compiled net has computed, and what Paddle's
    layers compute from them; they change no bit of the result.
    """
    net = covered_net(layers, inputs) if fast_conv not in ("off", 0) else None
    if net is None:
        return run_one_by_one(layers, inputs)
    covered, others = layers[: net.layers], layers[net.layers :]
    compiled_outputs = _run_compiled(net, covered, inputs, threads_of(fast_conv))
    return run_one_by_one(others, compiled_outputs)


# ------------------------------------------------------------------ in Paddle's graph


def _run_compiled(
    net: Net, layers: Sequence[nn.Layer], inputs: paddle.Tensor, threads: int
) -> paddle.Tensor:
    from paddle_mnist.nn.compiled_net import compiled_net  # which imports numba

    parameters = parameters_of(layers)
    needs_gradient = paddle.is_grad_enabled() and not all(
        tensor.stop_gradient for tensor in (inputs, *parameters)
    )
    # As one tensor, because a `PyLayer` has to give the gradients of all its inputs or of none.
    tensors = [inputs, *parameters] if net.input_gradient else parameters
    joined = paddle.concat([tensor.flatten() for tensor in tensors])
    compiled = compiled_net(net)
    convolved = compiled.new_convolved(len(inputs)) if any(hooks_of(layers)) else None
    apply: Callable[..., paddle.Tensor] = _Blocks.apply
    outputs = apply(inputs.detach(), joined, compiled, threads, needs_gradient, convolved)
    if convolved:
        call_hooks(layers, inputs, convolved)
    if not needs_gradient:
        return outputs
    outputs.register_hook(refuse_second_pass())
    # What a hook of a `PyLayer`'s own output returns is ignored (Paddle 3.3.1).
    return paddle.assign(outputs)


class _Blocks(PyLayer):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: paddle.Tensor,
        joined: paddle.Tensor,
        net: "CompiledNet",
        threads: int,
        needs_gradient: bool,
        convolved: Optional[tuple[np.ndarray, ...]],
    ) -> paddle.Tensor:
        images, values = as_array(inputs), joined.numpy()
        if net.net.input_gradient:
            values = values[images.size :]
        outputs, ctx.memory = net.forward(images, [values], threads, needs_gradient, convolved)
        ctx.net, ctx.threads = net, threads
        return paddle.to_tensor(outputs)

    @staticmethod
    def backward(  # type: ignore[override]  # Paddle's types have no None, for no gradient
        ctx: Any, gradient: paddle.Tensor
    ) -> tuple[None, paddle.Tensor]:
        if paddle.is_grad_enabled():  # with create_graph=True
            raise RuntimeError(f"the compiled net has no second derivatives; {SWITCH}")
        memory, ctx.memory = ctx.memory, None
        return None, paddle.to_tensor(ctx.net.backward(gradient.numpy(), memory, ctx.threads))


# ------------------------------------------------------------------ the loss in the same pass


def _label_smoothing(loss: Callable[..., object]) -> Optional[float]:
    """Return how much a loss smooths the labels; None if it is not a mean cross-entropy."""
    if type(loss) is CrossEntropy:  # a subclass may compute something else
        return float(loss.label_smoothing)
    return 0.0 if loss is F.cross_entropy else None


def _class_numbers(labels: Any, count: int, classes: int) -> Optional[np.ndarray]:
    """Return labels as int64 [B]; None if only Paddle can interpret or refuse them."""
    if (
        not isinstance(labels, paddle.Tensor)
        or labels.dtype != paddle.int64
        or not labels.place.is_cpu_place()
    ):
        return None
    values = as_array(labels)
    if values.shape not in ((count,), (count, 1)):
        return None
    values = values.reshape(count)
    # a negative number, such as the -100 of labels to be ignored, is a large one without its sign
    return values if np.maximum.reduce(values.view(np.uint64)) < classes else None


def _with_gradients(
    loss: paddle.Tensor, parameters: Sequence[paddle.Tensor], gradients: Sequence[paddle.Tensor]
) -> paddle.Tensor:
    """Return the loss, whose backward pass gives the parameters these gradients.

    It is a leaf of Paddle's graph. Its hook starts a backward pass at the parameters, which
    calls their hooks and adds to the gradients that they have.
    """
    loss.stop_gradient = False
    refuse = refuse_second_pass()

    def hook(gradient: paddle.Tensor) -> None:
        refuse(gradient)
        factor = gradient.item()
        scaled = gradients if factor == 1 else [own * factor for own in gradients]
        pairs = [pair for pair in zip(parameters, scaled) if not pair[0].stop_gradient]
        paddle.autograd.backward([pair[0] for pair in pairs], [pair[1] for pair in pairs])

    loss.register_hook(hook)
    return loss
