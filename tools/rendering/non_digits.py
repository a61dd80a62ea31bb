"""Pictures of what is no digit, drawn by code: letters, shapes, textures, screenshots.

Both are functions by kind and name. Those of TRAINING and those of UNSEEN have no font, shape,
texture or layout in common. There are photographs too, for UNSEEN alone: those that come with
scikit-learn and scikit-image.
"""

import functools
import importlib.util
import string
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

from rendering.paper import Page, cast, paste, photograph, sheet

Random = np.random.RandomState
Draw = Callable[[Random], Image.Image]

FONTS = Path(matplotlib.get_data_path(), "fonts/ttf")
LETTERS = string.ascii_letters
TRAINING_FONTS = """
    DejaVuSans DejaVuSans-Bold DejaVuSans-Oblique DejaVuSerif DejaVuSerif-Bold DejaVuSerif-Italic
    DejaVuSansMono DejaVuSansMono-Oblique
""".split()
UNSEEN_FONTS = "STIXGeneral STIXGeneralBol STIXGeneralItalic cmr10 cmb10 cmss10 cmtt10".split()


@functools.lru_cache(64)
def _font(name: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(FONTS / f"{name}.ttf"), size)


def letter(text: str, font: str, random: Random) -> Image.Image:
    """Write a letter as a digit is written on plain paper, a little turned and sheared."""
    lot = cast(random)
    height = lot.height * min(lot.size)
    image = Image.new("L", (420, 420))
    pen = ImageDraw.Draw(image)
    pen.text((210, 210), text, 255, _font(font, 220), anchor="mm")
    turn, shear = np.radians(random.uniform(-8, 8)), random.uniform(-0.15, 0.15)
    matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn) + shear, np.cos(turn)]])
    mask = np.asarray(image) > 127
    wanted = lot.pen * 160
    depth = ndimage.distance_transform_edt(mask)
    stroke = max(1.0, 4 * depth[mask].mean())
    reach = int(np.clip((wanted - stroke) / 2, -0.25 * stroke, 20))
    if reach > 0:
        mask = ndimage.distance_transform_edt(~mask) <= reach
    elif reach < 0:
        mask = depth > -reach
    cover = ndimage.affine_transform(
        mask.astype(float), matrix, offset=210 - matrix @ [210, 210], order=1
    )
    return _on_paper(cover, height, lot, random)


