"""Looking into a net while it runs, through forward hooks that are removed afterwards."""

import contextlib
from collections.abc import Iterator

import numpy as np
from paddle import nn


@contextlib.contextmanager
def printed(model: nn.Layer, shape: bool = False, content: bool = False) -> Iterator[None]:
    """While this is open, each forward pass prints what the tutorial's flags print.

    shape: of each layer its hyper-parameters, then the input's and each output's shape.
    content: the convolutions' first kernels, one random channel of each convolution's output,
        and the last layer's output. The channel is drawn with NumPy's global generator.
    """
    layers = dict(model.named_sublayers())
    convolutions = {n: layer for n, layer in layers.items() if isinstance(layer, nn.Conv2D)}
    last = list(layers)[-1]

    def show_shapes(name, layer, inputs, output):
        if layer is next(iter(layers.values())):
            print(f"input: {list(inputs[0].shape)}")
        print(f"{name} output: {list(output.shape)}")

    def show_contents(name, layer, inputs, output):
        if name in convolutions:
            print(f"{name} kernel 0:\n{layer.weight[0].numpy()}")
            channel = np.random.randint(output.shape[1])
            print(f"{name} output, image 0, channel {channel}:\n{output[0, channel].numpy()}")
        elif name == last:
            print(f"{name} output, image 0:\n{output[0].numpy()}")

    shown = [show for show, wanted in ((show_shapes, shape), (show_contents, content)) if wanted]
    handles = [
        layer.register_forward_post_hook(
            lambda layer, inputs, output, name=name, show=show: show(name, layer, inputs, output)
        )
        for show in shown
        for name, layer in layers.items()
    ]
    if shape:
        for name, layer in layers.items():
            parameters = {n: list(p.shape) for n, p in layer.named_parameters()}
            print(f"{name}: {layer.__class__.__name__}({layer.extra_repr()}) {parameters or ''}")
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
