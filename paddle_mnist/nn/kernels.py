"""The kernels of a compiled net: convolution blocks, a linear layer, the cross-entropy.

Convolution, ReLU and 2x2 max pooling are loops that visit only what is not zero.

Behind ReLU about half of all values are zero, and behind a 2x2 max pooling three of four gradients
are. Frameworks multiply these zeros; here each value that is there is visited, and adds its part:

- forward: a value v of channel c at a pixel adds v * kernel[:, c] to the K x K outputs around it;
- gradient of the inputs: a gradient g of output o at a pixel adds g * kernel[o] to the K x K inputs
  around it, which is the same loop with the kernel's other side (`scatter_loop`);
- gradient of the kernels: a gradient g of output o adds g * (the K x K inputs around it) to that of
  kernel[o] (`add_windows_loop`).

What is to be visited is listed first, row by row or output by output (`Workspace`). Images are kept
channels last (`paddle_mnist.nn.layout`), so that a part of a kernel or a window is one run of
contiguous floats. One loop computes all of these sums (`add_products_loop`): it loads a run of sums
into registers, adds the products of a whole list, and stores it once. Each sum has its products
added in the order of the image.

numba compiles the loops for the sizes at hand, which are constants in them. What makes LLVM
vectorize the others: indexes are unsigned (NumPy counts negative ones from the end, so each signed
index would be tested), inner loops have a constant number of steps, and arrays do not overlap
(`paddle_mnist.nn.compiler`).

Once an image has a value that is not finite, its zeros are visited too, and so are the gradients of
0 that pass the pooling: 0 * inf is nan, and no kernel may hide it.
"""

import math
from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import float64, uint64

from paddle_mnist.nn.compiler import Loop, compiled, entry, inlined, processor
from paddle_mnist.nn.intrinsics import add_products_loop, append_loop, call_at, next_number
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
MANY_CHANNELS = 32  # from which the values that reach two columns are worth a loop of their own
ZERO, NAN = np.float32(0), np.float32("nan")
ONE, TWO, THREE, FOUR = uint64(1), uint64(2), uint64(3), uint64(4)
VECTOR = 16  # values that are listed at a time


class Workspace(NamedTuple):
    """One thread's arrays for intermediate results of one image.

    A list of values, row by row, says for each column of sums which values reach it. An entry is a
    value, `values[k]`, and where its kernel is, `places[k]`. For each row, `starts` holds where the
    entries of each pixel start, after K - 1 copies of the row's start and before K copies of its
    end. The K pixels that reach column s thus have the entries from starts[s] to starts[s + K]:

        pixels of a row, K = 3               a     b     c     d
        of these are listed                  2     0     3     1
        starts                   0     0     0     2     2     5     6     6     6
        column of sums           0     1     2     3     4     5

    The list of a layer's gradients, output by output: that of an output ends at ends[output]; an
    entry is a gradient, `amounts[k]`, and where its window of inputs is, `windows[k]`.
    """

    buffer: Floats  # of one stage at a time: the image, the sums of a convolution, or the logits
    gradients: Floats  # of the inputs of each block and of the features
    starts: npt.NDArray[np.uint64]
    places: npt.NDArray[np.int32]
    values: Floats
    ends: npt.NDArray[np.uint64]
    windows: npt.NDArray[np.int32]
    amounts: Floats


def new_workspace(net: Net) -> Workspace:
    """Return a thread's arrays."""
    listed = [(stored, b.kernel) for b in net.blocks for stored in (b.inputs, b.unpooled)]
    starts = max(stored.height * starts_of(stored, kernel) for stored, kernel in listed)
    values = max(stored.height * stored.width * stored.channels for stored, _ in listed)
    values += VECTOR  # vectors at the end of a list reach there
    by_output = max(block.outputs * block.pooled_size for block in net.blocks) + 1
    first = net.blocks[0]
    pixels = first.height * first.width * first.channels + VECTOR
    size = max(round_up(net.classes or 0), pixels, *(block.sums.size for block in net.blocks))
    return Workspace(
        buffer=aligned_zeros((size,), np.float32),
        gradients=aligned_zeros((net.gradients.size,), np.float32),
        starts=aligned_zeros((starts,), np.uint64),
        places=aligned_zeros((values,), np.int32),
        values=aligned_zeros((values,), np.float32),
        ends=aligned_zeros((max(block.outputs for block in net.blocks),), np.uint64),
        windows=aligned_zeros((by_output,), np.int32),
        amounts=aligned_zeros((by_output,), np.float32),
    )


