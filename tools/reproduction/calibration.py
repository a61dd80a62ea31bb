"""How sure the net is, and how sure it should be."""

from pathlib import Path
from typing import Any

import numpy as np
from markdown_tables import table
from scipy.optimize import minimize_scalar
from scipy.special import softmax

from paddle_mnist.mnist.images import Images
from reproduction import charts
from reproduction.claims import Experiment, Report
from reproduction.workspace import Scale

DRAWS = 1000  # of labels, and of images
BINS = 15  # of the reliability diagram (Guo et al., "On Calibration of Modern Neural Networks")


def measure(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Measure the pretrained net on the eval split, before and after temperature scaling.

    The temperature divides the logits; it is the one of least loss on the valid split. Both come
    with what chance makes of them, 95% intervals of DRAWS: the error that a net with these
    confidences shows if it is perfectly calibrated, its labels drawn by its own probabilities; and
    the temperatures of images of the valid split drawn with replacement (bootstrap).
    """
    from paddle_mnist import MNIST, MnistDataset, evaluate

    model = MNIST(pretrained=True)
    valid, evaluation = (evaluate(model, MnistDataset(mode, data)) for mode in ("valid", "eval"))
    best = _temperature(valid.probabilities, valid.labels)
    ways = {}
    for name, temperature in (("as trained", 1.0), ("with a temperature", best)):
        probabilities = _scaled(evaluation.probabilities, temperature)
        ways[name] = {
            "temperature": temperature,
            "loss": _loss(probabilities, evaluation.labels),
            **_reliability(probabilities, evaluation.labels),
        }
    draw = np.random.default_rng(1)
    count = scale.choose(DRAWS, 40)
    confidence = evaluation.probabilities.max(axis=1)
    bins = _bins_of_equal_width(confidence)
    by_chance = [
        _error(_binned(bins, confidence, draw.random(len(confidence)) < confidence))
        for _ in range(count)
    ]
    chosen = (draw.integers(len(valid.labels), size=len(valid.labels)) for _ in range(count))
    temperatures = [
        _temperature(valid.probabilities[draws], valid.labels[draws]) for draws in chosen
    ]
    return {
        "ways": ways,
        "ece_by_chance": _interval(by_chance),
        "temperature": _interval(temperatures),
    }


def _interval(values: list[float]) -> list[float]:
    """Return the limits between which 95% of the values lie."""
    return np.quantile(values, [0.025, 0.975]).tolist()


def _temperature(probabilities: np.ndarray, labels: np.ndarray) -> float:
    def loss(temperature: float) -> float:
        return _loss(_scaled(probabilities, temperature), labels)

    return float(minimize_scalar(loss, bounds=(0.2, 5), method="bounded").x)


def _scaled(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Return the probabilities of the logits divided by the temperature."""
    logits = np.log(np.maximum(probabilities.astype(np.float64), 1e-30))
    return softmax(logits / temperature, axis=1)


def _loss(probabilities: np.ndarray, labels: np.ndarray) -> float:
    return float(-np.log(probabilities[np.arange(len(labels)), labels]).mean())


def _reliability(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Return the expected calibration error (ECE), and bins of [count, confidence, accuracy].

    The bins have equal width, and where a net is so sure, most are all but empty; the error is
    given for bins of equal numbers, too.
    """
    confidence = probabilities.max(axis=1)
    correct = probabilities.argmax(axis=1) == labels
    by_number = np.argsort(np.argsort(confidence, kind="stable")) * BINS // len(confidence)
    bins = _binned(_bins_of_equal_width(confidence), confidence, correct)
    equal = _binned(by_number, confidence, correct)
    return {"ece": _error(bins), "ece_of_equal_numbers": _error(equal), "bins": bins}


def _bins_of_equal_width(confidence: np.ndarray) -> np.ndarray:
    return np.minimum((confidence * BINS).astype(int), BINS - 1)


def _binned(bins: np.ndarray, confidence: np.ndarray, correct: np.ndarray) -> list[list[float]]:
    members = (bins == number for number in np.unique(bins))
    return [
        [int(member.sum()), float(confidence[member].mean()), float(correct[member].mean())]
        for member in members
    ]


def _error(bins: list[list[float]]) -> float:
    return sum(count * abs(mean - share) for count, mean, share in bins) / sum(
        count for count, *_ in bins
    )


def tabulate(report: Report) -> str:
    columns = {
        "": "",
        "temperature": ".3f",
        "loss": ".4f",
        f"expected calibration error, {BINS} bins of equal width": ".3%",
        "with bins of equal counts": ".3%",
    }
    keys = ("temperature", "loss", "ece", "ece_of_equal_numbers")
    rows = ((name, *(one[key] for key in keys)) for name, one in report["ways"].items())
    return table(columns, rows)


def figure(report: Report, data: Images) -> Any:
    title = "Confidence differs from accuracy"  # the page has a predicate for it
    return charts.reliability(title, {name: one["bins"] for name, one in report["ways"].items()})


CLAIM = Experiment(
    "calibration",
    measure,
    tabulate,
    draw=figure,
    settings={"bins": BINS, "draws": DRAWS},
    uses_pretrained=True,
)
