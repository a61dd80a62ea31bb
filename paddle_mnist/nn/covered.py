"""Choose the layers that a compiled net computes, if it can run here at all."""

import functools
import importlib
import itertools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.nn.layers import hooks_of, is_read_only
from paddle_mnist.nn.layout import BlockSizes, Net
from paddle_mnist.system.devices import comes_after_paddle_2
from paddle_mnist.system.environment import usable_cpus

# Returns whether `paddle.jit.to_static` is tracing the running code.
in_sot: Callable[[], bool]
try:
    from paddle.jit.sot.psdb import in_sot as paddle_in_sot

    in_sot = paddle_in_sot
except ImportError:  # Paddle 2.6
    in_sot = bool  # which returns False

log = logging.getLogger("paddle_mnist")

MAX_LINEAR = 2**20  # weights of a linear layer; each takes 40 bytes in the net's weights and sums
MAX_THREADS = 16  # of a compiled net; a step's other parts run one at a time, and bound the gain
SWITCH = "set fast_conv to 'off' to compute with Paddle's own layers"
PARAMETERS = ("weight", "bias")  # of a layer, in the order in which a compiled net takes them


def covered_net(layers: Sequence[nn.Layer], inputs: paddle.Tensor) -> Optional[Net]:
    """Return the sizes of the first of these layers that a compiled net computes, if any."""
    if (
        in_sot()
        or not paddle.in_dynamic_mode()
        or not isinstance(inputs, paddle.Tensor)
        or not inputs.place.is_cpu_place()
    ):
        return None
    shape = inputs.shape
    net = _sizes(layers, inputs, shape[1:]) if len(shape) == 4 and shape[0] else None
    if net is None or why_not_compiled() is not None:
        return None
    covered = layers[: net.layers]
    computes_the_same = (
        all(tensor.dtype == paddle.float32 for tensor in (inputs, *parameters_of(covered)))
        and all(layer._parameters.keys() <= set(PARAMETERS) for layer in covered)
        and not any("forward" in vars(layer) for layer in covered)
        and all(is_read_only(hook) for hook in hooks_of(covered))
    )
    return net if computes_the_same else None


def _sizes(layers: Sequence[Any], inputs: paddle.Tensor, shape: Sequence[int]) -> Optional[Net]:
    """Return the sizes of the blocks that come first, and of what may follow them.

    shape: of an image.
    """
    kinds = [type(layer) for layer in layers]
    blocks, at = [], 0
    while kinds[at : at + 3] in (
        [nn.Conv2D, nn.ReLU, nn.MaxPool2D],
        [nn.Conv2D, nn.MaxPool2D, nn.ReLU],
    ):
        block = _block_sizes(layers[at], shape)
        if block is None or not _halves(layers[kinds.index(nn.MaxPool2D, at)]):
            break
        blocks.append(block)
        shape = [block.outputs, block.pooled_height, block.pooled_width]
        at += 3
    if not blocks:
        return None
    is_flat, classes = False, None
    if kinds[at : at + 1] == [nn.Flatten]:
        is_flat = (layers[at].start_axis, layers[at].stop_axis) == (1, -1)
        at += is_flat
    if is_flat and kinds[at : at + 1] == [nn.Linear]:
        features, outputs = layers[at].weight.shape
        # Where the sizes do not fit, Paddle says what is wrong.
        if features == math.prod(shape) and features * outputs <= MAX_LINEAR:
            classes = outputs
            at += 1
    weighted = [layer for layer in layers[:at] if type(layer) in (nn.Conv2D, nn.Linear)]
    biases = tuple(layer._parameters.get("bias") is not None for layer in weighted)
    input_gradient = paddle.is_grad_enabled() and not inputs.stop_gradient
    return Net(tuple(blocks), biases, classes, is_flat, input_gradient)


def _block_sizes(conv: nn.Conv2D, shape: Sequence[int]) -> Optional[BlockSizes]:
    outputs, channels, kernel, kernel_width = conv.weight.shape
    padding = conv._updated_padding
    inputs, height, width = shape
    block = BlockSizes(inputs, height, width, outputs, kernel, padding[0] if padding else 0)
    computes_the_same = (
        kernel == kernel_width
        and kernel % 2 == 1
        and channels == inputs
        and conv._groups == 1
        and list(conv._stride) == list(conv._dilation) == [1, 1]
        and conv._padding_mode == "zeros"
        and conv._padding_algorithm == "EXPLICIT"
        and conv._data_format == "NCHW"
        and list(padding) == [block.padding] * 2
        and 0 <= block.padding < kernel
        and min(block.pooled_height, block.pooled_width) > 0
        and block.max_place < 2**31
    )
    return block if computes_the_same else None


