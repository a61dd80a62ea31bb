"""The kernels of a compiled net: convolution blocks, a linear layer, the cross-entropy.

Convolution, ReLU and 2x2 max pooling are loops that visit only what is not zero.

Behind ReLU about half of all values are zero, and behind a 2x2 max pooling three of four gradients
are. Frameworks multiply these zeros; here each value that is there is visited, and adds its part:

- forward: a value v of channel c at a pixel adds v * kernel[:, c] to the K x K outputs around it;
- gradient of the inputs: a gradient g of output o at a pixel adds g * kernel[o] to the K x K inputs
  around it, which is the same loop with the kernel's other side (`scatter_loop`);
- gradient of the kernels: a gradient g of output o adds g * (the K x K inputs around it) to that of
  kernel[o] (`add_windows_loop`).

What is to be visited is listed first, row by row or output by output. Images are kept channels
last, so that a row of a kernel or a window is one run of contiguous floats. One loop computes all
of these sums (`add_products_loop`): it loads a run of sums into registers, adds the products of a
whole list, and stores it once. Each sum has its products added in the order of the image.

numba compiles the loops for the sizes at hand, which are constants in them. What makes LLVM
vectorize the others: indexes are unsigned (NumPy counts negative ones from the end, so each signed
index would be tested), inner loops have a constant number of steps, and arrays do not overlap
(`paddle_mnist.nn.compiler`).

Once an image has a value that is not finite, its zeros are visited too, and so are the gradients of
0 that pass the pooling: 0 * inf is nan, and no kernel may hide it.
"""

import math
from collections.abc import Callable
from dataclasses import astuple
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import float64, types, uint64
from numba.core import cgutils
from numba.extending import intrinsic

from paddle_mnist.nn.compiler import Loop, compiled, entry, inlined, processor, unique
from paddle_mnist.nn.layout import (
    BlockSizes,
    FeatureMap,
    Floats,
    Net,
    Windows,
    aligned_zeros,
    round_up,
)

MAX_KERNELS = 12288  # floats that mostly stay in a cache of 32 KiB
ZERO, NAN = np.float32(0), np.float32("nan")
ONE, TWO, THREE, FOUR = uint64(1), uint64(2), uint64(3), uint64(4)
VECTOR = 16  # floats that are listed at a time


class Workspace(NamedTuple):
    """One thread's arrays for intermediate results of one image.

    The list of an image's values, row by row: pixel x of a row has the entries from starts[x] to
    starts[x + 1]; an entry is a value, `values[k]`, and where its kernel is, `places[k]`.
    The list of a layer's gradients, output by output: that of an output ends at ends[output]; an
    entry is a gradient, `amounts[k]`, and where its window of inputs is, `windows[k]`.
    winners: empty, for lists of values that no pooling has chosen.
    """

    target: Floats  # the image; the sums of a convolution, before the pooling; the logits
    gradients: Floats  # of the inputs of each block and of the features
    starts: npt.NDArray[np.uint64]
    places: npt.NDArray[np.int32]
    values: Floats
    ends: npt.NDArray[np.uint64]
    windows: npt.NDArray[np.int32]
    amounts: Floats
    winners: npt.NDArray[np.uint8]


def new_workspace(net: Net) -> Workspace:
    """Return a thread's arrays."""
    listed = [(stored, b.kernel) for b in net.blocks for stored in (b.inputs, b.unpooled)]
    starts = max(stored.height * starts_of(stored, kernel) for stored, kernel in listed)
    values = max(stored.height * stored.width * stored.channels for stored, _ in listed)
    values += VECTOR  # vectors at the end of a list reach there
    by_output = max(block.outputs * block.pooled_size for block in net.blocks) + 1
    first = net.blocks[0]
    pixels = first.height * first.width * first.channels + VECTOR
    targets = max(round_up(net.classes or 0), pixels, *(block.sums.size for block in net.blocks))
    return Workspace(
        target=aligned_zeros((targets,), np.float32),
        gradients=aligned_zeros((net.gradients.size,), np.float32),
        starts=aligned_zeros((starts,), np.uint64),
        places=aligned_zeros((values,), np.int32),
        values=aligned_zeros((values,), np.float32),
        ends=aligned_zeros((max(block.outputs for block in net.blocks),), np.uint64),
        windows=aligned_zeros((by_output,), np.int32),
        amounts=aligned_zeros((by_output,), np.float32),
        winners=np.empty(0, np.uint8),
    )


