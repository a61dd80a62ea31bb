"""Readings of pictures drawn by code, as `infer` reads them: digits read, and others refused.

The digits are of MNIST's eval split, on which neither the preprocessing nor the detector was
developed; everything else is of fonts, shapes, textures and layouts that the detector has not
seen. The pictures stay in `work/output/pictures`; `--json` lists those that were read wrongly.
"""

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.turns import Benchmark, Session, Turn
from markdown_tables import table_of_rows
from PIL import Image

FOLDER = Path("work/output/pictures")
COUNT = 200  # pictures of a kind
PAGES = 16
ROWS = ([5], [6], [8], [1, 1, 1], [4, 4], [3, 3, 3], [8] * 8, [10] * 10)
AS_THEY_ARE = "MNIST's eval images as they are"
NO_DIGIT = "probably not one digit"

Named = Iterator[tuple[str, Image.Image]]  # the truth, and the picture


def _read(pictures: Named, folder: Path, many: bool = False) -> Iterator[tuple[str, str, Any]]:
    """Save pictures, and yield the name, the truth and the `Reading` of each."""
    from paddle_mnist.mnist.pictures import read_pictures
    from paddle_mnist.mnist.predictor import DigitPredictor

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    truths = {}
    for number, (truth, picture) in enumerate(pictures):
        path = folder / f"{number:05}-{truth}.png"
        picture.save(path)
        truths[str(path)] = truth
    for reading in read_pictures(DigitPredictor("pretrained"), truths, many):
        yield Path(reading.file).stem, truths[reading.file], reading


# ------------------------------------------------------------------ digits, and everything else


def measure(source: str) -> dict:
    """Count what `infer` reads: by kind of paper, of MNIST itself, of pages and of no digits."""
    from detector import non_digits, paper  # which imports OpenCV: not for --help
    from paddle_mnist.mnist.images import open_data
    from paddle_mnist.mnist.pictures.detector import THRESHOLD, packaged_answers

    data = open_data(source)
    split = data["eval"]
    images = np.asarray(split.images)
    count, pages = (COUNT, PAGES) if data.name == "mnist" else (2, 2)
    as_they_are = zip(map(str, split.labels), map(Image.fromarray, images))
    return {
        "count": count,
        "paper": {kind: _counted(kind, _on_paper(kind, split, count)) for kind in paper.KINDS},
        "mnist": _counted("mnist", as_they_are),
        "false_alarms": float((packaged_answers(images)[1] < THRESHOLD).mean()),
        "pages": _counted("pages", _pages(split, pages), many=True),
        "non_digits": {
            kind: _counted(f"no digit, {kind}", _non_digits(kind, count))
            for kind in non_digits.UNSEEN
        },
    }


def _on_paper(kind: str, split, count: int) -> Named:
    from detector import paper

    place = list(paper.KINDS).index(kind)
    for number in range(count):
        index = (number * 47 + place * 11) % len(split.labels)
        random = np.random.RandomState(1_000_000 * place + number)
        yield str(split.labels[index]), paper.KINDS[kind](np.asarray(split.images[index]), random)


def _pages(split, count: int) -> Named:
    from detector import paper

    for number in range(count):
        random = np.random.RandomState(number)
        rows = ROWS[number % len(ROWS)]
        indices = random.randint(0, len(split.labels), sum(rows))
        text = "".join(map(str, split.labels[indices]))
        yield text, paper.page(np.asarray(split.images[indices]), rows, random)


def _non_digits(kind: str, count: int) -> Named:
    from detector import non_digits

    draws = list(non_digits.UNSEEN[kind].items())
    for number in range(max(count, 6 * len(draws)) if count == COUNT else count):
        name, draw = draws[number % len(draws)]
        yield name.replace(".", "_"), draw(np.random.RandomState(7_000_000 + number))


def _counted(name: str, pictures: Named, many: bool = False) -> dict:
    """Return how often each truth was read as what, and where that was a mistake."""
    outcomes, mistakes = Counter(), []
    for stem, truth, reading in _read(pictures, FOLDER / name, many):
        text = reading.text if many else reading.digit
        answer = reading.error or "" if text is None else str(text)
        outcomes[truth, answer] += 1
        if answer != truth and (truth.isdigit() or answer.isdigit()):
            mistakes.append([stem, answer])
    return {
        "mistakes": mistakes,
        "outcomes": [[*key, number] for key, number in sorted(outcomes.items())],
    }


def _shares(counted: dict) -> dict[str, float]:
    """Return shares of the pictures. no_digit: refused as no digit, a part of the refused."""
    counts = Counter()
    for truth, answer, number in counted["outcomes"]:
        kind = "right" if answer == truth else "wrong" if answer.isdigit() else "refused"
        is_no_digit = answer.startswith(NO_DIGIT)
        counts[kind] += number
        counts["no_digit"] += number * is_no_digit
        counts["otherwise"] += number * (kind == "refused" and not is_no_digit)
    names = ("right", "refused", "wrong", "no_digit", "otherwise")
    return {name: counts[name] / _total(counted) for name in names}


def _total(counted: dict) -> int:
    return sum(number for *_, number in counted["outcomes"])


