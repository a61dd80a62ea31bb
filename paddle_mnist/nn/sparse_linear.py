"""The loops after the blocks: flattening, a linear layer, and the cross-entropy of its outputs."""

import math

from numba import float64, uint64

from paddle_mnist.nn.compiler import Loop, compiled, inlined
from paddle_mnist.nn.sparse_conv import FOUR, ONE, THREE, TWO, ZERO
from paddle_mnist.nn.sparse_layout import Fields, Net, round_up


def flatten_loops(net: Net) -> tuple[Loop, Loop]:
    """Return the passes of a flattening layer, whose outputs are channels first."""
    features = net.maps[-1]
    start, stop = bounds(net.kept, f"inputs{len(net.blocks)}")
    first, last = bounds(net.gradients, f"inputs{len(net.blocks)}")
    pixels, channels = uint64(features.height * features.width), uint64(features.channels)
    stride = uint64(features.stride)

    @inlined
    def write_outputs(kept, weights, outputs, logits):
        values = kept[start:stop]
        for pixel in range(pixels):
            for c in range(channels):
                outputs[c * pixels + pixel] = values[pixel * stride + c]

    @inlined
    def read_gradients(output_gradients, kept, weights, sums, gradients):
        values = gradients[first:last]
        for pixel in range(pixels):
            for c in range(channels):
                values[pixel * stride + c] = output_gradients[c * pixels + pixel]

    return write_outputs, read_gradients


def linear_loops(net: Net, outputs: int) -> tuple[Loop, Loop]:
    """Return the passes of a linear layer of so many outputs behind the flattened features."""
    start, stop = bounds(net.kept, f"inputs{len(net.blocks)}")
    first, last = bounds(net.gradients, f"inputs{len(net.blocks)}")
    columns_start, columns_stop = bounds(net.weights, "linear_columns")
    rows_start, rows_stop = bounds(net.weights, "linear_rows")
    bias_start, _ = bounds(net.weights, "linear_bias")
    sums_start, sums_stop = bounds(net.sums, "linear_rows")
    bias_sums = uint64(net.sums.bounds("linear_bias")[0])
    classes, width = uint64(outputs), uint64(round_up(outputs))
    size = uint64(net.maps[-1].size)

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
        for k in range(width):
            logits[k] = weights[bias_start + k]
        add_columns(kept[start:stop], weights[columns_start:columns_stop], logits)
        for k in range(classes):
            outputs[k] = logits[k]

    @compiled
    def add_row(gradient, row, features, row_sums, feature_gradients):
        for k in range(size):
            row_sums[k] += gradient * features[k]
            feature_gradients[k] += gradient * row[k]

    @inlined
    def read_gradients(output_gradients, kept, weights, sums, gradients):
        features, feature_gradients = kept[start:stop], gradients[first:last]
        rows, row_sums = weights[rows_start:rows_stop], sums[sums_start:sums_stop]
        feature_gradients[:] = ZERO
        for o in range(classes):
            gradient, at = output_gradients[o], o * size
            sums[bias_sums + o] += gradient
            add_row(
                gradient,
                rows[at : at + size],
                features,
                row_sums[at : at + size],
                feature_gradients,
            )

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


def bounds(fields: Fields, name: str) -> tuple[uint64, uint64]:
    """Return the start and the end of a part, as the loops take numbers."""
    start, stop = fields.bounds(name)
    return uint64(start), uint64(stop)
