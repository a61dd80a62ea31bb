"""Shapes and doodles: what is drawn with a pen and means no digit.

A line is an array of complex numbers from -1-1j to 1+1j, x + y * 1j, y downwards: what multiplies
it turns and scales it.
"""

import functools
from collections.abc import Callable

import cv2
import numpy as np
from PIL import Image
from scipy.interpolate import CubicSpline

from detector.camera import Cover, Draw, Random, cast, on_paper

Line = np.ndarray  # complex [N]


def _turn(degrees: float) -> complex:
    return np.exp(1j * np.radians(degrees))


def _polygon(corners: int, first: float = -90) -> Line:
    return _turn(first + 360 * np.arange(corners + 1) / corners)


def _star(points: int, inner: float) -> Line:
    return _polygon(2 * points) * np.where(np.arange(2 * points + 1) % 2, inner, 1)


def _curve(function: Callable[[np.ndarray], Line], first: float, last: float) -> Line:
    return function(np.linspace(first, last, 80))


def _ring(centre: complex, radius: float) -> Line:
    return centre + radius * _polygon(40)


SQUARE, PLUS = _polygon(4, -45), [[-1, 1], [-1j, 1j]]
TRAINING_SHAPES: dict[str, list] = {
    "square": [SQUARE],
    "triangle": [_polygon(3)],
    "star of five": [_star(5, 0.4)],
    "plus": PLUS,
    "cross": [[-1 - 1j, 1 + 1j], [1 - 1j, -1 + 1j]],
    "arrow": [[-1, 1], [0.4 - 0.6j, 1, 0.4 + 0.6j]],
    "zigzag": [[-1 + 0.4j, -0.5 - 0.4j, 0.4j, 0.5 - 0.4j, 1 + 0.4j]],
    "pentagon": [_polygon(5)],
    "chevron": [[-0.8 + 0.5j, -0.5j, 0.8 + 0.5j]],
    "equals": [[-1 - 0.35j, 1 - 0.35j], [-1 + 0.35j, 1 + 0.35j]],
    "target": [_ring(0, 1), _ring(0, 0.5)],
    "crossed ring": [_ring(0, 1), *PLUS],
    "sine": [_curve(lambda t: t / 6.3 - 1 + 0.5j * np.sin(t), 0, 12.6)],
    "fork": [[1j, 0, -0.7 - 1j], [0, 0.7 - 1j], [0, -1j]],
    "stairs": [
        [-1 + 1j, -1 + 0.3j, -0.3 + 0.3j, -0.3 - 0.3j, 0.4 - 0.3j, 0.4 - 1j, 1 - 1j],
    ],
}
UNSEEN_SHAPES: dict[str, list] = {
    "heart": [
        _curve(
            lambda t: (
                np.sin(t) ** 3 - 1j * (13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t)) / 16
            ),
            0,
            6.29,
        )
    ],
    "house": [[-0.8 + 1j, -0.8 - 0.1j, -1j, 0.8 - 0.1j, 0.8 + 1j, -0.8 + 1j]],
    "spiral": [_curve(lambda t: t * np.exp(1j * t) / 19, 0, 18.9)],
    "face": [
        _ring(0, 1),
        _ring(-0.35 - 0.3j, 0.08),
        _ring(0.35 - 0.3j, 0.08),
        _curve(lambda t: 0.1j + 0.5 * np.exp(1j * t), 0.3, 2.84),
    ],
    "star of eight": [_star(8, 0.6)],
    "hash": [
        *([x - 1j, x + 1j] for x in (-0.4, 0.4)),
        *([y - 1, y + 1] for y in (-0.4j, 0.4j)),
    ],
    "tick": [[-0.9 + 0.1j, -0.3 + 0.8j, 0.9 - 0.8j]],
    "infinity": [_curve(lambda t: np.cos(t) + 0.5j * np.sin(2 * t), 0, 6.29)],
    "tree": [
        [1j, 0.5j],
        [-0.8 + 0.5j, -1j, 0.8 + 0.5j, -0.8 + 0.5j],
        [-0.5 - 0.1j, 0.5 - 0.1j],
    ],
    "envelope": [[-1 - 0.6j, 1 - 0.6j, 1 + 0.6j, -1 + 0.6j, -1 - 0.6j, 0.2j, 1 - 0.6j]],
    "percent": [[0.8 - 1j, -0.8 + 1j], _ring(-0.6 - 0.6j, 0.3), _ring(0.6 + 0.6j, 0.3)],
    "fish": [
        _curve(lambda t: np.cos(t) - np.sin(t) ** 2 / 1.4 + 0.5j * np.sin(2 * t), 0, 6.29),
    ],
    "flower": [_curve(lambda t: np.cos(2.5 * t) * np.exp(1j * t), 0, 12.6)],
    "circle": [_ring(0, 1)],
    "bar": [[-1j, 1j]],
}

