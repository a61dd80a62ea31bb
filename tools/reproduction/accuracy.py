"""What the tutorial says of its accuracy, and of what makes it better."""

import statistics
from collections.abc import Sequence
from typing import Any

from paddle_mnist.mnist.arrays import Data
from reproduction.claims import Report, Verdict
from reproduction.comparison import Comparison, Row, scores
from reproduction.significance import (
    describe,
    difference,
    is_significant,
    judge_gain,
    not_significant,
)
from reproduction.texts import CONFIRMED, EMPTY, REFUTED, UNDECIDED, Text, fill, join, named
from reproduction.trainings import TRAIN_SCORED, TUTORIAL, BaselineTutorial

FIRST_CLAIM = 0.986
# The tutorial's recipes with this package's convolution. A step is the same but for rounding, which
# grows over thousands of steps: the training becomes another one of the same kind, as with a seed.
FAST = {"fast_conv": "on"}


def _count_reached(accuracies: Sequence[float]) -> int:
    """Count the scores that reach the claim when rounded as the claim is."""
    return sum(round(accuracy, 3) >= FIRST_CLAIM for accuracy in accuracies)


def _reached(accuracies: list[float]) -> Text:
    figures = {**describe(accuracies), "count": _count_reached(accuracies)}
    return fill("claimed", "reached", total=len(accuracies), target=FIRST_CLAIM, **figures)


def judge_claimed(report: Report) -> Verdict:
    """Judge the loop and the recipe together: one training but for rounding."""
    loop, recipe = (scores(report)[name] for name in ("verbatim", "adam"))
    both = loop + recipe
    figures = describe(both)
    outcome = CONFIRMED if figures["low"] >= FIRST_CLAIM else UNDECIDED
    if figures["high"] < FIRST_CLAIM:
        outcome = fill("claimed", "lucky" if _count_reached(both) else "refuted")
    details = f"The tutorial's own loop: {_reached(loop).en}. The recipe: {_reached(recipe).en}."
    return Verdict(_reached(both), outcome, details)


def judge_optimizers(report: Report) -> Verdict:
    accuracies = scores(report)
    first, *others = sorted(accuracies, key=lambda name: -statistics.mean(accuracies[name]))
    means = (
        fill("optimizers", "mean", name=named(name), **describe(accuracies[name]))
        for name in (first, *others)
    )
    ties = EMPTY
    if alike := not_significant(accuracies, first, others):
        alike = join(map(named, alike), "or")
        ties = fill("optimizers", "ties", first=named(first), others=alike)
    return Verdict(fill("optimizers", "summary", means=join(means), ties=ties))


def judge_rate(report: Report) -> Verdict:
    gap = difference(*scores(report).values())
    significance = fill("rate", "significant" if is_significant(gap) else "not_significant")
    return Verdict(fill("rate", "summary", **gap, significance=significance), REFUTED)


def judge_l2(report: Report) -> Verdict:
    without, with_l2 = (
        [loss - own for loss, own in zip(row["eval_loss"], row["train_loss"])]
        for row in report.values()
    )
    means = {"without": statistics.mean(without), "with_l2": statistics.mean(with_l2)}
    accuracy = difference(*scores(report).values())
    summary = fill("l2", "summary", **difference(without, with_l2), **means, accuracy=accuracy)
    return Verdict(summary, judge_gain(difference(with_l2, without)))


def draw_curves(report: Report, data: Data) -> Any:
    from paddle_mnist.plots import charts

    curves = {name: dict(zip(row["steps"], row["train_losses"])) for name, row in report.items()}
    return charts.panels({("step", "training loss (nats)"): curves})


CONSTANT = {**FAST, "lr_schedule": "constant", "end_lr": 0}
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
    Comparison(
        "optimizers",
        judge_optimizers,
        rows={
            "sgd": Row("SGD", "tutorial", {**FAST, "optimizer": "sgd"}),
            "momentum": Row("Momentum 0.9", "tutorial", {**FAST, "optimizer": "momentum"}),
            "adagrad": Row("Adagrad", "tutorial", {**FAST, "optimizer": "adagrad"}),
            "adam": Row("Adam", "tutorial", FAST),
        },
        seeds=3,
        draw=draw_curves,
    ),
    Comparison(
        "l2",
        judge_l2,
        rows={
            "without": Row("without", "tutorial", FAST),
            "with": Row("with L2 1e-5", "tutorial", {**FAST, "weight_decay": 1e-5}),
        },
        seeds=5,
        draw=draw_curves,
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
        draw=draw_curves,
    ),
)
