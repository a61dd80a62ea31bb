"""Digits of MNIST written on paper of many kinds, as people photograph them.

An image of MNIST is enlarged, its strokes are drawn again with a pen of any width, and written on a
page; then light falls on the page and a camera takes it. The detector learns from KINDS and is
measured on all of them; nothing is trained on the sheets on a desk and the pages at the end.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import cv2
import numpy as np
from PIL import Image

from detector.camera import (
    Look,
    Page,
    Random,
    centred,
    grain,
    grid,
    inked,
    photograph,
    random_look,
    stroke,
    trimmed,
)
from detector.textures import blobs, bricks, clouds, noise, stripes, wood

CORNERS = np.array([(0, 0), (1, 0), (1, 1), (0, 1)])  # of a page, shares of its sides
SURFACES = (wood, noise, clouds, stripes, blobs, bricks)

Region = tuple[float, float, float, float]  # left, top, right, bottom


def write(page: Page, image: np.ndarray, look: Look) -> Page:
    """Write a digit on a page."""
    return centred(page, trimmed(stroke(image, look.pixels, look.pen), 0), look)


def plain(image: np.ndarray, random: Random, **given: Callable) -> Image.Image:
    """Write on a sheet without a flaw. given: functions that compute other fields of its look."""
    look = random_look(random)
    look = replace(look, **{name: value(look, random) for name, value in given.items()})
    return photograph(write(look.sheet(), image, look), look, random)


def ruled(image: np.ndarray, random: Random, both: bool = False) -> Image.Image:
    """Lines beneath the ink or across it, faint or as dark as ink. both: squares instead."""
    look = random_look(random)
    page = look.sheet()
    spacing = look.pixels * (random.uniform(0.2, 0.5) if both else random.uniform(0.35, 0.9))
    colour = look.paper * (1 - random.uniform(0.15, 0.8))
    colour = np.clip(colour + random.uniform(0, 0.15) * np.array([-0.3, 0, 1]), 0, 1)
    width = max(0.8, random.uniform(0.004, 0.012) * min(look.size))
    x, y = grid(look.size, np.radians(random.uniform(-3, 3)))
    lines = np.zeros(look.size)
    for axis in (y, x)[: 1 + both]:
        position = axis * max(look.size) / 2 + random.uniform(0, spacing)
        distance = np.abs(position % spacing - spacing / 2)
        lines = np.maximum(lines, np.clip(width / 2 - distance + 0.5, 0, 1))
    is_across = random.rand() < 0.5
    if is_across:
        page = write(page, image, look)
    page = inked(page, lines, (0, 0), colour)
    if not is_across:
        page = write(page, image, look)
    return photograph(page, look, random)


def shadowed(image: np.ndarray, random: Random) -> Image.Image:
    """A shadow with an edge, soft or hard, that crosses the page near the digit; uneven light."""
    look = random_look(random)
    page = write(look.sheet(), image, look)
    across, along = grid(look.size, random.uniform(0, 2 * np.pi))
    edge = across - random.uniform(-0.6, 0.6)
    edge = edge + random.uniform(0, 0.3) * np.sin(random.uniform(1, 4) * (across - along))
    shadow = 1 - random.uniform(0.25, 0.6) / (1 + np.exp(-edge / random.uniform(0.01, 0.3)))
    falloff = 1 - random.uniform(0, 0.3) * (along + 1) / 2
    return photograph(page * (shadow * falloff)[..., np.newaxis], look, random)


def yellowed(image: np.ndarray, random: Random) -> Image.Image:
    """Old paper: yellow, stained, darker at its edges; the ink has faded."""
    look = random_look(random)
    look.paper = np.array([0.9, 0.8, 0.58]) * random.uniform(0.75, 1)
    look.paper += random.uniform(-0.04, 0.04, 3)
    look.ink = np.array([0.35, 0.25, 0.18]) + random.uniform(-0.1, 0.1)
    light = 1 + 0.006 * grain(look.size, random, 1.5)
    for _ in range(random.randint(1, 5)):
        stain = cv2.resize(grain((8, 8), random, 1), look.size[::-1], interpolation=cv2.INTER_CUBIC)
        light *= 1 - 0.12 * np.clip(stain / stain.max(), 0, 1)
    down, across = (np.linspace(-1, 1, side) ** 6 for side in look.size)
    light *= 1 - random.uniform(0.05, 0.35) * np.maximum.outer(down, across)
    return photograph(write(look.sheet() * light[..., np.newaxis], image, look), look, random)


def desk(size: tuple[int, int], random: Random) -> Page:
    """A surface below a sheet: wood, cloth, a dark or bright table."""
    colour = random.uniform(0.05, 0.6) * np.array([1, *random.uniform(0.5, 1, 2)])
    return _rough(colour, 0.05, size, random)


def _rough(colour: np.ndarray, most: float, size: tuple[int, int], random: Random) -> Page:
    """Return a surface of one colour with a grain. most: the grain's largest deviation."""
    texture = random.uniform(0, most) * grain(size, random, (random.uniform(1, 12), 1))
    return np.clip(colour + texture[..., np.newaxis], 0, 1)


