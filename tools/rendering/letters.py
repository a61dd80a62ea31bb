"""Letters and signs of printed fonts, written as digits are written on plain paper."""

import functools
import string
from pathlib import Path

import matplotlib
import numpy as np
from fontTools.ttLib import TTFont
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

from rendering.paper import Draw, Random, cast, on_paper, rotation

FONTS = Path(matplotlib.get_data_path(), "fonts/ttf")
LETTERS = string.ascii_letters
TRAINING_FONTS = """
    DejaVuSans DejaVuSans-Bold DejaVuSans-Oblique DejaVuSerif DejaVuSerif-Bold DejaVuSerif-Italic
    DejaVuSansMono DejaVuSansMono-Oblique
""".split()
SCRIPTS = {  # code points
    "Greek": (0x0391, 0x03CE),
    "Cyrillic": (0x0400, 0x0481),
    "Armenian": (0x0531, 0x0587),
    "Hebrew": (0x05D0, 0x05EA),
    "Arabic": (0x0621, 0x064A),
    "N'Ko": (0x07CA, 0x07E7),
    "Lao": (0x0E81, 0x0EB0),
    "Georgian": (0x10A0, 0x10FC),
    "Canadian syllabics": (0x1401, 0x1676),
    "Lisu": (0xA4D0, 0xA4F7),
    "arrows": (0x2190, 0x21FF),
    "mathematics": (0x2225, 0x22FF),
}
UNSEEN_FONTS = "STIXGeneral STIXGeneralBol STIXGeneralItalic cmr10 cmb10 cmss10 cmtt10".split()


@functools.lru_cache(64)
def font_of(name: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(FONTS / f"{name}.ttf"), size)


def letter(text: str, font: str, random: Random) -> Image.Image:
    """Write a letter as a digit is written on plain paper, a little turned and sheared."""
    lot = cast(random)
    return on_paper(letter_cover(text, font, lot.pen, random), lot, random)


def letter_cover(text: str, font: str, pen: float, random: Random, side: int = 420) -> np.ndarray:
    """Return where a letter covers the paper: float [side, side] in 0..1.

    pen: width of the stroke, share of the letter's height, as far as the font allows.
    """
    image = Image.new("L", (side, side))
    centre = side / 2
    ImageDraw.Draw(image).text(
        (centre, centre), text, 255, font_of(font, side * 11 // 21), anchor="mm"
    )
    turn, shear = np.radians(random.uniform(-8, 8)), random.uniform(-0.15, 0.15)
    matrix = rotation(turn) + [[0, 0], [shear, 0]]
    mask = np.asarray(image) > 127
    wanted = pen * side * 8 / 21
    depth = ndimage.distance_transform_edt(mask)
    stroke = max(1.0, 4 * depth[mask].mean())
    reach = int(np.clip((wanted - stroke) / 2, -0.25 * stroke, side / 21))
    if reach > 0:
        mask = ndimage.distance_transform_edt(~mask) <= reach
    elif reach < 0:
        mask = depth > -reach
    offset = centre - matrix @ [centre, centre]
    return ndimage.affine_transform(mask.astype(float), matrix, offset=offset, order=1)


def letters(fonts: list[str]) -> dict[str, Draw]:
    def in_any_font(text: str, random: Random) -> Image.Image:
        return letter(text, fonts[random.randint(len(fonts))], random)

    return {text: functools.partial(in_any_font, text) for text in LETTERS}


@functools.lru_cache(1)
def signs() -> list[str]:
    """Return the signs of SCRIPTS that the font DejaVu Sans has."""
    known = TTFont(FONTS / "DejaVuSans.ttf").getBestCmap()
    return [
        chr(code)
        for first, last in SCRIPTS.values()
        for code in range(first, last + 1)
        if code in known
    ]