def starts_of(listed: FeatureMap, kernel: int) -> int:
    """Return how many starts a row's list has: of its pixels, and of those beyond its ends."""
    return listed.width + 2 * kernel - 1


# ------------------------------------------------------------------ the whole net


def build(net: Net) -> tuple[Loop, Loop]:
    """Return the forward and the backward pass over several images.

    Of their arguments, `images` to `skipped` have one flat row per image; `weights` and `sums` are
    flat, as `net.weights` and `net.sums` name their parts. convolved: arrays [B, C, H, W] for the
    outputs of each block's convolution in the whole batch, in which these images come from `first`
    on; B is 0 if nobody needs them. skip: the value that is not visited in any image: 0, or nan,
    which is equal to no value. skipped: the same of each image, which the forward pass writes: nan
    if one of its values is not finite.
    """
    numbers = range(len(net.blocks))
    load = load_loop(net)
    forward = reduce(_chain_forward, [block_forward(net, number) for number in numbers])
    backward = reduce(_chain_backward, [block_backward(net, number) for number in numbers])
    write_outputs, read_gradients = (
        linear_loops(net, net.classes) if net.classes else flatten_loops(net)
    )
    write_image_gradient = image_gradient_loop(net)

    @entry
    def run_forward(
        images, outputs, convolved, first, kept, winners, skipped, weights, skip, work
    ):  # fmt: skip
        for i in range(uint64(images.shape[0])):
            loaded = load(images[i], kept[i], skip, work)
            rows = convolved, first + i, kept[i], winners[i]
            skipped[i] = forward(rows, weights, loaded, work)
            write_outputs(kept[i], weights, outputs[i], work.target)

    @entry
    def run_backward(gradients, image_gradients, kept, winners, skipped, weights, sums, work):
        sums[:] = ZERO
        for i in range(uint64(gradients.shape[0])):
            read_gradients(gradients[i], kept[i], weights, sums, work.gradients)
            backward(kept[i], winners[i], skipped[i], weights, sums, work)
            write_image_gradient(work.gradients, image_gradients[i])

    return run_forward, run_backward


def _chain_forward(first: Loop, second: Loop) -> Loop:
    @inlined
    def both(rows, weights, skipped, work):
        return second(rows, weights, first(rows, weights, skipped, work), work)

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
    has_other = not_finite_loop(height * width * channels)
    list_image = list_inputs_loop(block, uint64(0), width * channels, channels)

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
        inputs, pixels = kept[part], work.target
        for y in range(height):
            for x in range(width):
                for c in range(channels):
                    value = image[(c * height + y) * width + x]
                    pixels[(y * width + x) * channels + c] = value
                    store_pixel(inputs, y + padding, x + padding, c, value)
        if has_other(image):
            skipped = NAN
        list_image(pixels, skipped, work)
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
    origin, row, stride, height, width, channels = places_of(net.gradient_maps[0])

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
    first, row, stride, *_ = places_of(block.inputs)
    list_inputs = list_inputs_loop(block, first, row, stride)
    is_listed = number == 0
    columns = range(block.margin, block.margin + block.convolved_shape[2])
    scatter = scatter_loop(block.inputs, block.kernel, block.sums, columns)
    write_convolved = convolved_loop(block)
    pool = pool_loop(block, net.maps[number + 1])

    @inlined
    def forward(rows, weights, skipped, work):
        convolved, image, kept, winners = rows
        if not is_listed:
            list_inputs(kept[inputs], skipped, work)
        scatter(work, weights[kernels], work.target)
        if len(convolved[number]):
            write_convolved(work.target, weights[bias], convolved[number][image])
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
    list_rows = list_rows_loop(net, number)
    columns = range(block.padding, block.padding + block.width)
    scatter = scatter_loop(block.unpooled, block.kernel, net.gradient_maps[number], columns)

    @inlined
    def backward(kept, winners, skipped, weights, sums, work):
        gradients, pooled = work.gradients[output_gradients], kept[outputs]
        list_gradients(gradients, pooled, winners[winners_part], skipped, sums[bias_sums], work)
        add_windows(kept[inputs.start :], work, sums[kernel_sums])
        if has_input_gradient:
            list_rows(gradients, winners[winners_part], skipped, work)
            scatter(work, weights[rows], work.gradients[input_gradients.start :])

    return backward


