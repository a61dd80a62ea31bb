"""Pictures of what is no digit, drawn by code: letters, shapes, textures, screenshots.

Both are functions by kind and name. Those of TRAINING and those of UNSEEN have no font, shape,
texture or layout in common. There are photographs too, for UNSEEN alone: those that come with
scikit-learn and scikit-image.
"""

import functools
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from rendering import letters, screenshots, strokes, textures
from rendering.paper import Draw, Random

SIDE = 160  # pixels of a drawing that nobody photographs
PENS = (0.025, 0.2)  # widths, shares of the height, as those of `paper.KINDS`

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


def _by_name(draws: Sequence[Draw]) -> dict[str, Draw]:
    return {draw.__name__: draw for draw in draws}


def drawn_letter(random: Random) -> np.ndarray:
    text = letters.LETTERS[random.randint(len(letters.LETTERS))]
    font = letters.TRAINING_FONTS[random.randint(len(letters.TRAINING_FONTS))]
    return letters.letter_cover(text, font, random.uniform(*PENS), random, SIDE)


def drawn_sign(random: Random) -> np.ndarray:
    text = letters.signs()[random.randint(len(letters.signs()))]
    return letters.letter_cover(text, "DejaVuSans", random.uniform(*PENS), random, SIDE)


def drawn_shape(random: Random) -> np.ndarray:
    known = list(strokes.TRAINING_SHAPES.values())
    return _cover(known[random.randint(len(known))], random)


def _drawn_family(family: Callable[[Random], list[strokes.Points]], random: Random) -> np.ndarray:
    return _cover(family(random), random)


def _cover(lines: list[strokes.Points], random: Random) -> np.ndarray:
    pen, filled = random.uniform(*PENS), random.rand() < 0.15
    return strokes.shape_cover(lines, pen, random, filled, SIDE // 4)


def _doodle(random: Random) -> Image.Image:
    return strokes.shape(strokes.doodle(random), random, random.rand() < 0.15)


TRAINING: dict[str, dict[str, Draw]] = {
    "letters": letters.letters(letters.TRAINING_FONTS),
    "shapes": strokes.shapes(strokes.TRAINING_SHAPES),
    "doodles": {"doodle": _doodle},
    "textures": _by_name(textures.TRAINING),
    "screenshots": _by_name(screenshots.TRAINING),
}
DRAWN: dict[str, Callable[[Random], np.ndarray]] = {  # without paper or a camera, which is quicker
    "letters": drawn_letter,
    "signs": drawn_sign,
    "shapes": drawn_shape,
    **{family.__name__: functools.partial(_drawn_family, family) for family in strokes.FAMILIES},
}
UNSEEN: dict[str, dict[str, Draw]] = {
    "letters": letters.letters(letters.UNSEEN_FONTS),
    "shapes": strokes.shapes(strokes.UNSEEN_SHAPES),
    "textures": _by_name(textures.UNSEEN),
    "screenshots": _by_name(screenshots.UNSEEN),
    "photographs of things": {
        name: functools.partial(photograph_part, name) for name in photographs()
    },
}
