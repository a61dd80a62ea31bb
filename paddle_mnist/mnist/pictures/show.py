"""Draw what was read: the net's inputs, or each page with a box around each digit."""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from paddle_mnist.mnist.pictures.open import STDIN, open_picture
from paddle_mnist.mnist.pictures.reading import Reading
from paddle_mnist.mnist.splits import SIZE

ON_A_SHEET = 1000  # pictures: 100 rows of ten
PAGES_ON_A_SHEET = 20
CAPTION = 14  # pixels
GAP = 4  # pixels
GOOD, REFUSED, GREY = (120, 220, 120), (255, 90, 90), (64, 64, 64)


def sheet(readings: Iterable[Reading], columns: int = 10, times: int = 4) -> Image.Image:
    """Draw what the net saw of the first ON_A_SHEET pictures, with the digit and its score.

    A picture in which nothing was found is grey; what was refused has a red caption.
    times: how much to enlarge.
    """
    shown = list(itertools.islice(readings, ON_A_SHEET))
    side = SIZE * times
    rows = -(-len(shown) // columns)
    image = Image.new("RGB", (columns * side, max(1, rows) * (side + CAPTION)))
    pen = ImageDraw.Draw(image)
    for number, reading in enumerate(shown):
        left, top = number % columns * side, number // columns * (side + CAPTION)
        if reading.pixels is None:
            pen.rectangle((left, top, left + side - 1, top + side - 1), GREY)
        else:
            tile = Image.fromarray(reading.pixels).resize((side, side), Image.Resampling.NEAREST)
            image.paste(tile, (left, top))
        colour = GOOD if reading.digit is not None else REFUSED
        pen.text((left + 3, top + side), _caption(reading), colour, _font(CAPTION - 3))
    return image


def pages(readings: Iterable[Reading]) -> Image.Image:
    """Draw the first PAGES_ON_A_SHEET pictures, below each other, with a box around each digit.

    The box of a shape that is probably not a digit is red. A picture from stdin, which cannot be
    read again, is shown as what the net saw of each digit.
    """
    drawn = [_page(reading) for reading in itertools.islice(readings, PAGES_ON_A_SHEET)]
    width = max(page.width for page in drawn)
    image = Image.new("RGB", (width, sum(page.height + GAP for page in drawn)))
    top = 0
    for page in drawn:
        image.paste(page, (0, top))
        top += page.height + GAP
    return image


def _page(reading: Reading) -> Image.Image:
    digits: Sequence[Reading] = reading.digits or ()
    if reading.file == STDIN or not digits:
        return sheet(digits or [reading])
    picture = open_picture(Path(reading.file))
    image = Image.fromarray(np.rint(picture.brightness * 255).astype(np.uint8)).convert("RGB")
    from_file = np.linalg.inv(picture.to_file)
    pen = ImageDraw.Draw(image)
    for digit in digits:
        if not digit.box:
            continue
        box = digit.box.transformed(from_file)
        colour = (0, 150, 0) if digit.error is None else (220, 0, 0)
        pen.rectangle((box.left, box.top, box.right, box.bottom), outline=colour, width=2)
        pen.text((box.left + 2, box.bottom + 1), _caption(digit), colour, _font(CAPTION))
    return image


def _caption(reading: Reading) -> str:
    if reading.score is None:
        return reading.text
    return f"{reading.text} {reading.score:.2f}"


def _font(size: int) -> ImageFont.FreeTypeFont:
    path = Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf")
    return ImageFont.truetype(str(path), size)
