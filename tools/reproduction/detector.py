"""The detector of what is probably not one digit: its training, and what it was compared with."""

import argparse
import io
import json
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from markdown_tables import table as markdown_table

from paddle_mnist.mnist.arrays import Data
from reproduction.detector_examples import RAW, Pixels, examples

NETS, HIDDEN, PENALTY, EPOCHS = 3, 32, 0.1, 8  # what one net catches varies with its seed
NO_DIGIT = "train no "
COMPONENTS, NEIGHBOURS = 64, 5
PAPER = "valid, on paper"
FALSE_ALARMS = {  # at most, of what is read of the valid split
    "valid mnist": 0.004,
    "valid drawn": 0.006,
    PAPER: 0.012,
}

Outputs = tuple[np.ndarray, np.ndarray]  # features [N, 980] and logits [N, 10]
Score = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of these


def measure(data: Data, args: argparse.Namespace) -> dict:
    """Draw the pictures, train and compare detectors, and write the package's; return its about.

    What was read of the drawn pictures is kept in `--output` for the next time.
    """
    from rendering import non_digits  # which imports Matplotlib: not for --help

    from paddle_mnist.mnist import detector, pretrained
    from paddle_mnist.mnist.detector import moved
    from paddle_mnist.system.files import write_atomically

    seed = args.seed
    pictures = examples(data, Path(args.output), np.random.RandomState(seed))
    features = {
        name: _features(pixels) for name, pixels in pictures.items() if name.startswith("train ")
    }
    trained = _train(features, seed)
    scores = {"the net on features": lambda values, logits: trained.logits(values)}
    scores.update(_rivals(*features["train mnist"], data["train"].labels[:RAW], seed))
    compared = {
        name: [_features(images) for images in moved(pixels)]
        for name, pixels in pictures.items()
        if not name.startswith("train ")
    }
    thresholds = {name: _threshold(compared, score) for name, score in scores.items()}
    caught = {
        name: {
            kind: float((_mean(score, compared[f"unseen {kind}"]) < thresholds[name]).mean())
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
    arrays = {**vars(trained), "bias": bias}
    contents = io.BytesIO()
    half = {name: np.asarray(values, np.float16) for name, values in arrays.items()}
    np.savez(contents, about=np.array(json.dumps(about)), **half)
    write_atomically(detector.FILE, contents.getvalue())
    return about


def tabulate(about: dict) -> str:
    from rendering import non_digits  # which imports Matplotlib: not for --help

    kinds = list(non_digits.UNSEEN)
    return markdown_table(
        {"caught by": "", **dict.fromkeys(kinds, ".0%")},
        [[name, *(caught[kind] for kind in kinds)] for name, caught in about["caught"].items()],
    )


def _train(features: Mapping[str, Outputs], seed: int):
    """Return a `Detector` without a threshold: several nets side by side, averaged."""
    from sklearn.neural_network import MLPClassifier

    from paddle_mnist.mnist.detector import Detector

    others = [values for name, (values, _) in features.items() if name.startswith(NO_DIGIT)]
    digits = [values for name, (values, _) in features.items() if not name.startswith(NO_DIGIT)]
    values = _roots(np.concatenate(digits + others))
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
    )


def _mean(score: Score, outputs: Sequence[Outputs]) -> np.ndarray:
    """Return the mean score of each image over what the net gives for it and for it moved."""
    return np.mean([score(*each) for each in outputs], axis=0)


def _threshold(outputs: Mapping[str, Sequence[Outputs]], score: Score) -> float:
    """Return the score below which FALSE_ALARMS of the valid split's digits are."""
    parts = defaultdict(list)
    for name, each in outputs.items():
        if name.startswith("valid "):
            parts[name if name in FALSE_ALARMS else PAPER].append(_mean(score, each))
    return float(
        min(np.quantile(np.concatenate(parts[part]), most) for part, most in FALSE_ALARMS.items())
    )


def _roots(values: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(values, 0))


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
        return (_roots(values) - mean) / scale

    roots = _roots(values)
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


def _features(images: Pixels) -> Outputs:
    """Return the packaged net's features, float32 [N, 980], and logits, float32 [N, 10]."""
    from paddle_mnist.mnist.detector import FEATURES
    from paddle_mnist.mnist.infer import pretrained_predictor

    if not len(images):
        return np.zeros((0, 980), np.float32), np.zeros((0, 10), np.float32)
    outputs = pretrained_predictor((FEATURES, "logits"), device="cpu").run(images)
    return outputs[FEATURES].reshape(len(images), -1), outputs["logits"]