def _on_paper(cover: np.ndarray, height: float, lot, random: Random) -> Image.Image:
    """Scale a drawing to a height in pixels and take a picture of it on plain paper."""
    rows, columns = (np.flatnonzero((cover > 0.5).any(axis=axis)) for axis in (1, 0))
    cover = cover[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    scale = height / max(cover.shape)
    image = Image.fromarray(np.rint(cover * 255).astype(np.uint8)).resize(
        [max(1, round(side * scale)) for side in cover.shape[::-1]], Image.Resampling.BOX
    )
    cover = np.asarray(image) / 255
    place = [int(at * side - own / 2) for at, side, own in zip(lot.at, lot.size, cover.shape)]
    return photograph(paste(sheet(lot), cover, place, lot.ink), lot, random)


def letters(fonts: list[str]) -> dict[str, Draw]:
    def in_any_font(text: str, random: Random) -> Image.Image:
        return letter(text, fonts[random.randint(len(fonts))], random)

    return {text: functools.partial(in_any_font, text) for text in LETTERS}


# ------------------------------------------------------------------ shapes

Points = list[tuple[float, float]]  # in -1..1, y downwards


def _polygon(corners: int, first: float = -90) -> Points:
    angles = np.radians(first + 360 * np.arange(corners + 1) / corners)
    return [(np.cos(angle), np.sin(angle)) for angle in angles]


def _star(points: int, inner: float) -> Points:
    angles = np.radians(-90 + 180 * np.arange(2 * points + 1) / points)
    radii = np.where(np.arange(2 * points + 1) % 2, inner, 1)
    return [(r * np.cos(angle), r * np.sin(angle)) for r, angle in zip(radii, angles)]


def _curve(x: Callable, y: Callable, first: float, last: float) -> Points:
    return [(x(t), y(t)) for t in np.linspace(first, last, 80)]


def _ring(x: float, y: float, radius: float) -> Points:
    return [(x + radius * u, y + radius * v) for u, v in _polygon(40)]


TRAINING_SHAPES: dict[str, list[Points]] = {
    "square": [_polygon(4, -45)],
    "triangle": [_polygon(3)],
    "star of five": [_star(5, 0.4)],
    "plus": [[(-1, 0), (1, 0)], [(0, -1), (0, 1)]],
    "cross": [[(-1, -1), (1, 1)], [(1, -1), (-1, 1)]],
    "arrow": [[(-1, 0), (1, 0)], [(0.4, -0.6), (1, 0), (0.4, 0.6)]],
    "zigzag": [[(-1, 0.4), (-0.5, -0.4), (0, 0.4), (0.5, -0.4), (1, 0.4)]],
    "pentagon": [_polygon(5)],
    "chevron": [[(-0.8, 0.5), (0, -0.5), (0.8, 0.5)]],
    "equals": [[(-1, -0.35), (1, -0.35)], [(-1, 0.35), (1, 0.35)]],
    "target": [_ring(0, 0, 1), _ring(0, 0, 0.5)],
    "crossed ring": [_ring(0, 0, 1), [(-1, 0), (1, 0)], [(0, -1), (0, 1)]],
    "sine": [_curve(lambda t: t / 6.3 - 1, lambda t: 0.5 * np.sin(t), 0, 12.6)],
    "fork": [[(0, 1), (0, 0), (-0.7, -1)], [(0, 0), (0.7, -1)], [(0, 0), (0, -1)]],
    "stairs": [[(-1, 1), (-1, 0.3), (-0.3, 0.3), (-0.3, -0.3), (0.4, -0.3), (0.4, -1), (1, -1)]],
}
UNSEEN_SHAPES: dict[str, list[Points]] = {
    "heart": [
        _curve(
            lambda t: np.sin(t) ** 3,
            lambda t: -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t)) / 16,
            0,
            6.29,
        )
    ],
    "house": [[(-0.8, 1), (-0.8, -0.1), (0, -1), (0.8, -0.1), (0.8, 1), (-0.8, 1)]],
    "spiral": [_curve(lambda t: t * np.cos(t) / 19, lambda t: t * np.sin(t) / 19, 0, 18.9)],
    "face": [
        _ring(0, 0, 1),
        _ring(-0.35, -0.3, 0.08),
        _ring(0.35, -0.3, 0.08),
        _curve(lambda t: 0.5 * np.cos(t), lambda t: 0.1 + 0.5 * np.sin(t), 0.3, 2.84),
    ],
    "star of eight": [_star(8, 0.6)],
    "hash": [
        [(-0.4, -1), (-0.4, 1)],
        [(0.4, -1), (0.4, 1)],
        [(-1, -0.4), (1, -0.4)],
        [(-1, 0.4), (1, 0.4)],
    ],
    "tick": [[(-0.9, 0.1), (-0.3, 0.8), (0.9, -0.8)]],
    "infinity": [_curve(np.cos, lambda t: 0.5 * np.sin(2 * t), 0, 6.29)],
    "tree": [
        [(0, 1), (0, 0.5)],
        [(-0.8, 0.5), (0, -1), (0.8, 0.5), (-0.8, 0.5)],
        [(-0.5, -0.1), (0.5, -0.1)],
    ],
    "envelope": [[(-1, -0.6), (1, -0.6), (1, 0.6), (-1, 0.6), (-1, -0.6), (0, 0.2), (1, -0.6)]],
    "percent": [[(0.8, -1), (-0.8, 1)], _ring(-0.6, -0.6, 0.3), _ring(0.6, 0.6, 0.3)],
    "fish": [
        _curve(lambda t: np.cos(t) - np.sin(t) ** 2 / 1.4, lambda t: np.cos(t) * np.sin(t), 0, 6.29)
    ],
    "flower": [
        _curve(
            lambda t: np.cos(2.5 * t) * np.cos(t), lambda t: np.cos(2.5 * t) * np.sin(t), 0, 12.6
        )
    ],
    "circle": [_ring(0, 0, 1)],
    "bar": [[(0, -1), (0, 1)]],
}


def doodle(random: Random) -> list[Points]:
    """Return strokes of no meaning: outlines, lines, curves, rings and spots."""
    strokes = []
    for _ in range(random.randint(3, 6)):
        kind = random.randint(6)
        points = random.uniform(-1, 1, (random.randint(3, 8), 2))
        if kind == 0:  # corners around a centre
            angles = np.sort(random.uniform(0, 2 * np.pi, len(points)))
            radii = random.uniform(0.5, 1, len(points))
            points = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)
            points = np.concatenate([points, points[:1]])
        elif kind == 1:  # a smooth line
            times = np.linspace(0, len(points) - 1, 60)
            points = np.stack(
                [ndimage.map_coordinates(axis, [times], order=3) for axis in points.T], axis=1
            )
        elif kind == 2:  # left and right alike
            half = points[points[:, 1].argsort()] * [0.5, 1] + [0.5, 0]
            points = np.concatenate([half, half[::-1] * [-1, 1], half[:1]])
        elif kind == 3:  # a ring, or a spot
            points = np.array(_ring(*points[0] * 0.7, random.choice([0.08, 0.3, 0.5, 0.9])))
        elif kind == 4:  # a straight line
            points = points[:2]
        strokes.append([(x, y) for x, y in points])
    return strokes


