"""Finds the shapes in a picture's ink: which strokes belong together, and in which order to read.

Nothing here knows what a digit looks like; `paddle_mnist.mnist.detector` does.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import ndimage
from scipy.sparse.csgraph import connected_components

from paddle_mnist.mnist.ink import otsu

MIN_STROKE_AREA = 0.04  # of the largest stroke's area; what is smaller is dirt
MIN_SHAPE_AREA = 0.15  # of the largest stroke's area; what is smaller is no second shape
MIN_STRENGTH = 0.65  # of the strongest ink; what is fainter is a shadow or a stain
SAME_COLUMNS = 0.3  # of the narrower stroke's width; strokes side by side have less in common
BREAK = 0.12  # of the height of both; strokes above each other with a larger gap are two shapes
MOST_SHAPES = 500
FLAG = 0.45  # of the other's height; what is lower, and NEAR, is a part of it, as the flag of a 5
NEAR = 0.12  # of the higher one's height
SAME_ROW = 0.4  # of the lower shape's height


@dataclass(frozen=True)
class Box:
    """A part of a picture, in its pixels; right and bottom are the first that are outside."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def width(self) -> int:
        return self.right - self.left

    @property
    def height(self) -> int:
        return self.bottom - self.top

    def scaled(self, across: float, down: float) -> "Box":
        return Box(
            int(self.left * across),
            int(self.top * down),
            int(np.ceil(self.right * across)),
            int(np.ceil(self.bottom * down)),
        )


@dataclass(frozen=True)
class Shape:
    """Strokes that belong together. mask: bool, where their ink is, of the box alone."""

    box: Box
    mask: np.ndarray


def find_shapes(ink: np.ndarray) -> list[Shape]:
    """Return the shapes in reading order: rows from the top, each from the left.

    ink: floats [H, W] in 0..1, with some ink in it.
    """
    mask = ink > otsu(ink)
    # A stroke with a break of a pixel or two is one stroke.
    labels, count = ndimage.label(ndimage.binary_dilation(mask), np.ones((3, 3)))
    labels = np.where(mask, labels, 0)
    numbers = np.arange(1, count + 1)
    areas = ndimage.sum_labels(np.ones_like(ink), labels, numbers)
    strengths = ndimage.mean(ink, labels, numbers)
    large = areas >= MIN_SHAPE_AREA * areas.max()
    kept = (areas >= MIN_STROKE_AREA * areas.max()) & (
        strengths >= MIN_STRENGTH * strengths[large].max()
    )
    places = ndimage.find_objects(labels)
    outlines = [_outline(places[number - 1]) for number in numbers[kept]]
    shapes = []
    for members in _groups(np.array(outlines), areas[kept] >= MIN_SHAPE_AREA * areas.max()):
        box = Box(*_union(np.array(outlines)[members]))
        inside = labels[box.top : box.bottom, box.left : box.right]
        shapes.append(Shape(box, np.isin(inside, numbers[kept][members])))
    return in_reading_order(shapes)


def _outline(place: tuple[slice, slice]) -> tuple[int, int, int, int]:
    rows, columns = place
    return columns.start, rows.start, columns.stop, rows.stop


def _union(outlines: np.ndarray) -> list[int]:
    """Return left, top, right and bottom of outlines, int [N, 4], together."""
    return [*outlines[:, :2].min(axis=0).tolist(), *outlines[:, 2:].max(axis=0).tolist()]


def _groups(outlines: np.ndarray, is_large: np.ndarray) -> list[np.ndarray]:
    """Return which strokes belong together. outlines: int [N, 4]; is_large: bool [N]."""
    groups = [np.array([number]) for number in np.flatnonzero(is_large)]
    unions = outlines[is_large]
    while len(groups) <= MOST_SHAPES:  # more are no digits that anybody wrote
        count, labels = connected_components(_belong_together(unions), directed=False)
        if count == len(groups):
            break
        groups = [
            np.concatenate([group for group, label in zip(groups, labels) if label == number])
            for number in range(count)
        ]
        unions = np.array([_union(outlines[group]) for group in groups])
    for number in np.flatnonzero(~is_large):  # a small stroke belongs to what is nearest
        distances = _distances(outlines[number], unions)
        nearest = int(distances.argmin())
        if distances[nearest] <= 0.5 * (unions[nearest, 3] - unions[nearest, 1]):
            groups[nearest] = np.append(groups[nearest], number)
    return groups


def _belong_together(outlines: np.ndarray) -> np.ndarray:
    """Return which outlines, int [N, 4], belong together: bool [N, N]."""
    left, top, right, bottom = (outlines[:, side] for side in range(4))
    columns = np.minimum.outer(right, right) - np.maximum.outer(left, left)
    narrower = np.minimum.outer(right - left, right - left)
    gap = np.maximum.outer(top, top) - np.minimum.outer(bottom, bottom)
    height = np.maximum.outer(bottom, bottom) - np.minimum.outer(top, top)
    above = (columns > SAME_COLUMNS * narrower) & (gap <= BREAK * height)
    lower, higher = (
        function.outer(bottom - top, bottom - top) for function in (np.minimum, np.maximum)
    )
    near = np.maximum(gap, -columns) <= NEAR * higher
    belong: np.ndarray = above | (near & (lower < FLAG * higher))
    return belong


def _distances(outline: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the distance from an outline, int [4], to each of others, int [N, 4]."""
    apart = np.maximum(outline[:2], others[:, :2]) - np.minimum(outline[2:], others[:, 2:])
    distances: np.ndarray = np.hypot(*np.maximum(apart, 0).T)
    return distances


def in_reading_order(shapes: Iterable[Shape]) -> list[Shape]:
    """Sort shapes into rows from the top, each from the left; a row may rise or fall a little."""
    rows: list[list[Shape]] = []
    for shape in sorted(shapes, key=lambda shape: shape.box.left):
        shared = [_rows_in_common(row[-1].box, shape.box) for row in rows]
        best = max(range(len(rows)), key=shared.__getitem__, default=None)
        if best is None or shared[best] < SAME_ROW:
            rows.append([shape])
        else:
            rows[best].append(shape)
    rows.sort(key=_middle)
    return [shape for row in rows for shape in row]


def _rows_in_common(first: Box, second: Box) -> float:
    """Return how much of the lower one's height two boxes have in common."""
    shared = min(first.bottom, second.bottom) - max(first.top, second.top)
    return shared / min(first.height, second.height)


def _middle(row: Sequence[Shape]) -> float:
    return float(np.mean([shape.box.top + shape.box.height / 2 for shape in row]))
