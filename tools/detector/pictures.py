"""What is read of digits that code draws as people photograph them.

The digits are of MNIST's eval split, on which neither the preprocessing nor the detector was
developed.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.turns import Benchmark, Session, Turn
from PIL import Image

DESK = "a sheet on a dark or patterned desk, in perspective"
TILT = 7  # degrees
Box = Sequence[float]  # left, top, right, bottom


def _kinds(session: Session) -> dict[str, Turn]:
    """Return a turn for each kind of picture; it counts digits right, refused and missing."""
    from detector import paper  # which imports OpenCV: not for --help
    from paddle_mnist.mnist.images import open_data

    split = open_data(session.source)["eval"]
    sheets, pages = (2, 2) if session.is_quick else (150, 40)
    draws = {
        **paper.KINDS,
        DESK: paper.on_a_desk,
        f"the same, turned by {TILT} degrees": functools.partial(paper.on_a_desk, tilt=TILT),
    }
    turns = {
        kind: functools.partial(_count_sheets, split, draw, place, sheets, session.folder)
        for place, (kind, draw) in enumerate(draws.items())
    }
    title = f"{pages} pages of close, ragged rows with fading strokes, `--many`"
    return {**turns, title: functools.partial(_count_pages, split, pages, session.folder)}


def _count_sheets(
    split: Any, draw: Callable, place: int, count: int, folder: Path
) -> dict[str, int]:
    """Count what is read of `count` sheets with a digit each. place: of the kind among all."""

    def sheets() -> Iterator[tuple[str, Image.Image]]:
        for number in range(count):
            index = (number * 47 + place * 11) % len(split.labels)
            random = np.random.RandomState(1_000_000 * place + number)
            yield str(split.labels[index]), draw(np.asarray(split.images[index]), random)

    readings = list(_read(sheets(), folder))
    return {
        "digits": count,
        "right": sum(str(reading.digit) == truth for truth, reading in readings),
        "refused": sum(bool(reading.error) for _, reading in readings),
        "missing": 0,
    }


def _count_pages(split: Any, count: int, folder: Path) -> dict[str, int]:
    """Count what is read of `count` pages."""
    from detector.paper import page

    boxes_of: list[list[Box]] = []

    def pages() -> Iterator[tuple[str, Image.Image]]:
        for number in range(count):
            random = np.random.RandomState(90_000 + number)
            rows = random.randint(2, 8, random.randint(2, 8))
            indices = random.randint(0, len(split.labels), sum(rows))
            picture, boxes = page(np.asarray(split.images[indices]), rows, random)
            boxes_of.append(boxes)
            yield "".join(map(str, split.labels[indices])), picture

    counts: Counter = Counter()
    for number, (truth, reading) in enumerate(_read(pages(), folder, many=True)):
        found = [
            (each.box.left, each.box.top, each.box.right, each.box.bottom)
            for each in reading.digits or ()
        ]
        counts["digits"] += len(truth)
        counts["right"] += _in_order(truth, reading.text)
        counts["refused"] += reading.text.count("?")
        counts["missing"] += sum(
            not any(_meet(box, other) for other in found) for box in boxes_of[number]
        )
    return counts


def _read(
    pictures: Iterable[tuple[str, Image.Image]], folder: Path, many: bool = False
) -> Iterator[tuple[str, Any]]:
    """Save pictures, and yield the truth and the `Reading` of each."""
    from paddle_mnist.mnist.pictures import read_pictures
    from paddle_mnist.mnist.predictor import DigitPredictor

    truths = {}
    for number, (truth, picture) in enumerate(pictures):
        path = folder / f"{number:05}.png"
        picture.save(path)
        truths[str(path)] = truth
    for reading in read_pictures(DigitPredictor("pretrained"), truths, many):
        yield truths[reading.file], reading


def _in_order(truth: str, text: str) -> int:
    """Return how many digits are read in the right order: the longest common subsequence."""
    lengths = np.zeros((len(truth) + 1, len(text) + 1), int)
    for i, a in enumerate(truth):
        for j, b in enumerate(text):
            longer = max(lengths[i, j + 1], lengths[i + 1, j])
            lengths[i + 1, j + 1] = lengths[i, j] + 1 if a == b else longer
    return int(lengths[-1, -1])


def _meet(first: Box, second: Box) -> bool:
    """Return whether two boxes overlap."""
    return all(first[n] < second[n + 2] and second[n] < first[n + 2] for n in (0, 1))


BENCHMARKS = {
    "photographs": Benchmark(
        "What is read of digits on paper, sheets on a desk and hard pages, as phones see them.",
        kinds=_kinds,
        head="kind of picture",
        columns={
            "digits": (",", "digits"),
            **{
                name: (".1%", lambda row, rows, name=name: row[name] / row["digits"])
                for name in ("right", "refused", "missing")
            },
        },
        rounds=1,
        note=lambda report: (
            "Pictures are drawn by code, of MNIST's eval split. A digit of a page is right where "
            "it is read in the right order, and refused where it has a box and a `?`; what is "
            "missing has no box."
        ),
    ),
}
