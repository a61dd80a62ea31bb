"""Convolution, ReLU and 2x2 max pooling in compiled loops that visit only what is not zero.

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

From a value on that is not finite, an image's zeros are visited too, and gradients of 0 that pass
the pooling: 0 * inf is nan, and none of them may hide it.
"""

from dataclasses import astuple

import numpy as np
from numba import uint64

from paddle_mnist.nn.compiler import Loop, compiled
from paddle_mnist.nn.sparse_layout import BlockSizes, FeatureMap, Net, Windows

ZERO = np.float32(0)
ONE, TWO, THREE, FOUR = uint64(1), uint64(2), uint64(3), uint64(4)


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
