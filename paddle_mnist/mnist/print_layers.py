"""Prints the shapes and contents of a model's layers, in the format of the tutorial.

It imports paddle where it is used: the callback's options are those of a command line, whose
`--help` does without it.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Optional, Union

import numpy as np

from paddle_mnist.errors import ConfigError
from paddle_mnist.interfaces import View
from paddle_mnist.options import CountOrZero, Options, option, split_names
from paddle_mnist.training.callbacks import Callback, Training

if TYPE_CHECKING:
    import paddle
    from paddle import nn

    from paddle_mnist.monitor.hooks import ForwardPasses

log = logging.getLogger("paddle_mnist")


@contextlib.contextmanager
def print_layers(
    model: "nn.Layer",
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
    from paddle_mnist.monitor.hooks import forward_hooks, leaf_layers

    layers = leaf_layers(model)
    printer = _LayerPrinter(layers, print_fn)
    with contextlib.ExitStack() as stack:
        if shape:
            print_fn("\n########## print network layer's superparams ##############")
            for name, text in _hyperparameters(layers).items():
                print_fn(f"{name}-- {text}")
            stack.enter_context(forward_hooks(layers, printer.print_shape))
            stack.callback(printer.print_output)  # the last, if the pass raises
        if content:
            stack.enter_context(forward_hooks(layers, printer.print_content))
        yield


def _hyperparameters(layers: "dict[str, nn.Layer]") -> dict[str, str]:
    """Return the hyper-parameters of the layers that have any, as the tutorial prints them.

    Convolutions come first, then pooling layers, then the others. Paddle keeps those of
    convolutions in private attributes.
    """
    from paddle import nn

    convolutions, poolings, others = {}, {}, {}
    for name, layer in layers.items():
        if isinstance(layer, nn.Conv2D):
            size, padding, stride = list(layer.weight.shape), layer._padding, layer._stride
            convolutions[name] = f"kernel_size:{size}, padding:{padding}, stride:{stride}"
        elif isinstance(layer, nn.MaxPool2D):
            poolings[name] = (
                f"kernel_size:{layer.ksize}, padding:{layer.padding}, stride:{layer.stride}"
            )
        elif isinstance(layer, nn.Linear):
            bias = None if layer.bias is None else list(layer.bias.shape)
            others[name] = f"weight_size:{list(layer.weight.shape)}, bias_size_{bias}"
        elif text := layer.extra_repr():
            others[name] = text
    return {**convolutions, **poolings, **others}


class _LayerPrinter:
    """Prints what layers compute, each after its forward pass."""

    def __init__(self, layers: "dict[str, nn.Layer]", print_fn: Callable[[str], None]):
        self._layers, self._names = layers, list(layers)
        self._print = print_fn
        self._number = 0
        self._output: Optional[tuple[str, list[int]]] = None  # name and shape, not printed yet
        self._channels: list[str] = []  # to be printed after the kernels

    def print_shape(self, name: str, _: "nn.Layer", inputs: Any, output: "paddle.Tensor") -> None:
        """Print the shape of the output before, as this layer has received it."""
        from paddle_mnist.monitor.hooks import first_tensor

        received = first_tensor(inputs)
        shape = [] if received is None else list(received.shape)
        if name == self._names[0]:
            self._print("\n########## print shape of features of every layer ###############")
            self._print(f"inputs_shape: {shape}")
        self.print_output(shape)
        self._output = name, list(output.shape)
        if name == self._names[-1]:  # contents may follow
            self.print_output()

    def print_output(self, received: Sequence[int] = ()) -> None:
        """Print the shape of the output that is not printed yet. received: by the next layer."""
        if self._output is None:
            return
        name, shape = self._output
        self._output = None
        self._number += 1
        is_reshaped = shape != received and math.prod(shape) == math.prod(received)
        shown, note = (received, f"{name}: {shape}") if is_reshaped else (shape, name)
        self._print(f"outputs{self._number}_shape: {shown} ({note})")

    def print_content(
        self, name: str, layer: "nn.Layer", inputs: Any, output: "paddle.Tensor"
    ) -> None:
        """After the last layer, print kernels and channels of the convolutions, and its output."""
        if _is_convolution(layer):
            channel = np.random.randint(0, output.shape[1])
            self._channels.append(f"The {channel}th channel of {name} layer:  {output[0][channel]}")
        if name != self._names[-1]:
            return
        self._print("\n########## print convolution layer's kernel ###############")
        for other, layer in self._layers.items():
            if _is_convolution(layer):
                self._print(f"{other} params -- kernel weights: {layer.weight[0][0]}")
        if self._channels:
            self._print("\n" + "\n".join(self._channels))
        self._channels.clear()
        self._print(f"The output of last layer: {output[0]} \n")


def _is_convolution(layer: "nn.Layer") -> bool:
    from paddle import nn

    return isinstance(layer, nn.Conv2D)


# ------------------------------------------------------------------ in some batches of a training

TUTORIAL_BATCHES = {"shapes": 0, "contents": 401}  # in which the tutorial prints


def _parse_batches(value: Any) -> Any:
    """Read numbers of batches, by comma; true means the tutorial's batch, false none."""
    if str(value).lower() in ("true", "false"):
        return True if str(value).lower() == "true" else ()
    if isinstance(value, int):
        return [value]
    names = split_names(value)
    return [int(name) if str(name).isdecimal() else name for name in names]


