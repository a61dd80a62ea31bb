"""Computes both blocks of the net as NumPy matrix products, on CPUs much faster than Paddle.

Equals Paddle's convolution, ReLU and pooling to within float32's rounding, gradients included. What
makes it fast:

- Images are stored as cells of 2x2 pixels. A pooling window covers four outputs of the convolution,
  which depend on 3x3 cells: a row of these times one matrix gives all four, and the pooled value is
  the largest of four columns. The rows hold each pixel 9 times, not 25, and the matrix is wide
  enough for nearly the processor's full speed, though 30 % of it are zeros.
- Pooling comes before bias and ReLU, which do not change which of the four is the largest.
- The gradient of the second block's input is such a product too, with the kernel rotated by 180
  degrees.
- Images are processed in chunks of a few, so that intermediate results stay in the cache. The
  chunks do not depend on the number of threads, and their gradients are added in order, so any
  number of threads gives the same bits.
- Memory is reused: allocating it for each batch takes a tenth of a step.
"""

# In mnist/, not among the blocks of nn/: sizes and channels of this net are written into it, until
# they become arguments.

import itertools
from collections import deque
from collections.abc import Callable

import numpy as np
import paddle
from numpy.lib.stride_tricks import as_strided
from paddle import nn
from paddle.autograd import PyLayer

from paddle_mnist.nn.chunks import map_chunks, scratch

PARAMETER_SHAPES = ([20, 1, 5, 5], [20], [20, 20, 5, 5], [20])  # weights and biases, in order
LARGEST_REUSED = 1000  # images, of 39 kB each: memory of a larger batch is not reused
SWITCH = "set the model's fast_conv to 'off' to compute with Paddle's own layers"


def features(
    images: paddle.Tensor, conv1: nn.Conv2D, conv2: nn.Conv2D, threads: int = 1
) -> paddle.Tensor:
    """Compute the two blocks of `MNIST`: float32 [B, 1, 28, 28] -> [B, 980].

    The gradients of both layers' parameters can be computed, once; those of the images cannot.
    Raises RuntimeError, which Paddle turns into an OSError, at a second backward pass or for
    second derivatives.
    NaNs are passed on. If several values of a pooling window are the largest, the first gets the
    gradient, as in Paddle.
    """
    parameters = (conv1.weight, conv1.bias, conv2.weight, conv2.bias)
    needs_gradient = paddle.is_grad_enabled() and not all(
        parameter.stop_gradient for parameter in parameters
    )
    # As one tensor, because a `PyLayer` computes the gradients of all of its inputs or of none.
    joined = paddle.concat([parameter.flatten() for parameter in parameters])
    outputs = _Features.apply(images, joined, threads, needs_gradient)
    if needs_gradient:
        outputs.register_hook(_refuse_second_pass())
    return outputs


def _refuse_second_pass() -> Callable[[paddle.Tensor], None]:
    """Return a gradient hook that raises RuntimeError at a second backward pass.

    Paddle (3.3.1) crashes at a second pass through any `PyLayer`, before its `backward` is called;
    the hooks of its output are called before that.
    """
    passes = itertools.count()

    def hook(gradient: paddle.Tensor) -> None:
        if next(passes):
            raise RuntimeError(
                f"a second backward pass through the fast convolution, which allows one; {SWITCH}"
            )

    return hook