def table(report: dict) -> str:
    of_digits = {"right": "right", "refused": "refused", "wrong": "wrong", "no digit": "no_digit"}
    of_others = {
        "caught": "refused",
        "as no digit": "no_digit",
        "otherwise": "otherwise",
        "read as a digit": "wrong",
    }
    note = (
        f"{report['count']} pictures of each kind, and {_total(report['mnist']):,} files of "
        "MNIST's own images. *No digit* is the part of *refused* that is refused as probably not "
        f"one digit; of all of MNIST's eval images these are {report['false_alarms']:.2%}. "
    )
    kinds = {**report["paper"], AS_THEY_ARE: report["mnist"]}
    tables = (
        _table("digits", of_digits, kinds, note + _pages_note(report["pages"])),
        _table("no digit", of_others, report["non_digits"]),
    )
    return "\n\n".join([*tables, *_by_name(report)])


def _table(head: str, columns: dict[str, str], kinds: dict[str, dict], note: str = "") -> str:
    shares = {kind: _shares(counted) for kind, counted in kinds.items()}
    return table_of_rows(head, {name: (".1%", key) for name, key in columns.items()}, shares, note)


def _pages_note(pages: dict) -> str:
    """Say on how many pages each digit was found, and how many of all digits are right."""
    digits = sum(len(truth) * number for truth, _, number in pages["outcomes"])
    found = right = 0
    for truth, text, number in pages["outcomes"]:
        if len(truth) == len(text):
            found += number
            right += number * sum(a == b for a, b in zip(truth, text))
    return (
        f"With `--many`, {found} of {_total(pages)} rows, columns and pages have as many shapes as "
        f"digits; of all their {digits:,} digits {right / digits:.1%} are on such pages and read "
        "correctly."
    )


def _by_name(report: dict) -> Iterator[str]:
    """Yield which letters, shapes, ... are caught, by how many of them are."""
    for kind, counted in report["non_digits"].items():
        caught, total = Counter(), Counter()
        for name, answer, number in counted["outcomes"]:
            total[name] += number
            caught[name] += 0 if answer.isdigit() else number
        passing = [(caught[name] / total[name], name) for name in total]
        listed = [
            f"{name.replace('_', '.')} {share:.0%}" for share, name in sorted(passing) if share < 1
        ]
        if listed:
            yield f"Caught of these {kind}: {', '.join(listed)}; of the others, all."


# ------------------------------------------------------------------ photographs

TILT = 7  # degrees


def _photographs(session: Session) -> dict[str, Turn]:
    """Return what counts how many digits are right, refused and missing on sheets and pages."""
    from paddle_mnist.mnist.images import open_data

    split = open_data(session.source)["eval"]
    sheets, pages = (10, 2) if session.is_quick else (150, 40)
    return {
        "a sheet on a dark or patterned desk, in perspective": partial(
            _count_sheets, split, sheets, 0, session.folder
        ),
        f"the same, turned by {TILT} degrees": partial(
            _count_sheets, split, sheets, TILT, session.folder
        ),
        f"{pages} pages of close, ragged rows with fading strokes, `--many`": partial(
            _count_pages, split, pages, session.folder
        ),
    }


def _in_order(truth: str, text: str) -> int:
    """Return how many digits are read in the right order: the longest common subsequence."""
    lengths = np.zeros((len(truth) + 1, len(text) + 1), int)
    for i, a in enumerate(truth):
        for j, b in enumerate(text):
            longer = max(lengths[i, j + 1], lengths[i + 1, j])
            lengths[i + 1, j + 1] = lengths[i, j] + 1 if a == b else longer
    return int(lengths[-1, -1])


def _meet(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether two boxes overlap: left, top, right, bottom."""
    return all(one[n] < other[n + 2] and other[n] < one[n + 2] for n in (0, 1))


def _count_sheets(split: Any, count: int, tilt: float, folder: Path) -> dict[str, int]:
    """Count what is read of single digits on so many sheets."""
    from detector.photographs import on_a_desk

    def sheets() -> Named:
        for number in range(count):
            index = (number * 61 + 17) % len(split.labels)
            image, random = np.asarray(split.images[index]), np.random.RandomState(50_000 + number)
            yield str(split.labels[index]), on_a_desk(image, random, tilt)

    right = refused = 0
    for _, truth, reading in _read(sheets(), folder / f"sheets-{tilt}"):
        right += str(reading.digit) == truth
        refused += bool(reading.error)
    return {"digits": count, "right": right, "refused": refused, "missing": 0}


def _count_pages(split: Any, count: int, folder: Path) -> dict[str, int]:
    """Count what is read of so many pages."""
    from detector.photographs import hard_page

    boxes_of: list[list] = []

    def pages() -> Named:
        for number in range(count):
            random = np.random.RandomState(90_000 + number)
            rows = random.randint(2, 8, random.randint(2, 8))
            indices = random.randint(0, len(split.labels), sum(rows))
            picture, boxes = hard_page(np.asarray(split.images[indices]), rows, random)
            boxes_of.append(boxes)
            yield "".join(map(str, split.labels[indices])), picture

    counts: Counter = Counter()
    for number, (_, truth, reading) in enumerate(_read(pages(), folder / "pages", many=True)):
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


CODE = "paddle_mnist/mnist/pictures"
BENCHMARKS = {
    "photographs": Benchmark(
        "What is read of sheets on a desk and of hard pages, drawn as phones photograph them.",
        code=(CODE,),
        kinds=_photographs,
        head="digits on",
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
    "pictures": Benchmark(
        __doc__.splitlines()[0],
        code=("tools/detector", CODE),
        kinds=lambda session: {"pictures": lambda: measure(session.source)},
        text=lambda report: table({key: one for key, (one,) in report.samples["pictures"].items()}),
        rounds=1,
    ),
}
