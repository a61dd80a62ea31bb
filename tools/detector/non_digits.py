"""Pictures without a digit, drawn by code: letters, shapes, textures, screenshots.

Both are functions by kind and name. Those of TRAINING and those of UNSEEN have no font, shape,
texture or layout in common. There are photographs too, for UNSEEN alone: those that come with
scikit-image and scikit-learn.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image

from detector import letters, screenshots, shapes, textures
from detector.camera import Cover, Draw, Random

SIDE = 160  # pixels of a drawing that nobody photographs
PENS = (0.025, 0.2)  # widths, shares of the height, as those of `paper.KINDS`

PHOTOGRAPHS = """
    astronaut.png camera.png chelsea.png clock_motion.png coffee.png coins.png
    hubble_deep_field.jpg ihc.png moon.png motorcycle_left.png retina.jpg rocket.jpg
""".split()


@functools.lru_cache(1)
def photographs() -> dict[str, Image.Image]:
    """Return the photographs that come with scikit-image and scikit-learn."""
    import skimage.data
    from sklearn.datasets import load_sample_images

    folder = Path(skimage.data.__file__).parent
    found = {name: Image.open(folder / name).convert("RGB") for name in PHOTOGRAPHS}
    samples = load_sample_images()
    names = [Path(name).name for name in samples.filenames]
    return {**found, **dict(zip(names, map(Image.fromarray, samples.images)))}


def photograph_part(name: str, random: Random) -> Image.Image:
    """Cut a part out of a photograph, half to all of its sides."""
    image = photographs()[name]
    width, height = (int(side * random.uniform(0.5, 1)) for side in image.size)
    left, top = random.randint(image.width - width + 1), random.randint(image.height - height + 1)
    return image.crop((left, top, left + width, top + height))


def _by_name(draws: Sequence[Draw]) -> dict[str, Draw]:
    return {draw.__name__: draw for draw in draws}


def _letter(fonts: Sequence[str], known: Callable[[], Sequence[str]], random: Random) -> Cover:
    text = random.choice(known())
    having = letters.fonts_with(text, tuple(fonts))
    font = having[random.randint(len(having))]
    return letters.letter_cover(text, font, random.uniform(*PENS), random, SIDE)


def _shape(family: Callable[[Random], list[shapes.Line]], random: Random) -> Cover:
    return shapes.shape_cover(family(random), random.uniform(*PENS), random, SIDE // 2)


def _family(family: Callable[[Random], list[shapes.Line]], random: Random) -> Image.Image:
    return shapes.shape(family(random), random)


def _known_shape(random: Random) -> list[shapes.Line]:
    known = list(shapes.TRAINING_SHAPES.values())
    return known[random.randint(len(known))]


TRAINING: dict[str, dict[str, Draw]] = {
    "letters": letters.letters(letters.LETTERS, letters.TRAINING_FONTS),
    "Greek letters": letters.letters(letters.GREEK, letters.TRAINING_FONTS),
    "shapes": shapes.shapes(shapes.TRAINING_SHAPES),
    "doodles": {family.__name__: functools.partial(_family, family) for family in shapes.DOODLES},
    "textures": _by_name(textures.TRAINING),
    "screenshots": _by_name(screenshots.TRAINING),
}
DRAWN: dict[str, Callable[[Random], Cover]] = {  # without paper or a camera, which is quicker
    "letters": functools.partial(_letter, letters.TRAINING_FONTS, lambda: list(letters.LETTERS)),
    "Greek letters": functools.partial(
        _letter, letters.TRAINING_FONTS, lambda: list(letters.GREEK)
    ),
    "signs": functools.partial(_letter, ["DejaVuSans"], letters.signs),
    "shapes": functools.partial(_shape, _known_shape),
    **{family.__name__: functools.partial(_shape, family) for family in shapes.FAMILIES},
}
UNSEEN: dict[str, dict[str, Draw]] = {
    "letters": letters.letters(letters.LETTERS, letters.UNSEEN_FONTS),
    "Greek letters": letters.letters(letters.GREEK, letters.UNSEEN_FONTS),
    "shapes": shapes.shapes(shapes.UNSEEN_SHAPES),
    "doodles": shapes.shapes(shapes.UNSEEN_DOODLES),
    "textures": _by_name(textures.UNSEEN),
    "screenshots": _by_name(screenshots.UNSEEN),
    "photographs of things": {
        name: functools.partial(photograph_part, name) for name in photographs()
    },
}
