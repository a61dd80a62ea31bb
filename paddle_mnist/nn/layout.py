"""Sizes of a compiled net, and where its kernels find each value in flat arrays.

The pixels of an image of C channels, 3 x 2 of them here, lie in one of two orders (`FeatureMap`):

    row by row:    a b c       a b c d e f      x_step = pixel
                   d e f                        y_step = a row of pixels
    by_columns:    a b c       a d b e c f      x_step = a column of pixels
                   d e f                        y_step = pixel

x_step leads to the pixel on the right, y_step to the one below; a pixel has its C channels, and as
many zeros as make it whole vectors. Padding adds pixels around the image, so that the first one of
its own is at `first`. All steps and places are counted in floats.

Inputs and pooled outputs are stored row by row, with the padding of the block that reads them; the
sums of a convolution and the gradients of inputs by columns, so that the K pixels that a value of
one row reaches in a column are one run of floats; images of few channels as `Windows`.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Optional, TypeVar

import numpy as np
import numpy.typing as npt

# To be increased whenever the compiled code rounds differently, as when it adds in another order or
# batches are divided into other chunks.
VERSION = 3
CACHE_LINE = 16  # floats
FEW_CHANNELS = 4  # as images have: each window of so few is stored as one row

Scalar = TypeVar("Scalar", bound=np.generic)
Floats = npt.NDArray[np.float32]


@functools.cache
def lanes() -> int:
    """Return how many floats the kernels add at a time here: rows are padded to multiples of it.

    It does not change any bits. AMD's Zen 5, where LLVM knows it by name, takes a tenth less time
    with 16 than with 8. Others were not measured: on Intel's processors LLVM avoids such wide
    vectors, and Zen 4 computes their halves one after the other, so that longer padding would be
    more work.
    """
    from paddle_mnist.nn.compiler import processor  # which imports numba

    name, features = processor()
    return 16 if name == "znver5" and "+avx512f" in features else 8


def round_up(number: int) -> int:
    """Round up to a multiple of `lanes`."""
    return -(-number // lanes()) * lanes()


def aligned_zeros(shape: tuple[int, ...], dtype: type[Scalar]) -> npt.NDArray[Scalar]:
    """Return zeros from a whole cache line on: vectors that cross lines take twice as long."""
    itemsize, line = np.dtype(dtype).itemsize, 4 * CACHE_LINE
    size = math.prod(shape) * itemsize
    buffer = np.zeros(size + line, np.uint8)
    start = -buffer.ctypes.data % line
    return buffer[start : start + size].view(dtype).reshape(shape)


@dataclass(frozen=True)
class FeatureMap:
    """The storage of an image of several channels, in one of the orders of this module.

    By columns, a pixel takes a multiple of four floats, at least a whole cache line. is_dense: a
    multiple of four floats, row by row.
    """

    height: int
    width: int
    channels: int
    padding: int = 0
    by_columns: bool = False
    is_dense: bool = False

    @property
    def pixel(self) -> int:
        """Floats of a pixel: its channels, and those that pad it."""
        fours = -(-self.channels // 4) * 4
        if self.by_columns:
            return max(CACHE_LINE, fours)
        return fours if self.is_dense else round_up(self.channels)

    @property
    def x_step(self) -> int:
        return self.pixel * (self.height + 2 * self.padding if self.by_columns else 1)

    @property
    def y_step(self) -> int:
        return self.pixel * (1 if self.by_columns else self.width + 2 * self.padding)

    @property
    def first(self) -> int:
        """The place of the first pixel that is not padding."""
        return self.padding * (self.x_step + self.y_step)

    @property
    def size(self) -> int:
        return self.pixel * (self.width + 2 * self.padding) * (self.height + 2 * self.padding)

    def taps_size(self, kernel: int) -> int:
        """Floats of the weights for the sums of `kernel` pixels, one below the other."""
        return -(-kernel * self.y_step // CACHE_LINE) * CACHE_LINE


@dataclass(frozen=True)
class BlockSizes:
    """Sizes of one block: [channels, height, width] -> [outputs, pooled_height, pooled_width].

    The convolution has square kernels, stride 1 and zero padding; the pooling takes 2x2 values.
    """

    channels: int
    height: int
    width: int
    outputs: int
    kernel: int
    padding: int

    @property
    def padded_height(self) -> int:
        return self.height + 2 * self.padding

    @property
    def padded_width(self) -> int:
        return self.width + 2 * self.padding

    @property
    def convolved_shape(self) -> tuple[int, int, int]:
        """The shape of the convolution's outputs: channels, height, width."""
        taps = self.kernel - 1
        return (self.outputs, self.padded_height - taps, self.padded_width - taps)

    @property
    def pooled_height(self) -> int:
        return self.convolved_shape[1] // 2

    @property
    def pooled_width(self) -> int:
        return self.convolved_shape[2] // 2

    @property
    def pooled_size(self) -> int:
        return self.pooled_height * self.pooled_width

    @property
    def max_place(self) -> int:
        """A bound of the places that the kernels list, which must fit into 32 bits."""
        weights = (self.outputs + CACHE_LINE) * (self.kernel + 1)
        windows = self.padded_height * self.kernel
        return self.padded_width * (self.channels + CACHE_LINE) * max(weights, windows)

    @property
    def inputs(self) -> FeatureMap:
        return FeatureMap(self.height, self.width, self.channels, self.padding)

    @property
    def sums(self) -> FeatureMap:
        """All outputs that any pixel of the input adds to."""
        margin = self.kernel - 1
        return FeatureMap(self.height + margin, self.width + margin, self.outputs, by_columns=True)

    @property
    def unpooled(self) -> FeatureMap:
        """The outputs that are pooled."""
        return FeatureMap(2 * self.pooled_height, 2 * self.pooled_width, self.outputs)

    @property
    def margin(self) -> int:
        """Rows of the sums above the convolution's outputs, and columns on their left."""
        return self.kernel - 1 - self.padding


