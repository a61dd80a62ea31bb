"""The images that the best net gets wrong."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markdown_tables import table

from paddle_mnist.errors import DataError
from paddle_mnist.mnist import figures
from paddle_mnist.mnist.images import Images
from paddle_mnist.plots.figure import VERMILION
from reproduction.claims import Experiment, Report, Workspace
from reproduction.comparison import results_of
from reproduction.ladder import BEST

# Judged by eye, which is not a measurement: of MNIST's eval split, the images for which the net's
# answer is as good a reading as the label, and those for which it is not.
ARGUABLE = (726, 947, 1232, 1901, 2130, 2597, 4284, 4740, 4860, 5654, 5937, 9729)
RIGHT = (
    445, 582, 583, 625, 659, 674, 1014, 1226, 1790, 1878, 2018, 2035, 2182,
    2414, 2454, 2462, 2654, 2939, 3073, 3225, 3422, 3534, 3762, 3808, 4176, 4201, 4761,
    5457, 5955, 5997, 6558, 6576, 6597, 6625, 8408, 9642, 9669, 9679, 9692, 9698,
)  # fmt: skip
JUDGED = {**dict.fromkeys(ARGUABLE, "arguable"), **dict.fromkeys(RIGHT, "right")}


def measure(work: Workspace, folder: Path) -> dict[str, Any]:
    """Return what `mistakes` finds in the trainings of `best`."""
    results = results_of(BEST.rows["best"], work)
    if not results:
        raise DataError("no training of `best` is stored; measure `best` first")
    return mistakes(work.data, list(results.values()))


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
                "by_eye": JUDGED.get(number, "not looked at"),
            }
        )
    return {"seeds": len(results), "images": images}


def tabulate(report: Report) -> str:
    columns = {
        "label, judged by eye": "",
        "images": "d",
        "of them, all trainings agree on another digit": "d",
    }
    judged = Counter(image["by_eye"] for image in report["images"])
    agreed = Counter(image["by_eye"] for image in report["images"] if image["agreed"])
    return table(columns, [(label, judged[label], agreed[label]) for label in sorted(judged)])


def count(report: Report) -> dict[str, int]:
    """Count the images, those that all trainings take for the same digit, and the judgments."""
    images = report["images"]
    by_eye = Counter(image["by_eye"] for image in images)
    return {
        "count": len(images),
        "agreed": sum(image["agreed"] for image in images),
        "arguable": by_eye["arguable"],
        "right": by_eye["right"],
    }


def draw(report: Report, data: Images) -> Any:
    """Draw the images with their labels, and the most frequent wrong answer."""
    from paddle_mnist import MnistDataset

    numbers = np.array([image["image"] for image in report["images"]], dtype=int)
    images, _ = MnistDataset("eval", data).batch(numbers)
    captions, colours = [], []
    for image in report["images"]:
        wrong = {int(d): n for d, n in image["answers"].items() if int(d) != image["label"]}
        answer = max(wrong, key=wrong.get)
        captions.append(
            f"{image['image']}: {image['label']} → {answer}\n{wrong[answer]} of {report['seeds']}"
        )
        colours.append(VERMILION if image["by_eye"] == "arguable" else "black")
    title = (
        f"The {len(numbers)} images that most of {report['seeds']} trainings misclassify; "
        f"{count(report)['arguable']} labels (orange) are arguable\n"
        "image: label → most frequent answer, and how many trainings gave it"
    )
    return figures.gallery(images[:, 0], captions, title, 8, colours)


CLAIM = Experiment("mistakes", measure, tabulate, count, draw, code=())
