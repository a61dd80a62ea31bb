"""Finds the ink in a picture, without the light on the paper and the border around it.

The background of each pixel is a morphological closing of the picture, which removes anything dark
that is smaller than a share of the picture (Gonzalez and Woods, "Digital Image Processing", on
flat-field correction). Ink is measured relative to it, so that it is as dark in a
shadow as beside it.
"""

import cv2
import numpy as np

from paddle_mnist.errors import PictureError
from paddle_mnist.mnist.pictures.ruled_lines import without_ruled_lines

MIN_CONTRAST = 0.08  # of the ink; black to white is 1
BACKGROUND = 115  # pixels, at the working side; narrower areas belong to the ink
BACKGROUND_SIDE = 128  # pixels, the longer side at which backgrounds are computed
COARSE_SIDE = 24  # pixels, the longer side at which light and dark ink are told apart
BLANK = "blank; expected a digit, darker or lighter than what it is drawn on"


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
    return _stretched(without_ruled_lines(ink))


def as_uint8(values: np.ndarray) -> np.ndarray:
    """Return values of 0..1 as uint8, which much of OpenCV expects."""
    rounded: np.ndarray = np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)
    return rounded


def otsu(ink: np.ndarray) -> float:
    """Return the threshold that separates two classes best. ink: floats in 0..1.

    Otsu, "A threshold selection method from gray-level histograms", 1979.
    """
    return float(cv2.threshold(as_uint8(ink), 0, 1, cv2.THRESH_OTSU)[0]) / 255


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
    """Return the pixels of a border of another colour: bool [H, W].

    It reaches a corner of the picture; a digit that touches the edge does not.
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

    Paper covers most of any neighbourhood. ink: the assumed ink. frame: the border.
    """
    step = max(1, max(ink.shape) // COARSE_SIDE)
    coarse, inked, hidden = (
        array[step // 2 :: step, step // 2 :: step]
        for array in (as_uint8(brightness), ink > MIN_CONTRAST, frame)
    )
    if hidden.all():
        return -1.0
    coarse = np.where(hidden, np.uint8(np.median(coarse[~hidden])), coarse)
    paper = cv2.medianBlur(coarse, max(3, round(0.7 * min(coarse.shape))) | 1)
    deviation = coarse.astype(float) - paper
    explained = (np.minimum(deviation, 0)[inked] ** 2).sum() / max((deviation**2).sum(), 1e-12)
    return float(explained - (hidden | inked).mean() / 2)  # most of a picture is paper