# ------------------------------------------------------------------ families, drawn by lot


def _around(angles: np.ndarray, least: float, random: Random) -> Line:
    """Return a closed line with a corner at each angle, at least so far from the middle."""
    corners = random.uniform(least, 1, len(angles)) * np.exp(1j * angles)
    return np.append(corners, corners[0])


def doodle(random: Random) -> list[Line]:
    """Return strokes of no meaning: outlines, lines, curves, rings and spots."""
    lines = []
    for _ in range(random.randint(3, 6)):
        kind = random.randint(6)
        x, y = random.uniform(-1, 1, (2, random.randint(3, 8)))
        line = x + 1j * y
        if kind == 0:  # corners around a centre
            line = _around(np.sort(random.uniform(0, 2 * np.pi, len(x))), 0.5, random)
        elif kind == 1:  # a smooth line
            line = CubicSpline(range(len(x)), line)(np.linspace(0, len(x) - 1, 60))
        elif kind == 2:  # left and right alike
            half = np.abs(x) + 1j * np.sort(y)
            line = np.concatenate([half, -half[::-1].conj(), half[:1]])
        elif kind == 3:  # a ring, or a spot
            line = _ring(line[0] * 0.7, random.choice([0.08, 0.3, 0.5, 0.9]))
        elif kind == 4:  # a straight line
            line = line[:2]
        lines.append(line)
    return lines


def polygon(random: Random) -> list[Line]:
    """Return a closed line with three to nine corners, regular or not."""
    angles = np.linspace(0, 2 * np.pi, random.randint(3, 10), endpoint=False)
    angles = angles + random.uniform(0, 2 * np.pi) + random.normal(0, 0.25, len(angles))
    return [_around(angles, random.uniform(0.4, 1), random)]


def any_star(random: Random) -> list[Line]:
    return [_star(random.choice([3, 4, 5, 6, 7, 9, 10, 12]), random.uniform(0.2, 0.8))]


def arc(random: Random) -> list[Line]:
    """Return a part of a ring, with its chord, its radii, a second arc or none of these."""
    first, span = random.uniform(0, 2 * np.pi), random.uniform(1.5, 5.5)
    outer = _curve(lambda t: np.exp(1j * t), first, first + span)
    inner = random.uniform(0.3, 0.8) * outer[::-1]
    ends = ([], outer[:1], [0, outer[0]], [*inner, outer[0]])
    return [np.append(outer, ends[random.randint(4)])]


def arrow(random: Random) -> list[Line]:
    """Return a straight or bent shaft with a head at one end or both."""
    bend, turn = random.choice([0, random.uniform(-0.8, 0.8)]), _turn(random.uniform(0, 360))
    shaft = _curve(lambda t: t + 1j * bend * (1 - t * t), -1, 1)
    size, spread = random.uniform(0.3, 0.8), random.uniform(0.3, 0.9)
    lines = [shaft]
    for end, before in ((shaft[-1], shaft[-8]), (shaft[0], shaft[7]))[: random.randint(1, 3)]:
        back = size * (before - end) / abs(before - end)
        sides = end + back * np.exp([-1j * spread, 1j * spread])
        lines.append(np.array([sides[0], end, sides[1], *[sides[0]] * random.randint(2)]))
    return [line * turn for line in lines]


