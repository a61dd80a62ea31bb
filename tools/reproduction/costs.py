"""What the trainings cost: a step of each, in turns, in one process, on one core."""

import itertools
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measured import machine
from markdown_tables import table
from measuring.parts import build_parts

from paddle_mnist.mnist.config import TrainConfig, read_recipe
from reproduction import accuracy, ladder
from reproduction.claims import Experiment, Report
from reproduction.comparison import Row
from reproduction.trainings import LENGTHS, TRAIN_IMAGES, Training, deciding
from reproduction.workspace import Scale

ROUNDS, STEPS = 60, 3
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
    """Return seconds per image by `Row.step_name`: quartiles of ROUNDS, without validation.

    Rows of different names whose steps are the same are one training, measured once.
    """
    from paddle_mnist import MNIST

    alike: dict[str, list[str]] = {}
    for name, row in ROWS.items():
        alike.setdefault(json.dumps(deciding(_config(row)), sort_keys=True), []).append(name)
    rounds, steps = (2, 1) if scale.quick else (ROUNDS, STEPS)
    trained = {names[0]: _steps(ROWS[names[0]], data) for names in alike.values()}
    seconds: dict[str, list[float]] = {name: [] for name in trained}
    for images in trained.values():
        next(images)  # the first step allocates memory
    for _ in range(rounds):
        for name, images in trained.items():
            began = time.perf_counter()
            count = sum(itertools.islice(images, steps))
            seconds[name].append((time.perf_counter() - began) / count)
    quartiles = {
        name: statistics.quantiles(seconds[names[0]], n=4)
        for names in alike.values()
        for name in names
    }
    return {
        "cpu": machine()["cpu"],
        **MNIST().computed_by(),
        "seconds": {name: quartiles[name] for name in ROWS},
    }


def _config(row: Row) -> TrainConfig:
    """Return what the row trains with, but for its length."""
    options = {**read_recipe(row.recipe), **row.options, "threads": 1}
    return TrainConfig.from_mapping(
        {name: value for name, value in options.items() if name not in LENGTHS}
    )


def _steps(row: Row, data: str) -> Iterator[int]:
    """Train, and give the number of images of each step."""
    from paddle_mnist import Trainer
    from paddle_mnist.data.loader import shards_of
    from paddle_mnist.mnist.setup import parts as parts_of
    from paddle_mnist.nn.cross_entropy import CrossEntropy

    config = _config(row).replace(data=data)
    parts = build_parts(parts_of(config))
    trainer = Trainer(
        "not written",
        parts.model,
        parts.optimizer,
        loss_fn=CrossEntropy(config.loss.label_smoothing),
        average=parts.average,
        log_every=TRAIN_IMAGES,
    )
    for epoch in itertools.count():
        for batch in parts.loader.epoch(epoch):
            trainer.train_step(batch)
            yield sum(shard.samples for shard in shards_of(batch))


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


CLAIM = Experiment(
    "costs",
    measure,
    tabulate,
    find,
    settings={"rounds": ROUNDS, "steps": STEPS, "rows": list(ROWS)},
)
