"""Textures and scenes, as a camera sees them."""

import numpy as np
from PIL import Image, ImageDraw, ImageOps
from scipy import ndimage

from rendering.paper import Page, Random, cast, photograph


def _grid(random: Random) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y of each pixel, turned by lot."""
    height, width = cast(random).size
    y, x = np.mgrid[:height, :width] / max(height, width)
    turn = random.uniform(0, np.pi)
    return x * np.cos(turn) - y * np.sin(turn), x * np.sin(turn) + y * np.cos(turn)


def _coloured(values: np.ndarray, random: Random) -> Image.Image:
    """Lay values from 0 to 1 between two colours, and take a picture."""
    lot = cast(random)
    first, second = random.uniform(0, 1, (2, 3))
    page: Page = first + np.clip(values, 0, 1)[..., np.newaxis] * (second - first)
    return photograph(page, lot, random)


def noise(random: Random) -> Image.Image:
    values = ndimage.gaussian_filter(random.normal(0, 1, cast(random).size), random.uniform(0, 6))
    return _coloured(0.5 + values / values.std() / 4, random)


def stripes(random: Random) -> Image.Image:
    x, _ = _grid(random)
    values = np.sin(2 * np.pi * x * random.uniform(3, 25)) * random.uniform(1, 8)
    return _coloured(0.5 + values / 2, random)


def plaid(random: Random) -> Image.Image:
    x, y = _grid(random)
    values = [np.sin(2 * np.pi * axis * random.uniform(3, 15)) > 0.3 for axis in (x, y)]
    return _coloured((values[0] * 1.0 + values[1]) / 2, random)


def blobs(random: Random) -> Image.Image:
    smooth = ndimage.gaussian_filter(random.normal(0, 1, cast(random).size), random.uniform(5, 25))
    return _coloured((smooth > random.uniform(-0.5, 1) * smooth.std()) * 1.0, random)


def checkers(random: Random) -> Image.Image:
    x, y = _grid(random)
    count = random.uniform(4, 16)
    return _coloured((np.floor(x * count) + np.floor(y * count)) % 2, random)


def bricks(random: Random) -> Image.Image:
    x, y = _grid(random)
    count, gap = random.uniform(4, 12), random.uniform(0.05, 0.15)
    row = np.floor(y * count)
    across = (x * count / 2 + row % 2 / 2) % 1
    joint = (across < gap / 2) | ((y * count) % 1 < gap)
    tone = random.uniform(0, 0.3, 5000)[((row * 71 + np.floor(x * count / 2)) % 5000).astype(int)]
    return _coloured(np.where(joint, 1, tone), random)


def wood(random: Random) -> Image.Image:
    x = _grid(random)[0]
    warp = ndimage.gaussian_filter(random.normal(0, 1, x.shape), [20, 40])
    values = np.sin(2 * np.pi * (x * random.uniform(5, 20) + warp / warp.std() / 2))
    return _coloured(0.5 + values / 3 + random.normal(0, 0.05, x.shape), random)


def clouds(random: Random) -> Image.Image:
    size = cast(random).size
    frequencies = np.hypot(np.fft.fftfreq(size[0])[:, np.newaxis], np.fft.fftfreq(size[1]))
    spectrum = np.fft.fft2(random.normal(0, 1, size))
    values = np.fft.ifft2(spectrum / (frequencies + 0.003) ** random.uniform(1.2, 2.2)).real
    return _coloured(0.5 + (values - values.mean()) / values.std() / 5, random)


def cells(random: Random) -> Image.Image:
    size = cast(random).size
    seeds = random.uniform(0, 1, (random.randint(15, 90), 2)) * size
    y, x = np.mgrid[: size[0], : size[1]]
    distances = np.stack([np.hypot(y - v, x - u) for v, u in seeds])
    nearest = np.sort(distances, axis=0)[:2]
    return _coloured(nearest[1] - nearest[0] < random.uniform(1.5, 4), random)


def halftone(random: Random) -> Image.Image:
    x, y = _grid(random)
    count = random.uniform(8, 25)
    dots = np.hypot((x * count) % 1 - 0.5, (y * count) % 1 - 0.5)
    return _coloured(dots < random.uniform(0.15, 0.4), random)


def leaves(random: Random) -> Image.Image:
    """Discs and polygons of all sizes that cover each other, as things in photographs do.

    Lee, Mumford, Huang, "Occlusion models for natural images", 2001.
    """
    height, width = cast(random).size
    image = Image.new("RGB", (width, height), _colour(random))
    pen = ImageDraw.Draw(image)
    smallest, count = random.uniform(0.02, 0.15), random.randint(20, 400)
    for _ in range(count):
        radius = min(height, width) * min(0.7, smallest / max(random.rand(), 1e-3) ** 0.5)
        x, y = random.uniform(0, width), random.uniform(0, height)
        if random.rand() < 0.5:
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), _colour(random))
        else:
            corners, turn = random.randint(3, 7), random.randint(360)
            pen.regular_polygon((x, y, radius), corners, turn, _colour(random))
    return _lit(image, random)


def things(random: Random) -> Image.Image:
    """One to four large things before a ground that is lit unevenly, each with a shaded side."""
    height, width = cast(random).size
    image = Image.new("RGB", (width, height), _colour(random))
    if random.rand() < 0.5:  # a horizon
        top = random.uniform(0.3, 0.8) * height
        ImageDraw.Draw(image).rectangle((0, top, width, height), _colour(random))
    for _ in range(random.randint(1, 5)):
        mask = Image.new("L", image.size)
        angles = np.linspace(0, 2 * np.pi, random.choice([4, 5, 7, 40]), endpoint=False)
        angles = angles + random.uniform(0, 6)
        radii = random.uniform(random.uniform(0.4, 1), 1, len(angles)) * random.uniform(0.1, 0.4)
        away = radii * [random.uniform(0.4, 1.6) * np.cos(angles), np.sin(angles)]
        corners = (random.uniform(0.2, 0.8, 2) + away.T) * [width, height]
        ImageDraw.Draw(mask).polygon([(x, y) for x, y in corners], 255)
        surface = Image.fromarray(_shade((height, width), random), "L")
        image.paste(ImageOps.colorize(surface, _colour(random), _colour(random)), mask=mask)
    return _lit(image, random)


def _shade(size: tuple[int, int], random: Random) -> np.ndarray:
    """Return light that falls from one side, and some grain: uint8 [H, W]."""
    y, x = np.mgrid[-1 : 1 : size[0] * 1j, -1 : 1 : size[1] * 1j]
    turn = random.uniform(0, 2 * np.pi)
    values = 0.5 + 0.4 * (x * np.cos(turn) + y * np.sin(turn))
    grain = ndimage.gaussian_filter(random.normal(0, 1, size), random.uniform(0.5, 4))
    values = values + random.uniform(0, 0.3) * grain / grain.std()
    return np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)


def _colour(random: Random) -> tuple[int, int, int]:
    return tuple(int(value) for value in random.randint(0, 256, 3))


def _lit(image: Image.Image, random: Random) -> Image.Image:
    """Take a picture in uneven light."""
    page: Page = np.asarray(image) / 255
    light = 0.6 + 0.4 * _shade(page.shape[:2], random)[..., np.newaxis] / 255
    return photograph(page * light, cast(random), random)


TRAINING = (noise, stripes, plaid, blobs, leaves, things)
UNSEEN = (checkers, bricks, wood, clouds, cells, halftone)
