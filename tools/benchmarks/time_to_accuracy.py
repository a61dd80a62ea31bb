"""From the command to a net of 98.6%: everything included, whole commands timed."""

import contextlib
import re
import statistics
import tempfile
from pathlib import Path
from typing import Any

from markdown_tables import table as markdown_table
from measuring.sources import json_file

from benchmarks.timing import TRAIN, TUTORIAL, run_python

GOAL = 0.986
TITLES = {
    "tutorial": "the tutorial's loop, its five epochs",
    "torch": "PyTorch eager, the tutorial's recipe, images in memory",
    "cold": "this package, recipe `fast`, nothing cached",
    "cached": "this package, recipe `fast`, images cached",
}


def measure(source: str, rounds: int, seeds: int = 5) -> dict:
    """Seconds of each command and the eval accuracy it came to; rivals run `rounds` times.

    seeds: how often the recipe `fast` is trained.
    """
    path = json_file(source)
    kinds = {kind: {"seconds": [], "eval_acc": []} for kind in TITLES}

    def run(kind: str, *command: Any, **environment: str) -> None:
        seconds, accuracy = timed(*command, "--data", path, "--seed", seed, **environment)
        kinds[kind]["seconds"].append(seconds)
        kinds[kind]["eval_acc"].append(accuracy)

    for seed in range(1, seeds + 1):
        with tempfile.TemporaryDirectory() as folder:
            cache = {"PADDLE_MNIST_CACHE": str(Path(folder, "cache"))}
            for kind in ("cold", "cached"):
                run(kind, TRAIN, "--recipe", "fast", "--output", Path(folder, kind), **cache)
            if seed > rounds:
                continue
            with contextlib.suppress(ModuleNotFoundError):  # the table says so
                run("torch", "-m", "benchmarks.torch_tutorial", **cache)
            run("tutorial", TUTORIAL, **cache)
    return {
        "rounds": rounds,
        "kinds": {kind: runs for kind, runs in kinds.items() if runs["seconds"]},
    }


def timed(*command: Any, **environment: str) -> tuple[float, float]:
    """Return the seconds of a command, and the accuracy that it prints."""
    done = run_python(*command, **environment)
    return done.seconds, float(re.findall(r"eval accuracy ([\d.]+)", done.printed)[-1])


def table(report: dict) -> str:
    kinds = report["kinds"]
    slowest = statistics.median(kinds["tutorial"]["seconds"])
    columns = {
        "from the command to the evaluated net": "",
        "seconds": ".1f",
        "eval accuracy": "",
        "times faster": ".1f",
    }
    rows = []
    for kind, title in TITLES.items():
        if kind not in kinds:
            rows.append((title, "not installed", None, None))
            continue
        seconds, accuracies = statistics.median(kinds[kind]["seconds"]), kinds[kind]["eval_acc"]
        accuracy = f"{statistics.mean(accuracies):.2%} (of {len(accuracies)})"
        rows.append((title, seconds, accuracy, slowest / seconds))
    worst = min(min(kinds[kind]["eval_acc"]) for kind in ("cold", "cached"))
    note = (
        f"Medians; import, reading, training and evaluation included. The goal is a mean of "
        f"{GOAL:.1%}; the worst seed of `fast` came to {worst:.2%}."
    )
    return markdown_table(columns, rows, note)