def _halves(pool: nn.MaxPool2D) -> bool:
    """Return whether a pooling layer takes the largest of each 2x2 values."""
    pairs = (2, [2, 2], (2, 2))
    return (
        pool.ksize in pairs
        and pool.stride in (None, *pairs)
        and pool.padding in (0, [0, 0], (0, 0))
        and not (pool.return_mask or pool.ceil_mode)
        and pool.data_format == "NCHW"
    )


def parameters_of(layers: Sequence[nn.Layer]) -> list[paddle.Tensor]:
    """Return the layers' parameters, of each the weight and the bias if it has one."""
    return [
        layer._parameters[name]  # `parameters()` takes ten times as long
        for layer in layers
        for name in PARAMETERS
        if layer._parameters.get(name) is not None
    ]


def run_one_by_one(layers: Sequence[nn.Layer], inputs: paddle.Tensor) -> paddle.Tensor:
    """Compute layers one after another, as Paddle does."""
    outputs = inputs
    for layer in layers:
        outputs = layer(outputs)
    return outputs


def call_hooks(
    layers: Sequence[nn.Layer], inputs: paddle.Tensor, convolved: Sequence[np.ndarray]
) -> None:
    """Call the hooks of a compiled net's layers, which only read, in order.

    convolved: the outputs of its convolutions, from which Paddle's layers compute the rest.
    """
    arrays = iter(convolved)
    # Not as a decorator, which cannot be entered twice: a hook may call another compiled net.
    with paddle.no_grad():
        for layer in layers:
            if type(layer) is not nn.Conv2D:
                inputs = layer(inputs)
                continue
            outputs = _as_tensor(next(arrays))
            # Paddle's types leave out that arguments come as a tuple.
            pre_hooks: Mapping[int, Callable[..., Any]] = layer._forward_pre_hooks
            post_hooks: Mapping[int, Callable[..., Any]] = layer._forward_post_hooks
            for number, hook in pre_hooks.items():
                hook(layer, (inputs,), *_keywords(layer, "_pre_", number))
            for number, hook in post_hooks.items():
                hook(layer, (inputs,), *_keywords(layer, "_post_", number), outputs)
            inputs = outputs


def _keywords(layer: nn.Layer, kind: str, number: int) -> tuple[dict[str, Any], ...]:
    """Return the keyword arguments of a call, of which there are none, if a hook takes them."""
    takes = getattr(layer, f"_forward{kind}hooks_with_kwargs_flag", ())  # not in Paddle 2
    return ({},) if number in takes else ()


def _as_tensor(array: np.ndarray) -> paddle.Tensor:
    """Return a tensor that shares the memory of an array, where Paddle can."""
    can_share = hasattr(paddle.Tensor, "__dlpack__")  # not in Paddle 2
    return paddle.utils.dlpack.from_dlpack(array) if can_share else paddle.to_tensor(array)


def refuse_second_pass() -> Callable[[paddle.Tensor], None]:
    """Return a gradient hook that raises RuntimeError at a second backward pass.

    Paddle (3.3.1) crashes at a second pass through any `PyLayer`, before its `backward` is called;
    the hooks of its output are called before that.
    """
    passes = itertools.count()

    def hook(gradient: paddle.Tensor) -> None:
        if next(passes):
            raise RuntimeError(
                f"a second backward pass through the compiled net, which allows one; {SWITCH}"
            )

    return hook


@functools.cache
def why_not_compiled() -> Optional[str]:
    """Return why no compiled net can run here, once logged; None if one can."""
    try:
        if comes_after_paddle_2("numba"):
            raise ImportError(
                "with Paddle 2 it must be imported before paddle, which breaks the zlib it uses"
            )
        importlib.import_module("paddle_mnist.nn.compiled_net")
    except (ImportError, OSError) as error:
        log.warning(
            "convolutions are computed by Paddle's own layers, often more than ten times slower: "
            "numba cannot be used here (%s)",
            error,
        )
        return str(error)
    return None


@functools.cache
def threads_of(fast_conv: Union[str, int]) -> int:
    """Return the number of threads that a value of `fast_conv` stands for.

    "auto" is this process's share of the cores, if it trains with others on this machine, and at
    most `MAX_THREADS`.
    """
    if fast_conv != "auto":
        return int(fast_conv)
    environment = paddle.distributed.ParallelEnv()
    host = environment.current_endpoint.rpartition(":")[0]
    hosts = [endpoint.rpartition(":")[0] for endpoint in environment.trainer_endpoints]
    return min(MAX_THREADS, max(1, usable_cpus() // max(1, hosts.count(host))))
