"""What the detector of no digits learns from: digits of MNIST, and pictures that show none."""

import hashlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from paddle_mnist.mnist.arrays import Data, Split

RAW = 40_000  # images of MNIST's training split, as they are
ON_PAPER = 80  # of each kind of paper
PLAIN = 400  # of the valid split, more on plain paper
NO_DIGITS = {"letters": 624, "shapes": 300, "doodles": 700, "textures": 240, "screenshots": 60}
DIGITS_DRAWN = {"train": 12_000, "valid": 1500}
DRAWN = {"letters": 3000, "signs": 5000, "shapes": 2000}
DRAWN_OF_A_FAMILY = 1200
UNSEEN = 45  # of each kind, to compare detectors
SHAKEN = 3  # times
HEIGHT = 80  # pixels of a digit that is drawn anew
TURNED_LEFT, MIRRORED = (2, 3, 4, 7), (2, 3, 4, 5, 7, 9)  # digits that are none afterwards

Pixels = np.ndarray  # uint8 [N, 28, 28]


def examples(data: Data, output: Path, random: np.random.RandomState) -> dict[str, Pixels]:
    """Return what the detector learns from and is compared on, by "split kind"."""
    from rendering import non_digits, paper  # which imports Matplotlib: not for --help

    folder = output / "detector" / _version()
    folder.mkdir(parents=True, exist_ok=True)
    train, valid = data["train"], data["valid"]
    found = _of_mnist(train, random)
    found["valid mnist"] = np.asarray(valid.images)
    for kind in paper.KINDS:
        on_paper = _kept(folder, f"train {kind}", _on_paper, kind, train, ON_PAPER)
        found[f"train {kind}"] = _with_shaken(on_paper, random)
        found[f"valid {kind}"] = _kept(folder, f"valid {kind}", _on_paper, kind, valid, ON_PAPER)
    more = "valid plain, more"
    found[more] = _kept(folder, more, _on_paper, "plain", valid, PLAIN)
    for mode, split in (("train", train), ("valid", valid)):
        name = f"{mode} drawn"
        found[name] = _kept(folder, name, _digits_drawn, split, DIGITS_DRAWN[mode])
    found["train drawn"] = _with_shaken(found["train drawn"], random, 1)
    for kind, count in NO_DIGITS.items():
        draws = list(non_digits.TRAINING[kind].values())
        pixels = _kept(folder, kind, _no_digits, draws, count, 10_000)
        found[f"train no {kind}"] = _with_shaken(pixels, random)
    for kind, cover in non_digits.DRAWN.items():
        name, count = f"{kind}, drawn", DRAWN.get(kind, DRAWN_OF_A_FAMILY)
        pixels = _kept(folder, name, _drawn, cover, count)
        found[f"train no {name}"] = _with_shaken(pixels, random, 1)
    for kind, draws in non_digits.UNSEEN.items():
        name = f"unseen {kind}"
        found[name] = _kept(folder, name, _no_digits, list(draws.values()), UNSEEN, 20_000)
    return found


def _of_mnist(split: Split, random: np.random.RandomState) -> dict[str, Pixels]:
    """Return images of MNIST as they are, and what is made of them that is no digit any more."""
    raw, labels = np.asarray(split.images[:RAW]), split.labels[:RAW]
    mirrored, turned = (
        raw[random.choice(np.flatnonzero(np.isin(labels, digits)), count)]
        for digits, count in ((MIRRORED, 2500), (TURNED_LEFT, 1500))
    )
    return {
        "train mnist": raw,
        "train no spliced digits": _spliced(raw, 4000, random),
        "train no mirrored digits": mirrored[..., ::-1],
        "train no turned digits": np.rot90(turned, 1, (1, 2)),
    }


def _spliced(images: Pixels, count: int, random: np.random.RandomState) -> Pixels:
    """Return halves of two digits, beside or above each other."""
    first, second = (images[random.randint(0, len(images), count)] for _ in range(2))
    side_by_side = random.rand(count) < 0.5
    spliced = first.copy()
    spliced[side_by_side, :, 14:] = second[side_by_side, :, 14:]
    spliced[~side_by_side, 14:] = second[~side_by_side, 14:]
    return spliced


