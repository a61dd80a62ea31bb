"""The places where the compiled loops read parameters, and where they leave gradients."""

import functools
import math

import numpy as np
import numpy.typing as npt

from paddle_mnist.nn.sparse_layout import Net, round_up


def packing(net: Net) -> npt.NDArray[np.int64]:
    """Return the index among the flat parameters of each weight that the loops read, int64.

    Padding, and the bias of a layer without one, have the index one past the last parameter, where
    the caller appends a zero.
    """
    sizes = [math.prod(shape) for shape in net.parameter_shapes]
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    values = (part.reshape(shape) for part, shape in zip(parts, net.parameter_shapes))
    indices = np.full(net.weights.size, sum(sizes))
    view = functools.partial(net.weights.view, indices)
    for number, block in enumerate(net.blocks):
        size, outputs = block.kernel, round_up(block.outputs)
        kernels = next(values)
        target = view(f"forward{number}", size, block.channels, size, outputs)
        target[..., : block.outputs] = kernels[:, :, ::-1, ::-1].transpose(2, 1, 3, 0)
        if net.has_input_gradient(number):
            channels = round_up(block.channels)
            target = view(f"backward{number}", size, block.outputs, size, channels)
            target[..., : block.channels] = kernels.transpose(2, 0, 3, 1)
        if net.biases[number]:
            view(f"bias{number}", outputs)[: block.outputs] = next(values)
    if net.classes:
        classes, features = net.classes, net.maps[-1]
        shape = (features.height * features.width, features.stride)
        # a linear layer's features are channels first, as Paddle flattens them
        by_pixel = next(values).reshape(features.channels, shape[0], classes)
        target = view("linear_columns", *shape, round_up(classes))
        target[:, : features.channels, :classes] = by_pixel.transpose(1, 0, 2)
        target = view("linear_rows", classes, *shape)
        target[..., : features.channels] = by_pixel.transpose(2, 1, 0)
        if net.biases[-1]:
            view("linear_bias", round_up(classes))[:classes] = next(values)
    return indices


def unpacking(net: Net) -> npt.NDArray[np.int64]:
    """Return the index of each parameter's gradient among the sums of the loops, int64."""
    view = functools.partial(net.sums.view, np.arange(net.sums.size))
    places = []
    for number, block in enumerate(net.blocks):
        windows, size = net.windows[number], block.kernel
        rows = view(f"kernel{number}", block.outputs, windows.rows, windows.row_size)
        rows = rows[..., : size * windows.pixel_step]
        if windows.as_columns:
            pixels = rows.reshape(block.outputs, size, size, block.channels)
            places.append(pixels.transpose(0, 3, 2, 1))
        else:
            pixels = rows.reshape(block.outputs, size, size, windows.pixel_step)
            places.append(pixels[..., : block.channels].transpose(0, 3, 1, 2))
        if net.biases[number]:
            places.append(view(f"bias{number}", block.outputs))
    if net.classes:
        classes, features = net.classes, net.maps[-1]
        rows = view("linear_rows", classes, features.height * features.width, features.stride)
        places.append(rows[..., : features.channels].transpose(2, 1, 0))
        if net.biases[-1]:
            places.append(view("linear_bias", classes))
    return np.concatenate([part.ravel() for part in places])