# ------------------------------------------------------------------ the loops of a block


def places_of(stored: FeatureMap) -> tuple[uint64, ...]:
    """Return where a map's pixels are, and how many: first, row, stride; height, width, channels.

    They are unsigned, as the loops take numbers.
    """
    place, shape = (stored.first, stored.row, stored.stride), astuple(stored)[:3]
    return tuple(map(uint64, place + shape))


def list_inputs_loop(block: BlockSizes, first: uint64, row: uint64, stride: uint64) -> Loop:
    """Return a function that lists the inputs that are not zero, row by row.

    first, row, stride: where these are: of the first, and floats to the next row and pixel.
    """
    _, _, _, height, width, channels = places_of(block.inputs)
    count, around = uint64(starts_of(block.inputs, block.kernel)), uint64(block.kernel - 1)
    taps_size = block.sums.taps_size(block.kernel)
    step = uint64(taps_size) * channels
    append = append_pixel_loop(block.channels, taps_size, has_winners=False)

    @compiled
    def list_inputs(inputs, skipped, work):
        end, none = uint64(0), uint64(0)
        for y in range(height):
            at = y * count
            for k in range(around):
                work.starts[at + k] = end
            for x in range(width):
                work.starts[at + around + x] = end
                of = first + y * row + x * stride
                end = append(inputs, of, skipped, work.winners, none, none, work, end, -x * step)
            for k in range(around + ONE):
                work.starts[at + around + width + k] = end

    return list_inputs


def append_pixel_loop(channels: int, taps_size: int, has_winners: bool) -> Loop:
    """Return a function that adds a pixel's values to a list, and returns where it then ends.

    Those that are equal to `skipped` are left out, and, with `has_winners`, those whose winner is
    not `winner`. place: of the kernel of the pixel's first channel.
    """
    counts = (VECTOR, channels % VECTOR)
    whole, rest = (append_loop(count, taps_size, has_winners) for count in counts)
    last, vector, step = map(uint64, (channels - channels % VECTOR, VECTOR, taps_size))

    @inlined
    def append(source, at, skipped, winners, won, winner, work, end, place):
        places, values = work.places, work.values
        for c in range(uint64(0), last, vector):
            end = whole(
                source, at + c, skipped, winners, won + c, winner, places, values, end, place
            )
            place += vector * step
        return rest(
            source, at + last, skipped, winners, won + last, winner, places, values, end, place
        )

    return append


def scatter_loop(listed: FeatureMap, kernel: int, target: FeatureMap, columns: range) -> Loop:
    """Return a function that adds each listed value's part to the K x K pixels that it reaches.

    listed: what the values are of. target: of the sums, a map by columns. columns: those needed.

    The sums of K pixels, one below the other, stay in registers while all values of a row that
    reach them are added. If the kernels do not fit into the cache, only those in one column of a
    window.
    """
    rows, channels, taps = map(uint64, (listed.height, listed.channels, kernel))
    count = uint64(starts_of(listed, kernel))
    size, pixel, column = map(uint64, (target.size, target.row, target.stride))
    reached = listed.width + kernel - 1  # pooling may leave out the last column
    first, stop = uint64(columns.start), uint64(min(columns.stop, reached))
    tap_size = target.taps_size(kernel)
    step = uint64(tap_size) * channels
    group = taps if kernel * listed.channels * tap_size <= MAX_KERNELS else ONE
    add_products = add_products_loop(kernel * target.row)

    @compiled
    def scatter(work, kernels, sums):
        """sums[y + r, x + s] += value * kernels[s, channel, r], of each value of each pixel."""
        for k in range(size):
            sums[k] = ZERO
        for k in range(rows):
            y = rows - ONE - k  # upwards: of each sum, the lowest of its inputs come first
            for left in range(uint64(0), taps, group):
                for x in range(first, stop):
                    start = y * count + x + left
                    begin, end = work.starts[start], work.starts[start + group]
                    at, shift = x * column + y * pixel, x * step
                    add_products(sums, at, work.values, kernels, work.places, shift, begin, end)

    return scatter


