"""What images other than MNIST's own the net stands."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reproduction.compared import Scale
from reproduction.shown import PRETRAINED, Shown

ROBUST = {
    "as they are": {},
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
    own, *others = report
    near = [name for name in others if report[own] - report[name] < 0.005]
    weak = [name for name in others if report[name] < 0.9]
    inverts = ""
    if "inverted" in weak:
        inverts = " `tools/infer.py` finds out what is dark on light, and inverts it."
    return (
        f"Within half a percent of the images {own}: {', '.join(near) or 'none'}; below 90 %: "
        f"{', '.join(weak) or 'none'}.{inverts}"
    )


CLAIMS = (
    Shown(
        "robustness",
        "this project",
        "the net stands other images than MNIST's own",
        f"{PRETRAINED} on the eval split, changed: shifts and rotations with a sign drawn for each "
        "image, noise normal with a standard deviation in units of the pixels' range, clipped",
        robustness,
        robustness_table,
        robustness_verdict,
        settings=ROBUST,
        of_the_weights=True,
        uses=(_changed,),
    ),
)