def starts_of(listed: FeatureMap, kernel: int) -> int:
    """Return how many starts a row has (`Workspace`)."""
    return listed.width + 2 * kernel - 1


# ------------------------------------------------------------------ the whole net


def build(net: Net) -> tuple[Loop, Loop]:
    """Return the forward and the backward pass over several images.

    Of their arguments, `images` to `skipped` have one flat row per image; without a backward pass,
    one row of `kept`, `winners` and `skipped` is enough. `weights` and `sums`, which the backward
    pass adds to, are flat, as `net.weights` and `net.sums` name their parts. convolved: arrays
    [B, C, H, W] for the outputs of each block's convolution in the whole batch, in which these
    images come from `first` on; B is 0 if nobody needs them. skip: the value that is not visited in
    any image: 0, or nan, which is equal to no value. skipped: the same of each image, which the
    forward pass writes: nan if one of its values is not finite.
    """
    load, last = load_loop(net), len(net.blocks) - 1
    forward, backward = blocks_forward(net, last), blocks_backward(net, last)
    write_outputs, read_gradients = (
        linear_loops(net, net.classes) if net.classes else flatten_loops(net)
    )
    has_image_gradient, part = net.input_gradient, net.gradients.parts["inputs0"]
    write_image_gradient = channels_first_loop(net.gradient_maps[0])

    @entry
    def run_forward(
        images, outputs, convolved, first, kept, winners, skipped, weights, skip, work
    ):  # fmt: skip
        for i in range(uint64(images.shape[0])):
            row = min(i, uint64(len(kept)) - ONE)
            loaded = load(images[i], kept[row], skip, work)
            rows = convolved, first + i, kept[row], winners[row]
            skipped[row] = forward(rows, weights, loaded, work)
            write_outputs(kept[row], weights, outputs[i], work.buffer)

    @entry
    def run_backward(gradients, image_gradients, kept, winners, skipped, weights, sums, work):
        for i in range(uint64(gradients.shape[0])):
            read_gradients(gradients[i], kept[i], weights, sums, work.gradients)
            backward(kept[i], winners[i], skipped[i], weights, sums, work)
            if has_image_gradient:
                write_image_gradient(work.gradients[part], image_gradients[i])

    return run_forward, run_backward


# ------------------------------------------------------------------ the images and their gradients


def load_loop(net: Net) -> Loop:
    """Return a function that stores an image [C, H, W] and lists its values."""
    block, windows = net.blocks[0], net.windows[0]
    part, as_columns = net.kept.parts["inputs0"], windows.as_columns
    _, _, _, height, width, channels = places_of(block.inputs)
    padding, kernel = uint64(block.padding), uint64(block.kernel)
    x_step, y_step = uint64(windows.x_step), uint64(windows.y_step)
    last_row = uint64(block.unpooled.height)
    pixels_of = (uint64(0), width * channels, channels, height, width, channels)
    list_image = list_values_loop(pixels_of, block.kernel, block.sums)

    @inlined
    def store_pixel(inputs, y, x, c, value):
        """y, x: with the padding."""
        if as_columns:  # in each window whose column it is in
            for k in range(kernel):
                if (y >= k) & (y - k < last_row):
                    inputs[(y - k) * y_step + x * x_step + k * channels + c] = value
        else:
            inputs[y * y_step + x * x_step + c] = value

    @inlined
    def load(image, kept, skipped, work):
        inputs, pixels = kept[part], work.buffer
        for y in range(height):
            for x in range(width):
                for c in range(channels):
                    value = image[(c * height + y) * width + x]
                    pixels[(y * width + x) * channels + c] = value
                    store_pixel(inputs, y + padding, x + padding, c, value)
        not_finite = False
        for k in range(height * width * channels):
            not_finite |= image[k] - image[k] != ZERO
        if not_finite:
            skipped = NAN
        list_image(pixels, (skipped,), work)
        return skipped

    return load