def convolved_loop(block: BlockSizes) -> Loop:
    """Return a function that writes the outputs of the convolution, channels first."""
    _, row, stride, *_ = places_of(block.sums)
    origin = uint64(block.margin) * (row + stride)
    channels, height, width = map(uint64, block.convolved_shape)

    @compiled
    def write(sums, bias, convolved):
        for c in range(channels):
            for y in range(height):
                for x in range(width):
                    value = sums[origin + y * row + x * stride + c] + bias[c]
                    convolved[c, y, x] = value

    return write


def pool_loop(block: BlockSizes, outputs: FeatureMap) -> Loop:
    """Return a function that computes pooling, bias and ReLU of the convolution's sums.

    The bias and ReLU come last: they do not change which of four values is the largest. The first
    of equal values wins, and a nan wins over all numbers.
    """
    _, row, stride, *_ = places_of(block.sums)
    origin = uint64(block.margin) * (row + stride)
    out_origin, out_row, out_stride, height, width, channels = places_of(outputs)
    padded = row  # channels, as many as the sums and the winners have of each pixel

    @compiled
    def pool(convolved, bias, winners, pooled):
        not_finite = uint64(0)
        for y in range(height):
            for x in range(width):
                at = origin + TWO * y * row + TWO * x * stride
                to, won = out_origin + y * out_row + x * out_stride, (y * width + x) * padded
                for c in range(padded):
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
                for c in range(channels, padded):  # nan, if another value is
                    pooled[to + c] = ZERO
        return not_finite != uint64(0)

    return pool


def list_gradients_loop(net: Net, number: int) -> Loop:
    """Return a function that lists, by output, the gradients that pass ReLU and pooling.

    The others are set to zero.
    """
    windows, capacity = net.windows[number], uint64(net.blocks[number].pooled_size)
    padded = uint64(net.blocks[number].sums.row)
    origin, row, stride, height, width, channels = places_of(net.maps[number + 1])
    g_origin, g_row, g_stride, *_ = places_of(net.gradient_maps[number + 1])
    window_row, window_step = uint64(windows.row_step), uint64(windows.pixel_step)

    @compiled
    def list_gradients(gradients, pooled, winners, skipped, bias_sums, work):
        for c in range(channels):
            work.ends[c] = c * capacity
        for y in range(height):
            for x in range(width):
                at, won = origin + y * row + x * stride, (y * width + x) * padded
                of = g_origin + y * g_row + x * g_stride
                for c in range(channels):
                    gradient = gradients[of + c] * np.float32(pooled[at + c] > ZERO)
                    gradients[of + c] = gradient
                    bias_sums[c] += gradient
                    winner = uint64(winners[won + c])
                    down, right = TWO * y + (winner >> ONE), TWO * x + (winner & ONE)
                    end = work.ends[c]
                    work.windows[end] = down * window_row + right * window_step
                    work.amounts[end] = gradient
                    work.ends[c] = end + uint64(gradient != skipped)

    return list_gradients


