"""Letters and signs of printed fonts, written as digits are written on plain paper."""

import functools
import string
from pathlib import Path

import cv2
import matplotlib
import numpy as np
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageDraw, ImageFont

from detector.camera import Cover, Draw, Random, cast, on_paper, tilted

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


def letter_cover(text: str, font: str, pen: float, random: Random, side: int = 420) -> Cover:
    """Return where a letter covers the paper, a little turned and sheared: [side, side].

    pen: width of the stroke, share of the letter's height, as far as the font allows.
    """
    image = Image.new("L", (side, side))
    centre, size = side / 2, side * 11 // 21
    ImageDraw.Draw(image).text((centre, centre), text, 255, font_of(font, size), anchor="mm")
    printed = np.asarray(image) > 127
    # How far inside of the letter a pixel is, or outside of it.
    depth, away = (
        cv2.distanceTransform(mask.astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
        for mask in (printed, ~printed)
    )
    stroke = max(1.0, 4 * depth[printed].mean())
    reach = int(np.clip((pen * side * 8 / 21 - stroke) / 2, -0.25 * stroke, side / 21))
    cover = np.float32(depth - away > -reach)
    return tilted(cover, random.uniform(-8, 8), random.uniform(-0.15, 0.15))


def letters(fonts: list[str]) -> dict[str, Draw]:
    """Return what writes each letter, in a font that is drawn by lot."""

    def letter(text: str, random: Random) -> Image.Image:
        font, lot = fonts[random.randint(len(fonts))], cast(random)
        return on_paper(letter_cover(text, font, lot.pen, random), lot, random)

    return {text: functools.partial(letter, text) for text in LETTERS}


@functools.lru_cache(1)
def signs() -> list[str]:
    """Return the signs of SCRIPTS that the font DejaVu Sans has."""
    known = FT2Font(str(FONTS / "DejaVuSans.ttf")).get_charmap()
    codes = (code for first, last in SCRIPTS.values() for code in range(first, last + 1))
    return [chr(code) for code in codes if code in known]
