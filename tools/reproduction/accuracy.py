"""Accuracies: what the tutorial claims of its own, and what the recipes reach."""

import itertools
import statistics
from typing import Any

from benchmarks.timing import TUTORIAL

from reproduction.claims import Report
from reproduction.comparison import Comparison, scores
from reproduction.significance import compare, describe, difference, is_significant
from reproduction.trainings import TRAIN_SCORED, Row

FIRST_CLAIM = 0.986
# The tutorial's recipes with this package's convolution. A step is the same up to rounding, which
# grows over thousands of steps: the training becomes another one of the same kind, as with a seed.
FAST = {"fast_conv": "on"}


def reaching(report: Report) -> dict[str, Any]:
    """Describe the loop, the recipe and both, which are one training up to rounding.

    reached: how many accuracies reach the claim when rounded as the claim is.
    """
    rows = scores(report)
    rows["both"] = rows["verbatim"] + rows["adam"]
    return {
        name: {**describe(values), "reached": sum(round(acc, 3) >= FIRST_CLAIM for acc in values)}
        for name, values in rows.items()
    }


def compare_optimizers(report: Report) -> dict[str, Any]:
    """Return the optimizers, best first, and the pairs of them that differ significantly."""
    accuracies = scores(report)
    order = sorted(accuracies, key=lambda name: -statistics.mean(accuracies[name]))
    gaps = compare(accuracies, itertools.combinations(order, 2))
    different = [" ".join(pair) for pair, gap in gaps.items() if is_significant(gap)]
    return {"order": order, "pairs": len(gaps), "different": different}


def change(report: Report) -> dict[str, Any]:
    """Return how much higher the accuracy of the second row is."""
    return {"change": difference(*scores(report).values())}


def overfitting(report: Report) -> dict[str, Any]:
    """Return the mean gaps without and with L2, and how L2 changes them and the accuracy.

    The gap of a seed is its eval loss minus its training loss.
    """
    without, with_l2 = (
        [loss - own for loss, own in zip(row["eval_loss"], row["train_loss"])]
        for row in report.values()
    )
    return {
        "gap_without": statistics.mean(without),
        "gap_with": statistics.mean(with_l2),
        "change": difference(without, with_l2),
        "accuracy": difference(*scores(report).values()),
    }


CLAIMED = Comparison(
    "claimed",
    rows={
        "verbatim": Row("the tutorial's loop", TUTORIAL),
        "adam": Row("`--recipe tutorial --fast_conv on`: Adam 0.01", "tutorial", FAST),
    },
    seeds=5,
    find=reaching,
)
OPTIMIZERS = Comparison(
    "optimizers",
    rows={
        "sgd": Row("SGD", "tutorial", {**FAST, "optimizer": "sgd"}),
        "momentum": Row("Momentum 0.9", "tutorial", {**FAST, "optimizer": "momentum"}),
        "adagrad": Row("Adagrad", "tutorial", {**FAST, "optimizer": "adagrad"}),
        "adam": Row("Adam", "tutorial", FAST),
    },
    seeds=3,
    find=compare_optimizers,
)
L2 = Comparison(
    "l2",
    rows={
        "without": Row("without L2", "tutorial", FAST),
        "with": Row("with L2 1e-5", "tutorial", {**FAST, "weight_decay": 1e-5}),
    },
    seeds=5,
    find=overfitting,
    also={"train_loss": f"loss on {TRAIN_SCORED:,} training images"},
)
CONSTANT = {**FAST, "lr_schedule": "constant", "end_lr": 0}
RATE = Comparison(
    "rate",
    rows={
        "constant": Row("never stepped: 0.01", "tutorial-resume", CONSTANT),
        "stepped": Row("stepped: 0.01 to 0.001", "tutorial-resume", FAST),
    },
    seeds=3,
    find=change,
)
BEST = Comparison("best", rows={"best": Row("recipe `best`", "best")}, seeds=10)
DEFAULT = Comparison("default", rows={"default": Row("recipe `default`", "default")}, seeds=5)
OF_TUTORIAL = (CLAIMED, OPTIMIZERS, L2, RATE)
OF_RECIPES = (BEST, DEFAULT)