def channels_first_loop(stored: FeatureMap) -> Loop:
    """Return a function that writes the values of a map to a flat array, channels first."""
    origin, y_step, x_step, height, width, channels = places_of(stored)

    @inlined
    def write(values, array):
        for c in range(channels):
            for y in range(height):
                for x in range(width):
                    value = values[origin + y * y_step + x * x_step + c]
                    array[(c * height + y) * width + x] = value

    return write


# ------------------------------------------------------------------ the blocks


def blocks_forward(net: Net, number: int) -> Loop:
    """Return the forward pass from the listed image to the pooled outputs of this block."""
    block, is_first = net.blocks[number], number == 0
    before: Any = None if is_first else blocks_forward(net, number - 1)
    inputs, outputs = net.kept.parts[f"inputs{number}"], net.kept.parts[f"inputs{number + 1}"]
    kernels, bias = net.weights.parts[f"forward{number}"], net.weights.parts[f"bias{number}"]
    winners_part = net.winners.parts[f"winners{number}"]
    list_inputs = list_values_loop(places_of(block.inputs), block.kernel, block.sums)
    columns = range(block.margin, block.margin + block.convolved_shape[2])
    scatter = scatter_loop(block.inputs, block.kernel, block.sums, columns)
    write_convolved = convolved_loop(block)
    pool = pool_loop(block, net.maps[number + 1])

    @inlined
    def forward(rows, weights, skipped, work):
        convolved, image, kept, winners = rows
        if not is_first:
            skipped = before(rows, weights, skipped, work)
            list_inputs(kept[inputs], (skipped,), work)
        scatter(work, weights[kernels], work.buffer)
        if len(convolved[number]):
            write_convolved(work.buffer, weights[bias], convolved[number][image])
        not_finite = pool(work.buffer, weights[bias], winners[winners_part], kept[outputs])
        return NAN if not_finite else skipped

    return forward


def blocks_backward(net: Net, number: int) -> Loop:
    """Return the backward pass from the gradients of this block's pooled outputs to the image."""
    block, has_input_gradient = net.blocks[number], net.has_input_gradient(number)
    is_first = number == 0
    before: Any = None if is_first else blocks_backward(net, number - 1)
    inputs, outputs = net.kept.parts[f"inputs{number}"], net.kept.parts[f"inputs{number + 1}"]
    winners_part = net.winners.parts[f"winners{number}"]
    input_gradients = net.gradients.parts[f"inputs{number}"]
    output_gradients = net.gradients.parts[f"inputs{number + 1}"]
    kernel_sums, bias_sums = net.sums.parts[f"kernel{number}"], net.sums.parts[f"bias{number}"]
    kernels = net.weights.parts[f"backward{number}" if has_input_gradient else f"bias{number}"]
    list_gradients = list_gradients_loop(net, number)
    add_windows = add_windows_loop(block, net.windows[number])
    source, target = net.gradient_maps[number + 1], net.gradient_maps[number]
    list_by_row = list_values_loop(places_of(source), block.kernel, target, block.sums.pixel)
    columns = range(block.padding, block.padding + block.width)
    scatter = scatter_loop(block.unpooled, block.kernel, target, columns)

    @inlined
    def backward(kept, winners, skipped, weights, sums, work):
        gradients, pooled = work.gradients[output_gradients], kept[outputs]
        list_gradients(gradients, pooled, winners[winners_part], skipped, sums[bias_sums], work)
        add_windows(kept[inputs.start :], work, sums[kernel_sums])
        if has_input_gradient:
            list_by_row(gradients, (skipped, winners[winners_part]), work)
            scatter(work, weights[kernels], work.gradients[input_gradients.start :])
        if not is_first:
            before(kept, winners, skipped, weights, sums, work)

    return backward


# ------------------------------------------------------------------ the loops of a block


def places_of(stored: FeatureMap) -> tuple[uint64, ...]:
    """Return the first place of a map, y_step and x_step; height, width, channels; all unsigned."""
    places, shape = (stored.first, stored.y_step, stored.x_step), astuple(stored)[:3]
    return tuple(map(uint64, places + shape))


