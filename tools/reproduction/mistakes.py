"""The images that the best net gets wrong."""

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

# Of MNIST's eval split: the net's answer is as good a reading as the label. One person's eye, which
# had no other measure, and looked at what most trainings of `best` get wrong.
ARGUABLE = (947, 1232, 1901, 2130, 2597, 5654, 5937, 9729)


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
)
