"""Pictures of digits, drawn stroke by stroke, as people draw and photograph them."""

import io
import math
import random

import numpy as np
from PIL import Image, ImageDraw, ImageFilter


def arc(x, y, rx, ry, first, last, points=24):
    """Part of an ellipse, degrees clockwise from the right."""
    angles = [math.radians(first + (last - first) * n / (points - 1)) for n in range(points)]
    return [(x + rx * math.cos(angle), y + ry * math.sin(angle)) for angle in angles]


# Strokes in a square from 0 to 1, y downwards.
STROKES = {
    0: [arc(0.5, 0.5, 0.3, 0.45, -90, 270)],
    1: [[(0.36, 0.25), (0.54, 0.05), (0.5, 0.95)]],
    2: [[*arc(0.5, 0.3, 0.28, 0.25, 200, 400), (0.2, 0.92), (0.8, 0.9)]],
    3: [arc(0.47, 0.28, 0.27, 0.23, 200, 450), arc(0.47, 0.71, 0.3, 0.23, -90, 160)],
    4: [[(0.35, 0.05), (0.2, 0.55), (0.8, 0.55)], [(0.65, 0.3), (0.6, 0.97)]],
    5: [[(0.75, 0.07), (0.32, 0.08), (0.27, 0.45), *arc(0.48, 0.66, 0.28, 0.27, 235, 500)]],
    6: [[(0.62, 0.05), *arc(0.5, 0.6, 0.28, 0.5, 235, 180), *arc(0.5, 0.7, 0.27, 0.24, 180, 540)]],
    7: [[(0.2, 0.1), (0.8, 0.09), (0.42, 0.95)]],
    8: [arc(0.5, 0.28, 0.22, 0.22, 90, 450), arc(0.5, 0.73, 0.27, 0.23, -90, 270)],
    9: [[*arc(0.5, 0.3, 0.25, 0.24, 0, 360), (0.74, 0.35), (0.66, 0.95)]],
}


def draw_digit(digit, seed=0, **given):
    """A picture as people take them, `PIL.Image`; what is not given is drawn by lot.

    size: (width, height). height: of the digit, share of the picture's. pen: share of the digit's
    height. ink, paper: colours. at: centre, shares. turn: degrees. noise: of the sensor. shade: how
    much darker one side is. blur: pixels.
    """
    lot = random.Random(1000 * seed + digit)
    light_ink = lot.random() < 0.4
    dark = [lot.randint(0, 70) for _ in range(3)]
    light = [lot.randint(185, 255) for _ in range(3)]
    chosen = {
        "size": lot.choice([(28, 28), (64, 64), (120, 160), (320, 240), (640, 480), (900, 1200)]),
        "height": lot.uniform(0.45, 0.8),
        "pen": lot.uniform(0.05, 0.16),
        "ink": light if light_ink else dark,
        "paper": dark if light_ink else light,
        "at": (lot.uniform(0.45, 0.55), lot.uniform(0.45, 0.55)),
        "turn": lot.uniform(-10, 10),
        "noise": lot.uniform(0, 8),
        "shade": lot.uniform(0, 0.25),
        "blur": lot.uniform(0, 1.2),
        **given,
    }
    width, height = chosen["size"]
    over = max(1, 512 // max(width, height))  # drawn larger, then made smaller: no steps
    image = Image.new("RGB", (width * over, height * over), tuple(chosen["paper"]))
    pen = ImageDraw.Draw(image)
    tall = chosen["height"] * min(width, height) * over
    thick = max(1.0, chosen["pen"] * tall)
    turn, lean = math.radians(chosen["turn"]), lot.uniform(-0.15, 0.15)
    wide = lot.uniform(0.75, 1.0)
    for stroke in STROKES[digit]:
        shake = [(lot.gauss(0, 0.008), lot.gauss(0, 0.008)) for _ in stroke]
        points = []
        for (x, y), (dx, dy) in zip(stroke, shake):
            x, y = (x + dx - 0.5) * wide - lean * (y - 0.5), y + dy - 0.5
            points.append(
                (
                    chosen["at"][0] * image.width
                    + tall * (x * math.cos(turn) - y * math.sin(turn)),
                    chosen["at"][1] * image.height
                    + tall * (x * math.sin(turn) + y * math.cos(turn)),
                )
            )
        pen.line(points, tuple(chosen["ink"]), max(1, round(thick)), joint="curve")
        for x, y in points:
            r = thick / 2
            pen.ellipse((x - r, y - r, x + r, y + r), tuple(chosen["ink"]))
    image = image.resize((width, height), Image.Resampling.BOX)
    image = image.filter(ImageFilter.GaussianBlur(chosen["blur"] * max(width, height) / 400))
    values = np.asarray(image, np.float64)
    fall = 1 - chosen["shade"] * np.linspace(0, 1, width)[None, :, None]
    grain = np.random.RandomState(seed).normal(0, chosen["noise"], values.shape)
    return Image.fromarray(np.clip(values * fall + grain, 0, 255).astype(np.uint8))


def as_bytes(image, form="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()