def list_values_loop(
    source: tuple[uint64, ...], kernel: int, target: FeatureMap, winners_step: int = 0
) -> Loop:
    """Return a function that lists values row by row (`Workspace`), for `scatter_loop`.

    source: where the values are, as `places_of` returns it. target: of the sums.
    winners_step: floats from a pixel's winners to the next, if the values are gradients of pooled
        ones, of which each is listed at the one of its 2 x 2 pixels that won; else 0.

    list_values(values, choice, work): choice is (skipped,), the value that is left out, or for
    gradients (skipped, winners).
    """
    origin, y_step, x_step, height, width, channels = source
    shift = uint64(winners_step > 0)  # each value belongs to 2 x 2 pixels, or to one
    rows, columns = height << shift, width << shift
    before, count = uint64(kernel - 1), columns + uint64(2 * kernel - 1)
    taps_size, to_next_winners = target.taps_size(kernel), uint64(winners_step)
    step = uint64(taps_size) * channels
    append = append_pixel_loop(int(channels), taps_size)

    @inlined
    def rule_of_winners(choice, y, x):
        won = ((y >> ONE) * width + (x >> ONE)) * to_next_winners
        return choice[0], choice[1], won, ((y & ONE) << ONE) + (x & ONE)

    @inlined
    def same_rule(choice, y, x):
        return choice

    rule_at = rule_of_winners if winners_step else same_rule

    @compiled
    def list_values(values, choice, work):
        end = uint64(0)
        for y in range(rows):
            at = y * count
            for k in range(before):
                work.starts[at + k] = end
            for x in range(columns):
                work.starts[at + before + x] = end
                first = origin + (y >> shift) * y_step + (x >> shift) * x_step
                end = append(values, first, rule_at(choice, y, x), work, end, -x * step)
            for k in range(before + ONE):
                work.starts[at + before + columns + k] = end

    return list_values


def append_pixel_loop(channels: int, taps_size: int) -> Loop:
    """Return a function that appends a pixel's values to the list, and returns where it then ends.

    rule: see `paddle_mnist.nn.intrinsics`. place: of the kernel of the pixel's first channel.
    """
    whole, rest = (append_loop(count, taps_size) for count in (VECTOR, channels % VECTOR))
    last, vector = uint64(channels - channels % VECTOR), uint64(VECTOR)

    @inlined
    def append(source, pixel, rule, work, end, place):
        for c in range(uint64(0), last, vector):
            end = whole(source, pixel, c, rule, (work.values, work.places, end), place)
        return rest(source, pixel, last, rule, (work.values, work.places, end), place)

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
    size, y_step, x_step = map(uint64, (target.size, target.y_step, target.x_step))
    reached = listed.width + kernel - 1  # pooling may leave out the last column
    first, stop = uint64(columns.start), uint64(min(columns.stop, reached))
    tap_size = target.taps_size(kernel)
    step = uint64(tap_size) * channels
    group = taps if kernel * listed.channels * tap_size <= MAX_KERNELS else ONE
    add_products = add_products_loop(kernel * target.pixel)
    add_to_both = add_products_loop(kernel * target.pixel, 2)
    even = first + (stop - first) // TWO * TWO

    @inlined
    def entries_of(work, start, stop):
        return work.values, work.places, work.starts[start], work.starts[stop]

    @inlined
    def add_columns(work, kernels, sums, y, first):
        for left in range(uint64(0), taps, group):
            for x in range(first, stop):
                start, at = y * count + x + left, x * x_step + y * y_step
                entries = entries_of(work, start, start + group)
                add_products(sums, (at,), entries, kernels, (x * step,))

    @inlined
    def add_pairs(work, kernels, sums, y, first):
        """Add to two columns at a time: all pixels but the first and the last reach both."""
        for x in range(first, even, TWO):
            start, at, shift = y * count + x, x * x_step + y * y_step, x * step
            shared, end, ats = start + ONE, start + taps, (at, at + x_step)
            shifts = shift, shift + step
            add_products(sums, (at,), entries_of(work, start, shared), kernels, (shift,))
            add_to_both(sums, ats, entries_of(work, shared, end), kernels, shifts)
            last = entries_of(work, end, end + ONE)
            add_products(sums, ats[1:], last, kernels, shifts[1:])
        add_columns(work, kernels, sums, y, even)

    is_worth_it = listed.channels >= MANY_CHANNELS and "+avx512f" in processor()[1]  # registers
    add_row = add_pairs if is_worth_it and group == taps else add_columns

    @compiled
    def scatter(work, kernels, sums):
        """sums[y + r, x + s] += value * kernels[s, channel, r], of each value of each pixel."""
        for k in range(size):
            sums[k] = ZERO
        for k in range(rows):
            # upwards: of each sum, the lowest of its inputs come first
            add_row(work, kernels, sums, rows - ONE - k, first)

    return scatter


