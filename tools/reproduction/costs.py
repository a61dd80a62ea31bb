"""The time of the trainings: some steps of each, in turns, on one thread."""

import statistics
from pathlib import Path
from typing import Any

from benchmarks.measured import machine
from benchmarks.timing import config_of, timed_training
from markdown_tables import table_of_rows

from reproduction import accuracy, ladder
from reproduction.claims import Experiment, Report, Workspace
from reproduction.trainings import QUIET, TRAIN_IMAGES

ROUNDS, STEPS = 3, 60
# Without "40 epochs", whose steps are those of the affine augmentation.
ROWS = {
    row.title: row
    for claim in (accuracy.OPTIMIZERS, ladder.LADDER)
    for name, row in claim.rows.items()
    if name != "40 epochs"
}


def measure(work: Workspace, folder: Path) -> dict[str, Any]:
    """Return seconds per image by row: quartiles of the steps, without validation."""
    from paddle_mnist import MNIST

    seconds: dict[str, list[float]] = {title: [] for title in ROWS}
    for turn in range(work.choose(ROUNDS, 1)):
        for number, (title, row) in enumerate(ROWS.items()):
            size = config_of(row.recipe, **row.options).batch_size
            options = {**QUIET, "data": work.data.path, "epochs": 1, "threads": 1}
            options |= {"train_limit": size * work.choose(STEPS, 4)}
            output = str(folder / f"{turn} {number}")
            config = config_of(row.recipe, **{**row.options, **options, "output": output})
            seconds[title] += [step / size for step in timed_training(config)["step"][1:]]
    return {
        "cpu": machine()["cpu"],
        **MNIST().computed_by(),
        "seconds": {title: statistics.quantiles(each, n=4) for title, each in seconds.items()},
    }


def tabulate(report: Report) -> str:
    fastest = find(report)["least"]
    rows = {}
    for title, quartiles in report["seconds"].items():
        low, median, high = (TRAIN_IMAGES * seconds for seconds in quartiles)
        quotient = 1e6 * quartiles[1] / fastest
        rows[title] = {"median": median, "range": f"{low:.1f} to {high:.1f}", "quotient": quotient}
    columns = {
        f"seconds for {TRAIN_IMAGES:,} images": (".1f", "median"),
        "quartiles": ("", "range"),
        "relative to the fastest": (".2f", "quotient"),
    }
    return table_of_rows("change", columns, rows)


def find(report: Report) -> dict[str, Any]:
    """Return the fastest and the slowest row, and their microseconds per image."""
    medians = {title: 1e6 * median for title, (_, median, _) in report["seconds"].items()}
    fastest, slowest = (extreme(medians, key=medians.get) for extreme in (min, max))
    least, most = medians[fastest], medians[slowest]
    return {"fastest": fastest, "slowest": slowest, "least": least, "most": most}


CLAIM = Experiment("costs", measure, tabulate, find)
