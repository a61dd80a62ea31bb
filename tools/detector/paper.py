"""Digits of MNIST written on paper of many kinds, as people photograph them.

An image of MNIST is enlarged, its strokes are drawn anew with a pen of any width, and written on a
page; then light falls on the page and a camera takes it.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Union

import cv2
import numpy as np
from PIL import Image

Random = np.random.RandomState
Draw = Callable[[Random], Image.Image]
Colour = np.ndarray  # float [3], 0 to 1
Cover = np.ndarray  # float [H, W], 0 to 1: where ink is
Page = np.ndarray  # float [H, W, 3], 0 to 1

INWARD = np.array([(1, 1), (-1, 1), (-1, -1), (1, -1)])  # from the corners of a page, in turn


@dataclass
class Lot:
    """What is drawn by lot for a picture; a kind of paper changes some of it.

    size: height and width, pixels. height: of the digit, share of the picture's smaller side.
    pen: width of the stroke, share of the digit's height. at: the digit's centre, shares.
    noise: of the camera, standard deviation. blur: pixels. quality: of the JPEG.
    """

    size: tuple[int, int]
    height: float
    pen: float
    at: tuple[float, float]
    paper: Colour
    ink: Colour
    noise: float
    blur: float
    quality: int

    @property
    def pixels(self) -> float:
        """The digit's height."""
        return self.height * min(self.size)

    def sheet(self) -> Page:
        return np.ones((*self.size, 3)) * self.paper


def cast(random: Random) -> Lot:
    sizes = [(120, 120), (160, 200), (240, 320), (400, 300), (480, 640), (640, 480)]
    return Lot(
        size=sizes[random.randint(len(sizes))],
        height=random.uniform(0.4, 0.75),
        pen=random.uniform(0.07, 0.14),
        at=(random.uniform(0.44, 0.56), random.uniform(0.44, 0.56)),
        paper=np.clip(random.uniform(0.78, 0.98) + random.uniform(-0.02, 0.02, 3), 0, 1),
        ink=random.uniform(0.02, 0.22) + random.uniform(0, [0.08, 0.08, 0.3]),
        noise=random.uniform(0.0, 0.02),
        blur=random.uniform(0, 0.8),
        quality=random.randint(70, 96),
    )


# ------------------------------------------------------------------ ink, light, a camera


def trimmed(values: np.ndarray, level: float = 0.5) -> np.ndarray:
    """Cut off the rows and columns around what is above `level`."""
    left, top, width, height = cv2.boundingRect((values > level).astype(np.uint8))
    return values[top : top + height, left : left + width]


