"""What images other than MNIST's own the net copes with."""

from pathlib import Path
from typing import Any

import numpy as np
from markdown_tables import table
from scipy import ndimage

from reproduction.claims import Experiment, Report
from reproduction.workspace import Scale

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


def measure(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Return the accuracy of the pretrained net on the eval split, changed in several ways."""
    from paddle_mnist import MNIST, MnistDataset, evaluate

    model, dataset = MNIST(pretrained=True), MnistDataset("eval", data)
    images, labels = dataset.batch(np.arange(len(dataset)))
    accuracies = {}
    for name, change in CHANGES.items():
        changed = _changed(images, **change)
        slices = (slice(start, start + 500) for start in range(0, len(images), 500))
        batches = [(changed[one], labels[one]) for one in slices]
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


def tabulate(report: Report) -> str:
    rows = (("unaltered" if name == OWN else name, one) for name, one in report.items())
    return table({"eval images": "", "accuracy": ".2%"}, rows)


def find(report: Report) -> dict[str, Any]:
    """Name the changes that all but keep the accuracy, those that cost much, and the worst."""
    others = {name: one for name, one in report.items() if name != OWN}
    return {
        "own": report[OWN],
        "near": [name for name, one in others.items() if report[OWN] - one < 0.005],
        "weak": [name for name, one in others.items() if one < 0.9],
        "worst": min(others, key=others.get),
    }


CLAIM = Experiment("robustness", measure, tabulate, find, settings=CHANGES, uses_pretrained=True)
