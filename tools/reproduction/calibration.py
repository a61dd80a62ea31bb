"""How sure the net is, and how sure it should be."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paddle_mnist.mnist.arrays import Data
from reproduction.compared import Scale
from reproduction.shown import PRETRAINED, Shown

DRAWS = 1000  # of labels, and of images
BINS = 15  # of the reliability diagram (Guo et al., "On Calibration of Modern Neural Networks")


def measure(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Of the pretrained net on the eval split, before and after a temperature.

    The temperature divides the logits; it is the one of least loss on the valid split. What chance
    makes of both, 95 % intervals of DRAWS: the error that a net with these confidences would show
    if it were exactly as sure as it should be, its labels drawn by its own probabilities; and the
    temperatures of the valid split's images, drawn with replacement (bootstrap).
    """
    from paddle_mnist import MNIST, MnistDataset, evaluate

    model = MNIST(pretrained=True)
    valid, found = (evaluate(model, MnistDataset(mode, data)) for mode in ("valid", "eval"))
    ways = {}
    best = _temperature(valid.probabilities, valid.labels)
    for name, temperature in (("as trained", 1.0), ("with a temperature", best)):
        probabilities = _tempered(found.probabilities, temperature)
        ways[name] = {
            "temperature": temperature,
            "loss": _loss(probabilities, found.labels),
            **_reliability(probabilities, found.labels),
        }
    draw = np.random.default_rng(1)
    count = 20 if scale.quick else DRAWS
    sure = found.probabilities.max(axis=1)
    place = _places(sure)
    by_chance = [_error(_binned(place, sure, draw.random(len(sure)) < sure)) for _ in range(count)]
    chosen = (draw.integers(len(valid.labels), size=len(valid.labels)) for _ in range(count))
    temperatures = [_temperature(valid.probabilities[one], valid.labels[one]) for one in chosen]
    return {"ways": ways, "ece_by_chance": _inner(by_chance), "temperature": _inner(temperatures)}


def _inner(values: list[float]) -> list[float]:
    """Where 95 % of them lie."""
    return np.quantile(values, [0.025, 0.975]).tolist()


def _temperature(probabilities: np.ndarray, labels: np.ndarray) -> float:
    from scipy.optimize import minimize_scalar

    def loss(temperature: float) -> float:
        return _loss(_tempered(probabilities, temperature), labels)

    return float(minimize_scalar(loss, bounds=(0.2, 5), method="bounded").x)


def _tempered(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """What the logits, divided by the temperature, would give."""
    logits = np.log(np.maximum(probabilities.astype(np.float64), 1e-30)) / temperature
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def _loss(probabilities: np.ndarray, labels: np.ndarray) -> float:
    return float(-np.log(probabilities[np.arange(len(labels)), labels]).mean())


def _reliability(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Bins of confidence: how many, how sure, how often right; and the expected error (ECE).

    Of bins of equal width, most of which are all but empty where a net is so sure, and again of
    bins of equal numbers.
    """
    sure = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    width = _places(sure)
    number = np.argsort(np.argsort(sure, kind="stable")) * BINS // len(sure)
    bins, equal = _binned(width, sure, right), _binned(number, sure, right)
    return {"ece": _error(bins), "ece_of_equal_numbers": _error(equal), "bins": bins}


def _places(sure: np.ndarray) -> np.ndarray:
    return np.minimum((sure * BINS).astype(int), BINS - 1)


def _binned(place: np.ndarray, sure: np.ndarray, right: np.ndarray) -> list[list[float]]:
    return [
        [int((place == b).sum()), float(sure[place == b].mean()), float(right[place == b].mean())]
        for b in np.unique(place)
    ]


def _error(bins: list[list[float]]) -> float:
    return sum(count * abs(mean - share) for count, mean, share in bins) / sum(
        count for count, *_ in bins
    )


def calibration_table(report: Mapping[str, Any]) -> str:
    rows = [
        f"| | temperature | loss | expected calibration error, {BINS} bins of equal width | of "
        "equal numbers |",
        "|---|---|---|---|---|",
    ]
    for name, one in report["ways"].items():
        rows.append(
            f"| {name} | {one['temperature']:.3f} | {one['loss']:.4f} | {one['ece']:.3%} | "
            f"{one['ece_of_equal_numbers']:.3%} |"
        )
    count, mean, share = next(iter(report["ways"].values()))["bins"][-1]
    note = (
        f"In the last bin of equal width are {count:,} images, answered with a mean confidence of "
        f"{mean:.2%}, and {share:.2%} of them rightly; the others hold few, as the figure says."
    )
    return "\n".join([*rows, "", note])


def calibration_verdict(report: Mapping[str, Any]) -> str:
    before, after = report["ways"].values()
    least, most = report["ece_by_chance"]
    low, high = report["temperature"]
    told = "Undecided" if before["ece"] <= most and low <= 1 <= high else "Refuted"
    sure = "less" if after["temperature"] > 1 else "more"
    one = "is not told from 1" if low <= 1 <= high else f"says that it should be {sure} sure"
    return (
        f"{told}: the expected calibration error is {before['ece']:.2%}, and of a net with these "
        f"confidences that is exactly as sure as it should be {least:.2%} to {most:.2%} (95 %). "
        f"The temperature, {after['temperature']:.2f} (95 % interval {low:.2f} to {high:.2f}), "
        f"{one}; with it the error is {after['ece']:.2%}."
    )


def calibration_figure(report: Mapping[str, Any], data: Data) -> Any:
    from paddle_mnist.plots import classes

    return classes.reliability({name: one["bins"] for name, one in report["ways"].items()})


CLAIMS = (
    Shown(
        "calibration",
        "this project",
        "the net is as sure as it should be",
        f"{PRETRAINED} on the eval split; a temperature found on the valid split",
        measure,
        calibration_table,
        calibration_verdict,
        calibration_figure,
        settings=[BINS, DRAWS],
        of_the_weights=True,
        uses=(_temperature, _tempered, _loss, _reliability, _places, _binned, _error, _inner),
    ),
)
