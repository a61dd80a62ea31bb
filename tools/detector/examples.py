"""Examples for the detector of non-digits: digits of MNIST, and pictures that show no digit."""

import functools
import io
from collections.abc import Callable, Iterable
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from detector import letters, non_digits, paper
from detector.camera import Cover, Draw, Random, stroke, tilted, trimmed
from detector.shapes import UNUSUAL_DIGITS, pen_cover, unusual_digit
from paddle_mnist.errors import DataError
from paddle_mnist.mnist.images import Images
from paddle_mnist.mnist.pictures.digits import read_digits
from paddle_mnist.mnist.pictures.normalize import to_mnist_format
from paddle_mnist.mnist.splits import Split

RAW = 50_000  # images of MNIST's training split, as they are
ON_PAPER = 80  # of each kind of paper
PLAIN = 400  # of the valid split, more on plain paper
DIGITS_DRAWN = {"train": 12_000, "valid": 1500}
UNUSUAL = {"train": 1000, "valid": 150}  # of each form
UNSEEN = 180  # of each kind
SHAKEN, PAPER_SHAKEN = 3, 8  # times
HEIGHT = 80  # pixels of a digit that is drawn again
TURNED_LEFT, MIRRORED = (2, 3, 4, 7), (2, 3, 4, 5, 7, 9)  # which makes them no digits
MNIST, REDRAWN = "mnist", "drawn"  # kinds, beside those of paper

Pixels = np.ndarray  # uint8 [N, 28, 28]


class Examples(NamedTuple):
    """Images by kind.

    digits, no_digits: to learn from. valid (digits), unusual (digits of unusual forms) and unseen
    (no digits): to measure detectors.
    """

    digits: dict[str, Pixels]
    no_digits: dict[str, Pixels]
    valid: dict[str, Pixels]
    unusual: dict[str, Pixels]
    unseen: dict[str, Pixels]


def examples(data: Images, random: Random) -> Examples:
    """Draw what the detector learns from and is measured on."""
    train, valid = data["train"], data["valid"]
    drawn, drawn_valid = (_digits_drawn(data[mode], n) for mode, n in DIGITS_DRAWN.items())
    raw, labels = np.asarray(train.images[:RAW]), train.labels[:RAW]
    mirrored, turned = (
        raw[random.choice(np.flatnonzero(np.isin(labels, digits)), count)]
        for digits, count in ((MIRRORED, 2500), (TURNED_LEFT, 1500))
    )
    no_digits = {
        "spliced digits": _spliced(raw, 4000, random),
        "mirrored digits": mirrored[..., ::-1],
        "turned digits": np.rot90(turned, 1, (1, 2)),
    }
    for kind, (count, draws) in non_digits.PICTURES.items():
        no_digits[kind] = _with_shaken(_read_of(draws.values(), count, 10_000), random)
    for kind, (count, cover) in non_digits.DRAWN.items():
        no_digits[f"{kind}, drawn"] = _with_shaken(_drawn(cover, count), random, 1)
    digits = {MNIST: _with_shaken(raw, random, 1), REDRAWN: _with_shaken(drawn, random, 1)}
    for kind in paper.KINDS:
        digits[kind] = _with_shaken(_on_paper(kind, train, ON_PAPER), random, PAPER_SHAKEN)
    for kind in UNUSUAL_DIGITS:
        digits[kind] = _with_shaken(unusual_digits(kind, UNUSUAL["train"]), random, 1)
    of_valid = {MNIST: np.asarray(valid.images), REDRAWN: drawn_valid}
    of_valid.update({kind: _on_paper(kind, valid, ON_PAPER) for kind in paper.KINDS})
    of_valid["plain, more"] = _on_paper("plain", valid, PLAIN)
    unusual = {
        kind: _read_of([functools.partial(unusual_digit, form)], UNUSUAL["valid"], 20_000)
        for kind, (_, form) in UNUSUAL_DIGITS.items()
    }
    written = letters.letters(letters.LETTERS, letters.UNSEEN_WRITTEN)  # needs Debian's fonts
    others = {**non_digits.UNSEEN, "handwritten letters": written}
    unseen = {kind: _read_of(draws.values(), UNSEEN, 20_000) for kind, draws in others.items()}
    return Examples(digits, no_digits, of_valid, unusual, unseen)


def _spliced(images: Pixels, count: int, random: Random) -> Pixels:
    """Return halves of two digits, beside or above each other."""
    first, second = (images[random.randint(0, len(images), count)] for _ in range(2))
    side_by_side = random.rand(count) < 0.5
    spliced = first.copy()
    spliced[side_by_side, :, 14:] = second[side_by_side, :, 14:]
    spliced[~side_by_side, 14:] = second[~side_by_side, 14:]
    return spliced


def _with_shaken(images: Pixels, random: Random, times: int = SHAKEN) -> Pixels:
    """Append copies of each image that are turned, sheared, scaled and moved at random."""
    ranges = np.array([(-12, 12), (-0.2, 0.2), (0.9, 1.1), (-1, 1), (-1, 1)])  # as `tilted` takes
    shaken = [tilted(image, *random.uniform(*ranges.T)) for _ in range(times) for image in images]
    return np.stack([*images, *shaken])


def _on_paper(kind: str, split: Split, count: int) -> Pixels:
    place = list(paper.KINDS).index(kind)
    indices = [(number * 199 + place * 17) % len(split.labels) for number in range(count)]
    return _read(
        paper.KINDS[kind](np.asarray(split.images[index]), Random(index)) for index in indices
    )


def _read_of(draws: Iterable[Draw], count: int, seed: int) -> Pixels:
    """Return the digits that are found in pictures, which the functions draw in turns."""
    each = list(draws)
    return _read(each[number % len(each)](Random(seed + number)) for number in range(count))


def _digits_drawn(split: Split, count: int) -> Pixels:
    """Return digits drawn again, with pens of all widths."""

    def cover(random: Random) -> Cover:
        image = np.asarray(split.images[random.randint(len(split.labels))])
        return stroke(image, HEIGHT, random.uniform(*non_digits.PENS))

    return _drawn(cover, count)


def unusual_digits(kind: str, count: int, first: int = 0) -> Pixels:
    """Return digits of a form of UNUSUAL_DIGITS, as they would be read from a picture.

    first: of the seeds, one for each digit.
    """
    pens, half, form = non_digits.PENS, non_digits.SIDE // 2, UNUSUAL_DIGITS[kind][1]
    return _drawn(lambda random: pen_cover(form(random), random.uniform(*pens), half), count, first)


def _drawn(cover: Callable[[Random], Cover], count: int, first: int = 0) -> Pixels:
    """Return drawings as they would be read from a picture of paper without a flaw."""
    found = []
    for random in map(Random, range(first, first + count)):
        drawing = np.float32(cover(random))
        blur = random.uniform(0, 0.01) * max(drawing.shape)
        drawing = trimmed(cv2.GaussianBlur(drawing, (0, 0), max(blur, 1e-3)), 0.4)
        if drawing.size:
            found.append(to_mnist_format(drawing, drawing > 0.4))
    return np.stack(found)


def _read(pictures: Iterable[Image.Image]) -> Pixels:
    """Return the digit found in each picture, but for pictures that are refused anyway."""
    found = [np.zeros((0, 28, 28), np.uint8)]
    for picture in pictures:
        file = io.BytesIO()
        picture.save(file, "BMP")  # quicker than PNG, and as lossless
        try:
            digit = read_digits(file.getvalue())[0]
        except DataError:
            continue
        if digit.shapes == 1:
            found.append(digit.pixels[np.newaxis])
    return np.concatenate(found)
