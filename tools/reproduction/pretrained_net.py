"""Claims about the net that comes with the package: averages, calibration, changed images."""

from pathlib import Path
from typing import Any

import numpy as np
from markdown_tables import table, table_of_rows
from scipy import ndimage
from scipy.optimize import minimize_scalar
from scipy.special import softmax

from paddle_mnist.mnist.images import Images
from reproduction import charts
from reproduction.claims import Experiment, Report, Workspace

# ------------------------------------------------------------------ averages of batches

SIZES = (100, 64, 96, 3000)


def measure_averages(work: Workspace, folder: Path) -> dict[str, Any]:
    """Average the pretrained net's accuracy on the eval split batch by batch, and count it."""
    from paddle_mnist import MNIST, MnistDataset, evaluate

    evaluation = evaluate(MNIST(pretrained=True), MnistDataset("eval", work.data))
    correct = evaluation.labels == evaluation.predictions
    means = {}
    for size in SIZES:
        batches = [correct[start : start + size] for start in range(0, len(correct), size)]
        means[str(size)] = sum(batch.mean() for batch in batches) / len(batches)
    return {"counted": evaluation.accuracy, "images": len(correct), "mean_of_means": means}


def tabulate_averages(report: Report) -> str:
    counted = report["counted"]
    rows = (
        (size, mean, counted, round(mean - counted, 7) + 0.0)  # no minus before a zero
        for size, mean in report["mean_of_means"].items()
    )
    means = "mean of the batches' accuracies"
    return table({"batch size": "", means: ".4%", "counted": ".4%", "error": "+.4%"}, rows)


def largest_error(report: Report) -> dict[str, Any]:
    means = report["mean_of_means"].values()
    return {"error": max(abs(mean - report["counted"]) for mean in means)}


# ------------------------------------------------------------------ calibration

DRAWS = 1000  # of labels, and of images
BINS = 15  # of the reliability diagram (Guo et al., "On Calibration of Modern Neural Networks")


def measure_calibration(work: Workspace, folder: Path) -> dict[str, Any]:
    """Measure the pretrained net on the eval split, before and after temperature scaling.

    The temperature divides the logits; it is the one of least loss on the valid split. Both come
    with what chance makes of them, 95% intervals of DRAWS: the error that a net with these
    confidences shows if it is perfectly calibrated, its labels drawn by its own probabilities; and
    the temperatures of images of the valid split drawn with replacement (bootstrap).
    """
    from paddle_mnist import MNIST, MnistDataset, evaluate

    model = MNIST(pretrained=True)
    valid, evaluation = (
        evaluate(model, MnistDataset(mode, work.data)) for mode in ("valid", "eval")
    )
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
    count = work.choose(DRAWS, 40)
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


def tabulate_calibration(report: Report) -> str:
    columns = {
        "temperature": (".3f", "temperature"),
        "loss": (".4f", "loss"),
        f"expected calibration error, {BINS} bins of equal width": (".3%", "ece"),
        "with bins of equal counts": (".3%", "ece_of_equal_numbers"),
    }
    return table_of_rows("", columns, report["ways"])


def draw_calibration(report: Report, data: Images) -> Any:
    title = "Confidence differs from accuracy"  # the page has a predicate for it
    bins = {name: figures["bins"] for name, figures in report["ways"].items()}
    return charts.reliability(title, bins)


# ------------------------------------------------------------------ changed images

OWN = "as they are"
CHANGES = {
    OWN: {},
    "shifted by 1 pixel in x and y": {"shift": 1},
    "shifted by 2 pixels in x and y": {"shift": 2},
    "shifted by 4 pixels in x and y": {"shift": 4},
    "rotated by 10 degrees": {"rotate": 10},
    "rotated by 20 degrees": {"rotate": 20},
    "rotated by 40 degrees": {"rotate": 40},
    "noise of 0.1": {"noise": 0.1},
    "noise of 0.3": {"noise": 0.3},
    "noise of 0.5": {"noise": 0.5},
    "inverted": {"invert": 1},
}


def measure_robustness(work: Workspace, folder: Path) -> dict[str, Any]:
    """Return the accuracy of the pretrained net on the eval split, changed in several ways."""
    from paddle_mnist import MNIST, MnistDataset, evaluate

    model, dataset = MNIST(pretrained=True), MnistDataset("eval", work.data)
    images, labels = dataset.batch(np.arange(len(dataset)))
    accuracies = {}
    for name, change in CHANGES.items():
        changed = _changed(images, **change)
        parts = (slice(start, start + 500) for start in range(0, len(images), 500))
        batches = [(changed[part], labels[part]) for part in parts]
        accuracies[name] = evaluate(model, batches).accuracy
    return accuracies


def _changed(
    images: np.ndarray, shift: int = 0, rotate: float = 0, noise: float = 0, invert: int = 0
) -> np.ndarray:
    """Shift and rotate to either side at random; what comes in at the border is empty."""
    draw = np.random.default_rng(1)
    if shift:
        moves = draw.choice([-shift, shift], (len(images), 2))
        images = np.stack(
            [ndimage.shift(image, (0, *move), order=0) for image, move in zip(images, moves)]
        )
    if rotate:
        signs = draw.choice([-1, 1], len(images))
        images = np.stack(
            [
                ndimage.rotate(image, sign * rotate, axes=(1, 2), reshape=False, order=1)
                for image, sign in zip(images, signs)
            ]
        )
    if noise:
        images = np.clip(images + draw.normal(0, noise, images.shape), 0, 1)
    return (1 - images if invert else images).astype(np.float32)


def tabulate_robustness(report: Report) -> str:
    rows = (("unaltered" if name == OWN else name, accuracy) for name, accuracy in report.items())
    return table({"eval images": "", "accuracy": ".2%"}, rows)


def find_weak(report: Report) -> dict[str, Any]:
    """Return the changes that hardly cost accuracy, those that cost much, and the worst."""
    others = {name: accuracy for name, accuracy in report.items() if name != OWN}
    return {
        "own": report[OWN],
        "near": [name for name, accuracy in others.items() if report[OWN] - accuracy < 0.005],
        "weak": [name for name, accuracy in others.items() if accuracy < 0.9],
        "worst": min(others, key=others.get),
    }


CLAIMS = (
    Experiment("averages", measure_averages, tabulate_averages, largest_error),
    Experiment(
        "calibration",
        measure_calibration,
        tabulate_calibration,
        draw=draw_calibration,
    ),
    Experiment("robustness", measure_robustness, tabulate_robustness, find_weak),
)
