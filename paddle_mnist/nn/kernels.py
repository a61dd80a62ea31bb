"""The kernels of a compiled net: convolution blocks, a linear layer, the cross-entropy.

Convolution, ReLU and 2x2 max pooling are loops that visit only what is not zero.

Behind ReLU about half of all values are zero, and behind a 2x2 max pooling three of four gradients
are. Frameworks multiply these zeros; here each value that is there is visited, and adds its part:

- forward: a value v of channel c at a pixel adds v * kernel[:, c] to the K x K outputs around it;
- gradient of the inputs: a gradient g of output o at a pixel adds g * kernel[o] to the K x K inputs
  around it, which is the same loop with the kernel's other side (`scatter_loop`);
- gradient of the kernels: a gradient g of output o adds g * (the K x K inputs around it) to that of
  kernel[o] (`add_windows_loop`).

What is to be visited is listed first, pixel by pixel or output by output. Images are kept channels
last, so that a row of a kernel or a window is one run of contiguous floats, and four of them are
added at a time, so that each sum is loaded and stored once for four products.

numba compiles the loops for the sizes at hand, which are constants in them. What makes LLVM
vectorize them: indexes are unsigned (a signed one might be negative, which is looked at each time),
inner loops have a constant number of steps, a multiple of `lanes`, and arrays do not overlap
(`paddle_mnist.nn.compiler`).

Once an image has a value that is not finite, its zeros are visited too, and so are the gradients of
0 that pass the pooling: 0 * inf is nan, and no kernel may hide it.
"""

import math
from dataclasses import astuple
from functools import reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import float64, uint64

from paddle_mnist.nn.compiler import Loop, compiled, inlined
from paddle_mnist.nn.layout import (
    BlockSizes,
    FeatureMap,
    Floats,
    Net,
    Windows,
    aligned_zeros,
    round_up,
)

ZERO, NAN = np.float32(0), np.float32("nan")
ONE, TWO, THREE, FOUR = uint64(1), uint64(2), uint64(3), uint64(4)


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
        places=aligned_zeros((max(by_output, values),), np.uint64),
        amounts=aligned_zeros((by_output,), np.float32),
    )


# ------------------------------------------------------------------ the whole net


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
    _, sums_row, sums_stride, *_ = places_of(block.sums)
    by_pixel, has_other = not has_few_channels(net), not_finite_loop(height * width * channels)

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
        inputs, end = kept[part], uint64(0)
        if has_other(image):
            skipped = NAN
        for y in range(height):
            for x in range(width):
                pixel = y * width + x
                if by_pixel:
                    end = pixel * channels
                for c in range(channels):
                    value = image[(c * height + y) * width + x]
                    store_pixel(inputs, y + padding, x + padding, c, value)
                    work.channels[end] = c
                    work.values[end] = value
                    if not by_pixel:
                        work.places[end] = y * sums_row + x * sums_stride
                    end += uint64(value != skipped)
                if by_pixel:
                    work.counts[pixel] = end - pixel * channels
        if not by_pixel:
            work.ends[0] = end
        return skipped

    return load


def not_finite_loop(size: uint64) -> Loop:
    """Return a function that tells whether one of an image's values is not finite."""

    @inlined
    def has_other(image):
        found = uint64(0)
        for k in range(size):
            found |= uint64(image[k] - image[k] != ZERO)
        return found != uint64(0)

    return has_other


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
    is_listed = number == 0
    scatter = (
        scatter_singly_loop(block)
        if is_listed and has_few_channels(net)
        else scatter_loop(block.inputs, block.kernel, block.sums)
    )
    pool = pool_loop(block, net.maps[number + 1])

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


# ------------------------------------------------------------------ the loops of a block


def places_of(stored: FeatureMap) -> tuple[uint64, ...]:
    """Return where a map's pixels are, and how many: first, row, stride; height, width, channels.

    They are unsigned, as the loops take numbers.
    """
    place, shape = (stored.first, stored.row, stored.stride), astuple(stored)[:3]
    return tuple(map(uint64, place + shape))


