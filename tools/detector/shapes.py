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

from detector.camera import Cover, Draw, Random, on_paper, random_look

Line = np.ndarray  # complex [N]


def _turn(degrees: float) -> complex:
    return np.exp(1j * np.radians(degrees))


def _any_turn(random: Random) -> complex:
    """Return a turn that leaves a drawing as it is, by a right angle, or by any."""
    return _turn(random.choice([0, 90, random.uniform(0, 180)]))


def _lines(text: str) -> list[Line]:
    """Return the lines of a drawing: `x,y x,y` for the points of each, and ` / ` between them."""
    return [
        np.array([complex(*map(float, point.split(","))) for point in line.split()])
        for line in text.split("/")
    ]


def _polygon(corners: int, first: float = -90) -> Line:
    return _turn(first + 360 * np.arange(corners + 1) / corners)


def _star(points: int, inner: float) -> Line:
    return _polygon(2 * points) * np.where(np.arange(2 * points + 1) % 2, inner, 1)


def _curve(function: Callable[[np.ndarray], Line], first: float, last: float) -> Line:
    return function(np.linspace(first, last, 80))


def _bow(centre: complex, radius: float, first: float, last: float) -> Line:
    """Return a part of a ring. first, last: angles, in radians."""
    return _curve(lambda t: centre + radius * np.exp(1j * t), first, last)


def _ring(centre: complex, radius: float) -> Line:
    return centre + radius * _polygon(40)


SQUARE, PLUS = _polygon(4, -45), [[-1, 1], [-1j, 1j]]
TRAINING_SHAPES: dict[str, list] = {
    "square": [SQUARE],
    "triangle": [_polygon(3)],
    "star of five": [_star(5, 0.4)],
    "plus": PLUS,
    "cross": _lines("-1,-1 1,1 / 1,-1 -1,1"),
    "arrow": _lines("-1,0 1,0 / 0.4,-0.6 1,0 0.4,0.6"),
    "zigzag": _lines("-1,0.4 -0.5,-0.4 0,0.4 0.5,-0.4 1,0.4"),
    "pentagon": [_polygon(5)],
    "chevron": _lines("-0.8,0.5 0,-0.5 0.8,0.5"),
    "equals": _lines("-1,-0.35 1,-0.35 / -1,0.35 1,0.35"),
    "target": [_ring(0, 1), _ring(0, 0.5)],
    "crossed ring": [_ring(0, 1), *PLUS],
    "sine": [_curve(lambda t: t / 6.3 - 1 + 0.5j * np.sin(t), 0, 12.6)],
    "fork": _lines("0,1 0,0 -0.7,-1 / 0,0 0.7,-1 / 0,0 0,-1"),
    "stairs": _lines("-1,1 -1,0.3 -0.3,0.3 -0.3,-0.3 0.4,-0.3 0.4,-1 1,-1"),
}
UNSEEN_DOODLES: dict[str, list] = {
    "sun": [_ring(0, 0.45), *([0.6 * _turn(a), _turn(a)] for a in range(0, 360, 45))],
    "man": [
        _ring(-0.75j, 0.25),
        *_lines("0,-0.5 0,0.3 / -0.5,-0.1 0,-0.3 0.5,-0.1 / -0.4,1 0,0.3 0.4,1"),
    ],
    "cloud": [
        _curve(
            lambda t: (0.8 + 0.18 * np.abs(np.sin(3 * t))) * (np.cos(t) + 0.6j * np.sin(t)),
            0,
            6.2832,
        )
    ],
    "lightning": _lines("0.2,-1 -0.5,0.1 0,0 -0.3,1 0.5,-0.2 0.05,-0.15 0.5,-1 0.2,-1"),
    "umbrella": [
        _bow(0, 0.9, 3.1416, 6.2832),
        *_lines("-0.9,0 0.9,0"),
        np.append(_lines("0,-0.9 0,0.7"), _bow(0.2 + 0.7j, 0.2, 3.1416, 0)),
    ],
    "cup": [*_lines("-0.7,-0.6 -0.55,0.7 0.4,0.7 0.55,-0.6 -0.7,-0.6"), _bow(0.5, 0.35, -1.5, 1.5)],
    "mushroom": [
        _bow(-0.1j, 0.9, 3.1416, 6.2832),
        *_lines("-0.9,-0.1 0.9,-0.1 / -0.25,-0.1 -0.3,0.9 0.3,0.9 0.25,-0.1"),
    ],
    "key": [_ring(-0.6, 0.35), *_lines("-0.25,0 1,0 / 0.6,0 0.6,0.3 / 0.9,0 0.9,0.3")],
    "glasses": [
        _ring(-0.55, 0.4),
        _ring(0.55, 0.4),
        *_lines("-0.15,0 0.15,0 / -0.95,0 -1,-0.4 / 0.95,0 1,-0.4"),
    ],
    "crown": _lines("-0.9,0.6 -0.9,-0.5 -0.4,0 0,-0.7 0.4,0 0.9,-0.5 0.9,0.6 -0.9,0.6"),
    "flag": [
        *_lines("-0.6,1 -0.6,-1"),
        _curve(lambda t: t / 4 - 0.6 - 1j + 0.1j * np.sin(t), 0, 6),
        _curve(lambda t: t / 4 - 0.6 - 0.1j + 0.1j * np.sin(t), 0, 6),
        *_lines("0.9,-1.03 0.9,-0.13"),
    ],
    "ladder": [
        *([x - 1j, x + 1j] for x in (-0.4, 0.4)),
        *([-0.4 + y * 1j, 0.4 + y * 1j] for y in (-0.7, -0.25, 0.2, 0.65)),
    ],
    "leaf": [
        _curve(lambda t: np.cos(t) + 0.45j * np.sin(t) * np.abs(np.sin(t)), 0, 6.2832),
        *_lines("-0.7,0 1.3,0"),
        *([x, x + 0.25 + y * 1j] for x in (-0.4, 0, 0.35) for y in (-0.25, 0.25)),
    ],
    "anchor": [
        _ring(-0.8j, 0.2),
        *_lines("0,-0.6 0,0.9 / -0.45,-0.3 0.45,-0.3"),
        _bow(0.1j, 0.8, 0.3, 2.84),
    ],
    "cat": [
        _ring(0, 0.75),
        *_lines("-0.7,-0.3 -0.65,-1 -0.2,-0.72 / 0.7,-0.3 0.65,-1 0.2,-0.72"),
        *_lines("-0.15,0.1 0.15,0.1 0,0.25 -0.15,0.1"),
        *([0.2 * side + 0.25j, side * 1.1 + y * 1j] for side in (-1, 1) for y in (0.1, 0.4)),
    ],
    "boat": _lines("-1,0.3 -0.6,0.8 0.6,0.8 1,0.3 -1,0.3 / 0,0.3 0,-1 0.7,0.1 0,0.1"),
    "snail": [
        _curve(lambda t: 0.2 + t * np.exp(1j * t) / 18, 1, 14),
        *_lines("-1,0.75 0.9,0.75 0.2,0.75 / -0.5,0.75 -0.85,0.2 -1,0"),
    ],
    "bow": _lines("0,0 -0.9,-0.5 -0.9,0.5 0.9,-0.5 0.9,0.5 0,0"),
}