def convolved_loop(block: BlockSizes) -> Loop:
    """Return a function that writes the outputs of the convolution, channels first."""
    _, y_step, x_step, *_ = places_of(block.sums)
    origin = uint64(block.margin) * (y_step + x_step)
    channels, height, width = map(uint64, block.convolved_shape)

    @compiled
    def write(sums, bias, convolved):
        for c in range(channels):
            for y in range(height):
                for x in range(width):
                    convolved[c, y, x] = sums[origin + y * y_step + x * x_step + c] + bias[c]

    return write


def pool_loop(block: BlockSizes, outputs: FeatureMap) -> Loop:
    """Return a function that computes pooling, bias and ReLU of the convolution's sums.

    The bias and ReLU come last: they do not change which of four values is the largest. The first
    of equal values wins, and a nan wins over all numbers.
    """
    _, y_step, x_step, *_ = places_of(block.sums)
    origin = uint64(block.margin) * (y_step + x_step)
    to_origin, to_y_step, to_x_step, height, width, channels = places_of(outputs)
    padded = uint64(block.sums.pixel)  # channels of the sums and the winners

    @compiled
    def pool(convolved, bias, winners, pooled):
        not_finite = False
        for y in range(height):
            for x in range(width):
                at = origin + TWO * y * y_step + TWO * x * x_step
                to, won = to_origin + y * to_y_step + x * to_x_step, (y * width + x) * padded
                for c in range(padded):
                    largest, winner = convolved[at + c], 0
                    value = convolved[at + x_step + c]
                    if (value > largest) | (value != value):
                        largest, winner = value, 1
                    value = convolved[at + y_step + c]
                    if (value > largest) | (value != value):
                        largest, winner = value, 2
                    value = convolved[at + y_step + x_step + c]
                    if (value > largest) | (value != value):
                        largest, winner = value, 3
                    largest += bias[c]
                    winners[won + c] = winner
                    pooled[to + c] = ZERO if largest <= ZERO else largest
                    not_finite |= largest - largest != ZERO
                for c in range(channels, padded):  # nan, if another value is
                    pooled[to + c] = ZERO
        return not_finite

    return pool


def list_gradients_loop(net: Net, number: int) -> Loop:
    """Return a function that lists, by output, the gradients that pass ReLU and pooling.

    The others are set to zero.
    """
    windows, capacity = net.windows[number], uint64(net.blocks[number].pooled_size)
    padded = uint64(net.blocks[number].sums.pixel)
    origin, y_step, x_step, height, width, channels = places_of(net.maps[number + 1])
    g_origin, g_y_step, g_x_step, *_ = places_of(net.gradient_maps[number + 1])
    window_y_step, window_x_step = uint64(windows.y_step), uint64(windows.x_step)

    @compiled
    def list_gradients(gradients, pooled, winners, skipped, bias_sums, work):
        for c in range(channels):
            work.ends[c] = c * capacity
        for y in range(height):
            for x in range(width):
                at, won = origin + y * y_step + x * x_step, (y * width + x) * padded
                of = g_origin + y * g_y_step + x * g_x_step
                for c in range(channels):
                    gradient = gradients[of + c] * np.float32(pooled[at + c] > ZERO)
                    gradients[of + c] = gradient
                    bias_sums[c] += gradient
                    winner = uint64(winners[won + c])
                    down, right = TWO * y + (winner >> ONE), TWO * x + (winner & ONE)
                    end = work.ends[c]
                    work.windows[end] = down * window_y_step + right * window_x_step
                    work.amounts[end] = gradient
                    work.ends[c] = end + uint64(gradient != skipped)

    return list_gradients


