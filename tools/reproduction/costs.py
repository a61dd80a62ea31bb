"""What the trainings cost: a step of each, in turns, in one process, on one core."""

import itertools
import json
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.machine import machine

from reproduction import accuracy, ladder
from reproduction.compared import LENGTHS, Row, Scale
from reproduction.shown import Shown
from reproduction.trainings import TRAIN_IMAGES, Training, recipe

if TYPE_CHECKING:
    from paddle_mnist import TrainConfig

ROUNDS, STEPS = 60, 3
ROWS = {
    row.step: row
    for claim in (*accuracy.CLAIMS, *ladder.CLAIMS)
    for row in claim.rows.values()
    if row.kind is Training
}


def measure(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Seconds for each image by `Row.step`: quartiles of ROUNDS; validation is not in them.

    Rows of different names whose steps are the same are one training, measured once.
    """
    alike: dict[str, list[str]] = {}
    for name, row in ROWS.items():
        alike.setdefault(json.dumps(_config(row).binding(), sort_keys=True), []).append(name)
    trained = {names[0]: _steps(ROWS[names[0]], data) for names in alike.values()}
    rounds, steps = (2, 1) if scale.quick else (ROUNDS, STEPS)
    seconds: dict[str, list[float]] = {name: [] for name in trained}
    for images in trained.values():
        next(images)  # the first step waits for memory
    for _ in range(rounds):
        for name, images in trained.items():
            began = time.perf_counter()
            count = sum(itertools.islice(images, steps))
            seconds[name].append((time.perf_counter() - began) / count)
    found = {
        name: statistics.quantiles(seconds[names[0]], n=4)
        for names in alike.values()
        for name in names
    }
    return {"cpu": machine()["cpu"], "seconds": {name: found[name] for name in ROWS}}


def _config(row: Row) -> "TrainConfig":
    """What the row trains with, but for its length."""
    from paddle_mnist import TrainConfig

    told = {name: value for name, value in row.told.items() if name not in LENGTHS}
    told = {**recipe(row.recipe), **told, "threads": 1}
    return TrainConfig.from_mapping(
        {name: one for name, one in told.items() if name not in LENGTHS}
    )


def _steps(row: Row, data: str) -> Iterator[int]:
    """Trains a step each time that it is asked; gives of how many images."""
    from paddle_mnist import Trainer
    from paddle_mnist.data.loader import epoch_batches, shards_of
    from paddle_mnist.mnist.cache import open_data
    from paddle_mnist.mnist.setup import build
    from paddle_mnist.nn.optim import cross_entropy

    config = _config(row)
    parts = build(config, open_data(data), None)
    trainer = Trainer(
        *("not written", parts.model, parts.optimizer),
        loss_fn=cross_entropy(config.label_smoothing),
        average=parts.average,
        log_every=TRAIN_IMAGES,
    )
    for epoch in itertools.count():
        for batch in epoch_batches(parts.loader, epoch):
            trainer.train_step(batch)
            yield sum(len(shard.labels) for shard in shards_of(batch))


def medians(report: Mapping[str, Any]) -> dict[str, float]:
    """Seconds for each image, by `Row.step`."""
    return {name: median for name, (_, median, _) in report.get("seconds", {}).items()}


def table(report: Mapping[str, Any]) -> str:
    rows = [
        f"| what is trained | seconds for {TRAIN_IMAGES:,} images | quartiles | times the least |"
    ]
    rows.append("|---|---|---|---|")
    least = min(medians(report).values())
    for name, quartiles in report["seconds"].items():
        low, median, high = (TRAIN_IMAGES * one for one in quartiles)
        times = median / TRAIN_IMAGES / least
        rows.append(f"| `{name}` | {median:.1f} | {low:.1f} to {high:.1f} | {times:.2f} |")
    note = f"On: {report['cpu']}. Differences of a few percent are noise, as the quartiles say."
    return "\n".join([*rows, "", note])


def verdict(report: Mapping[str, Any]) -> str:
    found = medians(report)
    least, most = (chosen(found, key=found.get) for chosen in (min, max))
    return (
        f"An image costs from {1e6 * found[least]:.0f} microseconds (`{least}`) to "
        f"{1e6 * found[most]:.0f} (`{most}`)."
    )


CLAIMS = (
    Shown(
        "costs",
        "this project",
        "what each change costs in time",
        f"{STEPS} steps of each training, in turns, {ROUNDS} times, in one process on one core; "
        "the medians are what the minutes of all tables are made of",
        measure,
        table,
        verdict,
        settings=[ROUNDS, STEPS, list(ROWS)],
        uses=(_config, _steps),
    ),
)
