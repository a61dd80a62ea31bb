"""Makes 28 x 28 pixels of a digit's ink, as the images of MNIST were made.

Those were scaled to fit into 20 x 20 pixels, keeping their proportions, and placed in 28 x 28 with
their centre of mass in the middle (LeCun, Cortes, Burges, "The MNIST database of handwritten
digits").
"""

from typing import Optional

import cv2
import numpy as np
from PIL import Image

from paddle_mnist.mnist.pictures.shapes import Shape
from paddle_mnist.mnist.splits import SIZE

LARGEST_SHAPE = 160  # pixels of the longer side, when its strokes are measured
SOFT_EDGE = 2  # pixels around a shape, which are part of its strokes
FADE_REACH = 0.15  # of the longer side; ink is compared with the darkest within it
FAINTEST_STROKE = 0.6  # of a shape's usual ink; what is fainter does not become as dark
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
    if max(cv2.boundingRect(pixels)[2:]) != BOX:
        return None
    is_centred = max(abs(at - 0.5 - SIZE / 2) for at in _centre(pixels)) <= 0.5
    return pixels if is_centred else None


def cut_out(ink: np.ndarray, shape: Shape) -> np.ndarray:
    """Return a shape of a picture as an image of MNIST's format: uint8 [28, 28]."""
    rows, columns = (slice(at.start, at.stop + 2 * SOFT_EDGE) for at in shape.box.slices)
    part, mask = np.pad(ink, SOFT_EDGE)[rows, columns], np.pad(shape.mask, SOFT_EDGE)
    with_edges = cv2.dilate(mask.astype(np.uint8), _disc(1), iterations=SOFT_EDGE) > 0
    part = np.where(with_edges, part, 0)
    # A stroke that fades becomes as dark as the others.
    reach = [round(FADE_REACH * max(part.shape)) | 1] * 2
    usual = np.percentile(part[mask], 75)
    darkest = cv2.dilate(np.minimum(part, usual), np.ones(reach))
    part = part / np.maximum(cv2.blur(darkest, reach), FAINTEST_STROKE * usual)
    return to_mnist_format(np.clip(part, 0, 1), mask)


def to_mnist_format(ink: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Scale and centre a digit: [H, W] in 0..1 -> uint8 [28, 28]. mask: bool [H, W], the ink."""
    if max(ink.shape) > LARGEST_SHAPE:  # that many pixels say enough of the strokes
        ink, mask = _fitted(ink, LARGEST_SHAPE), _fitted(mask.astype(float), LARGEST_SHAPE) > 0.5
    scale = BOX / max(ink.shape)
    # The mean distance to the edge in a line of width w is w / 4.
    mask = np.pad(mask, 1).astype(np.uint8)
    distances = cv2.distanceTransform(mask, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)[mask > 0]
    stroke = 4 * distances.mean() * scale if distances.size else 0  # too thin for its size
    if stroke < MIN_STROKE:
        reach = max(1, round((MIN_STROKE - stroke) / scale / 2))
        ink = cv2.dilate(np.pad(ink, reach), _disc(reach))
    elif stroke > MAX_STROKE:
        ink = cv2.erode(ink, _disc(max(1, round((stroke - MAX_STROKE) / scale / 2))))
    small = np.clip(_fitted(ink, BOX), 0, 1)
    small = small / max(small.max(), 1e-6)
    left, top = (
        int(np.clip(round(SIZE / 2 - at), 0, SIZE - side))
        for at, side in zip(_centre(small), small.shape[::-1])
    )
    pixels = np.zeros((SIZE, SIZE))
    pixels[top : top + small.shape[0], left : left + small.shape[1]] = small
    return np.rint(pixels * 255).astype(np.uint8)


def _centre(values: np.ndarray) -> list[float]:
    """Return the centre of mass, across and down."""
    # As float64: OpenCV takes float32 of two columns for the points of an outline.
    moments = cv2.moments(values.astype(np.float64))
    mass = moments["m00"] or 1  # 0: blots so thick that nothing was left of them
    return [moments[name] / mass + 0.5 for name in ("m10", "m01")]


def _fitted(values: np.ndarray, side: int) -> np.ndarray:
    """Scale values so that their longer side has this number of pixels."""
    width, height = (max(1, round(own * side / max(values.shape))) for own in values.shape[::-1])
    # Pillow, as the images that the detector learned from were made by its filter.
    image = Image.fromarray(values.astype(np.float32))
    return np.asarray(image.resize((width, height), Image.Resampling.BOX))


def _disc(reach: int) -> np.ndarray:
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disc: np.ndarray = (x**2 + y**2 <= reach**2 + 0.5).astype(np.uint8)
    return disc
