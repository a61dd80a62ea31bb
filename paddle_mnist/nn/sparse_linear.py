"""The loops after the blocks: flattening, a linear layer, and the cross-entropy of its outputs."""

import math

from numba import float64, uint64

from paddle_mnist.nn.compiler import Loop, compiled, inlined
from paddle_mnist.nn.sparse_conv import FOUR, ONE, THREE, TWO, ZERO, places_of
from paddle_mnist.nn.sparse_layout import Net, round_up


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
    """Return the passes of a linear layer of so many outputs behind the flattened features."""
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
