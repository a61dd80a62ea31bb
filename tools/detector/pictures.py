"""Readings of pictures drawn by code, as `infer` reads them: digits read, and others refused.

The digits are of MNIST's eval split, on which neither the preprocessing nor the detector was
developed; everything else is of fonts, shapes, textures and layouts that the detector has not
seen. The pictures stay in `work/output/pictures`; `--json` lists all answers.
"""

import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.turns import Benchmark, Figures, Report, Session, Turn
from markdown_tables import table_of_rows
from PIL import Image

FOLDER = Path("work/output/pictures")
COUNT = 200  # pictures of a kind
PAGES = 16
ROWS = ([5], [6], [8], [1, 1, 1], [4, 4], [3, 3, 3], [8] * 8, [10] * 10)
AS_THEY_ARE = "MNIST's eval images as they are"
MANY = "pages"
NO_DIGIT = "probably not one digit"

Named = Iterable[tuple[str, Image.Image]]  # the truth, and the picture
Answers = list[tuple[str, str, str]]  # file, truth, and what is read or why it is refused


def _read(pictures: Named, folder: Path, many: bool = False) -> Iterator[tuple[str, Any]]:
    """Save pictures, and yield the truth and the `Reading` of each."""
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
        yield truths[reading.file], reading


# ------------------------------------------------------------------ digits, and everything else


def _kinds(session: Session) -> Mapping[str, Turn]:
    """Return what reads the pictures of each kind: paper, MNIST itself, pages and no digits."""
    from detector import non_digits, paper  # which import OpenCV: not for --help
    from paddle_mnist.mnist.images import open_data

    split = open_data(session.source)["eval"]
    count, pages = (2, 2) if session.is_quick else (COUNT, PAGES)
    as_they_are = zip(map(str, split.labels), map(Image.fromarray, np.asarray(split.images)))
    single = {
        **{kind: _on_paper(kind, split, count) for kind in paper.KINDS},
        AS_THEY_ARE: as_they_are,
        **{kind: _non_digits(kind, count) for kind in non_digits.UNSEEN},
    }
    turns = {kind: partial(_answers, kind, pictures) for kind, pictures in single.items()}
    return {**turns, MANY: partial(_answers, MANY, _pages(split, pages), many=True)}


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


def _answers(kind: str, pictures: Named, many: bool = False) -> Figures:
    answers: Answers = []
    for truth, reading in _read(pictures, FOLDER / kind, many):
        text = reading.text if many else reading.digit
        answer = reading.error or "" if text is None else str(text)
        answers.append((reading.file, truth, answer))
    return {"answers": answers}


def _shares(answers: Answers) -> Figures:
    """Return shares of the pictures. no_digit, otherwise: parts of the refused."""
    counts = Counter(
        "right" if answer == truth else "wrong" if answer.isdigit() else "refused"
        for _, truth, answer in answers
    )
    counts["no_digit"] = sum(answer.startswith(NO_DIGIT) for _, _, answer in answers)
    counts["otherwise"] = counts["refused"] - counts["no_digit"]
    names = ("right", "refused", "wrong", "no_digit", "otherwise")
    return {name: counts[name] / len(answers) for name in names}


def _tables(report: Report) -> str:
    from detector import non_digits, paper

    of_digits = {"right": "right", "refused": "refused", "wrong": "wrong", "no digit": "no_digit"}
    of_others = {
        "caught": "refused",
        "as no digit": "no_digit",
        "otherwise": "otherwise",
        "read as a digit": "wrong",
    }
    answers = {kind: figures["answers"] for kind, figures in report.samples.items()}
    digits, others = (
        {kind: answers[kind] for kind in kinds}
        for kinds in ((*paper.KINDS, AS_THEY_ARE), non_digits.UNSEEN)
    )
    note = (
        f"{len(answers['plain'])} pictures of each kind, and {len(answers[AS_THEY_ARE]):,} files "
        "of MNIST's own images. *No digit* is the part of *refused* that is refused as probably "
        f"not one digit. {_pages_note(answers[MANY])}"
    )
    tables = (_table("digits", of_digits, digits, note), _table("no digit", of_others, others))
    return "\n\n".join([*tables, *_caught_by_name(others)])


def _table(head: str, columns: dict[str, str], kinds: dict[str, Answers], note: str = "") -> str:
    shares = {kind: _shares(answers) for kind, answers in kinds.items()}
    return table_of_rows(head, {name: (".1%", key) for name, key in columns.items()}, shares, note)


def _pages_note(pages: Answers) -> str:
    """Say on how many pages each digit was found, and how many of all digits are right."""
    whole = [(truth, text) for _, truth, text in pages if len(truth) == len(text)]
    right = sum(a == b for truth, text in whole for a, b in zip(truth, text))
    digits = sum(len(truth) for _, truth, _ in pages)
    return (
        f"With `--many`, {len(whole)} of {len(pages)} rows, columns and pages have as many shapes "
        f"as digits; of all their {digits:,} digits {right / digits:.1%} are on such pages and "
        "read correctly."
    )


def _caught_by_name(kinds: dict[str, Answers]) -> Iterator[str]:
    """Yield which letters, shapes, ... are caught, by how many of them are."""
    for kind, answers in kinds.items():
        caught = defaultdict(list)
        for _, name, answer in answers:
            caught[name].append(not answer.isdigit())
        passing = sorted((np.mean(each), name) for name, each in caught.items() if not all(each))
        listed = [f"{name.replace('_', '.')} {share:.0%}" for share, name in passing]
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


def _meet(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return whether two boxes overlap: left, top, right, bottom."""
    return all(first[n] < second[n + 2] and second[n] < first[n + 2] for n in (0, 1))


def _count_sheets(split: Any, count: int, tilt: float, folder: Path) -> dict[str, int]:
    """Count what is read of single digits on so many sheets."""
    from detector.paper import on_a_desk

    def sheets() -> Named:
        for number in range(count):
            index = (number * 61 + 17) % len(split.labels)
            image, random = np.asarray(split.images[index]), np.random.RandomState(50_000 + number)
            yield str(split.labels[index]), on_a_desk(image, random, tilt)

    right = refused = 0
    for truth, reading in _read(sheets(), folder / f"sheets-{tilt}"):
        right += str(reading.digit) == truth
        refused += bool(reading.error)
    return {"digits": count, "right": right, "refused": refused, "missing": 0}


def _count_pages(split: Any, count: int, folder: Path) -> dict[str, int]:
    """Count what is read of so many pages."""
    from detector.paper import hard_page

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
    for number, (truth, reading) in enumerate(_read(pages(), folder / "pages", many=True)):
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


BENCHMARKS = {
    "photographs": Benchmark(
        "What is read of sheets on a desk and of hard pages, drawn as phones photograph them.",
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
    "pictures": Benchmark(__doc__.splitlines()[0], kinds=_kinds, text=_tables, rounds=1),
}
