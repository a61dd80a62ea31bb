"""Shapes and doodles: what is drawn with a pen and means no digit."""

import functools
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

from rendering.paper import Draw, Random, cast, on_paper, rotation

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


def polygon(random: Random) -> list[Points]:
    """Return a closed line with three to nine corners, regular or not."""
    angles = np.linspace(0, 2 * np.pi, random.randint(3, 10), endpoint=False)
    angles = angles + random.uniform(0, 2 * np.pi) + random.normal(0, 0.25, len(angles))
    radii = random.uniform(random.uniform(0.4, 1), 1, len(angles))
    points = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)
    return [[(x, y) for x, y in (*points, points[0])]]


def any_star(random: Random) -> list[Points]:
    return [_star(random.choice([3, 4, 5, 6, 7, 9, 10, 12]), random.uniform(0.2, 0.8))]


def arc(random: Random) -> list[Points]:
    """Return a part of a ring, with its chord, its radii, a second arc or none of these."""
    first, span = random.uniform(0, 2 * np.pi), random.uniform(1.5, 5.5)
    outer = _curve(np.cos, np.sin, first, first + span)
    inner = random.uniform(0.3, 0.8)
    endings = (
        [],
        [outer[0]],
        [(0, 0), outer[0]],
        [(inner * x, inner * y) for x, y in outer[::-1]] + [outer[0]],
    )
    return [outer + endings[random.randint(4)]]


def arrow(random: Random) -> list[Points]:
    """Return a straight or bent shaft with a head at one end or both."""
    bend, turn = random.choice([0, random.uniform(-0.8, 0.8)]), random.uniform(0, 2 * np.pi)
    shaft = np.array(_curve(lambda t: t, lambda t: bend * (1 - t * t), -1, 1))
    size, spread = random.uniform(0.3, 0.8), random.uniform(0.3, 0.9)
    heads = []
    for end, before in ((shaft[-1], shaft[-8]), (shaft[0], shaft[7]))[: random.randint(1, 3)]:
        back = np.arctan2(*(before - end)[::-1])
        angles = np.array([back - spread, back + spread])
        sides = end + size * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        heads.append(np.array([sides[0], end, sides[1], *[sides[0]] * random.randint(2)]))
    return _turned([shaft, *heads], turn)


def crossing(random: Random) -> list[Points]:
    """Return two to five straight lines that cross or meet near the middle."""
    turn, lines = random.uniform(0, np.pi), []
    count = random.randint(2, 6)
    for number in range(count):
        angle = turn + np.pi * number / count + random.normal(0, 0.12)
        ends = np.array([-random.choice([0, 0.6, 1]), 1])[:, np.newaxis]
        lines.append(ends * [np.cos(angle), np.sin(angle)] + random.normal(0, 0.08, 2))
    return [[(x, y) for x, y in line] for line in lines]


def comb(random: Random) -> list[Points]:
    """Return parallel lines, side by side or hanging on one or two others."""
    count, wide, spines = random.randint(2, 6), random.uniform(0.5, 1), random.randint(3)
    across = np.linspace(-wide, wide, count) + random.normal(0, 0.03, count)
    ends = random.uniform(0.3, 1, (count, 2)) if random.rand() < 0.4 else np.ones((count, 2))
    lines = [np.array([(x, -up), (x, down)]) for x, (up, down) in zip(across, ends)]
    for height in random.choice([-1, 0, 1], spines, replace=False):
        lines.append(np.array([(-1, height), (1, height)]))
    return _turned(lines, random.choice([0, 1, 2, 3]) * np.pi / 2)


def wave(random: Random) -> list[Points]:
    """Return a line that goes up and down: round, pointed or with corners."""
    times = np.linspace(0, random.uniform(1, 4.5), 200)
    high = random.uniform(0.2, 1)
    forms = (
        np.sin(2 * np.pi * times),
        4 * np.abs(times % 1 - 0.5) - 1,
        np.where(times % 1 < 0.5, 1, -1),
        np.abs(np.sin(np.pi * times)) * 2 - 1,
    )
    points = np.stack([2 * times / times[-1] - 1, high * forms[random.randint(4)]], axis=1)
    return _turned([points], random.choice([0, np.pi / 2, random.uniform(0, np.pi)]))


def emblem(random: Random) -> list[Points]:
    """Return an outline with one to three smaller drawings in it or across it."""
    families = (polygon, any_star, arc, crossing, comb, wave)
    outline = (polygon(random), [_ring(0, 0, 1)], arc(random))[random.randint(3)]
    marks = []
    for _ in range(random.randint(1, 4)):
        size, at = random.uniform(0.1, 0.6), random.uniform(-0.5, 0.5, 2)
        mark = families[random.randint(len(families))](random)
        marks += [[(size * x + at[0], size * y + at[1]) for x, y in points] for points in mark]
    return outline + marks


FAMILIES = (polygon, any_star, arc, arrow, crossing, comb, wave, emblem, doodle)


def _turned(lines: list[np.ndarray], turn: float) -> list[Points]:
    return [[(x, y) for x, y in line @ rotation(turn)] for line in lines]


def shape(strokes: list[Points], random: Random, filled: bool = False) -> Image.Image:
    lot = cast(random)
    return on_paper(shape_cover(strokes, lot.pen, random, filled), lot, random)


def shape_cover(
    strokes: list[Points], pen: float, random: Random, filled: bool = False, over: int = 300
) -> np.ndarray:
    """Return where strokes cover the paper, a little turned and shaken: float [H, W] in 0..1.

    pen: width of the strokes; the shape is 1 high. over: pixels of half its height.
    """
    image = Image.new("L", (4 * over, 4 * over))
    brush = ImageDraw.Draw(image)
    turn, wide = np.radians(random.uniform(-12, 12)), random.uniform(0.75, 1.25)
    width = max(2, round(pen * 2 * over))
    for points in strokes:
        shaken = np.array(points) * [wide, 1] + random.normal(0, 0.012, (len(points), 2))
        if np.allclose(points[0], points[-1]):
            shaken[-1] = shaken[0]
        placed = [tuple(point) for point in shaken @ rotation(turn) * over + 2 * over]
        if filled:
            brush.polygon(placed, 255)
        brush.line(placed, 255, width, joint="curve")
        for x, y in (placed[0], placed[-1]):
            brush.ellipse((x - width / 2, y - width / 2, x + width / 2, y + width / 2), 255)
    return np.asarray(image) / 255


def shapes(known: dict[str, list[Points]]) -> dict[str, Draw]:
    def sometimes_filled(strokes: list[Points], random: Random) -> Image.Image:
        return shape(strokes, random, filled=random.rand() < 0.15)

    return {name: functools.partial(sometimes_filled, strokes) for name, strokes in known.items()}