def list_rows_loop(net: Net, number: int) -> Loop:
    """Return a function that lists the same gradients row by row."""
    block = net.blocks[number]
    padded, capacity = uint64(block.sums.row), uint64(block.pooled_width * block.outputs)
    count, around = uint64(starts_of(block.unpooled, block.kernel)), uint64(block.kernel - 1)
    taps_size = net.gradient_maps[number].taps_size(block.kernel)
    origin, row, stride, height, width, channels = places_of(net.gradient_maps[number + 1])
    step = uint64(taps_size) * channels
    append = append_pixel_loop(block.outputs, taps_size, has_winners=True)

    @compiled
    def list_rows(gradients, winners, skipped, work):
        for down in range(TWO * height):
            y, side = down >> ONE, (down & ONE) << ONE
            end, at = down * capacity, down * count
            for k in range(around):
                work.starts[at + k] = end
            for right in range(TWO * width):
                x, winner = right >> ONE, side + (right & ONE)
                work.starts[at + around + right] = end
                of, won = origin + y * row + x * stride, (y * width + x) * padded
                place = -right * step
                end = append(gradients, of, skipped, winners, won, winner, work, end, place)
            for k in range(around + ONE):
                work.starts[at + around + TWO * width + k] = end

    return list_rows


def add_windows_loop(block: BlockSizes, windows: Windows) -> Loop:
    """Return a function that adds up the gradient of the kernels over the listed gradients."""
    channels, capacity = uint64(block.outputs), uint64(block.pooled_size)
    sizes = (windows.rows, windows.row_size, windows.row_step)
    rows, row_size, row_step = map(uint64, sizes)
    add_products = add_products_loop(windows.row_size)

    @compiled
    def add_windows(inputs, work, sums):
        """sums[output] += gradient * (the window of inputs at its place)."""
        for output in range(channels):
            begin, end = output * capacity, work.ends[output]
            for r in range(rows):
                at, shift = (output * rows + r) * row_size, r * row_step
                add_products(sums, at, work.amounts, inputs, work.windows, shift, begin, end)

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


# ------------------------------------------------------------------ a batch


def typed_intrinsic(function: Callable[..., Any]) -> Loop:
    """Decorate a function that writes instructions; numba's decorator has no types."""
    loop: Loop = intrinsic(function)
    return loop


def batch_loop(number: int) -> Loop:
    """Return a function of the losses and gradients of a batch, for each thread to call once.

    number: of classes.
    Threads take chunks of the batch from `counter` until none is left. passes: the addresses of the
    forward and the backward pass, which are compiled by themselves. bounds: where each chunk begins
    and where the last one ends. kept, winners, skipped, work: the thread's own, which stay in its
    cache; a batch's would not. The other arguments are those of the passes and of
    `cross_entropy_loop`, for the whole batch.
    """
    cross_entropy = cross_entropy_loop(number)

    @entry
    def run(
        passes, counter, bounds, images, labels, smoothing, logits, losses, gradients, unused,
        convolved, kept, winners, skipped, weights, sums, skip, work,
    ):  # fmt: skip
        chunks, scale = uint64(len(bounds) - 1), 1 / len(images)
        chunk = next_number(counter)
        while chunk < chunks:
            part = slice(bounds[chunk], bounds[chunk + ONE])
            rows = kept, winners, skipped, weights
            outputs = logits[part], convolved, bounds[chunk]
            call_at(passes[0], (images[part], *outputs, *rows, skip, work))
            cross_entropy(
                logits[part], labels[part], smoothing, scale, losses[part], gradients[part]
            )
            call_at(passes[1], (gradients[part], unused[part], *rows, sums[chunk], work))
            chunk = next_number(counter)

    return run


@typed_intrinsic
def call_at(typing: Any, address: types.Integer, arguments: types.BaseTuple) -> tuple[Any, Any]:
    """Call a compiled function that returns nothing, by its address (`compiler.address_of`)."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        kind = context.call_conv.get_function_type(types.none, arguments.types)
        function = builder.inttoptr(given[0], kind.as_pointer())
        values = cgutils.unpack_tuple(builder, given[1])
        context.call_conv.call_function(builder, function, types.none, arguments.types, values)
        return context.get_dummy_value()

    return types.void(address, arguments), generate


@typed_intrinsic
def next_number(typing: Any, counter: types.Array) -> tuple[Any, Any]:
    """Return the number in `counter` [1], and add 1 to it, as one step for all threads."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        (data,) = _data_of(context, builder, signature, given)
        return builder.atomic_rmw("add", data, data.type.pointee(1), "monotonic")

    return types.uint64(counter), generate


