"""Letters and signs of printed and handwritten fonts, written as digits are on plain paper.

The detector learns from fonts that come with Matplotlib and from Debian's GREEK_FONTS and
HANDWRITING; it is compared on UNSEEN_FONTS and, where it is trained, on UNSEEN_HANDWRITING.
"""

import functools
import string
from collections.abc import Sequence
from pathlib import Path

import cv2
import matplotlib
import numpy as np
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageDraw, ImageFont

from detector.camera import Cover, Draw, Random, on_paper, random_look, tilted
from paddle_mnist.errors import ConfigError

FONTS = Path(matplotlib.get_data_path(), "fonts/ttf")
GREEK_FONTS = {  # by package of Debian
    "fonts-gfs-artemisia": ["GFSArtemisia.otf", "GFSArtemisiaIt.otf"],
    "fonts-gfs-bodoni-classic": ["GFSBodoniClassic.otf"],
    "fonts-gfs-didot": ["GFSDidot.otf", "GFSDidotItalic.otf"],
    "fonts-gfs-gazis": ["GFSGazis.otf"],
    "fonts-gfs-neohellenic": ["GFSNeohellenic.otf", "GFSNeohellenicIt.otf"],
    "fonts-gfs-olga": ["GFSOlga.otf"],
    "fonts-gfs-solomos": ["GFSSolomos.otf"],
}
BECAUSE_WE = "Build", "Connect", "Create", "Learn", "Mentor", "Organize"
HANDWRITING = {
    "fonts-breip": ["Breip.ttf"],
    "fonts-bwht": [f"BecauseWe{name}-Regular.otf" for name in BECAUSE_WE],
    "fonts-dkg-handwriting": ["dkg.ttf", "dkgBd.ttf", "dkgIt.ttf"],
    "fonts-femkeklaver": ["femkeklaver.ttf"],
    "fonts-humor-sans": ["Humor-Sans.ttf"],
}
UNSEEN_HANDWRITING = {
    "fonts-comic-neue": ["ComicNeue-Light.otf", "ComicNeue-Regular.otf", "ComicNeue-Italic.otf"],
    "fonts-dancingscript": ["DancingScript-Regular.otf"],
    "fonts-ecolier-court": ["Ecolier-court.ttf"],
    "fonts-havana": ["Havana-Regular.otf"],
    "fonts-kaushanscript": ["KaushanScript-Regular.otf"],
}
DEBIAN_FONTS = {**GREEK_FONTS, **HANDWRITING, **UNSEEN_HANDWRITING}
GREEK_NAMES, WRITTEN, UNSEEN_WRITTEN = (
    [name for names in fonts.values() for name in names]
    for fonts in (GREEK_FONTS, HANDWRITING, UNSEEN_HANDWRITING)
)
TRAINING_FONTS = [
    *"DejaVuSans DejaVuSans-Bold DejaVuSans-Oblique DejaVuSerif DejaVuSerif-Bold".split(),
    *"DejaVuSerif-Italic DejaVuSansMono DejaVuSansMono-Oblique".split(),
    *GREEK_NAMES,
    *WRITTEN,
]
UNSEEN_FONTS = "STIXGeneral STIXGeneralBol STIXGeneralItalic cmr10 cmb10 cmss10 cmtt10".split()
# O and I in Latin, Greek, Cyrillic, Armenian, Hebrew, Arabic and Lisu are written like 0 and 1.
LOOK_ALIKES = set("OoIl\u039f\u03bf\u0399\u03b9\u041e\u043e\u0406\u0555\u0585\u05d5\u05df\u05e1")
LOOK_ALIKES |= set("\u0627\ua4f2\ua4f3")
# Code points: Greek, Cyrillic, Armenian, Hebrew, Arabic, N'Ko, Lao, Georgian, Canadian syllabics,
# Lisu, arrows, mathematics.
SCRIPTS = """
    0391-03CE 0400-0481 0531-0587 05D0-05EA 0621-064A 07CA-07E7 0E81-0EB0 10A0-10FC 1401-1676
    A4D0-A4F7 2190-21FF 2225-22FF
""".split()


def _but_look_alikes(letters: str) -> str:
    return "".join(letter for letter in letters if letter not in LOOK_ALIKES)


LETTERS = _but_look_alikes(string.ascii_letters)
GREEK = _but_look_alikes("".join(map(chr, [*range(0x0391, 0x03A2), *range(0x03A3, 0x03AA)])))
GREEK += _but_look_alikes("".join(map(chr, range(0x03B1, 0x03CA))))


@functools.lru_cache(128)
def font_of(name: str, size: int) -> ImageFont.FreeTypeFont:
    """Open a font of Matplotlib, or one with a suffix that is installed. Raises ConfigError."""
    file = FONTS / f"{name}.ttf"
    try:
        return ImageFont.truetype(str(file) if file.exists() else name, size)
    except OSError as error:
        packages = " ".join(DEBIAN_FONTS)
        raise ConfigError(f"no font {name}; install it: apt-get install {packages}") from error


@functools.lru_cache(128)
def _letters_of(font: str) -> frozenset[str]:
    return frozenset(map(chr, FT2Font(font_of(font, 20).path).get_charmap()))


def random_font(text: str, fonts: Sequence[str], random: Random) -> str:
    """Return one of the fonts that have a letter."""
    having = [font for font in fonts if text in _letters_of(font)]
    return having[random.randint(len(having))]


def letter_cover(text: str, font: str, pen: float, random: Random, side: int = 420) -> Cover:
    """Return where a letter covers the paper, a little turned, sheared and bent: [side, side].

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
    return tilted(bent(cover, random), random.uniform(-8, 8), random.uniform(-0.15, 0.15))


def bent(cover: Cover, random: Random) -> Cover:
    """Distort a drawing slightly, as handwriting varies."""
    moves = random.normal(0, random.uniform(0, 0.03) * len(cover), (2, 6, 6))
    y, x = (
        np.float32(place + cv2.resize(move, cover.shape[::-1], interpolation=cv2.INTER_CUBIC))
        for place, move in zip(np.indices(cover.shape), moves)
    )
    return cv2.remap(cover, x, y, cv2.INTER_LINEAR)


def letters(alphabet: str, fonts: Sequence[str]) -> dict[str, Draw]:
    """Return a function that writes each letter, in a random font."""

    def letter(text: str, random: Random) -> Image.Image:
        font, look = random_font(text, fonts, random), random_look(random)
        return on_paper(letter_cover(text, font, look.pen, random), look, random)

    return {text: functools.partial(letter, text) for text in alphabet}


def signs() -> list[str]:
    """Return the signs of SCRIPTS that the font DejaVu Sans has."""
    limits = ([int(code, 16) for code in script.split("-")] for script in SCRIPTS)
    codes = (code for first, last in limits for code in range(first, last + 1))
    known = _letters_of("DejaVuSans")
    return [sign for sign in _but_look_alikes("".join(map(chr, codes))) if sign in known]
