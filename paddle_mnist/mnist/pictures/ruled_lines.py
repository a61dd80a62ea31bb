"""Removes the lines of ruled and squared paper from a picture's ink.

A printed line is thin and straight, and spans the picture. A stroke of a digit may look the same:

    the line is            and may also be               it is removed
    one of several         -                             always
    the only level one     the bar of a 7, in a picture  if it has no gaps and lies inside a picture
                           that is cut to its digit      that is higher than its digit
    the only upright one   a stem                        if it meets no stroke

Upright lines are sought only where there are several horizontal ones, as on squared paper.
Strokes that cross a line remain where they are thicker or darker than the line.
"""

from dataclasses import dataclass

import cv2
import numpy as np

MAX_WIDTH = 0.02  # of the longer side; strokes are thicker
MIN_SUPPORT = 0.5  # of the side, along which a line is inked
MIN_LONE_SUPPORT = 0.9  # the same of the only line; bars of digits in a row leave gaps
MIN_SPAN = 0.8  # of the side, from where a line begins to where it ends
MAX_ANGLE = 12  # degrees
FAINTEST = 0.1  # of the ink's contrast


@dataclass(frozen=True)
class _Line:
    """A thin line from the left to the right.

    mask: uint8 [H, W], 1 on the line, 3 pixels high. ends: int [2], its y at both sides of the
    picture. thickness: in pixels. support: the share of the width that is inked.
    """

    mask: np.ndarray
    ends: np.ndarray
    thickness: int
    support: float


def without_ruled_lines(ink: np.ndarray) -> np.ndarray:
    """Return ink without ruled lines. ink: float32 [H, W] in 0..1."""
    ink, count = _without_horizontal_lines(ink, False)
    if count > 1:
        ink = _without_horizontal_lines(np.ascontiguousarray(ink.T), True)[0].T
    return ink


def _without_horizontal_lines(ink: np.ndarray, is_turned: bool) -> tuple[np.ndarray, int]:
    """Return ink without its lines from the left to the right, and how many there were."""
    thickest = max(3, round(MAX_WIDTH * max(ink.shape)))
    strokes = _opened(ink, thickest + 2)
    thin = (ink - strokes > FAINTEST).astype(np.uint8)
    lines = _lines(ink, thin, thickest)
    if len(lines) == 1:
        meets_strokes = strokes[lines[0].mask > 0].max() > FAINTEST
        if meets_strokes if is_turned else _may_be_bar(lines[0], ink, 2 * thickest):
            return ink, 0
    ink = ink.copy()
    for line in lines:
        tall, inside = line.thickness + 3, np.flatnonzero(line.mask.any(axis=1))
        rows = slice(max(0, inside[0] - 2 * tall), inside[-1] + 2 * tall)
        part, mask = ink[rows], line.mask[rows]
        level = np.percentile(part[(mask & thin[rows]) > 0], 60)
        band = cv2.dilate(mask, np.ones((max(1, line.thickness | 1), 1))) > 0
        is_line = band & (part <= level + 0.5 * (1 - level))
        ink[rows] = np.where(is_line, _opened(part, tall), part)
    return ink, len(lines)


def _may_be_bar(line: _Line, ink: np.ndarray, edge: int) -> bool:
    """Return whether the only line may be the bar of a digit. edge: pixels, the border's width."""
    is_cut = min(ink[:edge].max(), ink[-edge:].max()) > FAINTEST  # the picture, to its digit
    is_at_border = bool(line.mask[:edge].any() or line.mask[-edge:].any())
    return is_cut or is_at_border or line.support < MIN_LONE_SUPPORT


def _opened(ink: np.ndarray, height: int) -> np.ndarray:
    """Return the ink that is at least this high; beyond the border there is none."""
    opened: np.ndarray = cv2.morphologyEx(
        ink, cv2.MORPH_OPEN, np.ones((height, 1)), borderType=cv2.BORDER_CONSTANT, borderValue=0
    )
    return opened


def _lines(ink: np.ndarray, thin: np.ndarray, thickest: int) -> list[_Line]:
    """Return the lines that span a picture, the longest first.

    thin: uint8 [H, W], 1 where the ink is not as high as `thickest`.
    """
    width, angles = ink.shape[1], np.pi / 2 + np.radians([-MAX_ANGLE, MAX_ANGLE])
    votes = int(MIN_SUPPORT * width)
    found = cv2.HoughLines(thin, 1, np.radians(0.5), votes, None, 0, 0, *angles)
    lines: list[_Line] = []
    for rho, theta in [] if found is None else found[:, 0]:
        ends = np.rint((rho - np.array([0, width - 1]) * np.cos(theta)) / np.sin(theta)).astype(int)
        above = np.reshape([line.ends for line in lines], (-1, 2)) - ends
        if not ((above >= thickest).all(axis=1) | (above <= -thickest).all(axis=1)).all():
            continue  # it is the same line, or crosses another
        first, last = zip((0, width - 1), ends.tolist())
        mask, band = (cv2.line(np.zeros_like(thin), first, last, 1, t) for t in (3, thickest))
        inked = np.flatnonzero((mask & (ink > FAINTEST)).any(axis=0))
        if len(inked) >= MIN_SUPPORT * width and np.ptp(inked) >= MIN_SPAN * width:
            thickness = np.median((band & thin).sum(axis=0)[(band & thin).any(axis=0)])
            lines.append(_Line(mask, ends, int(thickness), len(inked) / width))
    return lines
