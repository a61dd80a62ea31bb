"""Textures and scenes, as a camera sees them."""

from collections.abc import Callable

import cv2
import numpy as np
from PIL import Image
from scipy.spatial import cKDTree

from detector.camera import Draw, Page, Random, grain, grid, photograph, random_look

Size = tuple[int, int]


def _of_values(values: Callable[[Size, Random], np.ndarray]) -> Draw:
    """Return a function that draws values from 0 to 1 as shades between two random colours."""

    def draw(random: Random) -> Image.Image:
        look = random_look(random)
        first, second = random.uniform(0, 1, (2, 3))
        shares = np.clip(values(look.size, random), 0, 1)[..., np.newaxis]
        return photograph(first + shares * (second - first), look, random)

    draw.__name__ = values.__name__
    return draw


def _turned(size: Size, random: Random) -> tuple[np.ndarray, np.ndarray]:
    return grid(size, random.uniform(0, np.pi))


def noise(size: Size, random: Random) -> np.ndarray:
    return 0.5 + grain(size, random, random.uniform(0, 6)) / 4


def stripes(size: Size, random: Random) -> np.ndarray:
    x, _ = _turned(size, random)
    return 0.5 + np.sin(np.pi * x * random.uniform(3, 25)) * random.uniform(0.5, 4)


def blobs(size: Size, random: Random) -> np.ndarray:
    return grain(size, random, random.uniform(5, 25)) > random.uniform(-0.5, 1)


def checkers(size: Size, random: Random) -> np.ndarray:
    x, y = np.floor(np.multiply(_turned(size, random), random.uniform(2, 8)))
    return (x + y) % 2


def bricks(size: Size, random: Random) -> np.ndarray:
    x, y = np.multiply(_turned(size, random), random.uniform(2, 6))
    gap, row = random.uniform(0.05, 0.15), np.floor(y)
    column, across = np.divmod(x / 2 + row % 2 / 2, 1)
    tones = random.uniform(0, 0.3, (50, 50))[row.astype(int) % 50, column.astype(int) % 50]
    return np.where((across < gap / 2) | (y % 1 < gap), 1, tones)


def wood(size: Size, random: Random) -> np.ndarray:
    x = _turned(size, random)[0]
    rings = x * random.uniform(2.5, 10) + grain(size, random, (40, 20)) / 2
    return 0.5 + np.sin(2 * np.pi * rings) / 3 + random.normal(0, 0.05, size)


def clouds(size: Size, random: Random) -> np.ndarray:
    frequencies = np.hypot(np.fft.fftfreq(size[0])[:, np.newaxis], np.fft.fftfreq(size[1]))
    spectrum = np.fft.fft2(random.normal(0, 1, size))
    values = np.fft.ifft2(spectrum / (frequencies + 0.003) ** random.uniform(1.2, 2.2)).real
    return 0.5 + (values - values.mean()) / values.std() / 5


def cells(size: Size, random: Random) -> np.ndarray:
    seeds = random.uniform(0, 1, (random.randint(15, 90), 2)) * size
    nearest, _ = cKDTree(seeds).query(np.moveaxis(np.indices(size), 0, -1), 2)
    return np.diff(nearest)[..., 0] < random.uniform(1.5, 4)


def halftone(size: Size, random: Random) -> np.ndarray:
    x, y = np.multiply(_turned(size, random), random.uniform(4, 12)) % 1 - 0.5
    return np.hypot(x, y) < random.uniform(0.15, 0.4)


# ------------------------------------------------------------------ scenes


def leaves(random: Random) -> Image.Image:
    """Discs and polygons of all sizes that cover each other, as things in photographs do.

    Lee, Mumford, Huang, "Occlusion models for natural images", 2001.
    """
    page = np.ones((*random_look(random).size, 3)) * random.rand(3)
    smallest, sides = random.uniform(0.02, 0.15), page.shape[1::-1]
    for _ in range(random.randint(20, 400)):
        radius = min(sides) * min(0.7, smallest / max(random.rand(), 1e-3) ** 0.5)
        corners = 40 if random.rand() < 0.5 else random.randint(3, 7)
        _fill(page, random.rand(2) * sides, radius * np.ones(corners), random, random.rand(3))
    return _lit(page, random)


def things(random: Random) -> Image.Image:
    """One to four large things before a ground that is lit unevenly, each with a shaded side."""
    page = np.ones((*random_look(random).size, 3)) * random.rand(3)
    if random.rand() < 0.5:  # a horizon
        page[int(random.uniform(0.3, 0.8) * len(page)) :] = random.rand(3)
    sides = page.shape[1::-1]
    for _ in range(random.randint(1, 5)):
        radii = random.uniform(random.uniform(0.4, 1), 1, random.choice([4, 5, 7, 40]))
        radii = radii * random.uniform(0.1, 0.4) * max(sides)
        mask = np.zeros(page.shape[:2])
        at, wide = random.uniform(0.2, 0.8, 2) * sides, random.uniform(0.4, 1.6)
        _fill(mask, at, radii, random, 1, wide)
        light, dark = random.rand(2, 3)
        surface = dark + _shade(mask.shape, random) * (light - dark)
        page = np.where(mask[..., np.newaxis], surface, page)
    return _lit(page, random)