class _Features(PyLayer):
    @staticmethod
    def forward(ctx, images, joined, threads, needs_gradient):
        pixels = images.numpy().reshape(-1, 28, 28, 1)
        weight1, bias1, weight2, bias2 = _split_parameters(joined.numpy())
        matrix1, matrix2 = _matrix(weight1), _matrix(weight2)
        count = len(pixels)
        kept = _take_memory(count) if needs_gradient else ()
        outputs = kept[-1] if needs_gradient else np.empty((count, 7, 7, 20), np.float32)

        def run(chunk: slice) -> None:
            size = chunk.stop - chunk.start
            arrays = [array[chunk] for array in kept[:4]] or _scratch_memory(size)
            cells1, winners1, cells2, winners2 = arrays
            _fill_cells(cells1, pixels[chunk])
            _fill_cells(cells2, _convolve(cells1, matrix1, bias1, winners1))
            outputs[chunk] = _convolve(cells2, matrix2, bias2, winners2)

        map_chunks(run, count, threads)
        if needs_gradient:
            ctx.kept, ctx.weight2, ctx.threads = kept, weight2, threads
        return paddle.to_tensor(outputs[:count].transpose(0, 3, 1, 2).reshape(count, 980))

    @staticmethod
    def backward(ctx, gradient):
        if paddle.is_grad_enabled():  # with create_graph=True
            raise RuntimeError(f"the fast convolution has no second derivatives; {SWITCH}")
        kept, ctx.kept = ctx.kept, None
        gradients = gradient.numpy().reshape(-1, 20, 7, 7).transpose(0, 2, 3, 1)
        rotated = _matrix(ctx.weight2[:, :, ::-1, ::-1].swapaxes(0, 1))

        def run(chunk: slice) -> tuple[np.ndarray, ...]:
            cells1, winners1, cells2, winners2, outputs = (array[chunk] for array in kept)
            pooled2 = gradients[chunk] * (outputs > 0)
            spread2 = scratch("spread2", cells2.shape)
            _interior(spread2)[:] = outer2 = _unpool(pooled2, winners2)
            inner = _product(_windows(spread2), rotated).reshape(outer2.shape)
            pooled1 = _to_pixels(inner * (_interior(cells2) > 0))
            outer1 = _unpool(pooled1, winners1)
            return (
                _weight_gradient(cells1, outer1),
                _bias_gradient(pooled1),
                _weight_gradient(cells2, outer2),
                _bias_gradient(pooled2),
            )

        parts = zip(*map_chunks(run, len(gradients), ctx.threads))
        _give_back(kept)
        with np.errstate(all="ignore"):
            sums = [np.add.reduce(part).ravel() for part in parts]
        return None, paddle.to_tensor(np.concatenate(sums))


def _split_parameters(joined: np.ndarray) -> list[np.ndarray]:
    """Split the joined parameters into the weights and biases of both convolutions."""
    sizes = [int(np.prod(shape)) for shape in PARAMETER_SHAPES]
    parts = np.split(joined, np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, PARAMETER_SHAPES)]


# ------------------------------------------------------------------ memory


_reusable: deque[tuple[np.ndarray, ...]] = deque(maxlen=1)


def _take_memory(count: int) -> tuple[np.ndarray, ...]:
    """Return arrays for what the backward pass needs of at least `count` images.

    Cells and winners of both blocks, and the outputs; to be given back with `_give_back`.
    """
    try:
        kept = _reusable.pop()
    except IndexError:  # none yet, or another thread has it
        kept = ()
    if not kept or len(kept[0]) < count:
        kept = (
            np.zeros((count, 16, 16, 4), np.float32),
            np.empty((count, 14, 14, 20), np.uint8),
            np.zeros((count, 9, 9, 80), np.float32),
            np.empty((count, 7, 7, 20), np.uint8),
            np.empty((count, 7, 7, 20), np.float32),
        )
    return kept


def _scratch_memory(count: int) -> list[np.ndarray]:
    """Return arrays for cells and winners of a chunk that no backward pass will need."""
    return [
        scratch("cells1", (count, 16, 16, 4)),
        scratch("winners1", (count, 14, 14, 20), np.uint8),
        scratch("cells2", (count, 9, 9, 80)),
        scratch("winners2", (count, 7, 7, 20), np.uint8),
    ]


def _give_back(kept: tuple[np.ndarray, ...]) -> None:
    if len(kept[0]) <= LARGEST_REUSED:
        _reusable.append(kept)


# ------------------------------------------------------------------ cells and their products


def _interior(cells: np.ndarray) -> np.ndarray:
    """Return the cells without the zero padding: [B, H + 2, W + 2, ...] -> [B, H, W, ...]."""
    return cells[:, 1:-1, 1:-1]


