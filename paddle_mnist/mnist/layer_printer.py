"""Prints the shapes and contents of a model's layers, in the format of the tutorial."""

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator
from typing import Any, Optional

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.monitor.hooks import ForwardPasses, first_tensor, forward_hooks, leaf_layers


@contextlib.contextmanager
def print_layers(
    model: nn.Layer,
    shape: bool = False,
    content: bool = False,
    print_fn: Callable[[str], None] = print,
) -> Iterator[None]:
    """Within the context, print in each forward pass what the tutorial's flags print.

    Unlike the tutorial, the hyper-parameters of the pooling layers are printed too, and after each
    shape the layer's name.

    shape: print the hyper-parameters of each layer that has any (kernel, padding, stride; sizes of
        weight and bias), then the shapes of the input and of each layer's output. An output that
        is reshaped for the next layer is printed in that shape, and its own follows.
    content: print of each convolution the kernel from its first input to its first output channel,
        and one random channel of the output for the first image, drawn with NumPy's global
        generator; then the last layer's output for the first image.
    print_fn: called with each text.
    """
    printer = _LayerPrinter(model, print_fn)
    with contextlib.ExitStack() as stack:
        if shape:
            printer.print_hyperparameters()
            stack.enter_context(forward_hooks(printer.layers, printer.print_shape))
        if content:
            stack.enter_context(forward_hooks(printer.layers, printer.print_content))
        try:
            yield
        finally:
            printer.print_last_shape()
            if printer.channels:  # the pass raised before the last layer
                printer.print_kernels_and_channels()


class _LayerPrinter:
    def __init__(self, model: nn.Layer, print_fn: Callable[[str], None]):
        self.layers = leaf_layers(model)
        self.channels: list[str] = []  # to be printed after the kernels
        self._print = print_fn
        self._convolutions = {
            name: layer for name, layer in self.layers.items() if isinstance(layer, nn.Conv2D)
        }
        self._first, self._last = next(iter(self.layers)), list(self.layers)[-1]
        self._numbers = itertools.count(1)
        self._output: Optional[tuple[str, paddle.Tensor]] = None  # the last, not printed yet

    def print_hyperparameters(self) -> None:
        self._print("\n########## print network layer's superparams ##############")
        for kind in (nn.Conv2D, nn.MaxPool2D, nn.Layer):
            for name, layer in self.layers.items():
                if _kind(layer) is kind and (hyperparameters := _hyperparameters(layer)):
                    self._print(f"{name}-- {hyperparameters}")

    def print_shape(self, name: str, layer: nn.Layer, inputs: Any, output: paddle.Tensor) -> None:
        taken = first_tensor(inputs)
        if name == self._first:
            self._print("\n########## print shape of features of every layer ###############")
            if taken is not None:
                self._print(f"inputs_shape: {list(taken.shape)}")
        self.print_last_shape(taken)
        self._output = name, output
        if name == self._last:  # contents may follow
            self.print_last_shape()

    def print_last_shape(self, taken: Optional[paddle.Tensor] = None) -> None:
        """Print the shape of the last layer's output. taken: by the next layer, reshaped or not."""
        if self._output is None:
            return
        name, output = self._output
        self._output = None
        shape, note = list(output.shape), name
        if taken is not None and _is_reshaped(output, taken):
            shape, note = list(taken.shape), f"{name}: {shape}"
        self._print(f"outputs{next(self._numbers)}_shape: {shape} ({note})")

    def print_content(self, name: str, layer: nn.Layer, inputs: Any, output: paddle.Tensor) -> None:
        if name in self._convolutions:
            channel = np.random.randint(0, output.shape[1])
            blank = "" if self.channels else "\n"
            self.channels.append(
                f"{blank}The {channel}th channel of {name} layer:  {output[0][channel]}"
            )
        if name == self._last:
            self.print_kernels_and_channels()
            self._print(f"The output of last layer: {output[0]} \n")

    def print_kernels_and_channels(self) -> None:
        self._print("\n########## print convolution layer's kernel ###############")
        for name, layer in self._convolutions.items():
            self._print(f"{name} params -- kernel weights: {layer.weight[0][0]}")
        for text in self.channels:
            self._print(text)
        self.channels.clear()


def _is_reshaped(output: paddle.Tensor, taken: paddle.Tensor) -> bool:
    """Return whether a layer takes the values of an output in another shape."""
    is_other_shape = list(output.shape) != list(taken.shape) and output.size == taken.size
    if not is_other_shape or not paddle.in_dynamic_mode():  # a graph has no values yet
        return False
    return np.array_equal(output.numpy().ravel(), taken.numpy().ravel(), equal_nan=True)


def _kind(layer: nn.Layer) -> type:
    """Return what the tutorial distinguishes: convolutions, pooling layers, and all others."""
    return next(kind for kind in (nn.Conv2D, nn.MaxPool2D, nn.Layer) if isinstance(layer, kind))


def _hyperparameters(layer: nn.Layer) -> str:
    """Return a layer's hyper-parameters as the tutorial prints them.

    Paddle keeps those of convolutions in private attributes.
    """
    if isinstance(layer, nn.Conv2D):
        size, padding, stride = list(layer.weight.shape), layer._padding, layer._stride
        return f"kernel_size:{size}, padding:{padding}, stride:{stride}"
    if isinstance(layer, nn.MaxPool2D):
        return f"kernel_size:{layer.ksize}, padding:{layer.padding}, stride:{layer.stride}"
    if isinstance(layer, nn.Linear):
        bias = None if layer.bias is None else list(layer.bias.shape)
        return f"weight_size:{list(layer.weight.shape)}, bias_size_{bias}"
    return layer.extra_repr()


def print_in_batches(
    model: nn.Layer,
    shape: Collection[int],
    content: Collection[int],
    start: int = 0,
    print_fn: Callable[[str], None] = print,
    passes_per_step: int = 1,
) -> ForwardPasses:
    """Print as `print_layers` does in some batches of a training.

    shape, content: the batches in which to print shapes and contents, counted from 0.
    start: the number of batches trained before.
    passes_per_step: shards of a batch in this process; only the first is printed.

    Returns a handle, whose `remove()` ends it.
    """

    def is_due(number: int, training: bool) -> bool:
        return training and (number - 1 in shape or number - 1 in content)

    @contextlib.contextmanager
    def make_context(number: int) -> Iterator[None]:
        print_fn(f"batch {number - 1}:")
        with print_layers(model, number - 1 in shape, number - 1 in content, print_fn):
            yield

    return ForwardPasses(model, is_due, make_context, start, passes_per_step)
