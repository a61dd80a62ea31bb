"""The forward and backward pass of a whole net, put together from the loops of `sparse_conv`."""

from functools import reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import uint64

from paddle_mnist.nn.compiler import Loop, compiled, inlined
from paddle_mnist.nn.sparse_conv import (
    ZERO,
    add_windows_loop,
    list_gradients_loop,
    list_inputs_loop,
    places_of,
    pool_loop,
    scatter_loop,
)
from paddle_mnist.nn.sparse_layout import Floats, Net, aligned_zeros, round_up
from paddle_mnist.nn.sparse_linear import flatten_loops, linear_loops

NAN = np.float32("nan")


class Workspace(NamedTuple):
    """One thread's arrays for intermediate results of one image.

    counts, channels, values: of each pixel, how many of its values are visited, and of these the
    channels and the values. ends, places, amounts: of each output, where its list ends, and of the
    gradients to be visited the windows and the amounts.
    """

    target: Floats  # sums of the convolution, before the pooling; the logits
    gradients: Floats  # of the inputs of each block and of the features
    counts: npt.NDArray[np.uint16]
    channels: npt.NDArray[np.uint16]
    values: Floats
    ends: npt.NDArray[np.uint64]
    places: npt.NDArray[np.uint64]
    amounts: Floats


def new_workspace(net: Net) -> Workspace:
    """Return a thread's arrays."""
    listed = [stored for block in net.blocks for stored in (block.inputs, block.unpooled)]
    pixels = max(stored.height * stored.width for stored in listed)
    values = max(stored.height * stored.width * stored.channels for stored in listed)
    by_output = max(block.outputs * block.capacity for block in net.blocks)
    targets = max(round_up(net.classes or 0), *(block.sums.size for block in net.blocks))
    return Workspace(
        target=aligned_zeros((targets,), np.float32),
        gradients=aligned_zeros((net.gradients.size,), np.float32),
        counts=aligned_zeros((pixels,), np.uint16),
        channels=aligned_zeros((values,), np.uint16),
        values=aligned_zeros((values,), np.float32),
        ends=aligned_zeros((max(block.outputs for block in net.blocks),), np.uint64),
        places=aligned_zeros((by_output,), np.uint64),
        amounts=aligned_zeros((by_output,), np.float32),
    )


def build(net: Net) -> tuple[Loop, Loop]:
    """Return the forward and the backward pass over several images.

    Of their arguments, `images` to `skipped` have one flat row per image; `weights` and `sums` are
    flat, as `net.weights` and `net.sums` name their parts. skip: the value that is not visited in
    any image: 0, or nan, which is equal to no value. skipped: the same of each image, which the
    forward pass writes: nan if one of its values is not finite.
    """
    numbers = range(len(net.blocks))
    load = load_loop(net)
    forward = reduce(_chain_forward, [block_forward(net, number) for number in numbers])
    backward = reduce(_chain_backward, [block_backward(net, number) for number in numbers])
    write_outputs, read_gradients = (
        linear_loops(net, net.classes) if net.classes else flatten_loops(net)
    )
    write_image_gradient = image_gradient_loop(net)

    @compiled
    def run_forward(images, outputs, kept, winners, skipped, weights, skip, work):
        for i in range(uint64(images.shape[0])):
            skipped[i] = forward(
                kept[i], winners[i], weights, load(images[i], kept[i], skip, work), work
            )
            write_outputs(kept[i], weights, outputs[i], work.target)

    @compiled
    def run_backward(gradients, image_gradients, kept, winners, skipped, weights, sums, work):
        sums[:] = ZERO
        for i in range(uint64(gradients.shape[0])):
            read_gradients(gradients[i], kept[i], weights, sums, work.gradients)
            backward(kept[i], winners[i], skipped[i], weights, sums, work)
            write_image_gradient(work.gradients, image_gradients[i])

    return run_forward, run_backward


def _chain_forward(first: Loop, second: Loop) -> Loop:
    @inlined
    def both(kept, winners, weights, skipped, work):
        return second(kept, winners, weights, first(kept, winners, weights, skipped, work), work)

    return both


def _chain_backward(first: Loop, second: Loop) -> Loop:
    @inlined
    def both(kept, winners, skipped, weights, sums, work):
        second(kept, winners, skipped, weights, sums, work)
        first(kept, winners, skipped, weights, sums, work)

    return both


# ------------------------------------------------------------------ the images and their gradients