def crossing(random: Random) -> list[Line]:
    """Return two to five straight lines that cross or meet near the middle."""
    turn, count = random.uniform(0, np.pi), random.randint(2, 6)
    lines = []
    for number in range(count):
        ends = np.array([-random.choice([0, 0.6, 1]), 1])
        angle = turn + np.pi * number / count + random.normal(0, 0.12)
        lines.append(ends * np.exp(1j * angle) + random.normal(0, 0.08, 2) @ [1, 1j])
    return lines


def comb(random: Random) -> list[Line]:
    """Return parallel lines, side by side or hanging on one or two others."""
    count, wide, spines = random.randint(2, 6), random.uniform(0.5, 1), random.randint(3)
    across = np.linspace(-wide, wide, count) + random.normal(0, 0.03, count)
    ends = random.uniform(0.3, 1, (count, 2)) if random.rand() < 0.4 else np.ones((count, 2))
    lines = [x + np.array([-1j, 1j]) * end for x, end in zip(across, ends)]
    lines += [1j * y + np.array([-1, 1]) for y in random.choice([-1, 0, 1], spines, replace=False)]
    turn = 1j ** random.randint(4)
    return [line * turn for line in lines]


def wave(random: Random) -> list[Line]:
    """Return a line that goes up and down: round, pointed or with corners."""
    times = np.linspace(0, random.uniform(1, 4.5), 200)
    high = random.uniform(0.2, 1)
    forms = (
        np.sin(2 * np.pi * times),
        4 * np.abs(times % 1 - 0.5) - 1,
        np.where(times % 1 < 0.5, 1, -1),
        np.abs(np.sin(np.pi * times)) * 2 - 1,
    )
    line = 2 * times / times[-1] - 1 + 1j * high * forms[random.randint(4)]
    return [line * _turn(random.choice([0, 90, random.uniform(0, 180)]))]


def emblem(random: Random) -> list[Line]:
    """Return an outline with one to three smaller drawings in it or across it."""
    families = (polygon, any_star, arc, crossing, comb, wave)
    lines = (polygon(random), [_ring(0, 1)], arc(random))[random.randint(3)]
    for _ in range(random.randint(1, 4)):
        size, at = random.uniform(0.1, 0.6), random.uniform(-0.5, 0.5, 2) @ [1, 1j]
        lines += [size * line + at for line in families[random.randint(len(families))](random)]
    return lines


FAMILIES = (polygon, any_star, arc, arrow, crossing, comb, wave, emblem, doodle)

# ------------------------------------------------------------------ the pen


def shape(lines: list[Line], random: Random) -> Image.Image:
    lot = cast(random)
    return on_paper(shape_cover(lines, lot.pen, random), lot, random)


def shape_cover(lines: list[Line], pen: float, random: Random, over: int = 300) -> Cover:
    """Return where lines cover the paper, a little turned and shaken, sometimes filled.

    pen: width of the lines; the shape is 1 high. over: pixels of half its height.
    """
    image = np.zeros((4 * over, 4 * over), np.uint8)
    is_filled, turn = random.rand() < 0.15, _turn(random.uniform(-12, 12))
    wide, width = random.uniform(0.75, 1.25), max(2, round(pen * 2 * over))
    for line in map(np.asarray, lines):
        shaken = (
            wide * line.real + 1j * line.imag + random.normal(0, 0.012, (len(line), 2)) @ [1, 1j]
        )
        if np.isclose(line[0], line[-1]):
            shaken[-1] = shaken[0]
        placed = over * (turn * shaken + 2 + 2j)
        points = np.rint(np.stack([placed.real, placed.imag], axis=1)).astype(np.int32)
        if is_filled:
            cv2.fillPoly(image, [points], 255)
        cv2.polylines(image, [points], False, 255, width)  # with round ends and joints
    return image / 255


def shapes(known: dict[str, list]) -> dict[str, Draw]:
    return {name: functools.partial(shape, lines) for name, lines in known.items()}