# ------------------------------------------------------------------ products in registers


def add_products_loop(size: int) -> Loop:
    """Return a function that adds several rows of `size` floats, each times a value, to sums.

    add_products(sums, at, values, rows, places, shift, begin, end) computes, for j from begin on,
    sums[at : at + size] += values[j] * rows[places[j] + shift :][:size]. The sums stay in registers
    over all j. LLVM does not find this for every size, so it is given the vectors.
    """
    groups = _groups(size)

    def add_products(
        typing: Any,
        sums: types.Array,
        at: types.Integer,
        values: types.Array,
        rows: types.Array,
        places: types.Array,
        shift: types.Integer,
        begin: types.Integer,
        end: types.Integer,
    ) -> tuple[Any, Callable[..., Any]]:
        signature = types.void(sums, at, values, rows, places, shift, begin, end)
        return signature, lambda *generation: _generate(groups, *generation)

    return typed_intrinsic(unique(add_products))


def _groups(size: int) -> list[list[tuple[int, int]]]:
    """Divide a row into vectors, each a place and a width, in groups that fit in the registers."""
    vectors, at = [], 0
    while at < size:
        width = min(16, 1 << (size - at).bit_length() - 1)
        vectors.append((at, width))
        at += width
    # of 32 registers for 16 floats, or of 16 for 8 floats, of which a vector takes two
    most = 20 if "+avx512f" in processor()[1] else 7
    return [vectors[k : k + most] for k in range(0, len(vectors), most)]


def _generate(
    groups: list[list[tuple[int, int]]],
    context: Any,
    builder: ir.IRBuilder,
    signature: Any,
    arguments: Any,
) -> Any:
    """Write LLVM's instructions of `add_products`, for each group a loop over the values.

    numba marks them as it does its own, so that a product and its sum become one instruction.
    """
    data = _data_of(context, builder, signature, arguments)
    sums, at, values, rows, places, shift, begin, end = data

    def pointer(array: Any, place: Any, offset: int, width: int) -> Any:
        return _vector_at(builder, array, builder.add(place, place.type(offset)), width)

    for group in groups:
        before = builder.block
        loop, last, done = map(builder.append_basic_block, ("values", "last", "done"))
        starts = [builder.load(pointer(sums, at, *vector), align=4) for vector in group]
        builder.cbranch(builder.icmp_unsigned("<", begin, end), loop, done)

        builder.position_at_end(loop)
        j, totals = builder.phi(begin.type), [builder.phi(start.type) for start in starts]
        value = builder.load(builder.gep(values, [j]))
        place = builder.sext(builder.load(builder.gep(places, [j])), shift.type)
        place = builder.add(place, shift)
        results = []
        for total, vector in zip(totals, group):
            row = builder.load(pointer(rows, place, *vector), align=4)
            product = builder.fmul(_repeated(builder, value, row.type.count), row)
            results.append(builder.fadd(total, product))
        following = builder.add(j, j.type(1))
        for phi, start, result in zip([j, *totals], [begin, *starts], [following, *results]):
            phi.add_incoming(start, before)
            phi.add_incoming(result, loop)
        builder.cbranch(builder.icmp_unsigned("<", following, end), loop, last)

        builder.position_at_end(last)
        for result, vector in zip(results, group):
            builder.store(result, pointer(sums, at, *vector), align=4)
        builder.branch(done)
        builder.position_at_end(done)
    return context.get_dummy_value()


# ------------------------------------------------------------------ lists


def append_loop(count: int, step: int, has_winners: bool) -> Loop:
    """Return a function that lists `count` neighbours, except for those to be left out.

    append(source, at, skipped, winners, won, winner, places, values, end, place) looks at the
    values from `source[at]` on, and writes those that are not equal to `skipped`, with their
    places, which are `step` apart; with has_winners, only those for which `winners`, from
    `winners[won]` on, is `winner`. It returns the end of the list. AVX-512 has an instruction for
    this; LLVM does not find it.
    """

    def append(
        typing: Any,
        source: types.Array,
        at: types.Integer,
        skipped: types.Float,
        winners: types.Array,
        won: types.Integer,
        winner: types.Integer,
        places: types.Array,
        values: types.Array,
        end: types.Integer,
        place: types.Integer,
    ) -> tuple[Any, Callable[..., Any]]:
        kinds = (source, at, skipped, winners, won, winner, places, values, end, place)
        return end(*kinds), lambda *given: _append(count, step, has_winners, *given)

    return typed_intrinsic(unique(append))


