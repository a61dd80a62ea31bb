"""The detector of what is probably not one digit: its training, and what it was compared with."""

import dataclasses
import functools
import hashlib
import io
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from markdown_tables import table as markdown_table
from PIL import Image
from scipy import ndimage

from paddle_mnist.mnist.arrays import Data, Split

RAW = 20_000  # images of MNIST's training split, as they are
FILES = {"train": 2400, "valid": 2000}  # images that are written into files as they are, and read
ON_PAPER = 80  # of each kind of paper
PLAIN = 400  # of the valid split, more on plain paper
NO_DIGITS = {"letters": 624, "shapes": 300, "doodles": 700, "textures": 80, "screenshots": 40}
UNSEEN = 45  # of each kind, to compare detectors
SHAKEN = 4  # times
READ_SHAKEN, READ_WEIGHT = 3, 2  # each digit read from a picture is shaken, and counts so often
TURNED_LEFT, MIRRORED = (2, 3, 4, 7), (2, 3, 4, 5, 7, 9)  # digits that are none afterwards
DIGITS = ("mnist", "files", "paper")
NETS, HIDDEN, PENALTY, EPOCHS = 3, 24, 1.0, 15  # what one net catches varies with its seed
COMPONENTS, NEIGHBOURS = 64, 5
FALSE_ALARMS = {  # at most
    "valid mnist": 0.005,
    "valid files": 0.005,
    "valid paper": 0.02,
}

Pixels = np.ndarray  # uint8 [N, 28, 28]
Score = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of features [N, 980] and logits [N, 10]


def measured(data: Data, output: Path, seed: int) -> dict:
    """Draw the pictures, train and compare detectors, and write the package's; return its about.

    output: where what was read of the drawn pictures is kept, for the next time.
    """
    from rendering import non_digits  # which imports Matplotlib: not for --help

    from paddle_mnist.mnist import detector, pretrained
    from paddle_mnist.system.files import write_atomically

    examples = _examples(data, output, np.random.RandomState(seed))
    features = {name: _features(pixels) for name, pixels in examples.items()}
    trained = _train(features, seed)
    scores = {"the net on features": lambda values, logits: trained.logits(values)}
    scores.update(_rivals(*features["train mnist"], data["train"].labels[:RAW], seed))
    thresholds = {name: _threshold(features, score) for name, score in scores.items()}
    caught = {
        name: {
            kind: float((score(*features[f"unseen {kind}"]) < thresholds[name]).mean())
            for kind in non_digits.UNSEEN
        }
        for name, score in scores.items()
    }
    about = {
        "command": "python tools/reproduce.py --only detector --data MNIST",
        "weights": pretrained.about()["sha256"],
        "seed": seed,
        "false_alarms": FALSE_ALARMS,
        "caught": caught,
    }
    bias = trained.bias - thresholds["the net on features"]  # digits end at THRESHOLD
    trained = dataclasses.replace(trained, bias=bias, about=about)
    write_atomically(detector.FILE, trained.as_bytes())
    return about


def tabulate(about: dict) -> str:
    from rendering import non_digits  # which imports Matplotlib: not for --help

    kinds = list(non_digits.UNSEEN)
    return markdown_table(
        {"caught by": "", **dict.fromkeys(kinds, ".0%")},
        [[name, *(caught[kind] for kind in kinds)] for name, caught in about["caught"].items()],
    )