def _fill_cells(cells: np.ndarray, images: np.ndarray) -> None:
    """Write images [B, 2 H, 2 W, C] into cells [B, H + 2, W + 2, 4 C]."""
    count, height, width, channels = images.shape
    pixels = images.reshape(count, height // 2, 2, width // 2, 2, channels)
    _interior(cells).reshape(count, height // 2, width // 2, 2, 2, channels)[:] = pixels.swapaxes(
        2, 3
    )


def _to_pixels(cells: np.ndarray) -> np.ndarray:
    """Return the images [B, 2 H, 2 W, C] of cells [B, H, W, 4 C]."""
    count, height, width, size = cells.shape
    pixels = cells.reshape(count, height, width, 2, 2, size // 4).swapaxes(2, 3)
    return pixels.reshape(count, 2 * height, 2 * width, size // 4)


def _windows(cells: np.ndarray) -> np.ndarray:
    """Return the 3x3 cells around each interior cell: [B, H + 2, W + 2, 4 C] -> [B H W, 36 C]."""
    count, height, width, size = cells.shape
    image, row, column, item = cells.strides
    shape = (count, height - 2, width - 2, 3, 3 * size)
    windows = scratch(f"windows of {size}", shape)
    windows[:] = as_strided(cells, shape, (image, row, column, row, item))
    return windows.reshape(-1, 9 * size)


def _product(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    shape = (len(rows), matrix.shape[1])
    return np.dot(rows, matrix, out=scratch(f"product of {len(matrix)}", shape))


def _matrix(weight: np.ndarray) -> np.ndarray:
    """Return a kernel as a matrix: [O, C, 5, 5] -> [36 C, 4 O].

    It maps 3x3 cells of 2x2 pixels to the outputs of the cell in their middle.
    """
    outputs, inputs = weight.shape[:2]
    matrix = np.zeros((6, 6, inputs, 2, 2, outputs), np.float32)
    for y, x in np.ndindex(2, 2):
        matrix[y : y + 5, x : x + 5, :, y, x] = weight.transpose(2, 3, 1, 0)
    return matrix.reshape(3, 2, 3, -1).swapaxes(1, 2).reshape(36 * inputs, 4 * outputs)


def _weight_gradient(cells: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Return the gradient of the kernel, given those of its outputs, [B, H, W, 4 O]."""
    inputs, outputs = cells.shape[-1] // 4, gradients.shape[-1] // 4
    product = _windows(cells).T @ gradients.reshape(-1, 4 * outputs)
    pixels = product.reshape(3, 3, 2, -1).swapaxes(1, 2).reshape(6, 6, inputs, 2, 2, outputs)
    parts = [pixels[y : y + 5, x : x + 5, :, y, x] for y, x in np.ndindex(2, 2)]
    return np.add.reduce(parts).transpose(3, 2, 0, 1)


def _bias_gradient(gradients: np.ndarray) -> np.ndarray:
    """Return the sum [O] of gradients [B, H, W, O], as a product: faster, and more accurate."""
    rows = gradients.reshape(-1, gradients.shape[-1])
    return np.ones(len(rows), np.float32) @ rows


def _convolve(
    cells: np.ndarray, matrix: np.ndarray, bias: np.ndarray, winners: np.ndarray
) -> np.ndarray:
    """Compute convolution, pooling, bias and ReLU: float32 [B, H, W, O].

    winners: filled with which of the four outputs of each pooling window is the largest.
    """
    four = _product(_windows(cells), matrix).reshape(*winners.shape[:3], 4, len(bias))
    largest = np.maximum(four[..., 0, :], four[..., 1, :])
    winners[:] = four[..., 1, :] > four[..., 0, :]
    for number in (2, 3):
        larger = (four[..., number, :] > largest).view(np.uint8)
        np.maximum(winners, larger * np.uint8(number), out=winners)
        np.maximum(largest, four[..., number, :], out=largest)
    largest += bias
    return np.maximum(largest, 0, out=largest)


def _unpool(gradients: np.ndarray, winners: np.ndarray) -> np.ndarray:
    """Put each gradient where the largest of four was: [B, H, W, O] -> [B, H, W, 4 O]."""
    count, height, width, outputs = gradients.shape
    four = scratch(f"unpooled of {height}", (count, height, width, 4 * outputs))
    for number in range(4):
        target = four[..., number * outputs : (number + 1) * outputs]
        np.multiply(gradients, winners == number, out=target)
    return four
