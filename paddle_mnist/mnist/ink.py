"""Tells the ink in a picture from the paper: its light, its border and its lines.

The background of each pixel is a morphological closing of the picture: what it would be without
anything dark that is smaller than a share of the picture (Gonzalez and Woods, "Digital Image
Processing", on flat-field correction). Ink is measured relative to it, so that it is as dark in a
shadow as beside it.
"""

import numpy as np
from PIL import Image
from scipy import ndimage

from paddle_mnist.errors import DataError

MIN_SIDE = 8  # pixels
MIN_CONTRAST = 0.08  # of the ink; black to white is 1
BACKGROUND = 0.45  # of the shorter side; what is narrower is no background
BACKGROUND_SIDE = 128  # pixels, the longer side at which backgrounds are computed
COARSE = 24  # pixels, the longer side at which light and dark ink are told apart

LINE_WIDTH = 0.02  # of the longer side; a line that is printed on paper is thinner
LINE_SUPPORT = 0.5  # of the side; a printed line is seen along more of it
LONE_LINE_SUPPORT = 0.9  # a line without parallels may be a stroke of a digit
LINE_PARTS = 8  # of its length, in most of which a printed line is seen
LINE_SLOPES = np.tan(np.radians(np.arange(-12, 12.1, 0.5)))
FAINTEST_LINE = 0.1  # of the ink's contrast
BLANK = "blank; expected a digit, darker or lighter than what it is drawn on"
MOST_LINES = 60  # in one direction
BINS = 128  # of brightness


def find_ink(brightness: np.ndarray, working_side: int) -> np.ndarray:
    """Return how much each pixel is covered by ink, float32 [H, W] in 0..1.

    brightness: float32 [H, W] in 0..1, dark on light or light on dark; a small picture is enlarged
    to at most `working_side`. Raises DataError if it is blank.
    """
    height, width = brightness.shape
    if min(height, width) < MIN_SIDE:
        raise DataError(f"{width} x {height} pixels; expected at least {MIN_SIDE} x {MIN_SIDE}")
    if max(height, width) < working_side / 2:  # pixels are too coarse to measure strokes
        factor = working_side // max(height, width)
        brightness = _resized(brightness, (height * factor, width * factor))
    smooth = ndimage.gaussian_filter(brightness, min(max(brightness.shape), 256) / 150)
    dark, light = _dark_ink(smooth), _dark_ink(1 - smooth)
    dark_frame, light_frame = _frame(dark), _frame(light)
    is_dark = _plausibility(smooth, dark, dark_frame) >= _plausibility(
        1 - smooth, light, light_frame
    )
    ink = np.where(dark_frame, 0, dark) if is_dark else np.where(light_frame, 0, light)
    ink = without_lines(_stretched(ink))
    return _stretched(ink)