@dataclass(frozen=True)
class Windows:
    """The storage of a block's inputs for the gradient of its kernels: as K x K windows.

    Usually the padded `FeatureMap`, in which a window is K runs of K pixels. For images of few
    channels, these would be shorter than a vector; there the K pixels below each other stand in the
    place of the upper one, and a window is one run:

        a b c          a d  b e  c f      with K = 2, the window at `a` is the run a d b e
        d e f   --->   d g  e h  f i
        g h i
    """

    block: BlockSizes
    of_images: bool  # the first block's inputs

    @property
    def as_columns(self) -> bool:
        return self.of_images and self.block.channels <= FEW_CHANNELS

    @property
    def runs(self) -> int:
        """Runs of a window."""
        return 1 if self.as_columns else self.block.kernel

    @property
    def run_size(self) -> int:
        """Floats of a run, with those that pad it."""
        return round_up(self.block.kernel * self.x_step)

    @property
    def x_step(self) -> int:
        channels = self.block.channels
        return self.block.kernel * channels if self.as_columns else round_up(channels)

    @property
    def y_step(self) -> int:
        return self.block.padded_width * self.x_step

    @property
    def size(self) -> int:
        height = 2 * self.block.pooled_height if self.as_columns else self.block.padded_height
        return height * self.y_step