def round_thing(random: Random) -> Image.Image:
    """Something round before a plain ground, as balls, plates, wheels and blossoms are.

    Its grain tells it from a round 0.
    """
    size = random_look(random).size
    x, y = grid(size, random.uniform(0, np.pi))
    away = np.hypot(x - random.uniform(-0.2, 0.2), (y - random.uniform(-0.2, 0.2)) / 0.9)
    away = away + random.uniform(0, 0.05) * grain(size, random, random.uniform(1, 8))
    outer = random.uniform(0.2, 0.6)
    ground, surface, heart = random.rand(3, 3)
    surface = surface + random.uniform(0.05, 0.3) * grain(size, random, 2)[..., np.newaxis]
    page = np.where(away[..., np.newaxis] < outer, surface, ground)
    page = np.where(away[..., np.newaxis] < outer * random.uniform(0, 0.6), heart, page)
    return _lit(np.clip(page, 0, 1), random)


def blossom(random: Random) -> Image.Image:
    """Rings of petals around a heart, lit from a side, before a dim ground out of focus."""
    size = random_look(random).size
    ground = random.rand(3) * random.uniform(0.1, 1)
    haze = random.uniform(0, 0.2) * grain(size, random, random.uniform(5, 30))
    page = np.clip(ground + haze[..., np.newaxis], 0, 1)
    sides, petal, heart = np.array(size[::-1]), random.rand(3), random.rand(3)
    middle, largest = random.uniform(0.35, 0.65, 2) * sides, random.uniform(0.15, 0.6) * min(size)
    flat, rings = random.uniform(0.6, 1), random.randint(1, 7)
    shares = np.linspace(1, random.uniform(0.25, 0.5), rings)
    for share in shares:
        count = random.randint(5, 30)
        for angle in 2 * np.pi * (np.arange(count) + random.rand()) / count:
            out = np.array([np.cos(angle), flat * np.sin(angle)])
            length = largest * share * random.uniform(0.25, 0.5)
            at = middle + out * (largest * share - length)
            tone = petal + (heart - petal) * (1 - share) + random.normal(0, 0.06)
            axes = (max(1, int(length)), max(1, int(length * random.uniform(0.3, 0.8))))
            turn = float(np.degrees(np.arctan2(out[1], out[0])))
            place = [int(x) for x in np.rint(at)]
            cv2.ellipse(page, place, axes, turn, 0, 360, np.clip(tone, 0, 1).tolist(), -1)
    inner = max(1, int(largest * shares[-1] * random.uniform(0.3, 0.9)))
    place = [int(x) for x in np.rint(middle)]
    cv2.circle(page, place, inner, np.clip(heart, 0, 1).tolist(), -1)
    return _lit(page, random)


def tower(random: Random) -> Image.Image:
    """Something tall before a sky, with a part on its side, on a ground of other things."""
    page = np.ones((*random_look(random).size, 3)) * random.rand(3)
    height, width = page.shape[:2]
    x, y = random.uniform(0.3, 0.7) * width, random.uniform(0.5, 0.95) * height
    tall, wide = random.uniform(0.3, 0.8) * height, random.uniform(0.02, 0.12) * width
    colour = random.rand(3)
    for _ in range(random.randint(1, 5)):  # the thing itself first, then its parts
        top, lean = y - tall, random.uniform(-0.3, 0.3) * wide
        corners = [(x - wide, y), (x + wide, y), (x + wide / 2 + lean, top), (x + lean, top)]
        points = np.rint(corners).astype(np.int32)
        cv2.fillPoly(page, [points], np.clip(colour + random.normal(0, 0.1, 3), 0, 1).tolist())
        x, tall = x + random.uniform(-2, 2) * wide, tall * random.uniform(0.2, 0.9)
        wide = wide * random.uniform(0.4, 1.6)
    for _ in range(random.randint(1, 12)):
        at = np.array([random.rand() * width, y])
        _fill(page, at, random.uniform(0.02, 0.12) * width * np.ones(7), random, random.rand(3), 2)
    return _lit(page, random)


def _fill(page, centre, radii: np.ndarray, random: Random, colour, wide: float = 1) -> None:
    """Fill a polygon with corners at these radii around a centre, turned at random."""
    angles = np.linspace(0, 2 * np.pi, len(radii) + 1)[1:] + 6 * random.rand()
    corners = radii * np.exp(1j * angles)
    points = centre + np.stack([wide * corners.real, corners.imag], axis=1)
    cv2.fillPoly(page, [np.rint(points).astype(np.int32)], np.atleast_1d(colour).tolist())


def _shade(size: Size, random: Random) -> np.ndarray:
    """Return light that falls from one side, and some grain: float [H, W, 1] in 0..1."""
    values = 0.5 + 0.4 * grid(size, random.uniform(0, 2 * np.pi))[0]
    values += random.uniform(0, 0.3) * grain(size, random, random.uniform(0.5, 4))
    return np.clip(values, 0, 1)[..., np.newaxis]


def _lit(page: Page, random: Random) -> Image.Image:
    """Take a picture in uneven light."""
    light = 0.6 + 0.4 * _shade(page.shape[:2], random)
    return photograph(page * light, random_look(random), random)


TRAINING = (*map(_of_values, (noise, stripes, blobs)), leaves, things, round_thing, blossom, tower)
UNSEEN = tuple(map(_of_values, (checkers, bricks, wood, clouds, cells, halftone)))