def _shaken(images: Pixels, random: np.random.RandomState) -> Pixels:
    """Return images turned by up to 12 degrees, sheared and scaled a little."""
    shaken = np.empty_like(images)
    centre = np.array([13.5, 13.5])
    for number, image in enumerate(images):
        turn = np.radians(random.uniform(-12, 12))
        shear = random.uniform(-0.2, 0.2)
        matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn) + shear, np.cos(turn)]])
        matrix *= random.uniform(0.92, 1.08)
        moved = ndimage.affine_transform(
            image.astype(np.float32), matrix, centre - matrix @ centre, order=1
        )
        shaken[number] = np.clip(moved, 0, 255)
    return shaken


def _with_shaken(images: Pixels, random: np.random.RandomState, times: int = SHAKEN) -> Pixels:
    return np.concatenate([images, *(_shaken(images, random) for _ in range(times))])


def _kept(folder: Path, name: str, draw: Callable[..., Pixels], *arguments: Any) -> Pixels:
    """Return the array in a file, which is drawn if it is not there."""
    path = folder / f"{name}.npy"
    if not path.exists():
        pixels = draw(*arguments)
        with path.with_suffix(".part").open("wb") as file:
            np.save(file, pixels)
        path.with_suffix(".part").rename(path)
    return np.load(path)


def _version() -> str:
    """Return a name for what draws and reads the pictures; those of another code are of no use."""
    import rendering

    from paddle_mnist.mnist import digit_normalization, ink, pictures, shapes

    files = [Path(module.__file__) for module in (digit_normalization, ink, pictures, shapes)]
    digest = hashlib.sha256()
    for file in (*files, *sorted(Path(rendering.__file__).parent.glob("*.py"))):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _on_paper(kind: str, split: Split, count: int) -> Pixels:
    from rendering import paper  # which imports Matplotlib: not for --help

    place = list(paper.KINDS).index(kind)
    indices = [(number * 199 + place * 17) % len(split.labels) for number in range(count)]
    return _read(
        paper.KINDS[kind](np.asarray(split.images[index]), np.random.RandomState(index))
        for index in indices
    )


def _no_digits(draws: Sequence[Callable], count: int, seed: int) -> Pixels:
    return _read(
        draws[number % len(draws)](np.random.RandomState(seed + number)) for number in range(count)
    )


def _digits_drawn(split: Split, count: int) -> Pixels:
    """Return digits drawn anew with pens of all widths."""
    from rendering import non_digits, paper  # which imports Matplotlib: not for --help

    def cover(random: np.random.RandomState) -> np.ndarray:
        image = np.asarray(split.images[random.randint(len(split.labels))])
        return paper.stroke(image, HEIGHT, random.uniform(*non_digits.PENS))

    return _drawn(cover, count)


def _drawn(cover: Callable[[np.random.RandomState], np.ndarray], count: int) -> Pixels:
    """Return drawings as they would be read from a picture of paper without a flaw."""
    from paddle_mnist.mnist.digit_normalization import to_mnist_format

    found = []
    for number in range(count):
        random = np.random.RandomState(number)
        drawing = cover(random)
        drawing = ndimage.gaussian_filter(drawing, random.uniform(0, 0.01) * max(drawing.shape))
        rows, columns = (np.flatnonzero((drawing > 0.4).any(axis=axis)) for axis in (1, 0))
        if len(rows):
            drawing = drawing[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            found.append(to_mnist_format(drawing, drawing > 0.4))
    return np.stack(found)


def _read(pictures) -> Pixels:
    """Return what is found in pictures, but for those that are refused without a detector."""
    from paddle_mnist.errors import DataError
    from paddle_mnist.mnist.pictures import read_digit

    found = []
    for picture in pictures:
        file = io.BytesIO()
        picture.save(file, "PNG")
        try:
            digit = read_digit(file.getvalue())
        except DataError:
            continue
        if digit.shapes == 1:
            found.append(digit.pixels)
    return np.stack(found) if found else np.zeros((0, 28, 28), np.uint8)
