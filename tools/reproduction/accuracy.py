"""What the tutorial says of its accuracy, and of what makes it better."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from paddle_mnist.mnist.arrays import Data
from reproduction.claims import Report, Verdict, conclude
from reproduction.comparison import Comparison, Row, curves_of_seeds, scores
from reproduction.significance import compare, describe, difference, is_significant, judge_gain
from reproduction.texts import CONFIRMED, REFUTED, UNDECIDED, Text, fill, join, named
from reproduction.trainings import TRAIN_SCORED, TUTORIAL, BaselineTutorial

FIRST_CLAIM = 0.986
# The tutorial's recipes with this package's convolution. A step is the same but for rounding, which
# grows over thousands of steps: the training becomes another one of the same kind, as with a seed.
FAST = {"fast_conv": "on"}


def _count_reached(accuracies: Sequence[float]) -> int:
    """Count the scores that reach the claim when rounded as the claim is."""
    return sum(round(accuracy, 3) >= FIRST_CLAIM for accuracy in accuracies)


def _reached(accuracies: list[float], text: str = "reached") -> Text:
    figures = {**describe(accuracies), "count": _count_reached(accuracies)}
    return fill("claimed", text, total=len(accuracies), target=FIRST_CLAIM, **figures)


def judge_claimed(report: Report) -> Verdict:
    """Judge the loop and the recipe together: one training but for rounding."""
    loop, recipe = (scores(report)[name] for name in ("verbatim", "adam"))
    both = loop + recipe
    figures = describe(both)
    outcome = CONFIRMED if figures["low"] >= FIRST_CLAIM else UNDECIDED
    if figures["high"] < FIRST_CLAIM:
        outcome = fill("claimed", "lucky" if _count_reached(both) else "refuted")
    details = fill("claimed", "details", loop=_reached(loop), recipe=_reached(recipe))
    return Verdict(_reached(both, "together"), outcome, [details])


def judge_optimizers(report: Report) -> Verdict:
    accuracies = scores(report)
    means = (
        fill("optimizers", "mean", name=name, **describe(accuracies[name]))
        for name in _best_first(accuracies)
    )
    best, *_, worst = _best_first(accuracies)
    return conclude(
        "optimizers",
        means=join(means),
        pairs=_different_pairs(accuracies),
        best=best,
        highest=statistics.mean(accuracies[best]),
        worst=worst,
        lowest=statistics.mean(accuracies[worst]),
    )


def _best_first(accuracies: Mapping[str, list[float]]) -> list[str]:
    return sorted(accuracies, key=lambda name: -statistics.mean(accuracies[name]))


def _different_pairs(accuracies: Mapping[str, list[float]]) -> Text:
    """Say which of all pairs differ significantly."""
    gaps = compare(accuracies, itertools.combinations(_best_first(accuracies), 2))
    pairs = [
        fill("optimizers", "pair", one=one, other=other)
        for (one, other), gap in gaps.items()
        if is_significant(gap)
    ]
    if not pairs:
        return fill("optimizers", "no_pair", count=len(gaps))
    return fill("optimizers", "pairs", count=len(gaps), pairs=join(pairs))


def judge_rate(report: Report) -> Verdict:
    gap = difference(*scores(report).values())
    significance = fill("rate", "significant" if is_significant(gap) else "not_significant")
    return conclude("rate", REFUTED, **gap, significance=significance)


def judge_l2(report: Report) -> Verdict:
    gaps = _overfitting(report)
    means = {name: statistics.mean(gap) for name, gap in gaps.items()}
    change = difference(gaps["without"], gaps["with"])
    return conclude(
        "l2",
        judge_gain(difference(gaps["with"], gaps["without"])),
        without=means["without"],
        with_l2=means["with"],
        accuracy=difference(*scores(report).values()),
        **change,
    )


def _overfitting(report: Report) -> dict[str, list[float]]:
    """Return the eval loss minus the training loss of each seed."""
    return {
        name: [loss - own for loss, own in zip(row["eval_loss"], row["train_loss"])]
        for name, row in report.items()
    }


def draw_optimizers(report: Report, data: Data) -> Any:
    accuracies = scores(report)
    *others, worst = _best_first(accuracies)
    gaps = compare(accuracies, itertools.combinations([*others, worst], 2))
    lower = all(is_significant(gap) for pair, gap in gaps.items() if worst in pair)
    how = "significantly" if lower else "not significantly"
    title = f"At a rate of 0.01, {named(worst).en} ends {how} below all other optimizers"
    return _draw(report, title, accuracies)


def draw_l2(report: Report, data: Data) -> Any:
    gaps = _overfitting(report)
    changed = is_significant(difference(*gaps.values()))
    title = f"L2 of 1e-5 {'changes' if changed else 'does not significantly change'} overfitting"
    return _draw(report, title, gaps, "eval loss minus training loss", "{:.4f}")


def draw_rate(report: Report, data: Data) -> Any:
    gap = difference(*scores(report).values())
    how = "" if is_significant(gap) else ", not significantly"
    points = f"{100 * gap['gap']:+.2f} percentage points"
    title = f"Stepping the schedule changes the accuracy by {points}{how}"
    return _draw(report, title, scores(report))


def _draw(
    report: Report,
    title: str,
    results: Mapping[str, list[float]],
    what: str = "eval accuracy",
    form: str = "{:.2%}",
) -> Any:
    """Draw the training losses of the rows, and beside them the result of each seed."""
    from reproduction import charts

    lines = {}
    for name, row in report.items():
        steps, losses = curves_of_seeds(row)
        by_step = list(zip(*losses))
        mean, low, high = (list(map(each, by_step)) for each in (statistics.fmean, min, max))
        lines[named(name).en] = charts.Line(steps, mean, low, high)
    seeds = "training loss, mean and range of the seeds"
    curves = charts.Curves(seeds, "step", "nats", lines, "log")
    dots = {named(name).en: values for name, values in results.items()}
    return charts.panels(title, [curves, charts.Seeds(f"{what} of each seed", "", dots, form)])


CONSTANT = {**FAST, "lr_schedule": "constant", "end_lr": 0}
OPTIMIZERS = Comparison(
    "optimizers",
    judge_optimizers,
    rows={
        "sgd": Row("SGD", "tutorial", {**FAST, "optimizer": "sgd"}),
        "momentum": Row("Momentum 0.9", "tutorial", {**FAST, "optimizer": "momentum"}),
        "adagrad": Row("Adagrad", "tutorial", {**FAST, "optimizer": "adagrad"}),
        "adam": Row("Adam", "tutorial", FAST),
    },
    seeds=3,
    draw=draw_optimizers,
)
CLAIMS = (
    Comparison(
        "claimed",
        judge_claimed,
        rows={
            "verbatim": Row("the tutorial's loop", TUTORIAL, {}, BaselineTutorial, {"epochs": 1}),
            "adam": Row("recipe `tutorial`: Adam 0.01", "tutorial", FAST),
        },
        seeds=5,
    ),
    OPTIMIZERS,
    Comparison(
        "l2",
        judge_l2,
        rows={
            "without": Row("without L2", "tutorial", FAST),
            "with": Row("with L2 1e-5", "tutorial", {**FAST, "weight_decay": 1e-5}),
        },
        seeds=5,
        draw=draw_l2,
        also={"train_loss": f"loss on {TRAIN_SCORED:,} training images"},
    ),
    Comparison(
        "rate",
        judge_rate,
        rows={
            "constant": Row("never stepped: 0.01", "tutorial-resume", CONSTANT),
            "stepped": Row("stepped: 0.01 to 0.001", "tutorial-resume", FAST),
        },
        seeds=3,
        draw=draw_rate,
    ),
)
