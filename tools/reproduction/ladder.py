"""How good exactly this net can get, by how much, and what it takes."""

import math
import statistics
from collections.abc import Iterable

from paddle_mnist.mnist import pretrained
from reproduction.accuracy import FIRST_CLAIM
from reproduction.claims import Report, Verdict, conclude
from reproduction.comparison import Comparison, Row, scores
from reproduction.recipes import by_seed
from reproduction.significance import (
    adjusted,
    compare,
    describe,
    difference,
    is_significant,
    judge_gain,
    not_significant,
)
from reproduction.texts import EMPTY, fill, join

TARGET, LOWEST = 0.9955, 0.995  # of the mean, and of the lower end of its interval
AFFINE = "rotate=10,shift=2,scale=0.1,shear=5"
SMALLER = "rotate=8,shift=1.5,scale=0.08,shear=4"
LARGER = "rotate=13,shift=2.5,scale=0.13,shear=8"
CHOSEN_BY = 3  # seeds


def _means(report: Report) -> dict[str, float]:
    return {name: statistics.mean(values) for name, values in scores(report, "valid").items()}


def judge_best(report: Report) -> Verdict:
    (row,) = report.values()
    accuracies = row["eval_acc"]
    figures = describe(accuracies)
    met = figures["mean"] >= TARGET and figures["low"] > LOWEST
    details = []
    shipped = pretrained.about()["eval_acc"]
    if shipped not in accuracies:
        mean = statistics.mean([*accuracies, shipped])
        details.append(fill("best", "shipped", shipped=shipped, mean=mean))
    is_met = fill("best", "met" if met else "not_met")
    summary = fill("best", "summary", **figures, target=TARGET, lowest=LOWEST, met=is_met)
    return Verdict(summary, details=[*details, by_seed(row)])


def compare_with_affine(report: Report) -> tuple[float, float, dict[str, dict[str, float]]]:
    """Compare the rows by seed 1, which all of them have.

    Returns the affine's accuracy; the standard deviation of the seeds, pooled over the rows with
    several; and by row, best first, the difference from the affine (gap) and its p-value (p): of a
    t-test with that standard deviation, adjusted for all rows. Without a row of several seeds the
    deviation is infinite, and no difference significant.
    """
    from scipy import stats

    first = {name: row["valid_acc"][row["seeds"].index(1)] for name, row in report.items()}
    base = first["affine"]
    sd, freedom = _pooled(scores(report, "valid").values())
    changes, gaps = (name for name in first if name != "affine"), {}
    for name in sorted(changes, key=first.get, reverse=True):
        gap = first[name] - base
        errors = abs(gap) / (sd * math.sqrt(2)) if sd else math.inf
        gaps[name] = {"gap": gap, "p": 2 * float(stats.t.sf(errors, max(1, freedom)))}
    return base, sd, adjusted(gaps)


def _pooled(groups: Iterable[list[float]]) -> tuple[float, int]:
    """Return the standard deviation within groups, infinite if unknown, and its freedom."""
    several = [values for values in groups if len(values) > 1]
    squares = sum((len(values) - 1) * statistics.variance(values) for values in several)
    freedom = sum(len(values) - 1 for values in several)
    return (math.sqrt(squares / freedom) if freedom else math.inf), freedom


def judge_ladder(report: Report) -> Verdict:
    base, sd, gaps = compare_with_affine(report)
    beyond, within, means = [], [], _means(report)
    for name, gap in gaps.items():
        several = EMPTY
        if len(report[name]["seeds"]) > 1:
            several = fill("ladder", "several", gap=means[name] - means["affine"])
        step = fill("ladder", "step", name=name, gap=gap["gap"], several=several)
        (beyond if is_significant(gap) else within).append(step)
    details = [fill("ladder", "details", within=join(within))]
    figures = {"base": base, "count": len(gaps), "sd": sd}
    return conclude("ladder", details=details, **figures, beyond=join(beyond))


def choose(report: Report) -> tuple[str, dict[str, list[float]]]:
    """Return the finalist with the highest mean on the valid split, and the scores it is chosen by.

    They are as many for each finalist: the winner has more seeds later, and must not lose by them.
    """
    chosen_by = {}
    for name, row in report.items():
        accuracies = dict(zip(row["seeds"], row["valid_acc"]))
        chosen_by[name] = [accuracies[seed] for seed in range(1, CHOSEN_BY + 1)]
    return max(chosen_by, key=lambda name: statistics.mean(chosen_by[name])), chosen_by