Batches = Union[tuple[CountOrZero, ...], Literal[True]]


@dataclass(eq=False)
class PrintLayers(Callback, Options):
    """Prints shapes and contents of the layers in some batches, in the format of the tutorial.

    shapes, contents: the numbers of these batches, counted from 0 over the whole training; True:
        the batch in which the tutorial prints, 0 and 401, or the last of a shorter training.
    """

    heading = "looking inside"

    shapes: Batches = option(
        (),
        "numbers of batches whose shapes to print; without a value: 0",
        flat="check_shape",
        bare="true",
        parse=_parse_batches,
    )
    contents: Batches = option(
        (),
        "numbers of batches whose contents to print; without a value: 401, or the last",
        flat="check_content",
        bare="true",
        parse=_parse_batches,
    )
    _passes: "Optional[ForwardPasses]" = field(default=None, init=False, repr=False)

    def check_training(self, training: Training) -> None:
        for name in TUTORIAL_BATCHES:
            self._batches(name, training.steps)

    def before_first_step(self, training: Training) -> None:
        from paddle_mnist.monitor.hooks import ForwardPasses

        if not training.world.is_main_process or not (self.shapes or self.contents):
            return
        shapes, contents = (
            self._batches(name, training.steps, is_logged=True) for name in TUTORIAL_BATCHES
        )

        def is_due(step: int, in_training: bool) -> bool:
            return in_training and step - 1 in {*shapes, *contents}

        def printing(step: int) -> contextlib.AbstractContextManager[None]:
            batch = step - 1
            log.info("batch %d:", batch)
            return print_layers(training.model, batch in shapes, batch in contents, log.info)

        self._passes = ForwardPasses(training.model, is_due, printing)

    def on_epoch_start(self, view: View) -> None:
        if self._passes:
            self._passes.begin_step(view.step)

    after_step = on_epoch_start

    def _batches(self, name: str, total: Optional[int], is_logged: bool = False) -> Sequence[int]:
        """Return the batches in which to print. Raises ConfigError for a number that is too large.

        total: the number of batches in the training; None if it is unknown.
        """
        numbers: Batches = getattr(self, name)
        usual = TUTORIAL_BATCHES[name]
        last = math.inf if total is None else total - 1
        if numbers is True:
            if usual > last and is_logged:
                text = "PrintLayers: no batch %d in %d batches; printing in the last, %d"
                log.info(text, usual, total, last)
            return (int(min(usual, last)),)
        for number in numbers:
            if number > last:
                raise ConfigError(
                    f"PrintLayers: {name} names batch {number}, but this training has {total}, "
                    f"counted from 0; expected one of them, such as {last}"
                )
        return numbers

    def close(self) -> None:
        if self._passes:
            self._passes.remove()
        self._passes = None
