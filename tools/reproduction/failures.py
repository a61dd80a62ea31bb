"""Where the best net fails: images, how sure it is, and what it cannot stand."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paddle_mnist.data import Data
from reproduction.compared import Report, Scale
from reproduction.ladder import BEST
from reproduction.shown import Shown
from reproduction.trainings import Results

BINS = 15  # of the reliability diagram (Guo et al., "On Calibration of Modern Neural Networks")

# Of MNIST's eval split: the net's answer is as good a reading as the label. One person's eye, which
# had no other measure, and looked at what most trainings of `best` get wrong.
ARGUABLE = (947, 1232, 1901, 2130, 2597, 5654, 5937, 9729)


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


@dataclass(frozen=True)
class Mistakes(Shown):
    """What the trainings of `best` got wrong; there is nothing to be measured but these."""

    def run(self, data: Data, folder: Path, output: Path, scale: Scale) -> None:
        results = BEST.results(Results(folder / "trainings.json"), data, scale)["best"]
        if results:
            self.write(folder, data, mistakes(data, results))

    def measured(self, report: Report) -> bool:
        return report.get("seeds", 0) >= BEST.seeds

    def _settings(self, data: Data) -> str:
        (row,) = BEST.rows.values()
        return f"{super()._settings(data)} {row.training(1, Scale()).settings(data)}"


def mistakes(data: Data, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The eval images that more than half of the trainings read wrongly.

    answers: by digit, how many trainings took the image for it, the right ones among them.
    agreed: all of them took it for one and the same other digit. arguable: it is in ARGUABLE.
    """
    from paddle_mnist import MnistDataset

    read: dict[int, Counter] = defaultdict(Counter)
    for result in results:
        for number, answer in result["wrong"]:
            read[number][answer] += 1
    _, labels = MnistDataset("eval", data).batch(np.array(sorted(read), dtype=int))
    images = []
    for label, (number, answers) in zip(labels[:, 0], sorted(read.items())):
        if 2 * sum(answers.values()) > len(results):
            agreed = list(answers.values()) == [len(results)]
            answers[int(label)] = len(results) - sum(answers.values())
            told = {str(digit): count for digit, count in answers.most_common() if count}
            arguable = data.name == "mnist" and number in ARGUABLE
            images.append(
                {
                    "image": number,
                    "label": int(label),
                    "answers": told,
                    "agreed": agreed,
                    "arguable": arguable,
                }
            )
    return {"seeds": len(results), "images": images}


def mistakes_table(report: Mapping[str, Any]) -> str:
    rows = ["| image of the eval split | label | answers (trainings) | all agree | arguable |"]
    rows.append("|---|---|---|---|---|")
    for one in report["images"]:
        answers = ", ".join(f"{digit} ({count})" for digit, count in one["answers"].items())
        marks = " | ".join("yes" if one[key] else "" for key in ("agreed", "arguable"))
        rows.append(f"| {one['image']} | {one['label']} | {answers} | {marks} |")
    return "\n".join(rows)


def mistakes_verdict(report: Mapping[str, Any]) -> str:
    images = report["images"]
    agreed, arguable = (sum(one[key] for one in images) for key in ("agreed", "arguable"))
    return (
        f"{len(images)} images are read wrongly by most of {report['seeds']} trainings; for "
        f"{agreed} of them all agree on one other digit. By eye, the pictures below, {arguable} "
        "labels are arguable; in the others it is the net that is wrong."
    )


def mistakes_figure(report: Mapping[str, Any], data: Data) -> Any:
    from paddle_mnist import MnistDataset, figures

    numbers = np.array([one["image"] for one in report["images"]], dtype=int)
    images, labels = MnistDataset("eval", data).batch(numbers)
    shares = np.zeros((len(numbers), 10))
    for row, one in zip(shares, report["images"]):
        for digit, count in one["answers"].items():
            row[int(digit)] = count / report["seeds"]
    of = f"label, and the answer of most of {report['seeds']} trainings, with their shares"
    return figures.mistakes(images[:, 0], labels[:, 0], shares, of)


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
    weak = [name for name, share in report.items() if share < 0.9]
    return (
        f"Below 90 %: {', '.join(weak) or 'none'}. Trained with shifts up to 2 pixels and "
        "rotations up to 10 degrees, it stands these, and little more. Dark on light is "
        "beyond it, but `tools/infer.py` finds that out and inverts the picture."
    )


CLAIMS = (
    Mistakes(
        "mistakes",
        "this project",
        "where the best net fails, and whether it is the net that is wrong",
        "the eval split, by every training of the recipe `best`",
        mistakes,
        mistakes_table,
        mistakes_verdict,
        mistakes_figure,
        settings=ARGUABLE,
    ),
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
    ),
    Shown(
        "robustness",
        "this project",
        "what else than MNIST's own images it stands",
        "the pretrained net on the eval split, changed: shifts and rotations with a sign drawn for "
        "each image, noise normal with a standard deviation in units of the pixels' range, clipped",
        robustness,
        robustness_table,
        robustness_verdict,
        settings=ROBUST,
        of_the_weights=True,
    ),
)