# ------------------------------------------------------------------ families, drawn at random


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
    """Return a closed line with three to nine corners; with more than five it is not a circle."""
    angles = np.linspace(0, 2 * np.pi, random.randint(3, 10), endpoint=False)
    angles = angles + random.uniform(0, 2 * np.pi) + random.normal(0, 0.25, len(angles))
    line = _around(angles, random.uniform(0.15, 1 if len(angles) < 6 else 0.7), random)
    return [(random.uniform(0.3, 1) * line.real + 1j * line.imag) * _any_turn(random)]


def any_star(random: Random) -> list[Line]:
    return [_star(random.choice([3, 4, 5, 6, 7, 9, 10, 12]), random.uniform(0.2, 0.8))]


def arc(random: Random) -> list[Line]:
    """Return a part of a ring, with its chord, its radii, a second arc or none of these."""
    first, span = random.uniform(0, 2 * np.pi), random.uniform(1.5, 4.9)  # no open zero
    outer = _bow(0, 1, first, first + span)
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
    return [line * _any_turn(random)]


def emblem(random: Random) -> list[Line]:
    """Return an outline with one to three smaller drawings in it or across it."""
    families = (polygon, any_star, arc, crossing, comb, wave)
    lines = (polygon(random), [_ring(0, 1)], arc(random))[random.randint(3)]
    for _ in range(random.randint(1, 4)):
        size, at = random.uniform(0.1, 0.6), random.uniform(-0.5, 0.5, 2) @ [1, 1j]
        lines += [size * line + at for line in families[random.randint(len(families))](random)]
    return lines


def blob(random: Random) -> list[Line]:
    """Return a closed smooth line around the middle, with bumps and dents."""
    corners = random.randint(5, 13)
    angles = np.linspace(0, 2 * np.pi, corners, endpoint=False) + random.normal(0, 0.15, corners)
    around = _around(angles, random.uniform(0.2, 0.55), random)
    around = around.real * random.uniform(0.5, 1) + 1j * around.imag
    spline = CubicSpline(range(corners + 1), around, bc_type="periodic")
    return [spline(np.linspace(0, corners, 80)) * _any_turn(random)]


