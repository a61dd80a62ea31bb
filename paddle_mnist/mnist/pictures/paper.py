"""Finds the sheet in a picture, and the ink on it: without light, borders and printed lines.

The background of each pixel is a morphological closing of the picture: what it would be without
anything dark that is smaller than a share of the picture (Gonzalez and Woods, "Digital Image
Processing", on flat-field correction). Ink is measured relative to it, so that it is as dark in a
shadow as beside it.
"""

from typing import Optional

import cv2
import numpy as np

from paddle_mnist.errors import PictureError
from paddle_mnist.mnist.pictures.open import Picture

MIN_CONTRAST = 0.08  # of the ink; black to white is 1
BACKGROUND = 115  # pixels, at the working side; narrower areas belong to the ink
BACKGROUND_SIDE = 128  # pixels, the longer side at which backgrounds are computed
COARSE = 24  # pixels, the longer side at which light and dark ink are told apart

SHEET_SIDE = 256  # pixels, the longer side at which the sheet is sought
SHEET_AREA = 0.02  # of the picture
SHEET_FIT = 0.88  # of a sheet's area and its quadrilateral's, the smaller to the larger
# Distances from a sheet's edges, of the longer side. The sheet is measured from the first to the
# second inside, its surroundings from the first to the third outside, which is wider than a pen.
SHEET_EDGE = (0.015, 0.045, 0.2)
SHEET_CONTRAST = 0.06  # of the brightness
SIDE_CONTRAST = 0.6  # of that contrast, at each side in the picture
SHEET_RIM = 0.02  # of its sides, cut off
UNIT = np.array([(0, 0), (1, 0), (1, 1), (0, 1)])

LINE_WIDTH = 0.02  # of the longer side; a line that is printed on paper is thinner
LINE_SUPPORT = 0.5  # of the side; a printed line is seen along more of it
LINE_SPAN = 0.8  # of the side, from where it begins to where it ends; strokes are shorter
LONE_LINE_SUPPORT = 0.9  # bars of digits in a row leave gaps
LINE_ANGLE = 12  # degrees
FAINTEST_LINE = 0.1  # of the ink's contrast
BLANK = "blank; expected a digit, darker or lighter than what it is drawn on"


def find_sheet(picture: Picture) -> Optional[Picture]:
    """Lay a sheet flat that is brighter than what it lies on; None without one."""
    corners = _corners(picture.brightness)
    if corners is None:
        return None
    lengths = np.linalg.norm(corners - np.roll(corners, -1, axis=0), axis=1)
    extent = np.ceil((lengths[:2] + lengths[2:]) / 2)
    upright = UNIT * extent + (2 * UNIT - 1) * SHEET_RIM * extent.max()
    matrix = cv2.getPerspectiveTransform(corners, upright.astype(np.float32))
    flat = cv2.warpPerspective(picture.brightness, matrix, extent.astype(int).tolist())
    return Picture(flat, picture.to_file @ np.linalg.inv(matrix))