def _train(features: Mapping[str, tuple[np.ndarray, np.ndarray]], seed: int):
    """Return a `Detector` without a threshold: several nets side by side, averaged."""
    from sklearn.neural_network import MLPClassifier

    from paddle_mnist.mnist.detector import Detector

    train = {name: values for name, (values, _) in features.items() if name.startswith("train ")}
    digits = [train.pop(f"train {kind}") for kind in DIGITS]
    others = list(train.values())
    values = np.sqrt(np.maximum(np.concatenate(digits + others), 0))
    is_digit = np.repeat([1, 0], [sum(map(len, digits)), sum(map(len, others))])
    mean = values[is_digit == 1].mean(axis=0)
    scale = values[is_digit == 1].std(axis=0) + 0.05
    nets = [
        MLPClassifier(
            (HIDDEN,), alpha=PENALTY, batch_size=256, max_iter=EPOCHS, random_state=seed + number
        )
        for number in range(NETS)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not converged, which is as good as early stopping
        for net in nets:
            net.fit((values - mean) / scale, is_digit)
    return Detector(
        mean,
        scale,
        hidden_weight=np.concatenate([net.coefs_[0] for net in nets], axis=1),
        hidden_bias=np.concatenate([net.intercepts_[0] for net in nets]),
        weight=np.concatenate([net.coefs_[1][:, 0] for net in nets]) / NETS,
        bias=np.mean([net.intercepts_[1][0] for net in nets]),
        about={},
    )


def _threshold(features: Mapping[str, tuple[np.ndarray, np.ndarray]], score: Score) -> float:
    """Return the score below which FALSE_ALARMS of the valid split's digits are."""
    return float(
        min(np.quantile(score(*features[name]), share) for name, share in FALSE_ALARMS.items())
    )


def _rivals(
    values: np.ndarray, logits: np.ndarray, labels: np.ndarray, seed: int
) -> dict[str, Score]:
    """Return other scores, fitted on MNIST's training images; the largest are digits.

    Energy: Liu et al., "Energy-based out-of-distribution detection", 2020. Mahalanobis: Lee et al.,
    "A simple unified framework for detecting out-of-distribution samples", 2018. Neighbours: Sun et
    al., "Out-of-distribution detection with deep nearest neighbors", 2022.
    """
    from scipy.special import logsumexp
    from sklearn.decomposition import PCA
    from sklearn.neighbors import NearestNeighbors

    def scaled(values: np.ndarray) -> np.ndarray:
        return (np.sqrt(np.maximum(values, 0)) - mean) / scale

    roots = np.sqrt(np.maximum(values, 0))
    mean, scale = roots.mean(axis=0), roots.std(axis=0) + 0.05
    components = PCA(COMPONENTS, random_state=seed).fit(scaled(values))
    reduced = components.transform(scaled(values))
    middles = np.stack([reduced[labels == digit].mean(axis=0) for digit in range(10)])
    spread = np.mean([np.cov(reduced[labels == digit].T) for digit in range(10)], axis=0)
    inverse = np.linalg.inv(spread)
    neighbours = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(reduced)

    def mahalanobis(values: np.ndarray, logits: np.ndarray) -> np.ndarray:
        away = components.transform(scaled(values))[:, np.newaxis] - middles
        return -np.einsum("ndi,ij,ndj->nd", away, inverse, away, optimize=True).min(axis=1)

    def nearest(values: np.ndarray, logits: np.ndarray) -> np.ndarray:
        return -neighbours.kneighbors(components.transform(scaled(values)))[0].mean(axis=1)

    return {
        "energy": lambda values, logits: logsumexp(logits, axis=1),
        "largest logit": lambda values, logits: logits.max(axis=1),
        "probability": lambda values, logits: logits.max(axis=1) - logsumexp(logits, axis=1),
        "Mahalanobis distance of features": mahalanobis,
        "distance to the nearest features": nearest,
    }


# ------------------------------------------------------------------ examples


def _examples(data: Data, output: Path, random: np.random.RandomState) -> dict[str, Pixels]:
    """Return what the detector learns from and is compared on, by "split kind"."""
    from rendering import non_digits, paper  # which imports Matplotlib: not for --help

    train, valid = data["train"], data["valid"]
    raw, labels = np.asarray(train.images[:RAW]), train.labels[:RAW]
    examples = {
        "train mnist": raw,
        "valid mnist": np.asarray(valid.images),
        "train spliced": _spliced(raw, 4000, random),
        "train mirrored": raw[random.choice(np.flatnonzero(np.isin(labels, MIRRORED)), 2500)][
            ..., ::-1
        ],
        "train turned": np.rot90(
            raw[random.choice(np.flatnonzero(np.isin(labels, TURNED_LEFT)), 1500)], 1, (1, 2)
        ),
    }
    folder = output / "detector" / _version()
    folder.mkdir(parents=True, exist_ok=True)
    for mode, split in (("train", train), ("valid", valid)):
        draw = functools.partial(_as_they_are, split, FILES[mode])
        examples[f"{mode} files"] = _kept(folder / f"{mode} files.npy", draw)
        examples[f"{mode} paper"] = np.concatenate(
            [
                _kept(
                    folder / f"{mode} {kind}.npy",
                    functools.partial(_on_paper, kind, split, ON_PAPER),
                )
                for kind in paper.KINDS
            ]
        )
    draw = functools.partial(_on_paper, "plain", valid, PLAIN)
    plain = _kept(folder / "valid plain, more.npy", draw)
    examples["valid files"] = np.concatenate([examples["valid files"], plain])
    for kind, count in NO_DIGITS.items():
        draw = functools.partial(_no_digits, non_digits.TRAINING[kind], count, 10_000)
        drawn = _kept(folder / f"{kind}.npy", draw)
        shaken = [_shaken(drawn, random) for _ in range(SHAKEN)]
        examples[f"train {kind}"] = np.concatenate([drawn, *shaken])
    for name in ("train paper", "train files"):
        read = examples[name]
        shaken = [_shaken(read, random) for _ in range(READ_SHAKEN)]
        examples[name] = np.concatenate([read] * READ_WEIGHT + shaken)
    for kind, draws in non_digits.UNSEEN.items():
        draw = functools.partial(_no_digits, draws, UNSEEN, 20_000)
        examples[f"unseen {kind}"] = _kept(folder / f"unseen {kind}.npy", draw)
    return examples


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


def _kept(path: Path, draw: Callable[[], Pixels]) -> Pixels:
    """Return the array in a file, which is made if it is not there."""
    if not path.exists():
        pixels = draw()
        with path.with_suffix(".part").open("wb") as file:
            np.save(file, pixels)
        path.with_suffix(".part").rename(path)
    return np.load(path)


def _version() -> str:
    """Return a name for what draws and reads the pictures; those of another code are of no use."""
    from rendering import non_digits, paper  # which imports Matplotlib: not for --help

    from paddle_mnist.mnist import ink, pictures, shapes

    digest = hashlib.sha256()
    for module in (ink, shapes, pictures, paper, non_digits):
        digest.update(Path(module.__file__).read_bytes())
    return digest.hexdigest()[:16]


def _as_they_are(split: Split, count: int) -> Pixels:
    """Return images as they are read from files: with their strokes measured anew."""
    places = np.linspace(0, len(split.labels) - 1, count).astype(int)
    return _read(Image.fromarray(np.asarray(split.images[place])) for place in places)


def _on_paper(kind: str, split: Split, count: int) -> Pixels:
    from rendering import paper  # which imports Matplotlib: not for --help

    place = list(paper.KINDS).index(kind)
    indices = [(number * 199 + place * 17) % len(split.labels) for number in range(count)]
    return _read(
        paper.KINDS[kind](np.asarray(split.images[index]), np.random.RandomState(index))
        for index in indices
    )


def _no_digits(draws: Mapping[str, Callable], count: int, seed: int) -> Pixels:
    draws = list(draws.values())
    return _read(
        draws[number % len(draws)](np.random.RandomState(seed + number)) for number in range(count)
    )


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


def _features(images: Pixels) -> tuple[np.ndarray, np.ndarray]:
    """Return the packaged net's features, float32 [N, 980], and logits, float32 [N, 10]."""
    from paddle_mnist.mnist.detector import FEATURES
    from paddle_mnist.mnist.infer import pretrained_predictor

    if not len(images):
        return np.zeros((0, 980), np.float32), np.zeros((0, 10), np.float32)
    outputs = pretrained_predictor((FEATURES, "logits"), device="cpu").run(images)
    return outputs[FEATURES].reshape(len(images), -1), outputs["logits"]
