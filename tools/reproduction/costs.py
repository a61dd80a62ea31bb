"""What the trainings cost: a step of each, in turns, in one process, on one core."""

import itertools
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from reproduction import accuracy, ladder
from reproduction.compared import LENGTHS, Row, Scale
from reproduction.shown import Shown
from reproduction.trainings import TRAIN_IMAGES, Training, recipe

ROUNDS, STEPS = 60, 3
# One for each kind of step, however many rows take it.
ROWS = {
    row.step: row
    for claim in (*accuracy.CLAIMS, *ladder.CLAIMS)
    for row in claim.rows.values()
    if row.kind is Training
}


def measured(data: str, output: Path, scale: Scale) -> dict[str, float]:
    """Seconds for each image, the median of ROUNDS, by `Row.step`; validation is not in them."""
    trained = {name: _steps(row, data) for name, row in ROWS.items()}
    rounds, steps = (1, 1) if scale.quick else (ROUNDS, STEPS)
    seconds: dict[str, list[float]] = {name: [] for name in trained}
    for images in trained.values():
        next(images)  # the first step waits for memory
    for _ in range(rounds):
        for name, images in trained.items():
            began = time.perf_counter()
            count = sum(itertools.islice(images, steps))
            seconds[name].append((time.perf_counter() - began) / count)
    return {name: statistics.median(found) for name, found in seconds.items()}


def _steps(row: Row, data: str) -> Iterator[int]:
    """Trains a step each time that it is asked; gives of how many images."""
    from paddle_mnist import TrainConfig, Trainer
    from paddle_mnist.data import open_data
    from paddle_mnist.data.dataset import epoch_batches, shards_of
    from paddle_mnist.optim import cross_entropy
    from paddle_mnist.start import build

    told = {name: value for name, value in row.told.items() if name not in LENGTHS}
    config = TrainConfig.from_mapping({**recipe(row.recipe), **told, "threads": 1})
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


def table(report: Mapping[str, float]) -> str:
    rows = [f"| what is trained | seconds for {TRAIN_IMAGES:,} images | times the least |"]
    rows.append("|---|---|---|")
    least = min(report.values())
    for name, seconds in report.items():
        rows.append(f"| `{name}` | {TRAIN_IMAGES * seconds:.1f} | {seconds / least:.2f} |")
    return "\n".join(rows)


def verdict(report: Mapping[str, float]) -> str:
    least, most = (chosen(report, key=report.get) for chosen in (min, max))
    return (
        f"An image costs from {1e6 * report[least]:.0f} microseconds (`{least}`) to "
        f"{1e6 * report[most]:.0f} (`{most}`)."
    )


CLAIMS = (
    Shown(
        "costs",
        "this project",
        "what each change costs in time",
        f"{STEPS} steps of each training, in turns, {ROUNDS} times, in one process on one core; "
        "the medians are what the minutes of all tables are made of",
        measured,
        table,
        verdict,
        settings=[ROUNDS, STEPS, list(ROWS)],
        uses=(_steps,),
    ),
)