def list_inputs_loop(inputs: FeatureMap) -> Loop:
    """Return a function that lists each pixel's values that are not zero."""
    origin, row, stride, height, width, number = places_of(inputs)

    @compiled
    def list_inputs(stored, skipped, work):
        for y in range(height):
            for x in range(width):
                pixel = y * width + x
                at, begin = origin + y * row + x * stride, pixel * number
                end = begin
                for c in range(number):
                    value = stored[at + c]
                    work.channels[end] = c
                    work.values[end] = value
                    end += uint64(value != skipped)
                work.counts[pixel] = end - begin

    return list_inputs


def has_few_channels(net: Net) -> bool:
    """Return whether the images' values are too few in a pixel to be added four at a time.

    They are then listed in one list for the whole image, with their places among the sums, so that
    no time is spent on pixels without any.
    """
    return net.blocks[0].channels < 4


def scatter_singly_loop(block: BlockSizes) -> Loop:
    """Return what `scatter_loop` does for the images' values, if these `has_few_channels`."""
    kernel_rows, target_row, size, number = map(
        uint64, (block.kernel, block.sums.row, block.sums.size, block.channels)
    )
    row_size, has_one_channel = uint64(block.kernel * block.sums.stride), block.channels == 1

    @compiled
    def scatter(work, kernels, sums):
        """sums[place + r * row] += value * kernels[r, channel], of each value."""
        for k in range(size):
            sums[k] = ZERO
        for r in range(kernel_rows):
            for j in range(work.ends[0]):
                at, value = work.places[j] + r * target_row, work.values[j]
                a = r * number * row_size
                if not has_one_channel:
                    a += uint64(work.channels[j]) * row_size
                for k in range(row_size):
                    sums[at + k] += value * kernels[a + k]

    return scatter


def scatter_loop(listed: FeatureMap, kernel: int, target: FeatureMap) -> Loop:
    """Return a function that adds each listed value's part to the K x K pixels that it reaches.

    listed: what the values are of. target: of the sums.
    """
    _, _, _, rows, columns, number = places_of(listed)
    _, target_row, target_stride, *_ = places_of(target)
    kernel_rows, row_size, size = map(uint64, (kernel, kernel * target.stride, target.size))

    @compiled
    def scatter(work, kernels, sums):
        """sums[y + r, x : x + K] += value * kernels[r, channel], of each value of each pixel."""
        channels, values = work.channels, work.values
        for k in range(size):
            sums[k] = ZERO
        for r in range(kernel_rows):  # outermost, so that these rows of the kernels stay in cache
            for y in range(rows):
                for x in range(columns):
                    pixel, at = y * columns + x, (y + r) * target_row + x * target_stride
                    j = pixel * number
                    end = j + uint64(work.counts[pixel])
                    while j + THREE < end:
                        a = (r * number + uint64(channels[j])) * row_size
                        b = (r * number + uint64(channels[j + ONE])) * row_size
                        c = (r * number + uint64(channels[j + TWO])) * row_size
                        d = (r * number + uint64(channels[j + THREE])) * row_size
                        at_a, at_b, at_c, at_d = (
                            values[j],
                            values[j + ONE],
                            values[j + TWO],
                            values[j + THREE],
                        )
                        for k in range(row_size):
                            sums[at + k] = (
                                ((sums[at + k] + at_a * kernels[a + k]) + at_b * kernels[b + k])
                                + at_c * kernels[c + k]
                            ) + at_d * kernels[d + k]
                        j += FOUR
                    while j < end:
                        a, at_a = (r * number + uint64(channels[j])) * row_size, values[j]
                        for k in range(row_size):
                            sums[at + k] += at_a * kernels[a + k]
                        j += ONE

    return scatter