def add_windows_loop(block: BlockSizes, windows: Windows) -> Loop:
    """Return a function that adds up the gradient of the kernels over the listed gradients."""
    channels, capacity = uint64(block.outputs), uint64(block.pooled_size)
    runs, run_size, y_step = map(uint64, (windows.runs, windows.run_size, windows.y_step))
    add_products = add_products_loop(windows.run_size)

    @compiled
    def add_windows(inputs, work, sums):
        """sums[output] += gradient * (the window of inputs at its place)."""
        for output in range(channels):
            entries = work.amounts, work.windows, output * capacity, work.ends[output]
            for r in range(runs):
                at = (output * runs + r) * run_size
                add_products(sums, (at,), entries, inputs, (r * y_step,))

    return add_windows


# ------------------------------------------------------------------ the layers after the blocks


def features_of(net: Net) -> tuple[slice, slice]:
    """Return where the features are among the inputs that are kept, and their gradients."""
    name = f"inputs{len(net.blocks)}"
    return net.kept.parts[name], net.gradients.parts[name]


def flatten_loops(net: Net) -> tuple[Loop, Loop]:
    """Return the passes of a flattening layer, whose outputs are channels first."""
    features, feature_gradients = features_of(net)
    _, _, x_step, height, width, channels = places_of(net.maps[-1])
    pixels = height * width
    write = channels_first_loop(net.maps[-1])

    @inlined
    def write_outputs(kept, weights, outputs, logits):
        write(kept[features], outputs)

    @inlined
    def read_gradients(output_gradients, kept, weights, sums, gradients):
        values = gradients[feature_gradients]
        for pixel in range(pixels):
            for c in range(channels):
                values[pixel * x_step + c] = output_gradients[c * pixels + pixel]

    return write_outputs, read_gradients


def linear_loops(net: Net, outputs: int) -> tuple[Loop, Loop]:
    """Return the passes of a linear layer behind the flattened features. outputs: their number."""
    features_part, gradients_part = features_of(net)
    weights_of, sums_of = net.weights.parts, net.sums.parts
    by_feature, by_class = weights_of["linear_by_feature"], weights_of["linear_by_class"]
    bias_part, bias_sums_part = weights_of["linear_bias"], sums_of["linear_bias"]
    sums_by_class = sums_of["linear_by_class"]
    classes, width, size = map(uint64, (outputs, round_up(outputs), net.maps[-1].size))

    @compiled
    def add_features(features, weights, logits):
        for j in range(uint64(0), size, FOUR):
            a, b, c, d = features[j], features[j + ONE], features[j + TWO], features[j + THREE]
            at = j * width
            for k in range(width):
                logits[k] += (a * weights[at + k] + b * weights[at + width + k]) + (
                    c * weights[at + TWO * width + k] + d * weights[at + THREE * width + k]
                )

    @inlined
    def write_outputs(kept, weights, outputs, logits):
        bias = weights[bias_part]
        for k in range(width):
            logits[k] = bias[k]
        add_features(kept[features_part], weights[by_feature], logits)
        for k in range(classes):
            outputs[k] = logits[k]

    @compiled
    def add_gradient(gradient, weights, features, weight_sums, feature_gradients):
        for k in range(size):
            weight_sums[k] += gradient * features[k]
            feature_gradients[k] += gradient * weights[k]

    @inlined
    def read_gradients(output_gradients, kept, weights, sums, gradients):
        features, feature_gradients = kept[features_part], gradients[gradients_part]
        own, weight_sums, bias_sums = weights[by_class], sums[sums_by_class], sums[bias_sums_part]
        feature_gradients[:] = ZERO
        for o in range(classes):
            gradient, part = output_gradients[o], slice(o * size, (o + ONE) * size)
            bias_sums[o] += gradient
            add_gradient(gradient, own[part], features, weight_sums[part], feature_gradients)

    return write_outputs, read_gradients


