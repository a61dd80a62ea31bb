"""Peak memory of a training: by source, batch size and optimizer, and of the tutorial's loop."""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.data import json_file

TOOLS = Path(__file__).parents[1]
STEPS = 20
# What is varied, one thing at a time: title, source, batch size, optimizer.
USUAL = ("default", "cached", 64, "momentum")
KINDS = (
    ("as usual: JSON, cached; batches of 64; Momentum", *USUAL[1:]),
    ("JSON, read for the first time", "cold", 64, "momentum"),
    ("the embedded digits", "digits", 64, "momentum"),
    ("batches of 16", "cached", 16, "momentum"),
    ("batches of 256", "cached", 256, "momentum"),
    ("batches of 1024", "cached", 1024, "momentum"),
    ("SGD, no state", "cached", 64, "sgd"),
    ("Adam, two states a parameter", "cached", 64, "adam"),
)


def measured(source: str, rounds: int) -> dict:
    """MiB at the most, medians over `rounds`; of our trainings after STEPS steps and an evaluation.

    The tutorial's loop holds all it ever does once its file is parsed, so it trains no epoch.
    """
    path = str(json_file(source))
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            cache = {"PADDLE_MNIST_CACHE": folder}
            told = [str(TOOLS / "baseline_tutorial.py"), "--data", path, "--epochs", "0"]
            found.setdefault("the tutorial's loop", []).append(_peak(told, cache))
            # The first of these fills the cache.
            for title, kind, size, optimizer in sorted(KINDS, key=lambda one: one[1] != "cold"):
                told = [
                    *(str(TOOLS / "train.py"), "--recipe", "default", "--epochs", "1"),
                    *("--train_limit", str(STEPS * size), "--batch_size", str(size)),
                    *("--optimizer", optimizer, "--learning_rate", "0.01"),
                    *("--data", "digits" if kind == "digits" else path),
                    *("--output", str(Path(folder, title))),
                ]
                found.setdefault(title, []).append(_peak(told, cache))
    return {
        "rounds": rounds,
        "mib": {title: statistics.median(peaks) for title, peaks in found.items()},
    }


def _peak(command: list[str], environment: dict[str, str]) -> float:
    process = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage.ru_maxrss / 1024


def table(report: dict) -> str:
    rows = ["| training | peak MiB | of the tutorial's |", "|---|---|---|"]
    tutorial = report["mib"]["the tutorial's loop"]
    titles = ["the tutorial's loop", *(title for title, *_ in KINDS)]
    for title in titles:
        mib = report["mib"][title]
        rows.append(f"| {title} | {mib:,.0f} | {mib / tutorial:.2f} |")
    return "\n".join(rows)