def pool_loop(block: BlockSizes, outputs: FeatureMap) -> Loop:
    """Return a function that computes pooling, bias and ReLU of the convolution's sums.

    The bias and ReLU come last: they do not change which of four values is the largest. The first
    of equal values wins, and a nan wins over all numbers.
    """
    margin = block.kernel - 1 - block.padding  # sums beyond the convolution's outputs
    _, row, stride, *_ = places_of(block.sums)
    origin = uint64(margin) * (row + stride)
    out_origin, out_row, out_stride, height, width, channels = places_of(outputs)

    @compiled
    def pool(convolved, bias, winners, pooled):
        not_finite = uint64(0)
        for y in range(height):
            for x in range(width):
                at = origin + TWO * y * row + TWO * x * stride
                to, won = out_origin + y * out_row + x * out_stride, (y * width + x) * channels
                for c in range(channels):
                    largest, winner = convolved[at + c], 0
                    value = convolved[at + stride + c]
                    if (value > largest) | (value != value):
                        largest, winner = value, 1
                    value = convolved[at + row + c]
                    if (value > largest) | (value != value):
                        largest, winner = value, 2
                    value = convolved[at + row + stride + c]
                    if (value > largest) | (value != value):
                        largest, winner = value, 3
                    largest += bias[c]
                    winners[won + c] = winner
                    pooled[to + c] = ZERO if largest <= ZERO else largest
                    not_finite |= uint64(largest - largest != ZERO)
        return not_finite != uint64(0)

    return pool


def list_gradients_loop(net: Net, number: int) -> Loop:
    """Return a function that lists the gradients that pass ReLU and pooling.

    They are listed by output, and by pixel where the gradient of the inputs is needed.
    """
    windows, capacity = net.windows[number], uint64(net.blocks[number].capacity)
    by_pixel = net.has_input_gradient(number)
    origin, row, stride, height, width, channels = places_of(net.maps[number + 1])
    columns, pixels = TWO * width, FOUR * height * width
    window_row, window_step = uint64(windows.row_step), uint64(windows.pixel_step)

    @compiled
    def list_gradients(gradients, pooled, winners, skipped, bias_sums, work):
        for c in range(channels):
            work.ends[c] = c * capacity
        if by_pixel:
            for pixel in range(pixels):
                work.counts[pixel] = 0
        for y in range(height):
            for x in range(width):
                at, won = origin + y * row + x * stride, (y * width + x) * channels
                for c in range(channels):
                    gradient = gradients[at + c] * np.float32(pooled[at + c] > ZERO)
                    bias_sums[c] += gradient
                    winner = uint64(winners[won + c])
                    down, right = TWO * y + (winner >> ONE), TWO * x + (winner & ONE)
                    is_visited = gradient != skipped
                    end = work.ends[c]
                    work.places[end] = down * window_row + right * window_step
                    work.amounts[end] = gradient
                    work.ends[c] = end + uint64(is_visited)
                    if by_pixel:
                        pixel = down * columns + right
                        count = uint64(work.counts[pixel])
                        work.channels[pixel * channels + count] = c
                        work.values[pixel * channels + count] = gradient
                        work.counts[pixel] = count + uint64(is_visited)

    return list_gradients


def add_windows_loop(block: BlockSizes, windows: Windows) -> Loop:
    """Return a function that adds up the gradient of the kernels over the listed gradients."""
    channels, capacity = uint64(block.outputs), uint64(block.capacity)
    sizes = (windows.rows, windows.row_size, windows.row_step)
    rows, row_size, row_step = map(uint64, sizes)

    @compiled
    def add_windows(inputs, work, sums):
        """sums[output] += gradient * (the window of inputs at its place), four at a time."""
        places, amounts = work.places, work.amounts
        for output in range(channels):
            begin, end = output * capacity, work.ends[output]
            for j in range(end, end + THREE):  # nothing, to fill up the last four
                places[j] = uint64(0)
                amounts[j] = ZERO
            for j in range(begin, end, FOUR):
                a, b, c, d = places[j], places[j + ONE], places[j + TWO], places[j + THREE]
                at_a, at_b, at_c, at_d = (
                    amounts[j],
                    amounts[j + ONE],
                    amounts[j + TWO],
                    amounts[j + THREE],
                )
                for r in range(rows):
                    to, down = (output * rows + r) * row_size, r * row_step
                    for k in range(row_size):
                        sums[to + k] = (
                            (
                                (sums[to + k] + at_a * inputs[a + down + k])
                                + at_b * inputs[b + down + k]
                            )
                            + at_c * inputs[c + down + k]
                        ) + at_d * inputs[d + down + k]

    return add_windows


# ------------------------------------------------------------------ the layers after the blocks


