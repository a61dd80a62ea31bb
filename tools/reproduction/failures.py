"""Where the best net fails: images, how sure it is, and what it cannot stand."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

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
    """Bins of confidence: how many, how sure, how often right; and the expected error (ECE)."""
    sure = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    place = np.minimum((sure * BINS).astype(int), BINS - 1)
    bins = [
        [int((place == b).sum()), float(sure[place == b].mean()), float(right[place == b].mean())]
        for b in range(BINS)
        if (place == b).any()
    ]
    error = sum(count * abs(mean - share) for count, mean, share in bins) / len(labels)
    return {"ece": error, "bins": bins}


def calibration_table(report: Mapping[str, Any]) -> str:
    rows = ["| | temperature | loss | expected calibration error |", "|---|---|---|---|"]
    for name, one in report.items():
        rows.append(f"| {name} | {one['temperature']:.3f} | {one['loss']:.4f} | {one['ece']:.3%} |")
    return "\n".join(rows)


def calibration_verdict(report: Mapping[str, Any]) -> str:
    before, after = report.values()
    sure = "less" if before["temperature"] < after["temperature"] else "more"
    return (
        f"The net should be a little {sure} sure (temperature {after['temperature']:.2f}); the "
        f"expected calibration error goes from {before['ece']:.2%} to {after['ece']:.2%}."
    )


def calibration_figure(report: Mapping[str, Any]) -> Any:
    from paddle_mnist import figures

    return figures.reliability({name: one["bins"] for name, one in report.items()})


ROBUST = {
    "as they are": {},
    "shifted by 1 pixel": {"shift": 1},
    "shifted by 2 pixels": {"shift": 2},
    "shifted by 4 pixels": {"shift": 4},
    "rotated by 10 degrees": {"rotate": 10},
    "rotated by 20 degrees": {"rotate": 20},
    "rotated by 40 degrees": {"rotate": 40},
    "noise of 0.1": {"noise": 0.1},
    "noise of 0.3": {"noise": 0.3},
    "noise of 0.5": {"noise": 0.5},
    "inverted": {"invert": 1},
}


def robustness(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Accuracy of the pretrained net on the eval split, changed in several ways."""
    import paddle

    from paddle_mnist import MNIST, MnistDataset

    model, dataset = MNIST(pretrained=True), MnistDataset("eval", data)
    model.eval()
    images, labels = dataset.batch(np.arange(len(dataset)))
    found = {}
    for name, change in ROBUST.items():
        changed = _changed(images, **change)
        right = 0
        with paddle.no_grad():
            for start in range(0, len(images), 500):
                part = paddle.to_tensor(changed[start : start + 500])
                answers = model(part).argmax(axis=1).numpy()
                right += int((answers == labels[start : start + 500, 0]).sum())
        found[name] = right / len(images)
    return found


def _changed(
    images: np.ndarray, shift: int = 0, rotate: float = 0, noise: float = 0, invert: int = 0
) -> np.ndarray:
    """Shifted and rotated to either side, at random; what comes in at the border is empty."""
    from scipy import ndimage

    draw = np.random.default_rng(1)
    if shift:
        moves = draw.choice([-shift, shift], (len(images), 2))
        images = np.stack(
            [ndimage.shift(one, (0, *move), order=0) for one, move in zip(images, moves)]
        )
    if rotate:
        signs = draw.choice([-1, 1], len(images))
        images = np.stack(
            [
                ndimage.rotate(one, sign * rotate, axes=(1, 2), reshape=False, order=1)
                for one, sign in zip(images, signs)
            ]
        )
    if noise:
        images = np.clip(images + draw.normal(0, noise, images.shape), 0, 1)
    return (1 - images if invert else images).astype(np.float32)


def robustness_table(report: Mapping[str, Any]) -> str:
    rows = ["| eval images | accuracy |", "|---|---|"]
    return "\n".join([*rows, *(f"| {name} | {share:.2%} |" for name, share in report.items())])


def robustness_verdict(report: Mapping[str, Any]) -> str:
    weak = [name for name, share in report.items() if share < 0.9]
    return (
        f"Below 90 %: {', '.join(weak) or 'none'}. Pictures are turned the right way round before "
        "the net sees them (`tools/infer.py` finds out light on dark); it does not know others."
    )


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
    ),
    Shown(
        "robustness",
        "this project",
        "what else than MNIST's own images it stands",
        "the pretrained net on the eval split, changed",
        robustness,
        robustness_table,
        robustness_verdict,
    ),
)
