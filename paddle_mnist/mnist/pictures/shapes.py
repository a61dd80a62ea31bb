"""Finds the shapes in a picture's ink: which strokes belong together, and in which order to read.

1. Pixels that are dark beside their neighbours form strokes, connected areas (`_find_strokes`).
2. Strips along the border, such as the edge of a desk, are erased first (`_strips`): they would
   make fainter or smaller strokes look like stains or dirt.
3. Of the other strokes, stains are faint, and dirt is small (`_Strokes.ink`, `find_shapes`).
4. Strokes above each other, and the parts of a 4 or a 5, form one shape (`_groups`). A small stroke
   belongs to the nearest shape.
5. Shapes form rows, and a small one that hangs from the lower half of a row is a mark, such as a
   comma (`in_reading_order`).

Nothing here knows what a digit looks like; `paddle_mnist.mnist.pictures.detector` does.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Optional

import cv2
import numpy as np

from paddle_mnist.errors import PictureError

# 1. Strokes
CONTRAST_REACH = 0.06  # of the longer side; ink is compared with the darkest within it
MIN_INK = 0.42  # of that; fainter pixels are paper
FAINTEST = 0.15  # of the strongest ink, the same
FAINTEST_ON_PAGE = 0.1  # a stain is a shape among others there, not a second digit
MAX_STROKES = 1000  # more are noise or a pattern, not handwriting
# 2. Strips
STRIP_CONTACT = 0.8  # of a strip's length, at least, lies at the border
STRIP_LENGTH, STRIP_DEPTH = 1.2, 0.5  # of the tallest other stroke, at least and at most
# 3. Stains and dirt
MIN_STRENGTH = 0.3  # of the strongest stroke's mean ink
MIN_STRENGTH_AT_BORDER = 0.65  # where a shadow often comes from
MIN_STROKE_AREA = 0.04  # of the largest stroke's; smaller ones are dirt
MIN_SHAPE_AREA = 0.15  # the same; smaller ones belong to a shape, but are none by themselves
# 4. Groups
SAME_COLUMNS = 0.3  # of the narrower stroke's width; strokes side by side have less in common
MAX_BREAK = 0.12  # of the height of both; strokes with a larger gap are two shapes
MAX_HEIGHT = 1.4  # of the usual one, on a page; strokes that are taller together are two shapes
MAX_GAP = 0.12  # of the taller stroke's height, from it to its flag or angle
FLAG_HEIGHT = 0.45  # of the taller stroke's; such as the flag of a 5
ANGLE_HEIGHT = 0.75  # the same of the angle of a 4, left of its stem
RAISED = 0.2  # of the stem's height; the angle of a 4 ends at least this far above its foot
# 5. Rows
SMALL = 0.55  # of the usual height; what is lower may be a comma
SAME_ROW = 0.6  # of the usual height, from where the row's last shapes would have the next


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

    @property
    def slices(self) -> tuple[slice, slice]:
        return slice(self.top, self.bottom), slice(self.left, self.right)

    def transformed(self, matrix: np.ndarray) -> "Box":
        """Return the box around this one where a perspective, float [3, 3], takes it."""
        ends = [[(x, y)] for x in (self.left, self.right) for y in (self.top, self.bottom)]
        corners = cv2.perspectiveTransform(np.array(ends, float), matrix).round(3)
        return Box(
            *np.floor(corners.min(axis=(0, 1))).astype(int).tolist(),
            *np.ceil(corners.max(axis=(0, 1))).astype(int).tolist(),
        )


@dataclass(frozen=True)
class Shape:
    """Strokes that belong together.

    mask: bool, where their ink is, of the box alone. is_mark: whether it is small and hangs from
    the lower half of its row, as a comma does.
    """

    box: Box
    mask: np.ndarray
    is_mark: bool = False


def find_shapes(ink: np.ndarray, faintest: float = FAINTEST) -> list[Shape]:
    """Return the shapes in reading order: rows from the top, each from the left.

    ink: floats [H, W] in 0..1. faintest: the least ink, of the strongest. Raises PictureError for
    more than MAX_STROKES strokes.
    """
    strokes = _find_strokes(ink, faintest)
    if strokes is None:
        return []
    strips = _strips(strokes)
    if strips.any():
        is_strip = np.isin(strokes.labels, np.flatnonzero(strips) + 1)
        return find_shapes(np.where(is_strip, 0, ink), faintest)
    is_ink, areas = strokes.is_ink(), strokes.areas
    kept = is_ink & (areas >= MIN_STROKE_AREA * areas[is_ink].max())
    large = is_ink & (areas >= MIN_SHAPE_AREA * areas[is_ink].max())
    if (count := kept.sum()) > MAX_STROKES:
        found = f"{count:,} strokes, as in noise or a pattern; expected at most {MAX_STROKES:,}"
        raise PictureError(f"{found}; photograph fewer digits at once", "strokes")
    outlines, shapes = strokes.outlines[kept], []
    for members in _groups(outlines, large[kept]):
        box = Box(*_union(outlines[members]))
        own = np.flatnonzero(kept)[members] + 1
        shapes.append(Shape(box, np.isin(strokes.labels[box.slices], own)))
    return in_reading_order(shapes)


@dataclass(frozen=True)
class _Strokes:
    """The strokes of a picture, N of them.

    labels: int [H, W], the number of the stroke at each pixel, from 1; 0 is paper.
    outlines: int [N, 4], left, top, right and bottom, as of a `Box`. areas: int [N], pixels.
    strengths: float [N], the mean ink of each.
    """

    labels: np.ndarray
    outlines: np.ndarray
    areas: np.ndarray
    strengths: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """Width and height: int [N, 2]."""
        sizes: np.ndarray = self.outlines[:, 2:] - self.outlines[:, :2]
        return sizes

    def is_ink(self) -> np.ndarray:
        """Return which strokes are no stains, by strength or by height: bool [N]."""
        height, width = self.labels.shape
        at_border = (self.outlines == [0, 0, width, height]).any(axis=1)
        strongest = self.strengths[self.areas >= MIN_SHAPE_AREA * self.areas.max()].max()
        least = np.where(at_border, MIN_STRENGTH_AT_BORDER, MIN_STRENGTH) * strongest
        is_strong, heights = self.strengths >= least, self.sizes[:, 1]
        is_high = heights > FLAG_HEIGHT * np.median(heights[is_strong])
        is_ink: np.ndarray = is_strong | (~at_border & is_high)
        return is_ink


def _find_strokes(ink: np.ndarray, faintest: float) -> Optional[_Strokes]:
    """Return the strokes; None without any. ink, faintest: see `find_shapes`."""
    reach = round(CONTRAST_REACH * max(ink.shape)) | 1
    darkest = cv2.dilate(ink, np.ones((reach, reach)))
    mask = np.uint8(ink > np.maximum(MIN_INK * darkest, faintest))
    # A stroke with a break of a pixel or two is one stroke.
    closed = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, np.ones((3, 3)))
    count, labels, stats, _ = cv2.connectedComponentsWithStats(closed)
    if count == 1:  # the paper alone
        return None
    labels = labels * mask
    outlines = stats[1:, [cv2.CC_STAT_LEFT, cv2.CC_STAT_TOP] * 2]
    outlines[:, 2:] += stats[1:, [cv2.CC_STAT_WIDTH, cv2.CC_STAT_HEIGHT]]
    areas = np.bincount(labels.ravel(), minlength=count)[1:]
    strengths = np.bincount(labels.ravel(), ink.ravel(), count)[1:] / areas
    return _Strokes(labels, outlines, areas, strengths)


def _strips(strokes: _Strokes) -> np.ndarray:
    """Return which strokes are strips along the border: bool [N]."""
    labels, sizes = strokes.labels, strokes.sizes
    found = np.zeros(len(sizes), bool)
    for axis, turned in enumerate((labels, labels.T)):
        for side in turned[[0, -1]]:
            contact = np.bincount(side, minlength=len(sizes) + 1)[1:]
            along = contact > STRIP_CONTACT * sizes[:, axis]
            tallest = sizes[~along, 1].max(initial=0)  # a 1 is not longer than the others
            is_long = sizes[:, axis] > STRIP_LENGTH * tallest
            found |= along & is_long & (sizes[:, 1 - axis] < STRIP_DEPTH * tallest)
    return found


def _union(outlines: np.ndarray) -> list[int]:
    """Return left, top, right and bottom of outlines, int [N, 4], together."""
    return [*outlines[:, :2].min(axis=0).tolist(), *outlines[:, 2:].max(axis=0).tolist()]


def _groups(outlines: np.ndarray, is_large: np.ndarray) -> list[np.ndarray]:
    """Return which strokes belong together. outlines: int [N, 4]; is_large: bool [N]."""
    groups = [np.array([number]) for number in np.flatnonzero(is_large)]
    unions = outlines[is_large]
    usual = np.median(unions[:, 3] - unions[:, 1])
    is_page = len(unions) > 3
    tallest = MAX_HEIGHT * usual if is_page else np.inf
    while True:
        first = _belong_together(unions, tallest).argmax(axis=1)
        if (first == np.arange(len(groups))).all():
            break
        groups = [
            np.concatenate([group for group, own in zip(groups, first) if own == number])
            for number in np.unique(first)
        ]
        unions = np.array([_union(outlines[group]) for group in groups])
    for number in np.flatnonzero(~is_large):  # a small stroke belongs to what is nearest
        first, last = outlines[number, :2], outlines[number, 2:]
        apart = np.maximum(np.maximum(first - unions[:, 2:], unions[:, :2] - last), 0)
        distances = np.hypot(*apart.T)
        nearest = int(distances.argmin())
        if distances[nearest] <= 0.5 * (unions[nearest, 3] - unions[nearest, 1]):
            groups[nearest] = np.append(groups[nearest], number)
        elif is_page:  # not read, but not passed over in silence either
            groups.append(np.array([number]))
    return groups


def _belong_together(outlines: np.ndarray, tallest: float) -> np.ndarray:
    """Return which outlines, int [N, 4], belong together: bool [N, N]."""
    left, top, right, bottom = outlines.T
    columns = np.minimum.outer(right, right) - np.maximum.outer(left, left)
    narrower = np.minimum.outer(right - left, right - left)
    gap = np.maximum.outer(top, top) - np.minimum.outer(bottom, bottom)
    height = np.maximum.outer(bottom, bottom) - np.minimum.outer(top, top)
    above = (columns > SAME_COLUMNS * narrower) & (gap <= MAX_BREAK * height)
    lower, higher = (
        function.outer(bottom - top, bottom - top) for function in (np.minimum, np.maximum)
    )
    near = np.maximum(gap, -columns) <= MAX_GAP * higher
    is_left = np.subtract.outer(left, left) + np.subtract.outer(right, right) < 0
    is_raised = np.subtract.outer(bottom, bottom) < -RAISED * higher
    of_four = is_left & is_raised & (np.subtract.outer(top, top) > -RAISED * higher)
    part = lower < FLAG_HEIGHT * higher
    if tallest == np.inf:  # on a page the angle of a 4 may be a raised digit
        part |= (of_four | of_four.T) & (lower < ANGLE_HEIGHT * higher)
    belong: np.ndarray = (above | (near & part)) & (height <= tallest)
    np.fill_diagonal(belong, True)
    return belong


def in_reading_order(shapes: Iterable[Shape]) -> list[Shape]:
    """Sort shapes into rows from the top, each from the left; a row may rise or fall a little.

    A row is a line through the middles of its shapes, which is followed from the left. A small
    shape belongs to the row whose middle it almost reaches.
    """
    shapes = sorted(shapes, key=lambda shape: shape.box.left)
    usual = np.median([shape.box.height for shape in shapes])
    rows: list[list[Shape]] = []
    for shape in shapes:
        is_small = shape.box.height < SMALL * usual
        middle = shape.box.top if is_small else _middle([shape])
        distances = [abs(_middle(row[-3:]) - middle) for row in rows]
        best = int(np.argmin(distances)) if rows else 0
        if not rows or distances[best] > SAME_ROW * usual:
            rows.append([shape])
        else:
            is_low = shape.box.top > _middle(rows[best][-3:])
            rows[best].append(replace(shape, is_mark=bool(is_small and is_low)))
    return [shape for row in sorted(rows, key=_middle) for shape in row]


def _middle(row: Sequence[Shape]) -> float:
    digits = [shape for shape in row if not shape.is_mark] or row
    return sum(shape.box.top + shape.box.bottom for shape in digits) / 2 / len(digits)
