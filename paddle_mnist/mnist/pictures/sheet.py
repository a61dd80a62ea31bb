"""Finds the sheet of paper in a picture, and lays it flat."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

import cv2
import numpy as np

from paddle_mnist.mnist.pictures.ink import as_uint8
from paddle_mnist.mnist.pictures.open import Picture

SIDE = 256  # pixels, the longer side at which the sheet is sought
LEVELS = 12  # of brightness, at each of which brighter areas are looked at
MIN_AREA = 0.02  # of the picture
MIN_FIT = 0.88  # of a sheet's area and its quadrilateral's, the smaller to the larger
# Distances from a sheet's edges, of the longer side. The sheet is measured between the first two,
# its surroundings between the first and the third, which is wider than a pen that lies beside it.
NEAR, INNER, OUTER = 0.015, 0.045, 0.2
MIN_CONTRAST = 0.06  # of the brightness
MIN_SIDE_CONTRAST = 0.6  # of that contrast; beyond a shadow's edge one side or two are darker
RIM = 0.02  # of a sheet's longest side, cut off at each
UNIT = np.array([(0, 0), (1, 0), (1, 1), (0, 1)])


def find_sheet(picture: Picture) -> Optional[Picture]:
    """Lay a sheet flat that is brighter than the surface below it; None without one."""
    corners = _corners(picture.brightness)
    if corners is None:
        return None
    lengths = np.linalg.norm(corners - np.roll(corners, -1, axis=0), axis=1)
    extent = np.ceil((lengths[:2] + lengths[2:]) / 2)
    upright = UNIT * extent + (2 * UNIT - 1) * RIM * extent.max()
    matrix = cv2.getPerspectiveTransform(corners, upright.astype(np.float32))
    flat = cv2.warpPerspective(picture.brightness, matrix, extent.astype(int).tolist())
    return Picture(flat, picture.to_file @ np.linalg.inv(matrix))


@dataclass(frozen=True)
class _Quadrilateral:
    """An area that may be a sheet.

    corners: int32 [4, 2], x and y. area: in pixels. inner_sides: the sides inside the picture.
    """

    corners: np.ndarray
    area: float
    inner_sides: np.ndarray


def _corners(brightness: np.ndarray) -> Optional[np.ndarray]:
    """Return the corners of the sheet, float32 [4, 2], x and y, clockwise from the top left.

    Of the quadrilaterals that are brighter than their surroundings at each side in the picture, it
    is the one whose area times contrast is the largest.
    """
    scale = SIDE / max(brightness.shape)
    grey = cv2.resize(brightness, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    grey = cv2.medianBlur(as_uint8(grey), 5)
    candidates = []
    for found in _quadrilaterals(grey):
        within, around = _edges(grey, found)
        if within.any() and around.any():
            contrast = _median(grey, within) - _median(grey, around)
            candidates.append((contrast * found.area, contrast, found))
    for _, contrast, found in sorted(candidates, key=lambda candidate: -candidate[0]):
        if contrast > MIN_CONTRAST * 255 and _is_brighter_at_sides(grey, found, contrast):
            corners = found.corners
            corners = corners[np.argsort(np.arctan2(*(corners - corners.mean(axis=0)).T[::-1]))]
            corners = np.roll(corners, -corners.sum(axis=1).argmin(), axis=0)
            sheet: np.ndarray = ((corners + 0.5) / scale).astype(np.float32)
            return sheet
    return None


def _quadrilaterals(grey: np.ndarray) -> Iterator[_Quadrilateral]:
    """Yield the bright areas with four corners and at least three sides in the picture."""
    limits = np.array(grey.shape[::-1]) - 1
    darkest, brightest = np.percentile(grey, [2, 98])
    for level in darkest + (brightest - darkest) * np.arange(1, LEVELS + 1) / (LEVELS + 1):
        mask = cv2.morphologyEx(np.uint8(grey > level), cv2.MORPH_OPEN, np.ones((5, 5)))
        for contour in cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)[0]:
            hull = cv2.convexHull(contour)
            corners = cv2.approxPolyDP(hull, 0.03 * cv2.arcLength(hull, True), True)[:, 0]
            area, own = cv2.contourArea(corners), cv2.contourArea(contour)
            middles = (corners + np.roll(corners, 1, axis=0)) / 2
            is_inner = ((middles >= 2) & (middles <= limits - 2)).all(axis=1)
            is_large = area >= MIN_AREA * grey.size and min(own, area) >= MIN_FIT * max(own, area)
            if len(corners) == 4 and is_inner.sum() >= 3 and is_large:
                yield _Quadrilateral(corners, area, np.flatnonzero(is_inner))


def _edges(grey: np.ndarray, found: _Quadrilateral) -> tuple[np.ndarray, np.ndarray]:
    """Return the bands within and around a quadrilateral's edges: uint8 [H, W], 0 or 1, each."""
    near, inner, outer = (np.ones([round(2 * at * SIDE) | 1] * 2) for at in (NEAR, INNER, OUTER))
    inside = cv2.fillConvexPoly(np.zeros_like(grey), found.corners, 1)
    within = cv2.erode(inside, near) - cv2.erode(inside, inner)
    return within, cv2.dilate(inside, outer) - cv2.dilate(inside, near)


def _is_brighter_at_sides(grey: np.ndarray, found: _Quadrilateral, contrast: float) -> bool:
    within, around = _edges(grey, found)
    middle = found.corners.mean(axis=0)
    for side in found.inner_sides:
        ends = middle + 3 * (found.corners[[side - 1, side]] - middle)
        wedge: np.ndarray = np.zeros_like(grey)  # what lies in the direction of this side
        cv2.fillConvexPoly(wedge, np.array([middle, *ends]).astype(np.int32), 1)
        own = _median(grey, within & wedge) - _median(grey, around & wedge)
        if own <= MIN_SIDE_CONTRAST * contrast:
            return False
    return True


def _median(grey: np.ndarray, mask: np.ndarray) -> float:
    return float(np.median(grey[mask > 0])) if mask.any() else 0.0