def load_loop(net: Net) -> Loop:
    """Return a function that stores an image [C, H, W] and lists its values."""
    block, windows = net.blocks[0], net.windows[0]
    part, as_columns = net.kept.parts["inputs0"], windows.as_columns
    _, _, _, height, width, channels = places_of(block.inputs)
    padding, kernel = uint64(block.padding), uint64(block.kernel)
    step, row = uint64(windows.pixel_step), uint64(windows.row_step)
    last_row = uint64(block.unpooled.height)

    @inlined
    def store_pixel(inputs, y, x, c, value):
        """y, x: with the padding."""
        if as_columns:  # in each window whose column it is in
            for k in range(kernel):
                if (y >= k) & (y - k < last_row):
                    inputs[(y - k) * row + x * step + k * channels + c] = value
        else:
            inputs[y * row + x * step + c] = value

    @inlined
    def load(image, kept, skipped, work):
        inputs = kept[part]
        not_finite = uint64(0)
        for k in range(height * width * channels):
            not_finite |= uint64(image[k] - image[k] != ZERO)
        if not_finite:
            skipped = NAN
        for y in range(height):
            for x in range(width):
                pixel = y * width + x
                end = pixel * channels
                for c in range(channels):
                    value = image[(c * height + y) * width + x]
                    store_pixel(inputs, y + padding, x + padding, c, value)
                    work.channels[end] = c
                    work.values[end] = value
                    end += uint64(value != skipped)
                work.counts[pixel] = end - pixel * channels
        return skipped

    return load


def image_gradient_loop(net: Net) -> Loop:
    """Return a function that writes the gradient of an image, channels first."""
    part, has_gradient = net.gradients.parts["inputs0"], net.input_gradient
    origin, row, stride, height, width, channels = places_of(net.maps[0])

    @inlined
    def write(gradients, image_gradient):
        if has_gradient:
            values = gradients[part]
            for c in range(channels):
                for y in range(height):
                    for x in range(width):
                        value = values[origin + y * row + x * stride + c]
                        image_gradient[(c * height + y) * width + x] = value

    return write


# ------------------------------------------------------------------ a block


def block_forward(net: Net, number: int) -> Loop:
    """Return the forward pass of a block, from its listed inputs to its pooled outputs."""
    block = net.blocks[number]
    inputs, outputs = net.kept.parts[f"inputs{number}"], net.kept.parts[f"inputs{number + 1}"]
    kernels, bias = net.weights.parts[f"forward{number}"], net.weights.parts[f"bias{number}"]
    winners_part = net.winners.parts[f"winners{number}"]
    list_inputs = list_inputs_loop(block.inputs)
    scatter = scatter_loop(block.inputs, block.kernel, block.sums)
    pool = pool_loop(block, net.maps[number + 1])
    is_listed = number == 0

    @inlined
    def forward(kept, winners, weights, skipped, work):
        if not is_listed:
            list_inputs(kept[inputs], skipped, work)
        scatter(work, weights[kernels], work.target)
        not_finite = pool(work.target, weights[bias], winners[winners_part], kept[outputs])
        return NAN if not_finite else skipped

    return forward


def block_backward(net: Net, number: int) -> Loop:
    """Return the backward pass of a block, from the gradients of its pooled outputs."""
    block, has_input_gradient = net.blocks[number], net.has_input_gradient(number)
    inputs, outputs = net.kept.parts[f"inputs{number}"], net.kept.parts[f"inputs{number + 1}"]
    winners_part = net.winners.parts[f"winners{number}"]
    input_gradients = net.gradients.parts[f"inputs{number}"]
    output_gradients = net.gradients.parts[f"inputs{number + 1}"]
    kernel_sums, bias_sums = net.sums.parts[f"kernel{number}"], net.sums.parts[f"bias{number}"]
    rows = net.weights.parts[f"backward{number}" if has_input_gradient else f"bias{number}"]
    list_gradients = list_gradients_loop(net, number)
    add_windows = add_windows_loop(block, net.windows[number])
    scatter = scatter_loop(block.unpooled, block.kernel, block.inputs)

    @inlined
    def backward(kept, winners, skipped, weights, sums, work):
        gradients, pooled = work.gradients[output_gradients], kept[outputs]
        list_gradients(gradients, pooled, winners[winners_part], skipped, sums[bias_sums], work)
        add_windows(kept[inputs.start :], work, sums[kernel_sums])
        if has_input_gradient:
            scatter(work, weights[rows], work.gradients[input_gradients.start :])

    return backward
