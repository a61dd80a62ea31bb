"""The time of the trainings: some steps of each, in turns, on one core."""

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.measured import machine
from benchmarks.timing import config_of, timed_training
from markdown_tables import table

from paddle_mnist.mnist.config import TrainConfig
from reproduction import accuracy, ladder
from reproduction.claims import Experiment, Report
from reproduction.comparison import Row
from reproduction.trainings import LENGTHS, QUIET, TRAIN_IMAGES, Training, deciding
from reproduction.workspace import Scale

ROUNDS, STEPS = 3, 60
ROWS = {
    row.step_name: row
    for claim in (*accuracy.CLAIMS, *ladder.CLAIMS)
    for row in claim.rows.values()
    if row.kind is Training
}
TITLES: dict[str, str] = {}  # of the rows that the page shows, by `Row.step_name`
for claim in (accuracy.OPTIMIZERS, ladder.LADDER):
    for row in claim.rows.values():
        TITLES.setdefault(row.step_name, row.title)


def measure(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Return seconds per image by `Row.step_name`: quartiles of the steps, without validation.

    Rows of different names whose steps are the same are one training, measured once.
    """
    from paddle_mnist import MNIST

    alike: dict[str, list[str]] = {}
    for name, row in ROWS.items():
        alike.setdefault(json.dumps(deciding(_config(row)), sort_keys=True), []).append(name)
    seconds: dict[str, list[float]] = {name: [] for name in ROWS}
    for turn in range(scale.choose(ROUNDS, 1)):
        for names in alike.values():
            config = _config(ROWS[names[0]])
            folder = output / f"{turn} {names[0]}"
            limit = config.batch_size * scale.choose(STEPS, 4)
            options = {**QUIET, "data": data, "train_limit": limit, "output": str(folder)}
            steps = timed_training(config.replace(epochs=1, **options))["step"][1:]
            for name in names:
                seconds[name] += [one / config.batch_size for one in steps]
    return {
        "cpu": machine()["cpu"],
        **MNIST().computed_by(),
        "seconds": {name: statistics.quantiles(each, n=4) for name, each in seconds.items()},
    }


def _config(row: Row) -> TrainConfig:
    """Return what the row trains with, apart from its length."""
    options = {name: value for name, value in row.options.items() if name not in LENGTHS}
    return config_of(row.recipe, **options, threads=1)


def medians(report: Report) -> dict[str, float]:
    """Return seconds per image, by `Row.step_name`."""
    return {name: median for name, (_, median, _) in report.get("seconds", {}).items()}


def tabulate(report: Report) -> str:
    """Return a table of the optimizers and of the changes of `ladder`, a row for each kind of step.

    The other trainings differ from these in their length or in their name only.
    """
    columns = {
        "change": "",
        f"seconds for {TRAIN_IMAGES:,} images": ".1f",
        "quartiles": "",
        "relative to the fastest": ".2f",
    }
    fastest = min(medians(report).values())
    rows = []
    for name, quartiles in report["seconds"].items():
        if name in TITLES:
            low, median, high = (TRAIN_IMAGES * seconds for seconds in quartiles)
            rows.append((TITLES[name], median, f"{low:.1f} to {high:.1f}", quartiles[1] / fastest))
    return table(columns, rows)


def find(report: Report) -> dict[str, Any]:
    """Return the fastest and the slowest row of the table, and their microseconds per image."""
    seconds = {TITLES[name]: one for name, one in medians(report).items() if name in TITLES}
    fastest, slowest = (extreme(seconds, key=seconds.get) for extreme in (min, max))
    least, most = (1e6 * seconds[name] for name in (fastest, slowest))
    return {"fastest": fastest, "slowest": slowest, "least": least, "most": most}


CLAIM = Experiment("costs", measure, tabulate, find)