def judge_finalists(report: Report) -> Verdict:
    winner, chosen_by = choose(report)
    mean, later = statistics.mean(chosen_by[winner]), _means(report)[winner]
    details = []
    if alike := not_significant(chosen_by, winner, [n for n in chosen_by if n != winner]):
        details.append(fill("finalists", "ties", others=join(alike, "or")))
    if later < mean:
        count = len(report[winner]["seeds"])
        details.append(fill("finalists", "later", count=count, later=later))
    summary = fill("finalists", "summary", chosen_by=CHOSEN_BY, winner=winner, mean=mean)
    return Verdict(summary, details=details)


def judge_leaders(report: Report) -> Verdict:
    later = {
        name: [score for seed, score in zip(row["seeds"], row["valid_acc"]) if seed != 1]
        for name, row in report.items()
    }
    gaps = compare(later, [("affine", name) for name in later if name != "affine"])
    texts = (
        fill("leaders", "gap", name=name, mean=statistics.mean(later[name]), **gap)
        for (_, name), gap in gaps.items()
    )
    outcomes = set(map(judge_gain, gaps.values()))
    outcome = outcomes.pop() if len(outcomes) == 1 else fill("leaders", "mixed")
    base = statistics.mean(later["affine"])
    least = min(gap["p"] for gap in gaps.values())
    return conclude("leaders", outcome, base=base, gaps=join(texts, "semicolon"), least=least)


def judge_half(report: Report) -> Verdict:
    gap = difference(*scores(report).values())
    return Verdict(fill("half", "summary", **gap), judge_gain(gap))


def judge_fewest(report: Report) -> Verdict:
    enough = [name for name, mean in _means(report).items() if mean >= FIRST_CLAIM]
    if not enough:
        return Verdict(fill("fewest", "nothing", target=FIRST_CLAIM))
    names, ties = list(report), EMPTY
    fewer = names[: names.index(enough[0])]
    if alike := not_significant(scores(report, "valid"), enough[0], fewer):
        others = join((f"{count} images" for count in alike), "or")
        ties = fill("fewest", "ties", others=others)
    fewest = f"{enough[0]} images"
    return Verdict(fill("fewest", "summary", target=FIRST_CLAIM, fewest=fewest, ties=ties))


def _step(title: str, **options) -> Row:
    return Row(title, "default", {"epochs": 20, "augment": AFFINE, **options})


AFFINE_ROW = _step("affine augmentation, otherwise as `default`")
DROPOUT_ROW = _step("dropout 0.1 before the last layer", dropout=0.1)
ADAM_ROW = _step("Adam 0.003", optimizer="adam", learning_rate=0.003)
BEST_ROW = Row("recipe `best`", "best")
BEST = Comparison("best", judge_best, rows={"best": BEST_ROW}, seeds=10)
COUNTS = (24_000, 30_000, 36_000, 42_000, 48_000)
LADDER = Comparison(
    "ladder",
    judge_ladder,
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
    split="valid",
)

CLAIMS = (
    LADDER,
    Comparison(
        "finalists",
        judge_finalists,
        rows={
            "affine": _step("affine augmentation, 20 epochs"),
            "affine, 40 epochs": _step("affine augmentation, 40 epochs", epochs=40),
            "smaller affine, 40 epochs": _step(
                "smaller affine augmentation, 40 epochs", augment=SMALLER, epochs=40
            ),
        },
        seeds=CHOSEN_BY,
        split="valid",
    ),
    BEST,
    Comparison(
        "leaders",
        judge_leaders,
        rows={"affine": AFFINE_ROW, "dropout": DROPOUT_ROW, "adam": ADAM_ROW},
        seeds=4,
        split="valid",
    ),
    Comparison(
        "half",
        judge_half,
        rows={"20 epochs": _step("20 epochs"), "40 epochs": _step("40 epochs", epochs=40)},
        seeds=5,
    ),
    Comparison(
        "fewest",
        judge_fewest,
        rows={f"{n:,}": Row(f"{n:,} images", "fast", {"train_limit": n}) for n in COUNTS},
        seeds=5,
        split="valid",
    ),
)
