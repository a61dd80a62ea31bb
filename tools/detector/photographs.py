"""Sheets on a desk and hard pages, drawn as phones photograph them; nothing is trained on them."""

from collections.abc import Sequence

import cv2
import numpy as np
from PIL import Image

from detector import textures
from detector.camera import Lot, Page, Random, cast, grain, grid, inked, photograph, stroke, trimmed
from detector.paper import write

UNIT = np.array([(0, 0), (1, 0), (1, 1), (0, 1)])
SURFACES = (
    textures.wood,
    textures.noise,
    textures.clouds,
    textures.stripes,
    textures.blobs,
    textures.bricks,
)

Region = tuple[float, float, float, float]  # left, top, right, bottom


def desk(size: tuple[int, int], random: Random) -> Page:
    """A dark table, plain or textured."""
    first = random.uniform(0.03, 0.45) * np.array([1, *random.uniform(0.5, 1, 2)])
    if random.rand() < 0.4:
        texture = random.uniform(0, 0.04) * grain(size, random, (random.uniform(1, 12), 1))
        return np.clip(first + texture[..., np.newaxis], 0, 1)
    surface = np.clip(SURFACES[random.randint(len(SURFACES))](size, random), 0, 1)[..., np.newaxis]
    second = np.clip(first + random.uniform(0.08, 0.35) * random.uniform(0.4, 1, 3), 0, 0.6)
    return first + surface * (second - first)


def on_a_desk(image: np.ndarray, random: Random, tilt: float = 0) -> Image.Image:
    """A sheet that lies on a desk, seen whole, in perspective and uneven light."""
    lot = cast(random)
    lot.size = [(240, 320), (400, 300), (480, 640), (640, 480), (960, 720)][random.randint(5)]
    lot.height = random.uniform(0.35, 0.65)
    sheet = Lot(**{**vars(lot), "size": (400, round(400 * random.uniform(0.65, 1.4)))})
    written = write(sheet.sheet(), image, sheet)
    extent = np.array(sheet.size[::-1]) / max(sheet.size) * min(lot.size)
    extent = extent * random.uniform(0.55, 0.85)
    corners = (UNIT - 0.5 + random.uniform(-0.05, 0.05, (4, 2))) * extent
    turn = np.radians(tilt + random.uniform(-1.5, 1.5))
    corners = corners @ np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    free = np.maximum(0, np.array(lot.size[::-1]) / 2 - np.abs(corners).max(axis=0) - 4)
    corners = corners + np.array(lot.size[::-1]) / 2 + random.uniform(-1, 1, 2) * free
    source = np.float32(UNIT * np.array(sheet.size[::-1]))
    matrix = cv2.getPerspectiveTransform(source, np.float32(corners))
    opaque = np.dstack([written, np.ones(sheet.size)])
    taken = np.clip(cv2.warpPerspective(opaque, matrix, lot.size[::-1], flags=cv2.INTER_AREA), 0, 1)
    page = taken[..., :3] + (1 - taken[..., 3:]) * desk(lot.size, random)
    lot.blur = random.uniform(0, 1.5) * max(lot.size) / 640
    return photograph(_lit(page, random), lot, random)


def _lit(page: Page, random: Random) -> Page:
    """Let light fall from a side."""
    across = grid(page.shape[:2], random.uniform(0, 2 * np.pi))[0]
    return page * (1 - random.uniform(0, 0.35) * (across + 1) / 2)[..., np.newaxis]


def hard_page(
    images: np.ndarray, rows: Sequence[int], random: Random
) -> tuple[Image.Image, list[Region]]:
    """Rows that are close, begin anywhere and rise; strokes that fade; in each row a raised digit.

    images: uint8 [N, 28, 28]. rows: how many digits each has. Returns where the digits are, too.
    """
    lot = cast(random)
    height = random.uniform(40, 70)
    advance, spacing = height * random.uniform(1.1, 1.4), height * random.uniform(1.25, 1.8)
    indents = random.uniform(0, 1.2, len(rows)) * advance
    wide = 2.5 * height + max(indents + advance * np.array(rows))
    lot.size = (round(2.5 * height + spacing * len(rows)), round(wide))
    paper, boxes = lot.sheet(), []
    fading = random.uniform(0, 0.65)
    rise = random.uniform(-0.04, 0.04)
    remaining = iter(images)
    for number, count in enumerate(rows):
        own_rise, raised = rise + random.uniform(-0.01, 0.01), random.randint(count)
        for column in range(count):
            cover = stroke(next(remaining), height * random.uniform(0.8, 1.05), lot.pen)
            cover = trimmed(cover)
            left = height + indents[number] + advance * column
            left += random.uniform(-0.04, 0.04) * height
            top = 1.3 * height + spacing * number + own_rise * (left - wide / 2)
            top += random.uniform(-0.08, 0.08) * height
            top -= (column == raised) * random.uniform(0.1, 0.3) * height
            boxes.append((left, top, left + cover.shape[1], top + cover.shape[0]))
            fade = np.clip(grain(cover.shape, random, height / 6) / 2 + 0.5, 0, 1)
            paper = inked(paper, cover * (1 - fading * fade), (top, left), lot.ink)
    return photograph(_lit(paper, random), lot, random), boxes