def cross_entropy_loop(number: int) -> Loop:
    """Return a function that returns the loss of an image, in nats, in float64.

    number: of classes.
    logits: float32 [C]; smoothing: that of `CrossEntropy`. It fills gradient, float32 [C], with
    that of the logits times `scale`, and computes in float64 in between.
    """
    classes = uint64(number)

    @compiled
    def run(logits, label, smoothing, scale, gradient):
        rest = smoothing / float64(classes)
        largest = float64(logits[0])
        for k in range(classes):
            largest = max(largest, float64(logits[k]))
        total = 0.0
        for k in range(classes):
            total += math.exp(float64(logits[k]) - largest)
        normalizer = largest + math.log(total)
        loss = 0.0
        for k in range(classes):
            share = rest
            if k == uint64(label):
                share += 1.0 - smoothing
            log_probability = float64(logits[k]) - normalizer
            if share:  # 0 * inf is nan
                loss -= share * log_probability
            gradient[k] = (math.exp(log_probability) - share) * scale
        return loss

    return run


# ------------------------------------------------------------------ a batch


def batch_loop(number: int) -> Loop:
    """Return a function of the losses and gradients of a batch, for each thread to call once.

    number: of classes.
    Threads take chunks of the batch (`chunks.chunks_of`) from `counter` until none is left. passes:
    the addresses of the forward and the backward pass, which are compiled by themselves.
    parameters: flat, with a zero behind them; `layout.packing` places them in weights. gradient,
    unused, kept, winners, skipped, weights, work: the thread's own, for one image at a time, so
    that they stay in its cache. arrivals: zeros, one per chunk. totals: the gradients of the
    parameters, flat, as `layout.unpacking` places them. The other arguments are those of the passes
    and of `cross_entropy_loop`, for the whole batch.
    """
    cross_entropy = cross_entropy_loop(number)

    @compiled
    def pack(parameters, packing, weights):
        """Place the weights; return the value that need not be visited: 0 * inf is nan, too."""
        not_finite = False
        for k in range(uint64(len(parameters))):
            not_finite |= parameters[k] - parameters[k] != ZERO
        for k in range(uint64(len(packing))):
            weights[k] = parameters[packing[k]]
        return NAN if not_finite else ZERO

    @compiled
    def add(sums, others):
        for k in range(uint64(len(sums))):
            sums[k] += others[k]

    @inlined
    def add_finished(chunk, arrivals, sums, unpacking, totals):
        """Add the sums of chunks to those of the first, in order, as far as they are finished.

        Two arrive at each chunk: who has computed it, and who has added those before it. The second
        one adds it.
        """
        chunks, chunk = uint64(len(arrivals)), max(chunk, ONE)
        while chunk < chunks and next_number(arrivals[chunk:]) == ONE:
            add(sums[0], sums[chunk])
            chunk += ONE
        if chunk == chunks:
            for k in range(uint64(len(unpacking))):
                totals[k] = sums[0, unpacking[k]]

    @entry
    def run(
        passes, counter, arrivals, images, labels, smoothing, parameters, packing, logits, losses,
        convolved, sums, unpacking, totals, gradient, unused, kept, winners, skipped, weights, work,
    ):  # fmt: skip
        count, chunks, scale = uint64(len(images)), uint64(len(arrivals)), 1 / len(images)
        chunk, skip = next_number(counter), ZERO
        if chunk < chunks:  # else the others have taken all
            skip = pack(parameters, packing, weights)
        rows = kept, winners, skipped, weights
        while chunk < chunks:
            sums[chunk] = ZERO
            for i in range(count * chunk // chunks, count * (chunk + ONE) // chunks):
                image = slice(i, i + ONE)
                call_at(passes[0], (images[image], logits[image], convolved, i, *rows, skip, work))
                losses[i] = cross_entropy(logits[i], labels[i], smoothing, scale, gradient[0])
                call_at(passes[1], (gradient, unused, *rows, sums[chunk], work))
            add_finished(chunk, arrivals, sums, unpacking, totals)
            chunk = next_number(counter)

    return run