def _append(
    count: int,
    step: int,
    has_winners: bool,
    context: Any,
    builder: ir.IRBuilder,
    signature: Any,
    arguments: Any,
) -> Any:
    """Write LLVM's instructions of `append`, with a vector of a power of two."""
    data = _data_of(context, builder, signature, arguments)
    source, at, skipped, winners, won, winner, places, values, end, place = data
    if not count:
        return end
    byte, number = ir.IntType(8), ir.IntType(32)
    winner, place = builder.trunc(winner, byte), builder.trunc(place, number)
    if count < 4 or not {"+avx512f", "+avx512vl"} <= processor()[1]:
        for lane in range(count):
            found = builder.load(builder.gep(source, [builder.add(at, at.type(lane))]))
            is_listed = builder.fcmp_unordered("!=", found, skipped)
            if has_winners:
                won_by = builder.load(builder.gep(winners, [builder.add(won, won.type(lane))]))
                is_listed = builder.and_(is_listed, builder.icmp_unsigned("==", won_by, winner))
            builder.store(found, builder.gep(values, [end]))
            builder.store(builder.add(place, number(lane * step)), builder.gep(places, [end]))
            end = builder.add(end, builder.zext(is_listed, end.type))
        return end

    width = max(4, 1 << (count - 1).bit_length())
    found = builder.load(_vector_at(builder, source, at, width), align=4)
    is_listed = builder.fcmp_unordered("!=", found, _repeated(builder, skipped, width))
    if has_winners:
        won_by = builder.load(_vector_at(builder, winners, won, width), align=1)
        is_winner = builder.icmp_unsigned("==", won_by, _repeated(builder, winner, width))
        is_listed = builder.and_(is_listed, is_winner)
    lanes = range(width)
    is_listed = builder.and_(is_listed, ir.Constant(is_listed.type, [k < count for k in lanes]))
    steps = ir.Constant(ir.VectorType(number, width), [lane * step for lane in lanes])
    found_at = builder.add(_repeated(builder, place, width), steps)
    for vector, target, kind in ((found, values, "f32"), (found_at, places, "i32")):
        name = f"llvm.x86.avx512.mask.compress.v{width}{kind}"
        types_of = ir.FunctionType(vector.type, [vector.type, vector.type, is_listed.type])
        compress = cgutils.get_or_insert_function(builder.module, types_of, name)
        packed = builder.call(compress, [vector, ir.Constant(vector.type, None), is_listed])
        builder.store(packed, _vector_at(builder, target, end, width), align=4)
    listed = builder.ctpop(builder.bitcast(is_listed, ir.IntType(width)))
    return builder.add(end, builder.zext(listed, end.type))


# ------------------------------------------------------------------ LLVM's vectors


def _data_of(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> list[Any]:
    """Return a function's arguments: of arrays, pointers to their values."""
    return [
        context.make_array(kind)(context, builder, argument).data
        if isinstance(kind, types.Array)
        else argument
        for kind, argument in zip(signature.args, arguments)
    ]


def _vector_at(builder: ir.IRBuilder, array: Any, place: Any, width: int) -> Any:
    """Return a pointer to the vector that begins at a place of an array."""
    first = builder.gep(array, [place])
    return builder.bitcast(first, ir.VectorType(first.type.pointee, width).as_pointer())


def _repeated(builder: ir.IRBuilder, value: Any, width: int) -> Any:
    """Return a vector of one value."""
    number = ir.IntType(32)
    undefined = ir.Constant(ir.VectorType(value.type, width), ir.Undefined)
    first = builder.insert_element(undefined, value, number(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(number, width), None))
