"""Peak memory of a training: by source, batch size and optimizer, and of the tutorial's loop."""

from collections.abc import Callable
from functools import partial
from typing import Any

from measuring.children import command

from benchmarks.timing import TUTORIAL, run_python
from benchmarks.turns import Benchmark, Figures, Session

STEPS = 20
BASE = "the tutorial's loop"
COLD = "JSON, read for the first time"
# What differs from the defaults.
KINDS: dict[str, dict[str, Any]] = {
    "the defaults: JSON, cached; batches of 64; Momentum": {},
    COLD: {},
    "the embedded digits": {"data": "digits"},
    "batches of 16": {"batch_size": 16},
    "batches of 256": {"batch_size": 256},
    "batches of 1024": {"batch_size": 1024},
    "SGD, no state": {"optimizer": "sgd"},
    "Adam, two states a parameter": {"optimizer": "adam"},
}


def _kinds(session: Session) -> dict[str, Callable[[], Figures]]:
    ours = {title: partial(_train, session, title, options) for title, options in KINDS.items()}
    return {BASE: partial(_load, session), **ours}


def _load(session: Session) -> Figures:
    """The tutorial's loop holds all it ever does once its file is parsed: it trains no epoch."""
    return {"mib": run_python(TUTORIAL, "--data", session.json_file, "--epochs", 0).peak_mib}


def _train(session: Session, title: str, options: dict[str, Any]) -> Figures:
    """MiB at the most, of STEPS steps and an evaluation."""
    given = {
        "recipe": "default",
        "epochs": 1,
        "batch_size": 64,
        "optimizer": "momentum",
        "learning_rate": 0.01,
        "data": session.json_file,
        "output": session.folder / title,
        **options,
    }
    given["train_limit"] = STEPS * given["batch_size"]
    words = command("train.py", given)[1:]  # without Python's
    return {"mib": run_python(*words, **session.own_cache).peak_mib}


BENCHMARK = Benchmark(
    __doc__,
    code=(
        __name__,
        "baseline_tutorial",
        *(f"paddle_mnist.mnist.{name}" for name in ("arrays", "cache", "json_reader", "setup")),
        "paddle_mnist.data",
        "paddle_mnist.nn",
        "paddle_mnist.training.trainer",
    ),
    kinds=_kinds,
    head="training",
    columns={
        "peak MiB": (",.0f", "mib"),
        "of the tutorial's": (".2f", lambda row, rows: row["mib"] / rows[BASE]["mib"]),
    },
    # The first of ours fills the cache.
    order=lambda kinds, number: sorted(kinds, key=lambda kind: kind != COLD),
    quick=(BASE, COLD),
)
