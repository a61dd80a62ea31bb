"""What makes the net better still: the rows of the race for the recipe `best`."""

import statistics
from dataclasses import replace
from typing import Any

from reproduction.claims import Report, Verdict, conclude
from reproduction.comparison import Row
from reproduction.halving import BASE, compare, ranking
from reproduction.ladder import AFFINE, SMALLER
from reproduction.racing import CandidateTraining, Race, RaceTraining, Round
from reproduction.texts import fill, join


def choose(report: Report) -> tuple[str, Row]:
    """Return the row of the fewest errors in the last round, as it is trained there."""
    last = report["rounds"][-1]
    winner = ranking(last, "errors", "losses")[0]
    row = CLAIM.rows[winner]
    return winner, replace(row, options={**row.options, "epochs": last["epochs"]})


def judge(report: Report) -> Verdict:
    winner, row = choose(report)
    last = report["rounds"][-1]
    rows = last["rows"]
    figures = {
        "winner": row.title,
        "epochs": last["epochs"],
        "errors": statistics.mean(rows[winner]["errors"]),
        "base": statistics.mean(rows[BASE]["errors"]),
    }
    options = join(f"`{name}={value}`" for name, value in row.options.items())
    details = [fill("candidates", "options", recipe=row.recipe, options=options)]
    if winner == BASE:
        return Verdict(fill("candidates", "nothing", **figures), details=details)
    errors, losses = compare(last)[winner]
    p_values = {"error_p": errors["p"], "loss_p": losses["p"]}
    return conclude("candidates", details=details, **figures, **p_values)


def _row(title: str, **options: Any) -> Row:
    kind = CandidateTraining if "candidate" in options else RaceTraining
    return Row(title, "default", {"augment": BENT, **options}, kind)


BENT = f"{SMALLER},elastic=0.7"
CLAIM = Race(
    "candidates",
    judge,
    rows={
        BASE: _row("affine augmentation alone", augment=AFFINE),
        "elastic": _row("elastic 0.7 and a smaller affine"),
        "weaker elastic": _row(
            "elastic 0.4 and a smaller affine", augment=f"{SMALLER},elastic=0.4"
        ),
        "stronger elastic": _row("elastic 1 and a smaller affine", augment=f"{SMALLER},elastic=1"),
        "elastic, whole affine": _row(
            "elastic 0.7 and the whole affine", augment=f"{AFFINE},elastic=0.7"
        ),
        "elastic, less decay": _row("elastic 0.7, weight decay 2e-4", weight_decay=2e-4),
        "elastic, batch 32": _row(
            "elastic 0.7, batches of 32, rate 0.05", batch_size=32, learning_rate=0.05
        ),
        "elastic, biases free": _row(
            "elastic 0.7, weight decay not on biases",
            weight_decay_layers="conv1.weight,conv2.weight,fc.weight",
        ),
        "elastic, smoothing": _row("elastic 0.7, label smoothing 0.02", label_smoothing=0.02),
        "elastic, ema": _row("elastic 0.7, average of the weights, 0.998", ema=0.998),
        "elastic, nesterov": _row("elastic 0.7, Nesterov's momentum", candidate="nesterov"),
        "elastic, mixup": _row("elastic 0.7, mixup 0.2", candidate="mixup"),
        "elastic, erasing": _row("elastic 0.7, a square erased in half", candidate="erase"),
        "elastic, distilled": _row(
            "elastic 0.7, distilled from five nets of that row (without their cost)",
            candidate="distilled",
        ),
    },
    rounds=(Round(20, (101, 102, 103), kept=4), Round(60, (111, 112, 113, 114), kept=1)),
    teacher="elastic",
    teachers=Round(20, (121, 122, 123, 124, 125), kept=0),
)
