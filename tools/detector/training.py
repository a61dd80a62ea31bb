"""Train the detector of non-digits, and count what it refuses and accepts at each threshold."""

import io
import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from markdown_tables import table

SEED = 1
NETS, HIDDEN, PENALTY, EPOCHS = 3, 96, 0.1, 8  # several nets: one depends much on its seed
PAPER = "on paper"
AT_SCORES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the tables
FALSE_ALARMS = {"mnist": 0.003, "drawn": 0.013, PAPER: 0.013}  # at most, of the valid split

Logits = dict[str, np.ndarray]  # of the images of each kind


def measure(work: Any, folder: Path) -> dict[str, Any]:
    """Draw the pictures, train the package's detector and write it; return what it refuses."""
    from detector.examples import examples  # which imports OpenCV: not for --help
    from detector.letters import TRAINING_FONTS, UNSEEN_WRITTEN, font_of
    from paddle_mnist.mnist import pretrained
    from paddle_mnist.mnist.pictures import detector
    from paddle_mnist.system.files import write_atomically

    for font in [*TRAINING_FONTS, *UNSEEN_WRITTEN]:
        font_of(font, 20)  # a missing one raises an error before anything is drawn
    shown = examples(work.data, np.random.RandomState(SEED))
    digits, others = (
        np.concatenate([_features(images) for images in group.values()])
        for group in (shown.digits, shown.no_digits)
    )
    trained = _train(digits, others, SEED)
    of_mnist = {"MNIST's eval images": np.asarray(work.data["eval"].images)}
    valid, unusual, unseen = (
        {kind: _mean_logits(trained, images) for kind, images in group.items()}
        for group in (shown.valid, {**of_mnist, **shown.unusual}, shown.unseen)
    )
    threshold = _threshold(valid)
    arrays = {**vars(trained), "bias": trained.bias - threshold}  # digits end at THRESHOLD
    about = {
        "command": "python tools/reproduce.py --only detector --data MNIST",
        "weights": pretrained.about()["sha256"],
        "seed": SEED,
        "false_alarms": FALSE_ALARMS,
    }
    contents = io.BytesIO()
    half = {name: np.asarray(values, np.float16) for name, values in arrays.items()}
    np.savez(contents, about=np.array(json.dumps(about)), **half)
    write_atomically(detector.FILE, contents.getvalue())
    return {
        **about,
        "digits_below": _shares_below(unusual, threshold),
        "no_digits_below": _shares_below(unseen, threshold),
    }


def _features(images: np.ndarray) -> np.ndarray:
    """Return the packaged net's features, float32 [..., 980]. images: uint8 [..., 28, 28]."""
    from paddle_mnist.mnist.pictures.detector import packaged_features

    return packaged_features(images).numpy()


def _train(digits: np.ndarray, others: np.ndarray, seed: int) -> Any:
    """Return a `Detector` without a threshold: the mean of several nets, as one wide net."""
    from sklearn.neural_network import MLPClassifier

    from paddle_mnist.mnist.pictures.detector import Detector

    roots = np.sqrt(np.maximum(digits, 0))
    mean, scale = roots.mean(axis=0), roots.std(axis=0) + 0.05
    values = (np.sqrt(np.maximum(np.concatenate([digits, others]), 0)) - mean) / scale
    is_digit = np.repeat([1, 0], [len(digits), len(others)])
    options = {"alpha": PENALTY, "batch_size": 256, "max_iter": EPOCHS}
    nets = [MLPClassifier((HIDDEN,), random_state=seed + n, **options) for n in range(NETS)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not converged: it stops early, against overfitting
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


def _mean_logits(detector: Any, images: np.ndarray) -> np.ndarray:
    """Return the mean logit of each image and its moved copies, as `Detector.scores` takes it."""
    from paddle_mnist.mnist.pictures.detector import shifted_copies

    copies = shifted_copies(images)
    return np.mean([detector.logits(_features(copy)) for copy in copies], axis=0)


def _threshold(valid: Logits) -> float:
    """Return the highest logit with at most FALSE_ALARMS of the valid split's digits below it."""
    paper = np.concatenate([valid[kind] for kind in valid if kind not in FALSE_ALARMS])
    groups = {**valid, PAPER: paper}
    return float(min(np.quantile(groups[group], most) for group, most in FALSE_ALARMS.items()))


def _shares_below(logits: Logits, threshold: float) -> dict[str, list[float]]:
    """Return the share of each kind that scores less than each of AT_SCORES.

    threshold: the logit where digits end.
    """
    levels = np.log(np.divide(AT_SCORES, np.subtract(1, AT_SCORES))) + threshold
    return {
        kind: [round(float((values < level).mean()), 4) for level in levels]
        for kind, values in logits.items()
    }


def tabulate(report: dict[str, Any]) -> str:
    accepted = (
        (kind, [1 - share for share in shares])
        for kind, shares in report["no_digits_below"].items()
    )
    refused = report["digits_below"].items()
    return "\n\n".join(
        [
            _table("digits refused below a score of", refused, ".2%"),
            _table("non-digits accepted from a score of", accepted, ".1%"),
        ]
    )


def _table(header: str, shares: Iterable[tuple[str, list[float]]], form: str) -> str:
    columns = {header: "", **{str(score): form for score in AT_SCORES}}
    return table(columns, [[kind, *values] for kind, values in shares])