class Fields:
    """Named parts of a flat array, each from a whole cache line on."""

    def __init__(self, sizes: Mapping[str, int]):
        self.parts: dict[str, slice] = {}
        self.size = 0
        for name, size in sizes.items():
            self.parts[name] = slice(self.size, self.size + size)
            self.size += -(-size // CACHE_LINE) * CACHE_LINE

    def view(self, array: npt.NDArray[Scalar], name: str, *shape: int) -> npt.NDArray[Scalar]:
        """Return a part of a flat array, reshaped."""
        return array[self.parts[name]].reshape(shape)


@dataclass(frozen=True)
class Net:
    """Consecutive blocks, followed by a linear layer if there is one.

    biases: which of these layers have one.
    classes: the linear layer's outputs; None without one: the features are the outputs.
    is_flat: whether these are flattened, as they are before a linear layer.
    input_gradient: whether the gradient of the images can be asked for.
    """

    blocks: tuple[BlockSizes, ...]
    biases: tuple[bool, ...]
    classes: Optional[int] = None
    is_flat: bool = True
    input_gradient: bool = False

    @cached_property
    def maps(self) -> tuple[FeatureMap, ...]:
        """The storage of each block's inputs, and last that of the features."""
        last = self.blocks[-1]
        shape = (last.pooled_height, last.pooled_width, last.outputs)
        features = FeatureMap(*shape, is_dense=True)
        return (*(block.inputs for block in self.blocks), features)

    @cached_property
    def gradient_maps(self) -> tuple[FeatureMap, ...]:
        """The storage of the gradients of each block's inputs, and last of the features."""
        return (*(replace(block.inputs, by_columns=True) for block in self.blocks), self.maps[-1])

    @cached_property
    def windows(self) -> tuple[Windows, ...]:
        return tuple(Windows(block, number == 0) for number, block in enumerate(self.blocks))

    @property
    def layers(self) -> int:
        """The number of Paddle's layers that it stands for."""
        return 3 * len(self.blocks) + self.is_flat + bool(self.classes)

    @cached_property
    def parameter_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the parameters, of each layer the weight and the bias, if it has one."""
        weights: list[tuple[int, ...]] = [
            (b.outputs, b.channels, b.kernel, b.kernel) for b in self.blocks
        ]
        outputs = [block.outputs for block in self.blocks]
        if self.classes:
            last = self.blocks[-1]
            weights.append((last.outputs * last.pooled_size, self.classes))
            outputs.append(self.classes)
        shapes: list[tuple[int, ...]] = []
        for weight, size, has_bias in zip(weights, outputs, self.biases):
            shapes += [weight, (size,)] if has_bias else [weight]
        return shapes

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of an image's outputs."""
        last = self.blocks[-1]
        if self.classes:
            return (self.classes,)
        if self.is_flat:
            return (last.outputs * last.pooled_size,)
        return (last.outputs, last.pooled_height, last.pooled_width)

    @cached_property
    def kept(self) -> Fields:
        """The needs of an image's backward pass: the inputs of each block, the features."""
        sizes = {f"inputs{number}": w.size for number, w in enumerate(self.windows)}
        sizes[f"inputs{len(self.blocks)}"] = self.maps[-1].size
        return Fields({**sizes, "slack": CACHE_LINE})  # vectors at the end of the last run reach it

    @cached_property
    def winners(self) -> Fields:
        """The positions of the largest values in each block's pooling windows."""
        sizes = {f"winners{n}": b.pooled_size * b.sums.pixel for n, b in enumerate(self.blocks)}
        return Fields({**sizes, "slack": CACHE_LINE})

    @cached_property
    def weights(self) -> Fields:
        """The parameters, in the order in which the kernels read them."""
        sizes = {}
        for number, block in enumerate(self.blocks):
            size = block.kernel
            sizes[f"forward{number}"] = size * block.channels * block.sums.taps_size(size)
            sizes[f"bias{number}"] = block.sums.pixel
            if self.has_input_gradient(number):
                taps_size = self.gradient_maps[number].taps_size(size)
                sizes[f"backward{number}"] = size * block.outputs * taps_size
        if self.classes:
            sizes["linear_by_feature"] = self.maps[-1].size * round_up(self.classes)
            sizes["linear_bias"] = round_up(self.classes)
            sizes["linear_by_class"] = self.classes * self.maps[-1].size
        return Fields(sizes)

    @cached_property
    def sums(self) -> Fields:
        """The gradients of the parameters, added up over images."""
        sizes = {}
        for number, block in enumerate(self.blocks):
            windows = self.windows[number]
            sizes[f"kernel{number}"] = block.outputs * windows.runs * windows.run_size
            sizes[f"bias{number}"] = block.outputs
        if self.classes:
            sizes["linear_by_class"] = self.classes * self.maps[-1].size
            sizes["linear_bias"] = self.classes
        return Fields(sizes)

    @cached_property
    def gradients(self) -> Fields:
        """The gradients of an image's inputs of each block, and of its features."""
        sizes = {f"inputs{number}": m.size for number, m in enumerate(self.gradient_maps)}
        return Fields({**sizes, "slack": CACHE_LINE})

    def has_input_gradient(self, number: int) -> bool:
        """Return whether the gradient of this block's inputs is computed."""
        return number > 0 or self.input_gradient


# ------------------------------------------------------------------ parameters


def packing(net: Net) -> npt.NDArray[np.int64]:
    """Return the index among the flat parameters of each weight that the kernels read, int64.

    Padding, and the bias of a layer without one, have the index one past the last parameter, where
    the caller appends a zero.
    """
    sizes = [math.prod(shape) for shape in net.parameter_shapes]
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    values = (part.reshape(shape) for part, shape in zip(parts, net.parameter_shapes))
    none = sum(sizes)  # the index of the zero
    indices = np.full(net.weights.size, none)
    view = functools.partial(net.weights.view, indices)
    for number, block in enumerate(net.blocks):
        kernels = next(values)
        taps = [("forward", kernels[:, :, ::-1, ::-1].transpose(3, 1, 2, 0), block.sums)]
        if net.has_input_gradient(number):
            taps.append(("backward", kernels.transpose(3, 0, 2, 1), net.gradient_maps[number]))
        for name, weights, sums in taps:
            columns, channels, size, outputs = weights.shape
            padded = np.full((columns, channels, size, sums.pixel), none)
            padded[..., :outputs] = weights
            target = view(f"{name}{number}", columns, channels, sums.taps_size(size))
            target[..., : size * sums.pixel] = padded.reshape(columns, channels, -1)
        if net.biases[number]:
            view(f"bias{number}", block.sums.pixel)[: block.outputs] = next(values)
    if net.classes:
        classes, features = net.classes, net.maps[-1]
        shape = (features.height * features.width, features.pixel)
        # a linear layer's features are channels first, as Paddle flattens them
        by_pixel = next(values).reshape(features.channels, shape[0], classes)
        target = view("linear_by_feature", *shape, round_up(classes))
        target[:, : features.channels, :classes] = by_pixel.transpose(1, 0, 2)
        target = view("linear_by_class", classes, *shape)
        target[..., : features.channels] = by_pixel.transpose(2, 1, 0)
        if net.biases[-1]:
            view("linear_bias", round_up(classes))[:classes] = next(values)
    return indices


def unpacking(net: Net) -> npt.NDArray[np.int64]:
    """Return the index of each parameter's gradient among the sums of the kernels, int64."""
    view = functools.partial(net.sums.view, np.arange(net.sums.size))
    places = []
    for number, block in enumerate(net.blocks):
        windows, size = net.windows[number], block.kernel
        runs = view(f"kernel{number}", block.outputs, windows.runs, windows.run_size)
        runs = runs[..., : size * windows.x_step]
        if windows.as_columns:
            pixels = runs.reshape(block.outputs, size, size, block.channels)
            places.append(pixels.transpose(0, 3, 2, 1))
        else:
            pixels = runs.reshape(block.outputs, size, size, windows.x_step)
            places.append(pixels[..., : block.channels].transpose(0, 3, 1, 2))
        if net.biases[number]:
            places.append(view(f"bias{number}", block.outputs))
    if net.classes:
        classes, features = net.classes, net.maps[-1]
        shape = (classes, features.height * features.width, features.pixel)
        places.append(view("linear_by_class", *shape)[..., : features.channels].transpose(2, 1, 0))
        if net.biases[-1]:
            places.append(view("linear_bias", classes))
    return np.concatenate([part.ravel() for part in places])
