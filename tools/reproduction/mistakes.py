"""The images that the best net gets wrong."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markdown_tables import table

from paddle_mnist.mnist import figures
from paddle_mnist.mnist.images import Images
from paddle_mnist.plots.figure import VERMILION
from reproduction.claims import Claim, Report
from reproduction.ladder import BEST
from reproduction.workspace import Workspace

# Judged by eye, which is no measurement: of MNIST's eval split, the images for which the net's
# answer is as good a reading as the label, and those for which it is not.
ARGUABLE = (726, 947, 1232, 1901, 2130, 2597, 4284, 4740, 4860, 5654, 5937, 9729)
RIGHT = (
    445, 582, 583, 625, 659, 674, 1014, 1226, 1790, 1878, 2018, 2035, 2182,
    2414, 2454, 2462, 2654, 2939, 3073, 3225, 3422, 3534, 3762, 3808, 4176, 4201, 4761,
    5457, 5955, 5997, 6558, 6576, 6597, 6625, 8408, 9642, 9669, 9679, 9692, 9698,
)  # fmt: skip
UNSEEN = "not looked at"


@dataclass(frozen=True)
class Mistakes(Claim):
    """The images that trainings of `best` misread."""

    def draw(self, report: Report, data: Images) -> Any:
        from paddle_mnist import MnistDataset

        numbers = np.array([image["image"] for image in report["images"]], dtype=int)
        images, _ = MnistDataset("eval", data).batch(numbers)
        captions, colours = [], []
        for image in report["images"]:
            wrong = {int(d): n for d, n in image["answers"].items() if int(d) != image["label"]}
            answer = max(wrong, key=wrong.get)
            captions.append(
                f"{image['image']}: {image['label']} → {answer}\n"
                f"{wrong[answer]} of {report['seeds']}"
            )
            colours.append(VERMILION if image["by_eye"] == "arguable" else "black")
        counts = _counts(report)
        title = (
            f"The {counts['count']} images that most of {counts['seeds']} trainings misclassify; "
            f"{counts['arguable']} labels (orange) are arguable"
        )
        legend = "image: label → most frequent answer, and how many trainings gave it"
        return figures.gallery(images[:, 0], captions, f"{title}\n{legend}", 8, colours)

    def report(self, workspace: Workspace, seconds: Mapping[str, float]) -> dict[str, Any]:
        results = BEST.results(workspace)["best"]
        return mistakes(workspace.data, results) if results else {}

    def is_complete(self, report: Report) -> bool:
        return report.get("seeds", 0) >= BEST.seeds

    def findings(self, report: Report) -> dict[str, Any]:
        return {**report, **_counts(report)}

    def table(self, report: Report) -> str:
        if not self.is_complete(report):
            return "not measured yet"
        columns = {
            "label, judged by eye": "",
            "images": "d",
            "of them, all trainings agree on another digit": "d",
        }
        judged = Counter(image["by_eye"] for image in report["images"])
        agreed = Counter(image["by_eye"] for image in report["images"] if image["agreed"])
        rows = ((label, judged[label], agreed[label]) for label in sorted(judged))
        return table(columns, rows)


def mistakes(data: Images, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the eval images that more than half of the trainings misread.

    answers: by digit, how many trainings took the image for it, the correct ones among them.
    agreed: all of them took it for one and the same other digit. by_eye: what the label is.
    """
    from paddle_mnist import MnistDataset

    readings: dict[int, Counter] = defaultdict(Counter)
    for result in results:
        for number, answer in result["wrong"]:
            readings[number][answer] += 1
    _, labels = MnistDataset("eval", data).batch(np.array(sorted(readings), dtype=int))
    images = []
    for label, (number, answers) in zip(labels[:, 0].tolist(), sorted(readings.items())):
        wrong = sum(answers.values())
        if 2 * wrong <= len(results):
            continue
        agreed = list(answers.values()) == [len(results)]
        answers[label] = len(results) - wrong
        images.append(
            {
                "image": number,
                "label": label,
                "answers": {str(digit): n for digit, n in answers.most_common() if n},
                "agreed": agreed,
                "by_eye": _by_eye(number) if data.name == "mnist" else UNSEEN,
            }
        )
    return {"seeds": len(results), "images": images}


def _by_eye(number: int) -> str:
    if number in ARGUABLE:
        return "arguable"
    return "right" if number in RIGHT else UNSEEN


def _counts(report: Report) -> dict[str, int]:
    images = report["images"]
    by_eye = Counter(image["by_eye"] for image in images)
    return {
        "count": len(images),
        "seeds": report["seeds"],
        "agreed": sum(image["agreed"] for image in images),
        "arguable": by_eye["arguable"],
        "right": by_eye["right"],
    }


CLAIM = Mistakes("mistakes")