def thing(random: Random) -> list[Line]:
    """Return a body with parts that hang on its outline, as drawings of things have."""
    bodies = (polygon, blob, arc, any_star, lambda random: [_ring(0, 1)])
    body = [line * random.uniform(0.3, 0.7) for line in bodies[random.randint(len(bodies))](random)]
    outline, lines = body[0], [*body]
    turn, count = random.randint(len(outline)), random.randint(1, 7)
    for number in range(count):
        start = outline[(turn + number * len(outline) // count) % len(outline)]
        out = start / max(abs(start), 0.1) * _turn(random.normal(0, 30))
        lines += _part(start, out * random.uniform(0.2, 0.7 if count > 2 else 1.5), count, random)
    return lines


def _part(start: complex, out: complex, count: int, random: Random) -> list[Line]:
    """Return a part of a body. A single part is not a line: a ring with one is a 6 or a 9."""
    aside = 1j * out * random.uniform(0.15, 0.5) * random.choice([-1, 1])
    ticks = [start + out * share for share in random.uniform(0.3, 1, random.randint(1, 4))]
    parts = (
        [[start, start + out], *([tick, tick + aside] for tick in ticks)],
        [[start - aside, start + out - aside, start + out + aside, start + aside]],
        [[start, start + out / 2], _ring(start + out * 0.75, abs(out) / 4)],
        [[start + aside, start + out, start - aside]],
        [[start, start + out]],
        [start + out * np.linspace(0, 1, 20) + aside * np.sin(np.linspace(0, np.pi, 20))],
        [_ring(start + out / 2, abs(out) / 2)],
    )
    chosen = parts[random.randint(len(parts) if count > 1 else 4)]
    return [np.array(line) for line in chosen]


def squiggle(random: Random) -> list[Line]:
    """Return one smooth line with many turns, or a row of loops."""
    if random.rand() < 0.5:
        x, y = random.uniform(-1, 1, (2, random.randint(7, 14)))
        return [CubicSpline(range(len(x)), x + 1j * y)(np.linspace(0, len(x) - 1, 120))]
    loops, size = random.randint(2, 6), random.uniform(0.3, 1)
    times = np.linspace(0, 2 * np.pi * loops, 40 * loops)
    drift = 2 * times / times[-1] - 1
    return [(drift + size * np.exp(1j * times)) * _any_turn(random)]


def hatching(random: Random) -> list[Line]:
    """Return a line that goes back and forth, as when filling in or striking out."""
    count = random.randint(5, 14)
    x = np.linspace(-random.uniform(0.4, 1), random.uniform(0.4, 1), count)
    y = np.where(np.arange(count) % 2, 1, -1) * random.uniform(0.5, 1, count)
    slant = random.uniform(-0.8, 0.8)
    return [(x + slant * y + 1j * y) * _any_turn(random)]


DOODLES = (doodle, thing, blob, squiggle, hatching)
# By family: how many are drawn for training.
FAMILIES: dict[Callable[[Random], list[Line]], int] = {
    **dict.fromkeys((polygon, any_star, arc, arrow, crossing, comb, wave), 1200),
    **dict.fromkeys((squiggle, hatching), 1200),
    **dict.fromkeys((doodle, blob, emblem), 2500),
    thing: 6000,
}

# ------------------------------------------------------------------ digits of unusual forms


def _zero(widths: tuple[float, float], gaps: tuple[float, float], random: Random) -> list[Line]:
    """Return a ring. widths: its height is 1. gaps: degrees; below 0, its ends cross."""
    wide, gap, times = random.uniform(*widths), random.uniform(*gaps), np.linspace(0, 1, 80)
    start = -90 + random.normal(0, 25) + gap / 2
    angles = np.radians(start + (360 - gap) * times)
    radii = 1 + random.normal(0, 0.03) * np.cos(2 * angles + random.uniform(0, 6))
    radii = radii + random.normal(0, 0.02) * np.cos(3 * angles + random.uniform(0, 6))
    radii = radii + random.normal(0, 0.06) * (times - 0.5)  # its ends do not meet
    line = radii * (wide * np.cos(angles) + 1j * np.sin(angles))
    return [(line if random.rand() < 0.5 else line[::-1]) * _turn(random.normal(0, 6))]


def flagged_one(random: Random) -> list[Line]:
    """Return a 1 with a long upstroke, as in German handwriting."""
    top = 1j * random.uniform(-1, -0.9) + random.uniform(0, 0.25)
    foot = 1j + random.uniform(-0.2, 0.2)
    away = random.uniform(0.4, 1.2) * _turn(90 + random.uniform(22, 55))
    bow = 1j * away * random.normal(0, 0.08) * np.sin(np.linspace(0, np.pi, 20))
    upstroke = top + away * np.linspace(1, 0, 20) + bow
    return [np.append(upstroke, foot)]


def _written(strokes: list[Line], random: Random) -> list[Line]:
    """Return strokes, shaken, slanted, narrow or wide; those of four points and more are smooth."""
    turn, wide = _turn(random.normal(0, 10)), random.uniform(0.6, 1.25)
    lines = []
    for stroke in strokes:
        line = stroke + random.normal(0, 0.08, (len(stroke), 2)) @ [1, 1j]
        if len(line) > 3:
            line = CubicSpline(range(len(line)), line)(np.linspace(0, len(line) - 1, 60))
        lines.append(turn * (wide * line.real + 1j * line.imag))
    return lines


SEVEN = "-0.6,-0.9 0.6,-0.9 -0.1,1"
NINE = "0.45,-0.75 0,-1 -0.5,-0.7 -0.15,-0.25 0.45,-0.65"
SIX = "0.75,-0.9 0.05,-0.65 -0.5,0.1 -0.4,0.75 0.15,0.9"
TWO = "-0.5,-0.6 -0.05,-1 0.45,-0.65 0.15,0.1 -0.35,0.75"
RARE: dict[str, tuple[int, list[Line]]] = {
    "crossed sevens": (7, _lines(f"{SEVEN} / -0.35,0.05 0.55,0.05")),
    "sevens with a foot": (7, _lines(f"{SEVEN} / -0.5,1 0.35,1")),
    "curled nines": (9, _lines(f"{NINE} 0.45,0.2 0.25,0.9 -0.3,0.95 -0.5,0.6")),
    "flat sixes": (6, _lines(f"{SIX} 0.6,0.55 0.35,0.15 -0.4,0.4")),
    "looped twos": (2, _lines(f"{TWO} -0.6,0.65 -0.35,0.5 0.1,0.8 0.65,0.85")),
}
# By name: the digit, and what draws it.
UNUSUAL_DIGITS: dict[str, tuple[int, Callable[[Random], list[Line]]]] = {
    "round zeros": (0, functools.partial(_zero, (0.88, 1.12), (-30, 0))),
    "wide zeros": (0, functools.partial(_zero, (1.12, 1.7), (-30, 0))),
    "open zeros": (0, functools.partial(_zero, (0.5, 1.1), (8, 45))),
    "flagged ones": (1, flagged_one),
    **{name: (own, functools.partial(_written, lines)) for name, (own, lines) in RARE.items()},
}

# ------------------------------------------------------------------ the pen


def shape(lines: list[Line], random: Random) -> Image.Image:
    look = random_look(random)
    return on_paper(shape_cover(lines, look.pen, random), look, random)


def shape_cover(lines: list[Line], pen: float, random: Random, half: int = 300) -> Cover:
    """Return where lines cover the paper, a little turned and shaken, sometimes filled.

    pen: width of the lines; the shape is 1 high. half: pixels of half its height.
    """
    is_filled, turn = random.rand() < 0.15, _turn(random.uniform(-12, 12))
    wide = random.uniform(0.75, 1.25)
    placed = []
    for line in map(np.asarray, lines):
        shaken = (
            wide * line.real + 1j * line.imag + random.normal(0, 0.012, (len(line), 2)) @ [1, 1j]
        )
        if np.isclose(line[0], line[-1]):
            shaken[-1] = shaken[0]
        placed.append(turn * shaken)
    return pen_cover(placed, pen, half, is_filled)


def pen_cover(lines: list[Line], pen: float, half: int = 300, is_filled: bool = False) -> Cover:
    """Return where lines cover the paper. pen, half: see `shape_cover`."""
    image = np.zeros((4 * half, 4 * half), np.uint8)
    for line in lines:
        placed = half * (line + 2 + 2j)
        points = np.rint(np.stack([placed.real, placed.imag], axis=1)).astype(np.int32)
        if is_filled:
            cv2.fillPoly(image, [points], 255)
        # with round ends and joints
        cv2.polylines(image, [points], False, 255, max(2, round(pen * 2 * half)))
    return image / 255


def unusual_digit(form: Callable[[Random], list[Line]], random: Random) -> Image.Image:
    look = random_look(random)
    return on_paper(pen_cover(form(random), look.pen), look, random)


def shapes(known: dict[str, list]) -> dict[str, Draw]:
    return {name: functools.partial(shape, lines) for name, lines in known.items()}