def _corners(brightness: np.ndarray) -> Optional[np.ndarray]:
    """Return the corners of the sheet, float32 [4, 2], x and y, clockwise from the top left.

    It is the largest quadrilateral that differs most from what surrounds it, and has at least
    three sides in the picture.
    """
    scale = SHEET_SIDE / max(brightness.shape)
    grey = cv2.resize(brightness, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    grey = cv2.medianBlur(as_bytes(grey), 5)
    near, far, farther = (np.ones([round(2 * share * SHEET_SIDE) | 1] * 2) for share in SHEET_EDGE)
    limits = np.array(grey.shape[::-1]) - 1
    found, best = None, 0
    for level in (
        np.percentile(grey, 2) + np.ptp(np.percentile(grey, [2, 98])) * np.arange(1, 13) / 13
    ):
        mask = cv2.morphologyEx(np.uint8(grey > level), cv2.MORPH_OPEN, np.ones((5, 5)))
        for contour in cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)[0]:
            hull = cv2.convexHull(contour)
            corners = cv2.approxPolyDP(hull, 0.03 * cv2.arcLength(hull, True), True)[:, 0]
            area, own = cv2.contourArea(corners), cv2.contourArea(contour)
            if len(corners) != 4 or area < SHEET_AREA * grey.size:
                continue
            middles = (corners + np.roll(corners, 1, axis=0)) / 2
            at_border = ((middles < 2) | (middles > limits - 2)).any(axis=1)
            if at_border.sum() > 1 or min(own, area) < SHEET_FIT * max(own, area):
                continue
            inside = cv2.fillConvexPoly(np.zeros_like(grey), corners, 1)
            within = cv2.erode(inside, near) - cv2.erode(inside, far)
            around = cv2.dilate(inside, farther) - cv2.dilate(inside, near)
            if not (within.any() and around.any()):
                continue
            contrast = np.median(grey[within > 0]) - np.median(grey[around > 0])
            if contrast <= SHEET_CONTRAST * 255 or contrast * area <= best:
                continue
            # Beyond the edge of a shadow, a page is darker on one side or two.
            wedges = (_wedge(corners, side, grey.shape) for side in np.flatnonzero(~at_border))
            if all(
                _median(grey, within & wedge) - _median(grey, around & wedge)
                > SIDE_CONTRAST * contrast
                for wedge in wedges
            ):
                found, best = corners, contrast * area
    if found is None:
        return None
    found = found[np.argsort(np.arctan2(*(found - found.mean(axis=0)).T[::-1]))]
    found = np.roll(found, -found.sum(axis=1).argmin(), axis=0)
    sheet: np.ndarray = ((found + 0.5) / scale).astype(np.float32)
    return sheet


