"""Peak memory of a training: by source, batch size and optimizer, and of the tutorial's loop."""

import tempfile
from pathlib import Path
from typing import NamedTuple

from markdown_tables import table as markdown_table
from measuring.children import command
from measuring.sources import json_file

from benchmarks.timing import TUTORIAL, medians, run_python

STEPS = 20


class Kind(NamedTuple):
    """A training; each but the first differs from it in one thing."""

    title: str
    source: str = "cached"
    batch_size: int = 64
    optimizer: str = "momentum"


BASELINE = "the tutorial's loop"
KINDS = (
    Kind("the defaults: JSON, cached; batches of 64; Momentum"),
    Kind("JSON, read for the first time", source="cold"),
    Kind("the embedded digits", source="digits"),
    Kind("batches of 16", batch_size=16),
    Kind("batches of 256", batch_size=256),
    Kind("batches of 1024", batch_size=1024),
    Kind("SGD, no state", optimizer="sgd"),
    Kind("Adam, two states a parameter", optimizer="adam"),
)


def measure(source: str, rounds: int) -> dict:
    """MiB at the most, medians over `rounds`; of our trainings after STEPS steps and an evaluation.

    The tutorial's loop holds all it ever does once its file is parsed, so it trains no epoch.
    """
    path = json_file(source)
    peaks: dict[str, list[float]] = {title: [] for title in (BASELINE, *(k.title for k in KINDS))}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            done = run_python(TUTORIAL, "--data", path, "--epochs", 0, PADDLE_MNIST_CACHE=folder)
            peaks[BASELINE].append(done.peak_mib)
            # The first of these fills the cache.
            for kind in sorted(KINDS, key=lambda kind: kind.source != "cold"):
                options = {
                    "recipe": "default",
                    "epochs": 1,
                    "train_limit": STEPS * kind.batch_size,
                    "batch_size": kind.batch_size,
                    "optimizer": kind.optimizer,
                    "learning_rate": 0.01,
                    "data": "digits" if kind.source == "digits" else path,
                    "output": Path(folder, kind.title),
                }
                words = command("train.py", options)[1:]  # without Python's
                done = run_python(*words, PADDLE_MNIST_CACHE=folder)
                peaks[kind.title].append(done.peak_mib)
    return {"rounds": rounds, "mib": medians(peaks)}


def table(report: dict) -> str:
    baseline = report["mib"][BASELINE]
    return markdown_table(
        {"training": "", "peak MiB": ",.0f", "of the tutorial's": ".2f"},
        [(title, mib, mib / baseline) for title, mib in report["mib"].items()],
    )
