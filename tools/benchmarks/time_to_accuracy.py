"""From the command to the evaluated net: everything included, whole commands timed."""

import re
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.timing import TRAIN, TUTORIAL, run_python
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session, times_faster

GOAL = 0.986
SEEDS = 5  # of the recipe `fast`
BASE = "the tutorial's loop, its five epochs"
FAST = {
    kind: f"this package, recipe `fast`, {kind}" for kind in ("nothing cached", "images cached")
}


def _kinds(session: Session) -> dict[str, Callable[[], Figures]]:
    """Return the commands: `fast` runs with each seed, the others in as many rounds as asked."""

    def rival(*command: Any) -> Figures:
        return run(*command) if session.number <= session.rounds else {}

    def fast(kind: str) -> Figures:
        return run(TRAIN, "--recipe", "fast", "--output", session.folder / kind)

    def run(*command: Any) -> Figures:
        words = (*command, "--data", session.json_file, "--seed", session.number)
        return timed(*words, **session.own_cache)

    return {
        BASE: partial(rival, TUTORIAL),
        "PyTorch eager, the tutorial's recipe, images in memory": partial(
            rival, "-m", "benchmarks.torch_tutorial"
        ),
        **{title: partial(fast, kind) for kind, title in FAST.items()},
    }


def timed(*command: Any, **environment: str) -> Figures:
    """Return the seconds of a command, and the accuracy that it prints."""
    done = run_python(*command, **environment)
    accuracy = float(re.findall(r"eval accuracy ([\d.]+)", done.printed)[-1])
    return {"seconds": done.seconds, "accuracy": accuracy}


def _rows(report: Report) -> Rows:
    rows = report.medians
    for kind, row in rows.items():
        if row:
            accuracies = report.samples[kind]["accuracy"]
            row["accuracy"] = f"{statistics.mean(accuracies):.2%} (of {len(accuracies)})"
    return rows


def _note(report: Report) -> str:
    worst = min(min(report.samples[kind]["accuracy"]) for kind in FAST.values())
    return (
        f"Medians; import, reading, training and evaluation included. `fast` aims at a mean of "
        f"{GOAL:.1%}, and its worst seed came to {worst:.2%}; the others train the tutorial's "
        "whole recipe and came to what their rows show."
    )


BENCHMARK = Benchmark(
    __doc__,
    code=(
        __name__,
        "baseline_tutorial",
        "benchmarks.torch_tutorial",
        "paddle_mnist.data",
        *(f"paddle_mnist.mnist.{name}" for name in ("cache", "json_reader", "model", "setup")),
        "paddle_mnist.nn",
        "paddle_mnist.training.trainer",
    ),
    kinds=_kinds,
    head="from the command to the evaluated net",
    columns={
        "seconds": (".1f", "seconds"),
        "eval accuracy": ("", "accuracy"),
        "times faster": times_faster(BASE),
    },
    rows=_rows,
    note=_note,
    # What finds nothing cached comes first: all but the tutorial's loop fill the cache.
    order=lambda kinds, number: sorted(kinds, key=lambda kind: kind not in FAST.values()),
    rounds=SEEDS,
)
