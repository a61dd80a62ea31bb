"""The detector of what is probably not one digit: its training, and what it was compared with."""

import io
import json
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from markdown_tables import table as markdown_table

NETS, HIDDEN, PENALTY, EPOCHS = 3, 32, 0.1, 8  # what one net catches varies with its seed
COMPONENTS, NEIGHBOURS = 64, 5
OURS = "the net on features"
PAPER = "on paper"
AT_SCORES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the curve
FALSE_ALARMS = {"mnist": 0.003, "drawn": 0.012, PAPER: 0.012}  # at most, of the valid split

# Of features [N, 980] and logits [N, 10], one each; the largest are digits.
Score = Callable[[np.ndarray, np.ndarray], np.ndarray]
Outputs = list[tuple[np.ndarray, np.ndarray]]  # features and logits, of each of `moved`


def measure(work: Any, folder: Path) -> dict:
    """Draw the pictures, train and compare detectors, and write the package's; return its about.

    work: the data, and the seed of the training.
    """
    from detector.examples import RAW, examples  # which imports OpenCV: not for --help
    from detector.letters import TRAINING_FONTS, font_of
    from paddle_mnist.mnist import pretrained
    from paddle_mnist.mnist.pictures import detector
    from paddle_mnist.system.files import write_atomically

    for font in TRAINING_FONTS:  # a missing one is reported before anything is drawn
        font_of(font, 20)
    shown = examples(work.data, np.random.RandomState(work.seed))
    digits, others = (
        np.concatenate([_features(pixels)[0] for pixels in group.values()])
        for group in (shown.digits, shown.no_digits)
    )
    trained = _train(digits, others, work.seed)
    raw = _features(shown.digits["mnist"][:RAW])[0]
    scores: dict[str, Score] = {OURS: lambda values, logits: trained.logits(values)}
    scores.update(_rivals(raw, work.data["train"].labels[:RAW], work.seed))
    of_mnist = {"MNIST's eval images": np.asarray(work.data["eval"].images)}
    valid, unusual, unseen = map(
        _outputs, (shown.valid, {**of_mnist, **shown.unusual}, shown.unseen)
    )
    thresholds = {name: _threshold(_means(score, valid)) for name, score in scores.items()}
    about = {
        "command": "python tools/reproduce.py --only detector --data MNIST",
        "weights": pretrained.about()["sha256"],
        "seed": work.seed,
        "false_alarms": FALSE_ALARMS,
        "caught": {
            name: {
                kind: round(float((found < thresholds[name]).mean()), 4)
                for kind, found in _means(score, unseen).items()
            }
            for name, score in scores.items()
        },
        "digits_below": _below(_means(scores[OURS], unusual), thresholds[OURS]),
        "no_digits_below": _below(_means(scores[OURS], unseen), thresholds[OURS]),
    }
    bias = trained.bias - thresholds[OURS]  # digits end at THRESHOLD
    arrays = {**vars(trained), "bias": bias}
    contents = io.BytesIO()
    half = {name: np.asarray(values, np.float16) for name, values in arrays.items()}
    kept = {name: value for name, value in about.items() if not name.endswith("_below")}
    np.savez(contents, about=np.array(json.dumps(kept)), **half)
    write_atomically(detector.FILE, contents.getvalue())
    return about


def _outputs(group: dict[str, np.ndarray]) -> dict[str, Outputs]:
    """Return what the net gives for the images of each kind, as they are and moved."""
    from paddle_mnist.mnist.pictures.detector import moved

    return {kind: [_features(images) for images in moved(pixels)] for kind, pixels in group.items()}


def _means(score: Score, group: dict[str, Outputs]) -> dict[str, np.ndarray]:
    """Return the mean score of each image over itself and its moved copies."""
    return {
        kind: np.mean([score(*each) for each in outputs], axis=0) for kind, outputs in group.items()
    }


def _threshold(found: dict[str, np.ndarray]) -> float:
    """Return the score below which FALSE_ALARMS of the valid split's digits are."""
    paper = np.concatenate([found[kind] for kind in found if kind not in FALSE_ALARMS])
    parts = {**found, PAPER: paper}
    return float(min(np.quantile(parts[part], most) for part, most in FALSE_ALARMS.items()))


def _below(found: dict[str, np.ndarray], threshold: float) -> dict[str, list[float]]:
    """Return the share of each kind that scores less than each of AT_SCORES.

    found: logits. threshold: of them, where digits end.
    """
    levels = np.log(np.divide(AT_SCORES, np.subtract(1, AT_SCORES))) + threshold
    return {
        kind: [round(float((logits < level).mean()), 4) for level in levels]
        for kind, logits in found.items()
    }


