"""Prints the shapes and contents of a model's layers, in the format of the tutorial.

It imports paddle only where it is used: `--help` lists the callback's options without paddle.
"""

import contextlib
import functools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np

from paddle_mnist.interfaces import View
from paddle_mnist.options import BOOLEANS, CountOrZero, Options, option, split_names
from paddle_mnist.training.callbacks import Callback, Training

if TYPE_CHECKING:
    import paddle
    from paddle import nn

    from paddle_mnist.monitor.hooks import ForwardPasses

log = logging.getLogger("paddle_mnist")


class _Passed(NamedTuple):
    """A layer in a forward pass: the shapes of its input and its output."""

    name: str
    received: list[int]
    shape: list[int]


@contextlib.contextmanager
def print_layers(
    model: "nn.Layer",
    shape: bool = False,
    content: bool = False,
    print_fn: Callable[[str], None] = print,
) -> Iterator[None]:
    """Within the context, print what the tutorial's flags print about a forward pass.

    Unlike the tutorial, it also prints the hyper-parameters of the pooling layers, and the layer's
    name after each shape.

    shape: print the hyper-parameters of each layer that has any (kernel, padding, stride; sizes of
        weight and bias), then the shapes of the input and of each layer's output. An output that
        is reshaped for the next layer is printed in that shape, followed by its own. If the pass
        raises, the shapes of the layers before are printed.
    content: print for each convolution the kernel from its first input to its first output channel,
        and one random channel of the output for the first image, drawn with NumPy's global
        generator; then the last layer's output for the first image.
    print_fn: called with each text.
    """
    from paddle import nn

    from paddle_mnist.monitor.hooks import first_tensor, forward_hooks, leaf_layers

    layers = leaf_layers(model)
    passed: list[_Passed] = []
    contents: list[str] = []  # a channel of each convolution, and the output of the last layer

    def record(name: str, layer: "nn.Layer", inputs: Any, output: "paddle.Tensor") -> None:
        received = first_tensor(inputs)
        shapes = [] if received is None else list(received.shape), list(output.shape)
        passed.append(_Passed(name, *shapes))
        if content and isinstance(layer, nn.Conv2D):
            channel = np.random.randint(0, output.shape[1])
            contents.append(f"The {channel}th channel of {name} layer:  {output[0][channel]}")
        if content and name == [*layers][-1]:
            contents.append(f"The output of last layer: {output[0]} \n")

    if shape:
        print_fn("\n########## print network layer's superparams ##############")
        described = {name: _hyperparameters(layer) for name, layer in layers.items()}
        for name, (_, text) in sorted(described.items(), key=lambda item: item[1][0]):
            if text:
                print_fn(f"{name}-- {text}")
    try:
        with forward_hooks(layers, record):
            yield
    finally:
        if shape and passed:
            _print_shapes(passed, print_fn)
    if contents:
        print_fn("\n########## print convolution layer's kernel ###############")
        for name, layer in layers.items():
            if isinstance(layer, nn.Conv2D):
                print_fn(f"{name} params -- kernel weights: {layer.weight[0][0]}")
        print_fn("\n" + "\n".join(contents))


def _hyperparameters(layer: "nn.Layer") -> tuple[int, str]:
    """Return the place of a layer in the tutorial's list, and its text there.

    Convolutions come first, then pooling layers, then the others. Paddle keeps those of
    convolutions in private attributes.
    """
    from paddle import nn

    if isinstance(layer, nn.Conv2D):
        size, padding, stride = list(layer.weight.shape), layer._padding, layer._stride
        return 0, f"kernel_size:{size}, padding:{padding}, stride:{stride}"
    if isinstance(layer, nn.MaxPool2D):
        return 1, f"kernel_size:{layer.ksize}, padding:{layer.padding}, stride:{layer.stride}"
    if isinstance(layer, nn.Linear):
        bias = None if layer.bias is None else list(layer.bias.shape)
        return 2, f"weight_size:{list(layer.weight.shape)}, bias_size_{bias}"
    return 2, layer.extra_repr()


def _print_shapes(passed: Sequence[_Passed], print_fn: Callable[[str], None]) -> None:
    """Print the shape of each output, as the next layer receives it."""
    print_fn("\n########## print shape of features of every layer ###############")
    print_fn(f"inputs_shape: {passed[0].received}")
    received_next = [layer.received for layer in passed[1:]] + [passed[-1].shape]
    for number, (layer, received) in enumerate(zip(passed, received_next), 1):
        shown, note = layer.shape, layer.name
        if received != shown and math.prod(received) == math.prod(shown):
            shown, note = received, f"{layer.name}: {layer.shape}"
        print_fn(f"outputs{number}_shape: {shown} ({note})")


# ------------------------------------------------------------------ in some batches of a run


def _parse_batches(value: Any, tutorials: int) -> Any:
    """Read the comma-separated numbers of batches; true: the tutorial's batch; false: none."""
    word = BOOLEANS.get(str(value).lower())
    if word is not None:
        return [tutorials] if word else ()
    return [value] if isinstance(value, int) else split_names(value)


@dataclass(eq=False)
class PrintLayers(Callback, Options):
    """Prints shapes and contents of the layers in some batches, in the format of the tutorial.

    shapes, contents: the numbers of these batches, counted from 0 over the training run; in a
        shorter run, its last batch is printed instead. True: the batch in which the tutorial
        prints, 0 or 401.
    """

    heading = "looking inside"

    shapes: tuple[CountOrZero, ...] = option(
        (),
        "numbers of batches whose shapes to print; without a value: 0",
        flat="check_shape",
        bare="true",
        parse=functools.partial(_parse_batches, tutorials=0),
    )
    contents: tuple[CountOrZero, ...] = option(
        (),
        "numbers of batches whose contents to print; without a value: 401",
        flat="check_content",
        bare="true",
        parse=functools.partial(_parse_batches, tutorials=401),
    )
    _passes: "Optional[ForwardPasses]" = field(default=None, init=False, repr=False)

    def before_first_step(self, training: Training) -> None:
        from paddle_mnist.monitor.hooks import ForwardPasses

        if not training.world.is_main_process or not (self.shapes or self.contents):
            return
        shapes, contents = (_within(some, training.steps) for some in (self.shapes, self.contents))

        def is_due(step: int) -> bool:
            return step - 1 in shapes | contents

        def printing(step: int) -> contextlib.AbstractContextManager[None]:
            batch = step - 1
            log.info("batch %d:", batch)
            return print_layers(training.model, batch in shapes, batch in contents, log.info)

        self._passes = ForwardPasses(training.model, is_due, printing)

    def on_epoch_start(self, view: View) -> None:
        if self._passes:
            self._passes.begin_step(view.step)

    after_step = on_epoch_start

    def close(self) -> None:
        if self._passes:
            self._passes.remove()
        self._passes = None


def _within(batches: Sequence[int], total: Optional[int]) -> set[int]:
    """Return the batches in which to print. total: in the training; None if it is unknown."""
    for batch in batches:
        if total is not None and batch >= total:
            text = "PrintLayers: no batch %d in %d batches; printing in the last, %d"
            log.info(text, batch, total, total - 1)
    return {batch if total is None else min(batch, total - 1) for batch in batches}