def shape(strokes: list[Points], random: Random, filled: bool = False) -> Image.Image:
    lot = cast(random)
    height = lot.height * min(lot.size)
    over = 300
    image = Image.new("L", (4 * over, 4 * over))
    pen = ImageDraw.Draw(image)
    turn, wide = np.radians(random.uniform(-12, 12)), random.uniform(0.75, 1.25)
    width = max(2, round(lot.pen * 2 * over))
    for points in strokes:
        shaken = np.array(points) * [wide, 1] + random.normal(0, 0.012, (len(points), 2))
        matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        if np.allclose(points[0], points[-1]):
            shaken[-1] = shaken[0]
        placed = [tuple(point) for point in shaken @ matrix * over + 2 * over]
        if filled:
            pen.polygon(placed, 255)
        pen.line(placed, 255, width, joint="curve")
        for x, y in (placed[0], placed[-1]):
            pen.ellipse((x - width / 2, y - width / 2, x + width / 2, y + width / 2), 255)
    return _on_paper(np.asarray(image) / 255, height, lot, random)


def shapes(known: dict[str, list[Points]]) -> dict[str, Draw]:
    def sometimes_filled(strokes: list[Points], random: Random) -> Image.Image:
        return shape(strokes, random, filled=random.rand() < 0.15)

    return {name: functools.partial(sometimes_filled, strokes) for name, strokes in known.items()}


# ------------------------------------------------------------------ textures


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


# ------------------------------------------------------------------ screenshots


def _words(random: Random, count: int) -> str:
    return " ".join(
        "".join(LETTERS[random.randint(26)] for _ in range(random.randint(2, 10)))
        for _ in range(count)
    )


def _screen(random: Random, dark: bool) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    sizes = [(1280, 720), (1024, 768), (800, 600), (540, 960)]
    back = random.randint(10, 60, 3) if dark else random.randint(200, 256, 3)
    image = Image.new("RGB", sizes[random.randint(len(sizes))], tuple(int(v) for v in back))
    return image, ImageDraw.Draw(image)


def document(random: Random) -> Image.Image:
    """A window with a title and paragraphs."""
    image, pen = _screen(random, dark=False)
    pen.rectangle((0, 0, image.width, 50), fill=tuple(int(v) for v in random.randint(30, 200, 3)))
    font = _font("DejaVuSans", random.randint(12, 26))
    for top in range(80, image.height - 30, random.randint(22, 50)):
        if random.rand() < 0.85:
            pen.text((40, top), _words(random, random.randint(3, 12)), (20, 20, 20), font)
    return image