def tabulate(about: dict) -> str:
    kinds = about["caught"][OURS]
    refused = about["digits_below"].items()
    accepted = (
        (kind, [1 - share for share in shares]) for kind, shares in about["no_digits_below"].items()
    )
    return "\n\n".join(
        [
            markdown_table(
                {"caught by": "", **dict.fromkeys(kinds, ".0%")},
                [[name, *caught.values()] for name, caught in about["caught"].items()],
            ),
            _curve("digits refused below a score of", refused, ".2%"),
            _curve("no digits accepted from a score of", accepted, ".1%"),
        ]
    )


def _curve(header: str, shares: Iterable[tuple[str, list[float]]], form: str) -> str:
    columns = {header: "", **{str(score): form for score in AT_SCORES}}
    return markdown_table(columns, [[kind, *values] for kind, values in shares])


def _train(digits: np.ndarray, others: np.ndarray, seed: int):
    """Return a `Detector` without a threshold: several nets side by side, averaged."""
    from sklearn.neural_network import MLPClassifier

    from paddle_mnist.mnist.pictures.detector import Detector

    mean, scale = _statistics(digits)
    values = (_roots(np.concatenate([digits, others])) - mean) / scale
    is_digit = np.repeat([1, 0], [len(digits), len(others)])
    options = {"alpha": PENALTY, "batch_size": 256, "max_iter": EPOCHS}
    nets = [MLPClassifier((HIDDEN,), random_state=seed + n, **options) for n in range(NETS)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not converged, which is as good as early stopping
        for net in nets:
            net.fit(values, is_digit)
    return Detector(
        mean,
        scale,
        hidden_weight=np.concatenate([net.coefs_[0] for net in nets], axis=1),
        hidden_bias=np.concatenate([net.intercepts_[0] for net in nets]),
        weight=np.concatenate([net.coefs_[1][:, 0] for net in nets]) / NETS,
        bias=np.mean([net.intercepts_[1][0] for net in nets]),
    )


def _roots(values: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(values, 0))


def _statistics(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the scale of the roots of features."""
    roots = _roots(values)
    return roots.mean(axis=0), roots.std(axis=0) + 0.05


def _rivals(values: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, Score]:
    """Return other scores, fitted on MNIST's training images.

    Energy: Liu et al., "Energy-based out-of-distribution detection", 2020. Mahalanobis: Lee et al.,
    "A simple unified framework for detecting out-of-distribution samples", 2018. Neighbours: Sun et
    al., "Out-of-distribution detection with deep nearest neighbors", 2022.
    """
    from scipy.special import logsumexp
    from sklearn.covariance import EmpiricalCovariance
    from sklearn.decomposition import PCA
    from sklearn.neighbors import NearestNeighbors

    mean, scale = _statistics(values)
    components = PCA(COMPONENTS, random_state=seed).fit((_roots(values) - mean) / scale)

    def reduced(values: np.ndarray) -> np.ndarray:
        return components.transform((_roots(values) - mean) / scale)

    known = reduced(values)
    middles = np.stack([known[labels == digit].mean(axis=0) for digit in range(10)])
    spread = EmpiricalCovariance(assume_centered=True).fit(known - middles[labels])
    neighbours = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(known)

    def mahalanobis(values: np.ndarray, logits: np.ndarray) -> np.ndarray:
        return -np.min([spread.mahalanobis(reduced(values) - one) for one in middles], axis=0)

    def nearest(values: np.ndarray, logits: np.ndarray) -> np.ndarray:
        return -neighbours.kneighbors(reduced(values))[0].mean(axis=1)

    return {
        "energy": lambda values, logits: logsumexp(logits, axis=1),
        "largest logit": lambda values, logits: logits.max(axis=1),
        "probability": lambda values, logits: logits.max(axis=1) - logsumexp(logits, axis=1),
        "Mahalanobis distance of features": mahalanobis,
        "distance to the nearest features": nearest,
    }


def _features(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the packaged net's features, float32 [N, 980], and logits, float32 [N, 10]."""
    import paddle

    from paddle_mnist.mnist.pictures.detector import packaged_features, packaged_net

    if not len(images):
        return np.zeros((0, 980), np.float32), np.zeros((0, 10), np.float32)
    with paddle.no_grad():
        features = packaged_features(images)
        return features.numpy(), packaged_net().fc(features).numpy()
