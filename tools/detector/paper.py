"""Digits of MNIST written on paper of many kinds, as people photograph them.

An image of MNIST is enlarged, its strokes are drawn again with a pen of any width, and written on a
page; then light falls on the page and a camera takes it.
"""

import functools
from collections.abc import Callable, Sequence

import cv2
import numpy as np
from PIL import Image

from detector.camera import (
    Lot,
    Page,
    Random,
    cast,
    centred,
    grain,
    grid,
    inked,
    photograph,
    stroke,
    trimmed,
)

INWARD = np.array([(1, 1), (-1, 1), (-1, -1), (1, -1)])  # from the corners of a page, in turn


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
    """A surface below a sheet: wood, cloth, a dark or bright table."""
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
    """Return four values, some of them set to 0 at random, but not all."""
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