def stroke(image: np.ndarray, height: float, pen: float) -> Cover:
    """Draw a digit anew with a pen of a given width.

    image: uint8 [28, 28], of MNIST. height: pixels. pen: share of the height.
    """
    digit = trimmed(image, 64)
    scale = height / max(digit.shape)
    large = cv2.resize(np.pad(digit, 2), None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
    width = max(1.2, pen * height)
    inside = np.pad(np.where(large > 100, np.uint8(255), np.uint8(0)), int(width) + 2)
    middle = cv2.ximgproc.thinning(inside)
    distance = cv2.distanceTransform(255 - middle, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    return np.clip(width / 2 - distance + 0.5, 0, 1)


def tilted(values: np.ndarray, turn: float, shear: float, scale: float = 1) -> np.ndarray:
    """Turn a drawing around its middle by so many degrees, shear and scale it."""
    matrix = scale * cv2.getRotationMatrix2D((0, 0), turn, 1)[:, :2] @ [[1, shear], [0, 1]]
    middle = (np.array(values.shape[::-1]) - 1) / 2
    return cv2.warpAffine(values, np.c_[matrix, middle - matrix @ middle], values.shape[::-1])


def inked(page: Page, cover: Cover, place: Sequence[float], ink: Colour) -> Page:
    """Ink a page from a place on, top and left; what lies outside of the page is cut off."""
    move = np.array([[1, 0, round(place[1])], [0, 1, round(place[0])]], float)
    whole = cv2.warpAffine(np.float32(cover), move, page.shape[1::-1])[..., np.newaxis]
    return page + whole * (ink - page)


def centred(page: Page, cover: Cover, lot: Lot) -> Page:
    """Ink a page around the place that was drawn by lot."""
    place = [at * side - own / 2 for at, side, own in zip(lot.at, page.shape, cover.shape)]
    return inked(page, cover, place, lot.ink)


def photograph(page: Page, lot: Lot, random: Random) -> Image.Image:
    """Take a page with a camera: blur, noise, JPEG."""
    page = cv2.GaussianBlur(page, (0, 0), max(lot.blur, 1e-3))
    page = page + random.normal(0, lot.noise, page.shape)
    values = np.rint(np.clip(page, 0, 1) * 255).astype(np.uint8)
    _, file = cv2.imencode(".jpg", values[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, int(lot.quality)])
    return Image.fromarray(cv2.imdecode(file, cv2.IMREAD_COLOR)[..., ::-1])


def on_paper(cover: Cover, lot: Lot, random: Random) -> Image.Image:
    """Scale a drawing to the height of a digit and take a picture of it on plain paper."""
    cover = np.float32(trimmed(cover))
    scale = lot.pixels / max(cover.shape)
    size = [max(1, round(side * scale)) for side in cover.shape[::-1]]
    cover = cv2.resize(cover, size, interpolation=cv2.INTER_AREA)
    return photograph(centred(lot.sheet(), cover, lot), lot, random)


def grid(size: tuple[int, int], turn: float = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y of each pixel, -1 to 1 along the longer side, turned around the middle."""
    y, x = (
        (place - (side - 1) / 2) / (max(size) / 2) for place, side in zip(np.indices(size), size)
    )
    return x * np.cos(turn) - y * np.sin(turn), x * np.sin(turn) + y * np.cos(turn)


def grain(
    size: tuple[int, int], random: Random, blur: Union[float, tuple[float, float]] = 0
) -> np.ndarray:
    """Return smooth noise of mean 0 and deviation 1. blur: pixels, or those across and down."""
    across, down = np.maximum(np.broadcast_to(blur, 2), 1e-3)
    values = cv2.GaussianBlur(random.normal(0, 1, size), (0, 0), sigmaX=across, sigmaY=down)
    return values / values.std()


# ------------------------------------------------------------------ kinds of paper


def write(page: Page, image: np.ndarray, lot: Lot) -> Page:
    """Write a digit on a page."""
    return centred(page, trimmed(stroke(image, lot.pixels, lot.pen), 0), lot)


def plain(image: np.ndarray, random: Random, **given: Callable) -> Image.Image:
    """Write on a sheet without a flaw. given: functions of the lot for values to replace there."""
    lot = cast(random)
    vars(lot).update({name: value(lot, random) for name, value in given.items()})
    return photograph(write(lot.sheet(), image, lot), lot, random)


def ruled(image: np.ndarray, random: Random, both: bool = False) -> Image.Image:
    """Lines, beneath the ink or across it, faint or as dark as ink; with both: squares."""
    lot = cast(random)
    page = lot.sheet()
    spacing = lot.pixels * (random.uniform(0.2, 0.5) if both else random.uniform(0.35, 0.9))
    colour = lot.paper * (1 - random.uniform(0.15, 0.8))
    colour = np.clip(colour + random.uniform(0, 0.15) * np.array([-0.3, 0, 1]), 0, 1)
    width = max(0.8, random.uniform(0.004, 0.012) * min(lot.size))
    x, y = grid(lot.size, np.radians(random.uniform(-3, 3)))
    lines = np.zeros(lot.size)
    for axis in (y, x)[: 1 + both]:
        position = axis * max(lot.size) / 2 + random.uniform(0, spacing)
        distance = np.abs(position % spacing - spacing / 2)
        lines = np.maximum(lines, np.clip(width / 2 - distance + 0.5, 0, 1))
    is_across = random.rand() < 0.5
    if is_across:
        page = write(page, image, lot)
    page = inked(page, lines, (0, 0), colour)
    if not is_across:
        page = write(page, image, lot)
    return photograph(page, lot, random)


def shadowed(image: np.ndarray, random: Random) -> Image.Image:
    """A shadow with an edge, soft or hard, that crosses the page near the digit; uneven light."""
    lot = cast(random)
    page = write(lot.sheet(), image, lot)
    across, along = grid(lot.size, random.uniform(0, 2 * np.pi))
    edge = across - random.uniform(-0.6, 0.6)
    edge = edge + random.uniform(0, 0.3) * np.sin(random.uniform(1, 4) * (across - along))
    shadow = 1 - random.uniform(0.25, 0.6) / (1 + np.exp(-edge / random.uniform(0.01, 0.3)))
    falloff = 1 - random.uniform(0, 0.3) * (along + 1) / 2
    return photograph(page * (shadow * falloff)[..., np.newaxis], lot, random)


def yellowed(image: np.ndarray, random: Random) -> Image.Image:
    """Old paper: yellow, stained, darker at its edges; the ink has faded."""
    lot = cast(random)
    lot.paper = np.array([0.9, 0.8, 0.58]) * random.uniform(0.75, 1)
    lot.paper += random.uniform(-0.04, 0.04, 3)
    lot.ink = np.array([0.35, 0.25, 0.18]) + random.uniform(-0.1, 0.1)
    light = 1 + 0.006 * grain(lot.size, random, 1.5)
    for _ in range(random.randint(1, 5)):
        stain = cv2.resize(grain((8, 8), random, 1), lot.size[::-1], interpolation=cv2.INTER_CUBIC)
        light *= 1 - 0.12 * np.clip(stain / stain.max(), 0, 1)
    down, across = (np.linspace(-1, 1, side) ** 6 for side in lot.size)
    light *= 1 - random.uniform(0.05, 0.35) * np.maximum.outer(down, across)
    return photograph(write(lot.sheet() * light[..., np.newaxis], image, lot), lot, random)


def desk(size: tuple[int, int], random: Random) -> Page:
    """What a sheet lies on: wood, cloth, a dark or bright table."""
    colour = random.uniform(0.05, 0.6) * np.array([1, *random.uniform(0.5, 1, 2)])
    texture = random.uniform(0, 0.05) * grain(size, random, (random.uniform(1, 12), 1))
    return np.clip(colour + texture[..., np.newaxis], 0, 1)


def at_an_angle(image: np.ndarray, random: Random) -> Image.Image:
    """A sheet photographed at an angle; at some corners what lies beneath is seen."""
    lot = cast(random)
    size = lot.size[::-1]
    corners = np.array([(0, 0), (1, 0), (1, 1), (0, 1)]) * size
    reach = random.uniform(-0.06, random.uniform(0.06, 0.16), (4, 2))
    moved = corners + INWARD * reach * size
    matrix = cv2.getPerspectiveTransform(np.float32(corners), np.float32(moved))
    opaque = np.dstack([write(lot.sheet(), image, lot), np.ones(lot.size)])
    taken = np.clip(cv2.warpPerspective(opaque, matrix, size, flags=cv2.INTER_CUBIC), 0, 1)
    below = desk(lot.size, random)
    return photograph(taken[..., :3] + (1 - taken[..., 3:]) * below, lot, random)


def bordered(image: np.ndarray, random: Random) -> Image.Image:
    """A border of another colour on one to four sides."""
    lot = cast(random)
    lot.height *= 0.85
    page = write(lot.sheet(), image, lot)
    if random.rand() < 0.3:  # brighter than the sheet, or of its brightness in another colour
        page = page * 0.8
        border = np.ones((*lot.size, 3)) * random.permutation([1, random.uniform(0.6, 1), 0.8])
    else:
        border = desk(lot.size, random)
    depths = _some_of_four(random.uniform(0.03, 0.13, 4), 0.7, random) * np.repeat(lot.size, 2)
    top, bottom, left, right = np.ceil(depths).astype(int)
    inner = np.s_[top : lot.size[0] - bottom, left : lot.size[1] - right]
    border[inner] = page[inner]
    return photograph(border, lot, random)


def touching(image: np.ndarray, random: Random) -> Image.Image:
    """The digit touches the border, on one side to four."""
    lot = cast(random)
    cover = trimmed(stroke(image, lot.pixels, lot.pen))
    margins = random.uniform(0.1, 0.6, 4) * max(cover.shape)
    margins -= _some_of_four(margins, 0.4, random)
    top, bottom, left, right = margins.astype(int)
    # A picture this narrow is refused by its form.
    short = max(0, max(cover.shape) // 3 - cover.shape[1])
    lot.size = (top + cover.shape[0] + bottom, left + short + cover.shape[1] + right)
    return photograph(inked(lot.sheet(), cover, (top, left), lot.ink), lot, random)


def _some_of_four(values: np.ndarray, share: float, random: Random) -> np.ndarray:
    """Return four values, some of them 0 by lot, at least one as it was."""
    chosen = random.rand(4) < share
    chosen[random.randint(4)] = True
    return values * chosen


def pen_of(low: float, high: float) -> Callable:
    return functools.partial(plain, pen=lambda lot, random: random.uniform(low, high))


KINDS: dict[str, Callable[[np.ndarray, Random], Image.Image]] = {
    "plain": plain,
    "ruled": ruled,
    "squared": functools.partial(ruled, both=True),
    "shadowed": shadowed,
    "yellowed": yellowed,
    "at an angle": at_an_angle,
    "a border of another colour": bordered,
    "a thin pen": pen_of(0.025, 0.06),
    "a thick pen": pen_of(0.14, 0.2),
    "JPEG at quality 10": functools.partial(plain, quality=lambda lot, random: 10),
    "touching the border": touching,
    "light on dark": functools.partial(
        plain, ink=lambda lot, random: lot.paper, paper=lambda lot, random: lot.ink
    ),
}


def page(images: np.ndarray, rows: Sequence[int], random: Random) -> Image.Image:
    """Write digits in rows on one sheet: a postcode, a column, a page.

    images: uint8 [N, 28, 28]. rows: how many digits each row has; N in all.
    """
    lot = cast(random)
    height = random.uniform(40, 70)
    advance, spacing = height * random.uniform(1.05, 1.4), height * random.uniform(1.5, 2)
    margin = height
    lot.size = (
        round(2 * margin + spacing * (len(rows) - 1) + height),
        round(2 * margin + advance * (max(rows) - 1) + height),
    )
    paper = lot.sheet()
    remaining = iter(images)
    rise = random.uniform(-0.03, 0.03)  # of a row, towards the right
    for number, count in enumerate(rows):
        for column in range(count):
            cover = stroke(next(remaining), height * random.uniform(0.85, 1.1), lot.pen)
            left = margin + advance * column + random.uniform(-0.05, 0.05) * height
            top = margin + spacing * number + rise * left + random.uniform(-0.1, 0.1) * height
            paper = inked(paper, trimmed(cover), (top, left), lot.ink)
    return photograph(paper, lot, random)