def dialog(random: Random) -> Image.Image:
    """A box with a question and two buttons in the middle of a desktop."""
    image, pen = _screen(random, dark=random.rand() < 0.5)
    width, height = (int(side * random.uniform(0.3, 0.6)) for side in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    box = (left, top, left + width, top + height)
    pen.rectangle(box, fill=(240, 240, 240), outline=(90, 90, 90))
    font = _font("DejaVuSans-Bold", 22)
    pen.text((left + 20, top + 20), _words(random, 4), (0, 0, 0), font)
    for number in range(2):
        x = left + width - 130 * (number + 1)
        pen.rectangle((x, top + height - 50, x + 110, top + height - 15), fill=(60, 110, 200))
        pen.text((x + 20, top + height - 45), _words(random, 1)[:6], (255, 255, 255), font)
    return image


def editor(random: Random) -> Image.Image:
    """Code in many colours on a dark ground, with numbered lines."""
    image, pen = _screen(random, dark=True)
    size = random.randint(14, 24)
    font = _font("cmtt10", size)
    for number, top in enumerate(range(10, image.height - size, round(size * 1.4))):
        pen.text((10, top), str(number + 1), (110, 110, 110), font)
        left = 60 + 30 * random.randint(0, 5)
        for _ in range(random.randint(0, 6)):
            word = _words(random, 1)
            pen.text((left, top), word, tuple(int(v) for v in random.randint(120, 255, 3)), font)
            left += size * (len(word) + 1) // 2 + 8
    return image


def spreadsheet(random: Random) -> Image.Image:
    image, pen = _screen(random, dark=False)
    font = _font("STIXGeneral", 18)
    width, height = random.randint(70, 140), random.randint(24, 40)
    for top in range(0, image.height, height):
        pen.line((0, top, image.width, top), (190, 190, 190))
        for left in range(0, image.width, width):
            pen.line((left, 0, left, image.height), (190, 190, 190))
            if random.rand() < 0.5:
                pen.text((left + 6, top + 3), f"{random.randint(0, 9999)}", (0, 0, 0), font)
    return image


def chart(random: Random) -> Image.Image:
    """Axes, a curve and bars."""
    image, pen = _screen(random, dark=False)
    left, bottom = 80, image.height - 70
    pen.line((left, 40, left, bottom), (0, 0, 0), 3)
    pen.line((left, bottom, image.width - 40, bottom), (0, 0, 0), 3)
    count = random.randint(4, 14)
    step = (image.width - 160) // count
    tops = [int(bottom - random.uniform(0.1, 0.9) * (bottom - 60)) for _ in range(count)]
    colour = tuple(int(v) for v in random.randint(0, 200, 3))
    for number, top in enumerate(tops):
        x = left + 15 + number * step
        pen.rectangle((x, top, x + step * 2 // 3, bottom), fill=colour)
        pen.text((x, bottom + 10), f"{number}", (0, 0, 0), _font("cmss10", 22))
    pen.line([(left + 15 + n * step, top - 20) for n, top in enumerate(tops)], (200, 30, 30), 4)
    return image


def desktop(random: Random) -> Image.Image:
    """Icons with names in a grid, and a bar at the bottom."""
    image, pen = _screen(random, dark=random.rand() < 0.6)
    pen.rectangle((0, image.height - 48, image.width, image.height), fill=(40, 40, 48))
    font = _font("cmss10", 18)
    for top in range(30, image.height - 160, 130):
        for left in range(30, image.width - 90, 120):
            if random.rand() < 0.5:
                colour = tuple(int(v) for v in random.randint(0, 255, 3))
                pen.rounded_rectangle((left, top, left + 64, top + 64), 12, fill=colour)
                pen.text((left, top + 72), _words(random, 1), (200, 200, 200), font)
    return image


# ------------------------------------------------------------------ photographs

PHOTOGRAPHS = """
    astronaut.png camera.png chelsea.png clock_motion.png coffee.png coins.png
    hubble_deep_field.jpg ihc.png moon.png motorcycle_left.png retina.jpg rocket.jpg
""".split()


@functools.lru_cache(1)
def photographs() -> dict[str, Image.Image]:
    """Return the photographs that come with scikit-learn, and scikit-image's if it is there."""
    from sklearn.datasets import load_sample_images

    samples = load_sample_images()
    found = {
        Path(name).name: Image.fromarray(values)
        for name, values in zip(samples.filenames, samples.images)
    }
    spec = importlib.util.find_spec("skimage")
    if spec and spec.origin:
        for name in PHOTOGRAPHS:
            path = Path(spec.origin).parent / "data" / name
            if path.exists():
                found[name] = Image.open(path).convert("RGB")
    return found


def photograph_part(name: str, random: Random) -> Image.Image:
    """Cut a part out of a photograph, half to all of its sides."""
    image = photographs()[name]
    width, height = (int(side * random.uniform(0.5, 1)) for side in image.size)
    left, top = random.randint(image.width - width + 1), random.randint(image.height - height + 1)
    return image.crop((left, top, left + width, top + height))


def _by_name(*draws: Draw) -> dict[str, Draw]:
    return {draw.__name__: draw for draw in draws}


TRAINING: dict[str, dict[str, Draw]] = {
    "letters": letters(TRAINING_FONTS),
    "shapes": shapes(TRAINING_SHAPES),
    "doodles": {"doodle": lambda random: shape(doodle(random), random, random.rand() < 0.15)},
    "textures": _by_name(noise, stripes, plaid, blobs),
    "screenshots": _by_name(document, dialog),
}
UNSEEN: dict[str, dict[str, Draw]] = {
    "letters": letters(UNSEEN_FONTS),
    "shapes": shapes(UNSEEN_SHAPES),
    "textures": _by_name(checkers, bricks, wood, clouds, cells, halftone),
    "screenshots": _by_name(editor, spreadsheet, chart, desktop),
    "photographs of things": {
        name: functools.partial(photograph_part, name) for name in photographs()
    },
}