def _wedge(corners: np.ndarray, side: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return the part of a picture that lies in the direction of a side, uint8 [H, W], 0 or 1."""
    middle = corners.mean(axis=0)
    ends = middle + 3 * (corners[[side - 1, side]] - middle)
    wedge: np.ndarray = np.zeros(shape, np.uint8)
    cv2.fillConvexPoly(wedge, np.array([middle, *ends]).astype(np.int32), 1)
    return wedge


def _median(grey: np.ndarray, mask: np.ndarray) -> float:
    return float(np.median(grey[mask > 0])) if mask.any() else 0.0


def find_ink(brightness: np.ndarray, working_side: int) -> np.ndarray:
    """Return how much each pixel is covered by ink, float32 [H, W] in 0..1.

    brightness: float32 [H, W] in 0..1, dark on light or light on dark. It is scaled down to
    `working_side` first, or enlarged to at most that. Raises DataError if it is blank.
    """
    scale = working_side / max(brightness.shape)
    if scale < 1:
        brightness = cv2.resize(brightness, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    elif scale > 2:  # pixels are too coarse to measure strokes
        height, width = brightness.shape
        brightness = _enlarged(brightness, (int(scale) * height, int(scale) * width))
    smooth = cv2.GaussianBlur(brightness, (0, 0), min(max(brightness.shape), 256) / 150)
    inks = [_dark_ink(values, working_side) for values in (smooth, 1 - smooth)]
    ink = _stretched(max(inks, key=lambda found: found[0])[1])
    ink, count = _without_horizontal_lines(ink, False)
    if count > 1:  # perhaps squared paper; upright lines alone are stems of digits
        ink = _without_horizontal_lines(np.ascontiguousarray(ink.T), True)[0].T
    return _stretched(ink)


def as_bytes(values: np.ndarray) -> np.ndarray:
    """Return values of 0..1 as uint8, which much of OpenCV expects."""
    rounded: np.ndarray = np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)
    return rounded


def otsu(ink: np.ndarray) -> float:
    """Return the threshold that separates two classes best. ink: floats in 0..1.

    Otsu, "A threshold selection method from gray-level histograms", 1979.
    """
    return float(cv2.threshold(as_bytes(ink), 0, 1, cv2.THRESH_OTSU)[0]) / 255


def _enlarged(values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    values = cv2.resize(values, shape[::-1], interpolation=cv2.INTER_CUBIC)
    enlarged: np.ndarray = np.clip(values, 0, 1)  # the filter overshoots at edges
    return enlarged


def _dark_ink(brightness: np.ndarray, working_side: int) -> tuple[float, np.ndarray]:
    """Return how much darker than its background each pixel is, and how plausible that is."""
    scale = min(1, BACKGROUND_SIDE / max(brightness.shape))
    coarse = cv2.resize(brightness, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    reach = max(3, round(BACKGROUND / working_side * min(coarse.shape)))
    background = cv2.morphologyEx(coarse, cv2.MORPH_CLOSE, np.ones((reach, reach)))
    background = cv2.blur(background, [max(3, reach // 4)] * 2)
    ink = 1 - (brightness + 0.02) / (_enlarged(background, brightness.shape) + 0.02)
    ink = np.clip(ink - np.median(ink), 0, 1)
    frame = _frame(ink)
    return _plausibility(brightness, ink, frame), np.where(frame, 0, ink)


def _stretched(ink: np.ndarray) -> np.ndarray:
    """Scale the contrast to 1, without the paper's noise. Raises DataError if there is no ink."""
    contrast = np.percentile(ink, 99.5)
    if contrast < MIN_CONTRAST:
        raise PictureError(BLANK, "blank")
    paper = ink[ink <= contrast * otsu(ink / contrast)]
    middle = np.median(paper)
    noise = middle + 4 * np.median(np.abs(paper - middle))
    if contrast < 2 * noise:
        raise PictureError(BLANK, "blank")
    stretched: np.ndarray = np.clip((ink - noise) / (contrast - noise), 0, 1)
    return stretched


def _frame(ink: np.ndarray) -> np.ndarray:
    """Return where a border of another colour is: bool [H, W].

    It is what reaches a corner of the picture; a digit that touches the border does not.
    """
    thickest = max(3, round(0.02 * max(ink.shape)))  # of a printed line, which is not a border
    reach = max(2, round(0.015 * min(ink.shape)))
    contrast = max(np.percentile(ink, 99.5), MIN_CONTRAST)
    mask = np.uint8(ink > contrast * otsu(ink / contrast))
    mask = cv2.morphologyEx(mask, cv2.MORPH_OPEN, np.ones((thickest, thickest)))
    labels = cv2.connectedComponents(mask, connectivity=4)[1]
    ends = np.r_[:reach, -reach:0]
    border = np.isin(labels, np.setdiff1d(labels[np.ix_(ends, ends)], 0))
    frame: np.ndarray = cv2.dilate(np.uint8(border), np.ones((9, 9))) > 0
    # A stroke may reach into corners, such as the bar of a 7; then nothing is left without it.
    if not frame[[0, 0, -1, -1], [0, -1, 0, -1]].all():
        frame &= np.percentile(np.where(frame, 0, ink), 99.5) >= MIN_CONTRAST
    return frame


def _plausibility(brightness: np.ndarray, ink: np.ndarray, frame: np.ndarray) -> float:
    """Return how well ink that is darker than the paper explains a picture, at most 1.

    Paper is what covers most of any neighbourhood. ink: what would be the ink; frame: the border.
    """
    step = max(1, max(ink.shape) // COARSE)
    coarse, inked, hidden = (
        array[step // 2 :: step, step // 2 :: step]
        for array in (as_bytes(brightness), ink > MIN_CONTRAST, frame)
    )
    if hidden.all():
        return -1.0
    coarse = np.where(hidden, np.uint8(np.median(coarse[~hidden])), coarse)
    paper = cv2.medianBlur(coarse, max(3, round(0.7 * min(coarse.shape))) | 1)
    deviation = coarse.astype(float) - paper
    explained = (np.minimum(deviation, 0)[inked] ** 2).sum() / max((deviation**2).sum(), 1e-12)
    return float(explained - (hidden | inked).mean() / 2)  # most of a picture is paper


def _without_horizontal_lines(ink: np.ndarray, is_turned: bool) -> tuple[np.ndarray, int]:
    """Take off the lines of ruled or squared paper, beneath the ink or across it, and count them.

    A line without parallels may be a stroke: upright a stem, which meets others; else a bar, where
    the picture is cut to its digit. Strokes remain where they are thicker or darker than a line.
    """
    thickest = max(3, round(LINE_WIDTH * max(ink.shape)))
    strokes, edge = _opened(ink, thickest + 2), 2 * thickest
    thin = (ink - strokes > FAINTEST_LINE).astype(np.uint8)
    lines = _lines(ink, thin, thickest)
    if len(lines) == 1:
        mask, _, support = lines[0]
        is_cut = min(ink[:edge].max(), ink[-edge:].max()) > FAINTEST_LINE
        is_bar = is_cut or mask[:edge].any() or mask[-edge:].any() or support < LONE_LINE_SUPPORT
        if (strokes[mask > 0].max() > FAINTEST_LINE) if is_turned else is_bar:
            return ink, 0
    ink = ink.copy()
    for mask, thickness, _ in lines:
        tall, inside = thickness + 3, np.flatnonzero(mask.any(axis=1))
        rows = slice(max(0, inside[0] - 2 * tall), inside[-1] + 2 * tall)
        part, line = ink[rows], mask[rows]
        level = np.percentile(part[(line & thin[rows]) > 0], 60)
        band = cv2.dilate(line, np.ones((max(1, thickness | 1), 1))) > 0
        is_line = band & (part <= level + 0.5 * (1 - level))
        ink[rows] = np.where(is_line, _opened(part, tall), part)
    return ink, len(lines)


def _opened(ink: np.ndarray, height: int) -> np.ndarray:
    """Return the ink that is at least so high; beyond the border there is none."""
    opened: np.ndarray = cv2.morphologyEx(
        ink, cv2.MORPH_OPEN, np.ones((height, 1)), borderType=cv2.BORDER_CONSTANT, borderValue=0
    )
    return opened


def _lines(ink: np.ndarray, thin: np.ndarray, thickest: int) -> list[tuple[np.ndarray, int, float]]:
    """Return the lines that span a picture, the longest first: mask, thickness, share inked.

    thin: uint8 [H, W], 1 where the ink is not as high as `thickest`.
    """
    width, angles = ink.shape[1], np.pi / 2 + np.radians([-LINE_ANGLE, LINE_ANGLE])
    votes = int(LINE_SUPPORT * width)
    found = cv2.HoughLines(thin, 1, np.radians(0.5), votes, None, 0, 0, *angles)
    lines: list[tuple[np.ndarray, int, float]] = []
    ends: list[np.ndarray] = []
    for rho, theta in [] if found is None else found[:, 0]:
        own = np.rint((rho - np.array([0, width - 1]) * np.cos(theta)) / np.sin(theta)).astype(int)
        above = np.reshape(ends, (-1, 2)) - own
        if not ((above >= thickest).all(axis=1) | (above <= -thickest).all(axis=1)).all():
            continue  # it is the same line, or crosses another
        first, last = zip((0, width - 1), own.tolist())
        mask, band = (cv2.line(np.zeros_like(thin), first, last, 1, t) for t in (3, thickest))
        inked = np.flatnonzero((mask & (ink > FAINTEST_LINE)).any(axis=0))
        if len(inked) >= LINE_SUPPORT * width and np.ptp(inked) >= LINE_SPAN * width:
            thickness = np.median((band & thin).sum(axis=0)[(band & thin).any(axis=0)])
            lines.append((mask, int(thickness), len(inked) / width))
            ends.append(own)
    return lines