def _laid(sheet: Page, corners: np.ndarray, below: Page, interpolation: int) -> Page:
    """Return a surface with a sheet on it. corners: where those of the sheet are, pixels."""
    source = np.float32(CORNERS * sheet.shape[1::-1])
    matrix = cv2.getPerspectiveTransform(source, np.float32(corners))
    opaque = np.dstack([sheet, np.ones(sheet.shape[:2])])
    taken = cv2.warpPerspective(opaque, matrix, below.shape[1::-1], flags=interpolation)
    taken = np.clip(taken, 0, 1)
    return taken[..., :3] + (1 - taken[..., 3:]) * below


def at_an_angle(image: np.ndarray, random: Random) -> Image.Image:
    """A sheet photographed at an angle; at some corners, the desk below it shows."""
    look = random_look(random)
    size = look.size[::-1]
    reach = random.uniform(-0.06, random.uniform(0.06, 0.16), (4, 2))
    corners = CORNERS * size + (1 - 2 * CORNERS) * reach * size
    sheet = write(look.sheet(), image, look)
    page = _laid(sheet, corners, desk(look.size, random), cv2.INTER_CUBIC)
    return photograph(page, look, random)


def bordered(image: np.ndarray, random: Random) -> Image.Image:
    """A border of another colour on one to four sides."""
    look = random_look(random)
    look.height *= 0.85
    page = write(look.sheet(), image, look)
    if random.rand() < 0.3:  # brighter than the sheet, or of its brightness in another colour
        page = page * 0.8
        border = np.ones((*look.size, 3)) * random.permutation([1, random.uniform(0.6, 1), 0.8])
    else:
        border = desk(look.size, random)
    depths = _some_of_four(random.uniform(0.03, 0.13, 4), 0.7, random) * np.repeat(look.size, 2)
    top, bottom, left, right = np.ceil(depths).astype(int)
    inner = np.s_[top : look.size[0] - bottom, left : look.size[1] - right]
    border[inner] = page[inner]
    return photograph(border, look, random)


def touching(image: np.ndarray, random: Random) -> Image.Image:
    """The digit touches the border, on one side to four."""
    look = random_look(random)
    cover = trimmed(stroke(image, look.pixels, look.pen))
    margins = random.uniform(0.1, 0.6, 4) * max(cover.shape)
    margins -= _some_of_four(margins, 0.4, random)
    top, bottom, left, right = margins.astype(int)
    # A picture this narrow is refused by its form.
    short = max(0, max(cover.shape) // 3 - cover.shape[1])
    look.size = (top + cover.shape[0] + bottom, left + short + cover.shape[1] + right)
    return photograph(inked(look.sheet(), cover, (top, left), look.ink), look, random)


def _some_of_four(values: np.ndarray, share: float, random: Random) -> np.ndarray:
    """Return four values, some of them set to 0 at random, but not all."""
    chosen = random.rand(4) < share
    chosen[random.randint(4)] = True
    return values * chosen


def pen_of(low: float, high: float) -> Callable:
    return functools.partial(plain, pen=lambda look, random: random.uniform(low, high))


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
    "JPEG at quality 10": functools.partial(plain, quality=lambda look, random: 10),
    "touching the border": touching,
    "light on dark": functools.partial(
        plain, ink=lambda look, random: look.paper, paper=lambda look, random: look.ink
    ),
}


