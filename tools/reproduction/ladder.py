"""Claims about changes that improve exactly this net, and about the least training it needs."""

import math
import statistics
from collections.abc import Iterable
from typing import Any

from scipy import stats

from reproduction.accuracy import FIRST_CLAIM, change
from reproduction.claims import Report
from reproduction.comparison import Comparison, scores
from reproduction.significance import adjusted, compare, is_significant, not_significant
from reproduction.trainings import Row

AFFINE = "rotate=10,shift=2,scale=0.1,shear=5"
SMALLER = "rotate=8,shift=1.5,scale=0.08,shear=4"
LARGER = "rotate=13,shift=2.5,scale=0.13,shear=8"
CHOSEN_BY = 3  # seeds


def compare_with_affine(report: Report) -> dict[str, Any]:
    """Compare the rows by seed 1, which all of them have.

    base: the affine's accuracy. sd: the standard deviation of the seeds, pooled over the rows with
    several. gaps: by row, best first, the difference from the affine (gap) and its p-value (p): of
    a t-test with that standard deviation, adjusted for all rows. Without a row of several seeds the
    deviation is infinite, and no difference significant. different: the rows with a significant
    one.
    """
    first = {name: row["valid_acc"][row["seeds"].index(1)] for name, row in report.items()}
    base = first["affine"]
    sd, freedom = _pooled(scores(report, "valid").values())
    changes, gaps = (name for name in first if name != "affine"), {}
    for name in sorted(changes, key=first.get, reverse=True):
        gap = first[name] - base
        errors = abs(gap) / (sd * math.sqrt(2)) if sd else math.inf
        gaps[name] = {"gap": gap, "p": 2 * float(stats.t.sf(errors, max(1, freedom)))}
    gaps = adjusted(gaps)
    different = [name for name, gap in gaps.items() if is_significant(gap)]
    return {"base": base, "sd": sd, "gaps": gaps, "different": different}


def _pooled(groups: Iterable[list[float]]) -> tuple[float, int]:
    """Return the standard deviation within groups, infinite if unknown, and its freedom."""
    several = [values for values in groups if len(values) > 1]
    squares = sum((len(values) - 1) * statistics.variance(values) for values in several)
    freedom = sum(len(values) - 1 for values in several)
    return (math.sqrt(squares / freedom) if freedom else math.inf), freedom


def choose(report: Report) -> dict[str, Any]:
    """Return the finalist with the highest mean on the valid split, and what it is chosen by.

    All finalists are compared by the same seeds: the winner has more later, and must not lose by
    them. alike: the finalists that it is not significantly better than.
    """
    chosen_by = {}
    for name, row in report.items():
        accuracies = dict(zip(row["seeds"], row["valid_acc"]))
        chosen_by[name] = [accuracies[seed] for seed in range(1, CHOSEN_BY + 1)]
    means = {name: statistics.mean(values) for name, values in chosen_by.items()}
    winner = max(means, key=means.get)
    alike = not_significant(chosen_by, winner, [name for name in means if name != winner])
    return {"winner": winner, "winning_mean": means[winner], "alike": alike}


def compare_later(report: Report) -> dict[str, Any]:
    """Compare the rows with the affine without seed 1, by which they were selected."""
    later = {
        name: [score for seed, score in zip(row["seeds"], row["valid_acc"]) if seed != 1]
        for name, row in report.items()
    }
    gaps = compare(later, [("affine", name) for name in later if name != "affine"])
    return {
        "later": {name: statistics.mean(values) for name, values in later.items()},
        "gaps": {name: gap for (_, name), gap in gaps.items()},
    }


def find_fewest(report: Report) -> dict[str, Any]:
    """Return the first row whose mean reaches the claim, and the smaller ones that are alike."""
    accuracies = scores(report, "valid")
    names = list(accuracies)
    reached = [name for name in names if statistics.mean(accuracies[name]) >= FIRST_CLAIM]
    if not reached:
        return {"fewest": None, "alike": []}
    fewer = names[: names.index(reached[0])]
    return {"fewest": reached[0], "alike": not_significant(accuracies, reached[0], fewer)}


def _step(title: str, **options) -> Row:
    return Row(title, "default", {"epochs": 20, "augment": AFFINE, **options})


AFFINE_ROW = _step("affine augmentation, otherwise as `default`")
DROPOUT_ROW = _step("dropout 0.1 before the last layer", dropout=0.1)
ADAM_ROW = _step("Adam 0.003", optimizer="adam", learning_rate=0.003)
BEST = Comparison("best", rows={"best": Row("recipe `best`", "best")}, seeds=10)
DEFAULT = Comparison("default", rows={"default": Row("recipe `default`", "default")}, seeds=5)
COUNTS = (24_000, 30_000, 36_000, 42_000, 48_000)
LADDER = Comparison(
    "ladder",
    rows={
        "plain": Row("without augmentation", "default", {"epochs": 20}),
        "affine": AFFINE_ROW,
        "smaller affine": _step("smaller affine", augment=SMALLER),
        "larger affine": _step("larger affine", augment=LARGER),
        "less decay": _step("weight decay 1e-4", weight_decay=1e-4),
        "more decay": _step("weight decay 1e-3", weight_decay=1e-3),
        "higher rate": _step("learning rate 0.2", learning_rate=0.2),
        "batch 32": _step("batches of 32, rate 0.05", batch_size=32, learning_rate=0.05),
        "label smoothing": _step("label smoothing 0.05", label_smoothing=0.05),
        "dropout": DROPOUT_ROW,
        "ema": _step("moving average of the weights, 0.999", ema=0.999),
        "cosine": _step("cosine instead of one-cycle", lr_schedule="cosine"),
        "adam": ADAM_ROW,
        "shifts": _step("only shifts of 2 pixels", augment="shift=2"),
        "40 epochs": _step("40 epochs", epochs=40),
        "together": _step(
            "together: smaller affine, batches of 32, average 0.999, 40 epochs",
            augment=SMALLER,
            batch_size=32,
            learning_rate=0.05,
            ema=0.999,
            epochs=40,
        ),
    },
    seeds=1,
    find=compare_with_affine,
    split="valid",
)
FINALISTS = Comparison(
    "finalists",
    rows={
        "affine": _step("affine augmentation, 20 epochs"),
        "affine, 40 epochs": _step("affine augmentation, 40 epochs", epochs=40),
        "smaller affine, 40 epochs": _step(
            "smaller affine augmentation, 40 epochs", augment=SMALLER, epochs=40
        ),
    },
    seeds=CHOSEN_BY,
    find=choose,
    split="valid",
)
LEADERS = Comparison(
    "leaders",
    rows={"affine": AFFINE_ROW, "dropout": DROPOUT_ROW, "adam": ADAM_ROW},
    seeds=4,
    find=compare_later,
    split="valid",
)
HALF = Comparison(
    "half",
    rows={"20 epochs": _step("20 epochs"), "40 epochs": _step("40 epochs", epochs=40)},
    seeds=5,
    find=change,
)
FEWEST = Comparison(
    "fewest",
    rows={f"{n:,}": Row(f"{n:,} images", "fast", {"train_limit": n}) for n in COUNTS},
    seeds=5,
    find=find_fewest,
    split="valid",
)
CLAIMS = (LADDER, FINALISTS, BEST, LEADERS, HALF, FEWEST)
