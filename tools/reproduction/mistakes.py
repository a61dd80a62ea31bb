"""The images that the best net gets wrong."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paddle_mnist.mnist.arrays import Data
from reproduction.compared import Report, Scale
from reproduction.ladder import BEST
from reproduction.shown import Shown
from reproduction.trainings import Results

# Of MNIST's eval split, by eye, which is a judgement and no measurement: the net's answer is as
# good a reading as the label, or it is not.
ARGUABLE = (726, 947, 1232, 1901, 2130, 2597, 4284, 4740, 4860, 5654, 5937, 9729)
RIGHT = (
    *(445, 582, 583, 625, 659, 674, 1014, 1226, 1790, 1878, 2018, 2035, 2182),
    *(2414, 2454, 2462, 2654, 2939, 3073, 3225, 3422, 3762, 3808, 4176, 4201, 4761),
    *(5457, 5955, 5997, 6558, 6576, 6597, 6625, 8408, 9642, 9679, 9692, 9698),
)
UNSEEN = "not looked at"


@dataclass(frozen=True)
class Mistakes(Shown):
    """What the trainings of `best` got wrong; there is nothing to be measured but these."""

    def run(self, data: Data, folder: Path, output: Path, scale: Scale) -> None:
        results = BEST.results(Results(folder / "trainings.json"), data, scale)["best"]
        if results:
            self.write(folder, data, mistakes(data, results))

    def measured(self, report: Report) -> bool:
        return report.get("seeds", 0) >= BEST.seeds

    def behaviour(self) -> list[float]:
        (row,) = BEST.rows.values()
        return row.training(1, Scale()).behaviour

    def _settings(self, data: Data) -> str:
        (row,) = BEST.rows.values()
        return f"{super()._settings(data)} {row.training(1, Scale()).settings(data)}"


def mistakes(data: Data, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The eval images that more than half of the trainings read wrongly.

    answers: by digit, how many trainings took the image for it, the right ones among them.
    agreed: all of them took it for one and the same other digit. by_eye: what the label is.
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
            images.append(
                {
                    "image": number,
                    "label": int(label),
                    "answers": told,
                    "agreed": agreed,
                    "by_eye": _by_eye(number) if data.name == "mnist" else UNSEEN,
                }
            )
    return {"seeds": len(results), "images": images}


def _by_eye(number: int) -> str:
    if number in ARGUABLE:
        return "arguable"
    return "right" if number in RIGHT else UNSEEN


def mistakes_table(report: Mapping[str, Any]) -> str:
    rows = ["| image of the eval split | label | answers (trainings) | all agree | label, by eye |"]
    rows.append("|---|---|---|---|---|")
    for one in report["images"]:
        answers = ", ".join(f"{digit} ({count})" for digit, count in one["answers"].items())
        agreed = "yes" if one["agreed"] else ""
        rows.append(f"| {one['image']} | {one['label']} | {answers} | {agreed} | {one['by_eye']} |")
    return "\n".join(rows)


def mistakes_verdict(report: Mapping[str, Any]) -> str:
    images = report["images"]
    agreed = sum(one["agreed"] for one in images)
    eye = Counter(one["by_eye"] for one in images)
    unseen = f", {eye[UNSEEN]} were {UNSEEN}" if eye[UNSEEN] else ""
    return (
        f"{len(images)} images are read wrongly by most of {report['seeds']} trainings; for "
        f"{agreed} of them all agree on one other digit. By eye, a judgement, {eye['arguable']} "
        f"labels are arguable, {eye['right']} are right{unseen}: the pictures are below."
    )


def mistakes_figure(report: Mapping[str, Any], data: Data) -> Any:
    from paddle_mnist import MnistDataset
    from paddle_mnist.mnist import figures

    numbers = np.array([one["image"] for one in report["images"]], dtype=int)
    images, labels = MnistDataset("eval", data).batch(numbers)
    shares = np.zeros((len(numbers), 10))
    for row, one in zip(shares, report["images"]):
        for digit, count in one["answers"].items():
            row[int(digit)] = count / report["seeds"]
    of = f"label, and the most frequent answer of {report['seeds']} trainings, with their shares"
    names = [
        f"{one['image']}{' (arguable)' * (one['by_eye'] == 'arguable')}" for one in report["images"]
    ]
    return figures.mistakes(images[:, 0], labels[:, 0], shares, of, names)


CLAIMS = (
    Mistakes(
        "mistakes",
        "this project",
        "where the best net fails, and whether it is the net that is wrong",
        "the eval split, by every training of the recipe `best`. By eye: whether the net's answer "
        "is as good a reading of the picture as the label, arguable, or the label is right; one "
        "judge, who knew both",
        mistakes,
        mistakes_table,
        mistakes_verdict,
        mistakes_figure,
        settings=[ARGUABLE, RIGHT],
        uses=(_by_eye,),
    ),
)