def features_of(net: Net) -> tuple[slice, slice]:
    """Return where the features are among the inputs that are kept, and their gradients."""
    name = f"inputs{len(net.blocks)}"
    return net.kept.parts[name], net.gradients.parts[name]


def flatten_loops(net: Net) -> tuple[Loop, Loop]:
    """Return the passes of a flattening layer, whose outputs are channels first."""
    features, feature_gradients = features_of(net)
    _, _, stride, height, width, channels = places_of(net.maps[-1])
    pixels = height * width

    @inlined
    def write_outputs(kept, weights, outputs, logits):
        values = kept[features]
        for pixel in range(pixels):
            for c in range(channels):
                outputs[c * pixels + pixel] = values[pixel * stride + c]

    @inlined
    def read_gradients(output_gradients, kept, weights, sums, gradients):
        values = gradients[feature_gradients]
        for pixel in range(pixels):
            for c in range(channels):
                values[pixel * stride + c] = output_gradients[c * pixels + pixel]

    return write_outputs, read_gradients


def linear_loops(net: Net, outputs: int) -> tuple[Loop, Loop]:
    """Return the passes of a linear layer behind the flattened features. outputs: their number."""
    features_part, gradients_part = features_of(net)
    columns_part, rows_part = net.weights.parts["linear_columns"], net.weights.parts["linear_rows"]
    bias_part, bias_sums_part = net.weights.parts["linear_bias"], net.sums.parts["linear_bias"]
    row_sums_part = net.sums.parts["linear_rows"]
    classes, width, size = map(uint64, (outputs, round_up(outputs), net.maps[-1].size))

    @compiled
    def add_columns(features, columns, logits):
        for j in range(uint64(0), size, FOUR):
            a, b, c, d = features[j], features[j + ONE], features[j + TWO], features[j + THREE]
            at = j * width
            for k in range(width):
                logits[k] += (a * columns[at + k] + b * columns[at + width + k]) + (
                    c * columns[at + TWO * width + k] + d * columns[at + THREE * width + k]
                )

    @inlined
    def write_outputs(kept, weights, outputs, logits):
        bias = weights[bias_part]
        for k in range(width):
            logits[k] = bias[k]
        add_columns(kept[features_part], weights[columns_part], logits)
        for k in range(classes):
            outputs[k] = logits[k]

    @compiled
    def add_row(gradient, row, features, row_sums, feature_gradients):
        for k in range(size):
            row_sums[k] += gradient * features[k]
            feature_gradients[k] += gradient * row[k]

    @inlined
    def read_gradients(output_gradients, kept, weights, sums, gradients):
        features, feature_gradients = kept[features_part], gradients[gradients_part]
        rows, row_sums, bias_sums = weights[rows_part], sums[row_sums_part], sums[bias_sums_part]
        feature_gradients[:] = ZERO
        for o in range(classes):
            gradient, row = output_gradients[o], slice(o * size, (o + ONE) * size)
            bias_sums[o] += gradient
            add_row(gradient, rows[row], features, row_sums[row], feature_gradients)

    return write_outputs, read_gradients


def cross_entropy_loop(number: int) -> Loop:
    """Return a function of the losses of several images, in nats, and of their logits' gradients.

    number: of classes.
    logits: float32 [B, C]; labels: int64 [B]; smoothing: that of `CrossEntropy`; scale: the factor
    of the gradients. It fills losses, float32 [B], and gradients, float32 [B, C], and computes in
    float64 in between.
    """
    classes = uint64(number)

    @compiled
    def run(logits, labels, smoothing, scale, losses, gradients):
        rest = smoothing / float64(classes)
        for i in range(uint64(logits.shape[0])):
            largest = float64(logits[i, 0])
            for k in range(classes):
                largest = max(largest, float64(logits[i, k]))
            total = 0.0
            for k in range(classes):
                total += math.exp(float64(logits[i, k]) - largest)
            normalizer = largest + math.log(total)
            loss = 0.0
            for k in range(classes):
                share = rest
                if k == uint64(labels[i]):
                    share += 1.0 - smoothing
                log_probability = float64(logits[i, k]) - normalizer
                if share:  # 0 * inf is nan
                    loss -= share * log_probability
                gradients[i, k] = (math.exp(log_probability) - share) * scale
            losses[i] = loss

    return run