def _resized(values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    if values.shape == shape:
        return values
    image = Image.fromarray(values.astype(np.float32))
    larger = shape[0] > values.shape[0]
    how = Image.Resampling.BICUBIC if larger else Image.Resampling.BOX
    return np.clip(np.asarray(image.resize(shape[::-1], how)), 0, 1)


def _dark_ink(brightness: np.ndarray) -> np.ndarray:
    """Return how much darker than its background each pixel is, 0 to 1."""
    height, width = brightness.shape
    factor = max(1, max(height, width) // BACKGROUND_SIDE)
    coarse = _resized(brightness, (-(-height // factor), -(-width // factor)))
    reach = max(3, round(BACKGROUND * min(coarse.shape)))
    background = ndimage.grey_closing(coarse, reach)
    background = ndimage.uniform_filter(background, max(3, reach // 4))
    background = _resized(background, brightness.shape)
    ink = 1 - (brightness + 0.02) / (background + 0.02)
    darker: np.ndarray = np.clip(ink - np.median(ink), 0, 1)
    return darker


def _stretched(ink: np.ndarray) -> np.ndarray:
    """Scale the contrast to 1, without the paper's noise. Raises DataError if there is no ink."""
    contrast = np.percentile(ink, 99.5)
    if contrast < MIN_CONTRAST:
        raise DataError(BLANK)
    paper = ink[ink <= contrast * otsu(np.clip(ink / contrast, 0, 1))]
    middle = np.median(paper)
    noise = middle + 4 * np.median(np.abs(paper - middle))
    if contrast < 2 * noise:
        raise DataError(BLANK)
    stretched: np.ndarray = np.clip((ink - noise) / (contrast - noise), 0, 1)
    return stretched


def _frame(ink: np.ndarray) -> np.ndarray:
    """Return where a border of another colour is: bool [H, W].

    Whatever reaches a corner of the picture; a digit that touches the border does not.
    """
    frame = np.zeros(ink.shape, bool)
    thickest = max(3, round(0.02 * max(ink.shape)))  # of a printed line, which is no border
    for _ in range(3):  # a fainter border is seen when a stronger one is taken off
        rest = np.where(frame, 0, ink)
        contrast = np.percentile(rest, 99.5)
        if contrast < MIN_CONTRAST:
            break
        mask = rest > contrast * otsu(np.clip(rest / contrast, 0, 1))
        if not _in_corners(mask).any():
            break
        shapes, _ = ndimage.label(ndimage.grey_opening(mask.astype(np.uint8), thickest))
        numbers = np.unique(_in_corners(shapes))
        numbers = numbers[numbers > 0]
        if not len(numbers):
            break
        frame |= ndimage.binary_dilation(np.isin(shapes, numbers), iterations=4)
    # A stroke may reach into one corner; then nothing is left without it.
    left = np.where(frame, 0, ink)
    if _corners(frame) == 1 and np.percentile(left, 99.5) < MIN_CONTRAST:
        return np.zeros(ink.shape, bool)
    return frame


def _in_corners(values: np.ndarray) -> np.ndarray:
    """Return the values near the four corners of [H, W], one after the other."""
    reach = max(2, round(0.015 * min(values.shape)))
    ends = (slice(reach), slice(-reach, None))
    return np.concatenate([values[rows, columns].ravel() for rows in ends for columns in ends])


def _corners(mask: np.ndarray) -> int:
    return int(sum(mask[row, column] for row in (0, -1) for column in (0, -1)))


def _plausibility(brightness: np.ndarray, ink: np.ndarray, frame: np.ndarray) -> float:
    """Return how well ink that is darker than the paper explains a picture, at most 1.

    Paper is what covers most of any neighbourhood. ink: what would be the ink; frame: the border.
    """
    step = max(1, max(ink.shape) // COARSE)
    coarse, inked, hidden = (
        array[step // 2 :: step, step // 2 :: step]
        for array in (brightness, ink > MIN_CONTRAST, frame)
    )
    if hidden.all():
        return -1.0
    coarse = np.where(hidden, np.median(coarse[~hidden]), coarse)
    paper = ndimage.median_filter(coarse, max(3, round(0.7 * min(coarse.shape))), mode="nearest")
    deviation = coarse - paper
    darker = np.clip(deviation, None, 0)[inked]
    explained = (darker**2).sum() / max((deviation**2).sum(), 1e-12)
    quality: float = explained - (hidden | inked).mean() / 2  # most of a picture is paper
    return quality


def otsu(ink: np.ndarray) -> float:
    """Return the threshold that separates two classes best. ink: floats in 0..1.

    Otsu, "A threshold selection method from gray-level histograms", 1979.
    """
    bins = np.minimum(ink * BINS, BINS - 1).astype(np.uint8)
    counts = np.bincount(bins.ravel(), minlength=BINS)
    centres = (np.arange(BINS) + 0.5) / BINS
    below, total = np.cumsum(counts), counts.sum()
    sums = np.cumsum(counts * centres)
    with np.errstate(divide="ignore", invalid="ignore"):
        between = (sums[-1] * below / total - sums) ** 2 / (below * (total - below))
    return float(np.nanargmax(between) + 1) / BINS


def without_lines(ink: np.ndarray) -> np.ndarray:
    """Take off the lines of ruled or squared paper, beneath the ink or across it.

    A pixel on a line has the ink of both sides of the line, unless it is darker than the line.
    """
    for turn in (np.asarray, np.transpose):
        ink = turn(_without_horizontal_lines(turn(ink)))
    return ink


def _without_horizontal_lines(ink: np.ndarray) -> np.ndarray:
    thickest = max(3, round(LINE_WIDTH * max(ink.shape)))
    thin = ink - ndimage.grey_opening(ink, (thickest + 2, 1))
    cleaned = ink.copy()
    for middle, slope in _lines(thin, thickest):
        _take_off(ink, cleaned, middle, slope, thickest)
    return cleaned


def _take_off(
    ink: np.ndarray, cleaned: np.ndarray, middle: float, slope: float, thickest: int
) -> None:
    """Take a line off `cleaned`. middle: its row in the middle of the picture."""
    height, width = ink.shape
    columns = np.arange(width)
    centre = np.rint(middle + slope * (columns - width / 2)).astype(int)
    rows = centre + np.arange(-thickest, thickest + 1)[:, np.newaxis]
    inside = (rows >= 0) & (rows < height)
    if inside.all(axis=1).sum() < 3:  # along the border
        return
    band = np.where(inside, ink[np.clip(rows, 0, height - 1), columns], np.nan)
    profile = np.array(
        [np.median(row[known]) if known.any() else 0 for row, known in zip(band, inside)]
    )
    level = profile.max()
    first = last = int(profile.argmax())
    while first > 0 and profile[first - 1] > 0.3 * level:
        first -= 1
    while last < len(profile) - 1 and profile[last + 1] > 0.3 * level:
        last += 1
    first, last = max(0, first - 1), min(len(band) - 1, last + 1)  # just outside of the line
    sides = np.minimum(np.nan_to_num(band[first]), np.nan_to_num(band[last]))
    for number in range(first, last + 1):
        used = inside[number]
        value = band[number, used]
        own = np.where(value > level + 0.5 * (1 - level), value, 0)  # ink upon the line
        cleaned[rows[number, used], columns[used]] = np.maximum(sides[used], own)


def _lines(thin: np.ndarray, thickest: int) -> list[tuple[float, float]]:
    """Return the nearly horizontal lines as (row in the middle of the picture, slope).

    Hough, "Method and means for recognizing complex patterns", 1962.
    """
    height, width = thin.shape
    rows, columns = np.nonzero(thin > FAINTEST_LINE)
    if not len(rows):
        return []
    votes = np.zeros((len(LINE_SLOPES), height), np.int32)
    for line, slope in enumerate(LINE_SLOPES):
        at = np.rint(rows - slope * (columns - width / 2)).astype(int)
        # A line that is several pixels thick has one vote in each column.
        kept = (at >= 0) & (at < height)
        votes[line] = np.bincount(at[kept], minlength=height)
    lines: list[tuple[float, float]] = []
    support = []
    while len(lines) < MOST_LINES:
        number, row = np.unravel_index(votes.argmax(), votes.shape)
        count = votes[number, row]
        if count < LINE_SUPPORT * width:
            break
        votes[:, max(0, row - thickest) : row + thickest + 1] = 0
        slope = LINE_SLOPES[number]
        near = np.abs(rows - slope * (columns - width / 2) - row) <= 1
        seen = np.zeros(width, bool)
        seen[columns[near]] = True
        parts = [part.mean() >= 0.5 for part in np.array_split(seen, LINE_PARTS)]
        if sum(parts) >= LINE_PARTS - 2:
            lines.append((float(row), slope))
            support.append(count / width)
    return lines if len(lines) > 1 or max(support, default=0) >= LONE_LINE_SUPPORT else []