# ------------------------------------------------------------------ to measure on


def dark_desk(size: tuple[int, int], random: Random) -> Page:
    """A dark table, plain or textured."""
    first = random.uniform(0.03, 0.45) * np.array([1, *random.uniform(0.5, 1, 2)])
    if random.rand() < 0.4:
        return _rough(first, 0.04, size, random)
    surface = np.clip(SURFACES[random.randint(len(SURFACES))](size, random), 0, 1)[..., np.newaxis]
    second = np.clip(first + random.uniform(0.08, 0.35) * random.uniform(0.4, 1, 3), 0, 0.6)
    return first + surface * (second - first)


def on_a_desk(image: np.ndarray, random: Random, tilt: float = 0) -> Image.Image:
    """A sheet that lies on a desk, seen whole, in perspective and uneven light."""
    look = random_look(random)
    look.size = [(240, 320), (400, 300), (480, 640), (640, 480), (960, 720)][random.randint(5)]
    look.height = random.uniform(0.35, 0.65)
    sheet = replace(look, size=(400, round(400 * random.uniform(0.65, 1.4))))
    written = write(sheet.sheet(), image, sheet)
    extent = np.array(sheet.size[::-1]) / max(sheet.size) * min(look.size)
    extent = extent * random.uniform(0.55, 0.85)
    corners = (CORNERS - 0.5 + random.uniform(-0.05, 0.05, (4, 2))) * extent
    turn = np.radians(tilt + random.uniform(-1.5, 1.5))
    corners = corners @ np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    free = np.maximum(0, np.array(look.size[::-1]) / 2 - np.abs(corners).max(axis=0) - 4)
    corners = corners + np.array(look.size[::-1]) / 2 + random.uniform(-1, 1, 2) * free
    page = _laid(written, corners, dark_desk(look.size, random), cv2.INTER_AREA)
    look.blur = random.uniform(0, 1.5) * max(look.size) / 640
    return photograph(_lit(page, random), look, random)


def _lit(page: Page, random: Random) -> Page:
    """Let light fall from a side."""
    across = grid(page.shape[:2], random.uniform(0, 2 * np.pi))[0]
    return page * (1 - random.uniform(0, 0.35) * (across + 1) / 2)[..., np.newaxis]


def page(
    images: np.ndarray, rows: Sequence[int], random: Random, is_hard: bool = True
) -> tuple[Image.Image, list[Region]]:
    """Return a picture of close rows of digits, which rise or fall, and the region of each digit.

    images: uint8 [N, 28, 28]. rows: how many digits each has. is_hard: rows begin anywhere and
    fade, and one digit of each is raised.
    """
    look = random_look(random)
    height = random.uniform(40, 70)
    advance, spacing = height * random.uniform(1.1, 1.4), height * random.uniform(1.25, 1.8)
    indents = random.uniform(0, 1.2, len(rows)) * advance * is_hard
    wide = 2.5 * height + max(indents + advance * np.array(rows))
    look.size = (round(2.5 * height + spacing * len(rows)), round(wide))
    paper, boxes = look.sheet(), []
    fading = random.uniform(0, 0.65) * is_hard
    rise = random.uniform(-0.04, 0.04)
    remaining = iter(images)
    for number, count in enumerate(rows):
        own_rise, raised = rise + random.uniform(-0.01, 0.01), random.randint(count)
        for column in range(count):
            cover = stroke(next(remaining), height * random.uniform(0.8, 1.05), look.pen)
            cover = trimmed(cover)
            left = height + indents[number] + advance * column
            left += random.uniform(-0.04, 0.04) * height
            top = 1.3 * height + spacing * number + own_rise * (left - wide / 2)
            top += random.uniform(-0.08, 0.08) * height
            top -= (column == raised) * random.uniform(0.1, 0.3) * height * is_hard
            boxes.append((left, top, left + cover.shape[1], top + cover.shape[0]))
            fade = np.clip(grain(cover.shape, random, height / 6) / 2 + 0.5, 0, 1)
            paper = inked(paper, cover * (1 - fading * fade), (top, left), look.ink)
    return photograph(_lit(paper, random), look, random), boxes
