"""How sure the net is, and how sure it should be."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paddle_mnist.data import Data
from reproduction.compared import Scale
from reproduction.shown import Shown

BINS = 15  # of the reliability diagram (Guo et al., "On Calibration of Modern Neural Networks")


def calibration(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Of the pretrained net on the eval split, before and after a temperature.

    The temperature divides the logits; it is the one of least loss on the valid split.
    """
    from scipy.optimize import minimize_scalar

    from paddle_mnist import MNIST, MnistDataset, evaluate

    model = MNIST(pretrained=True)
    valid, found = (evaluate(model, MnistDataset(mode, data)) for mode in ("valid", "eval"))
    best = minimize_scalar(
        lambda t: _loss(_tempered(valid.probabilities, t), valid.labels),
        bounds=(0.2, 5),
        method="bounded",
    )
    ways = {}
    for name, temperature in (("as trained", 1.0), ("with a temperature", float(best.x))):
        probabilities = _tempered(found.probabilities, temperature)
        ways[name] = {
            "temperature": temperature,
            "loss": _loss(probabilities, found.labels),
            **_reliability(probabilities, found.labels),
        }
    return ways


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
    width = np.minimum((sure * BINS).astype(int), BINS - 1)
    number = np.argsort(np.argsort(sure, kind="stable")) * BINS // len(sure)
    bins, equal = _binned(width, sure, right), _binned(number, sure, right)
    return {"ece": _error(bins), "ece_of_equal_numbers": _error(equal), "bins": bins}


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
    for name, one in report.items():
        rows.append(
            f"| {name} | {one['temperature']:.3f} | {one['loss']:.4f} | {one['ece']:.3%} | "
            f"{one['ece_of_equal_numbers']:.3%} |"
        )
    count, mean, share = next(iter(report.values()))["bins"][-1]
    note = (
        f"In the last bin of equal width are {count:,} images, answered with a mean confidence of "
        f"{mean:.2%}, and {share:.2%} of them rightly; the others hold few, as the figure says."
    )
    return "\n".join([*rows, "", note])


def calibration_verdict(report: Mapping[str, Any]) -> str:
    before, after = report.values()
    temperature = after["temperature"]
    sure = "less" if temperature > 1 else "more"
    told = f"The net should be {sure} sure"
    if abs(temperature - 1) < 0.05:
        told = "The net is as sure as it should be"
    return (
        f"{told} (temperature {temperature:.3f}); the expected calibration error goes from "
        f"{before['ece']:.2%} to {after['ece']:.2%}."
    )


def calibration_figure(report: Mapping[str, Any], data: Data) -> Any:
    from paddle_mnist import figures

    return figures.reliability({name: one["bins"] for name, one in report.items()})


CLAIMS = (
    Shown(
        "calibration",
        "this project",
        "how sure the net is, it is right to be",
        "the pretrained net on the eval split; a temperature found on the valid split",
        calibration,
        calibration_table,
        calibration_verdict,
        calibration_figure,
        settings=BINS,
        of_the_weights=True,
        uses=(_tempered, _loss, _reliability, _binned, _error),
    ),
)
