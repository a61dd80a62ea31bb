"""Pictures without a digit, drawn by code: letters, shapes, textures.

The detector learns from DRAWN and PICTURES, and is measured on UNSEEN, which shares no font, shape,
texture or layout with them. UNSEEN also has the photographs of scikit-image and scikit-learn.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image

from detector import letters, shapes, textures
from detector.camera import Cover, Draw, Random

SIDE = 160  # pixels of a drawing without paper and camera
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


def _letter(fonts: Sequence[str], alphabet: Sequence[str], random: Random) -> Cover:
    text = random.choice(list(alphabet))
    font = letters.random_font(text, fonts, random)
    return letters.letter_cover(text, font, random.uniform(*PENS), random, SIDE)


def _shape(family: Callable[[Random], list[shapes.Line]], random: Random) -> Cover:
    return shapes.shape_cover(family(random), random.uniform(*PENS), random, SIDE // 2)


def _family(family: Callable[[Random], list[shapes.Line]], random: Random) -> Image.Image:
    return shapes.shape(family(random), random)


def _known_shape(random: Random) -> list[shapes.Line]:
    known = list(shapes.TRAINING_SHAPES.values())
    return known[random.randint(len(known))]


# By kind: how many, and what draws one, without paper or a camera, which is quicker.
DRAWN: dict[str, tuple[int, Callable[[Random], Cover]]] = {
    "letters": (6000, functools.partial(_letter, letters.TRAINING_FONTS, letters.LETTERS)),
    "handwritten letters": (12_000, functools.partial(_letter, letters.WRITTEN, letters.LETTERS)),
    "Greek letters": (6000, functools.partial(_letter, letters.TRAINING_FONTS, letters.GREEK)),
    "signs": (5000, functools.partial(_letter, ["DejaVuSans"], letters.signs())),
    "shapes": (2000, functools.partial(_shape, _known_shape)),
    **{
        family.__name__: (count, functools.partial(_shape, family))
        for family, count in shapes.FAMILIES.items()
    },
}
# By kind: how many pictures with paper and a camera, and what draws them in turns.
PICTURES: dict[str, tuple[int, dict[str, Draw]]] = {
    "letters": (624, letters.letters(letters.LETTERS, letters.TRAINING_FONTS)),
    "handwritten letters": (2000, letters.letters(letters.LETTERS, letters.WRITTEN)),
    "Greek letters": (440, letters.letters(letters.GREEK, letters.TRAINING_FONTS)),
    "shapes": (300, shapes.shapes(shapes.TRAINING_SHAPES)),
    "doodles": (500, {draw.__name__: functools.partial(_family, draw) for draw in shapes.DOODLES}),
    "textures": (1280, _by_name(textures.TRAINING)),
}
UNSEEN: dict[str, dict[str, Draw]] = {
    "letters": letters.letters(letters.LETTERS, letters.UNSEEN_FONTS),
    "Greek letters": letters.letters(letters.GREEK, letters.UNSEEN_FONTS),
    "doodles": shapes.shapes(shapes.UNSEEN_DOODLES),
    "textures": _by_name(textures.UNSEEN),
    "photographs of things": {
        name: functools.partial(photograph_part, name) for name in photographs()
    },
}
