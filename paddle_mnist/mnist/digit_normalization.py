"""Makes 28 x 28 pixels of a digit's ink, as the images of MNIST were made.

Those were scaled to fit into 20 x 20 pixels, keeping their proportions, and placed in 28 x 28 with
their centre of mass in the middle (LeCun, Cortes, Burges, "The MNIST database of handwritten
digits").
"""

from collections.abc import Sequence
from typing import Optional

import numpy as np
from PIL import Image
from scipy import ndimage

from paddle_mnist.mnist.arrays import SIZE
from paddle_mnist.mnist.shapes import Box, Shape

LARGEST_SHAPE = 160  # pixels of the longer side, when its strokes are measured
SOFT_EDGE = 2  # pixels around a shape, which are part of its strokes
BOX = 20  # pixels, the side of the box into which a digit is scaled
MIN_STROKE, MAX_STROKE = 2.0, 4.5  # pixels in the box, as most strokes in MNIST are


def in_mnist_format(brightness: np.ndarray) -> Optional[np.ndarray]:
    """Return a picture that has MNIST's format already, uint8 [28, 28], white on black, or None.

    brightness: floats [H, W] in 0..1. Its digit fits into BOX exactly, and has its centre of mass
    in the middle, as in 9,997 of the 10,000 images of MNIST's eval split. To scale it again, or to
    make its strokes wider, would only blur it.
    """
    if brightness.shape != (SIZE, SIZE):
        return None
    pixels = np.rint(brightness * 255).astype(np.uint8)
    if pixels[0, 0] > 127:  # black on white
        pixels = 255 - pixels
    rows, columns = (np.flatnonzero(pixels.any(axis=axis)) for axis in (1, 0))
    if not len(rows) or max(np.ptp(rows), np.ptp(columns)) + 1 != BOX:
        return None
    is_centred = np.abs(np.array(ndimage.center_of_mass(pixels)) - SIZE / 2).max() <= 0.5
    return pixels if is_centred else None


def cut_out(ink: np.ndarray, shapes: Sequence[Shape]) -> np.ndarray:
    """Return shapes of a picture as one image of MNIST's format: uint8 [28, 28]."""
    box = Box(
        min(shape.box.left for shape in shapes),
        min(shape.box.top for shape in shapes),
        max(shape.box.right for shape in shapes),
        max(shape.box.bottom for shape in shapes),
    )
    mask = np.zeros((box.height, box.width), bool)
    for shape in shapes:
        top, left = shape.box.top - box.top, shape.box.left - box.left
        mask[top : top + shape.box.height, left : left + shape.box.width] |= shape.mask
    mask = np.pad(mask, SOFT_EDGE)
    part = np.zeros(mask.shape)  # with the box's surroundings, as far as the picture goes
    top, left = max(0, box.top - SOFT_EDGE), max(0, box.left - SOFT_EDGE)
    around = ink[top : box.bottom + SOFT_EDGE, left : box.right + SOFT_EDGE]
    top, left = top - box.top + SOFT_EDGE, left - box.left + SOFT_EDGE
    part[top : top + around.shape[0], left : left + around.shape[1]] = around
    with_edges = ndimage.binary_dilation(mask, iterations=SOFT_EDGE)
    ink = np.where(with_edges, part, 0) / np.percentile(part[mask], 75)
    return to_mnist_format(np.clip(ink, 0, 1), mask)


def to_mnist_format(ink: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Scale and centre a digit: [H, W] in 0..1 -> uint8 [28, 28]. mask: bool [H, W], the ink."""
    if max(ink.shape) > LARGEST_SHAPE:  # that many pixels say enough of the strokes
        shape = [max(1, round(side * LARGEST_SHAPE / max(ink.shape))) for side in ink.shape]
        ink, mask = _shrunk(ink, shape), _shrunk(mask.astype(float), shape) > 0.5
    scale = BOX / max(ink.shape)
    # The mean distance to the edge in a line of width w is w / 4.
    stroke = 4 * ndimage.distance_transform_edt(np.pad(mask, 1))[np.pad(mask, 1)].mean() * scale
    if stroke < MIN_STROKE:
        reach = max(1, round((MIN_STROKE - stroke) / scale / 2))
        ink = ndimage.grey_dilation(np.pad(ink, reach), footprint=_disc(reach))
    elif stroke > MAX_STROKE:
        reach = max(1, round((stroke - MAX_STROKE) / scale / 2))
        ink = ndimage.grey_erosion(ink, footprint=_disc(reach))
    scale = BOX / max(ink.shape)
    height, width = (max(1, round(side * scale)) for side in ink.shape)
    small = np.clip(_shrunk(ink, (height, width)), 0, 1)
    small = small / max(small.max(), 1e-6)
    centre = ndimage.center_of_mass(small)
    top, left = (
        int(np.clip(round(SIZE / 2 - 0.5 - position), 0, SIZE - side))
        for position, side in zip(centre, small.shape)
    )
    pixels = np.zeros((SIZE, SIZE))
    pixels[top : top + height, left : left + width] = small
    return np.rint(pixels * 255).astype(np.uint8)


def _shrunk(values: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    image = Image.fromarray(values.astype(np.float32))
    return np.asarray(image.resize(list(shape[::-1]), Image.Resampling.BOX))


def _disc(reach: int) -> np.ndarray:
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disc: np.ndarray = x**2 + y**2 <= reach**2 + 0.5
    return disc
