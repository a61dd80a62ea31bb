"""Read the metrics that a run has logged."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Optional

from paddle_mnist.metrics.writers import LEARNING_RATE, MetricRow, read_jsonl

History = Sequence[MetricRow]  # the lines of a `metrics.jsonl`

TRAIN = "train"  # the split of a step's metrics


def read_history(path: Path) -> list[MetricRow]:
    """Return the lines of a `metrics.jsonl`, without damaged ones, which are warned of.

    Raises DataError if there is something else in its place.
    """
    return [row for _, row in read_jsonl(path) if row]


def series(history: History, tag: str) -> tuple[list[int], list[float]]:
    """Return the steps and values of a tag, in the order of the steps.

    Leaves out values that were not finite, which are null in the file.
    """
    rows = sorted(
        (row["step"], row["value"])
        for row in history
        if row["tag"] == tag and row["value"] is not None
    )
    return [step for step, _ in rows], [value for _, value in rows]


def curve(history: History, tag: str) -> tuple[list[int], list[float]]:
    """Return the series of a metric to draw, without averages over `short_intervals`."""
    steps, values = series(history, tag)
    if not tag.startswith(f"{TRAIN}/"):
        return steps, values
    short = short_intervals(series(history, LEARNING_RATE)[0])
    points = [(step, value) for step, value in zip(steps, values) if step not in short]
    return [step for step, _ in points], [value for _, value in points]


def short_intervals(steps: Iterable[int]) -> set[int]:
    """Return the log lines, by step, that cover at most half as many steps as the line before.

    The metrics of a line are averages since the line before, and the end of an epoch divides the
    steps between two lines, for example into 94 and 6. An average over few steps is noisier, and
    looks like a jump of the metric.

    steps: of the lines, in order.
    """
    short: set[int] = set()
    last, previous_interval = 0, 0
    for step in steps:
        interval = step - last
        if 2 * interval <= previous_interval:
            short.add(step)
        last, previous_interval = step, interval
    return short


def metric_tags(history: History) -> dict[str, list[str]]:
    """Return the tags of each metric by its name: `{"loss": ["train/loss", "valid/loss"]}`.

    The loss comes first, and so does the training's tag; others are in the order of the history.
    The learning rate and the statistics of a watch are not metrics.
    """
    tags = dict.fromkeys(row["tag"] for row in history)
    metrics: dict[str, list[str]] = {"loss": []}
    for tag in sorted(tags, key=lambda tag: not tag.startswith(f"{TRAIN}/")):
        split, _, name = tag.partition("/")
        if tag != LEARNING_RATE and split != "watch":
            metrics.setdefault(name or tag, []).append(tag)
    return {name: tags for name, tags in metrics.items() if tags}


def evaluated_tag(histories: Sequence[History], monitor: Optional[str] = None) -> Optional[str]:
    """Return the tag of an evaluated metric that all histories have; None without one.

    Returns `monitor` if all have it, else the first such tag of the first history.
    """
    own, *others = (
        [tag for tags in metric_tags(history).values() for tag in tags] for history in histories
    )
    common = [tag for tag in own if all(tag in tags for tags in others)]
    evaluated = [tag for tag in common if not tag.startswith(f"{TRAIN}/")]
    return monitor if monitor in evaluated else next(iter(evaluated), None)
