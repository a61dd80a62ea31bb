"""Writers that hold, hand on or store metrics; `console` and `visualdl` show them.

`metrics.jsonl`, the history of a run, is written, cut back on a resume, and thinned for curves.
"""

import contextlib
import copy
import json
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from paddle_mnist.interfaces import Writer
from paddle_mnist.progress import TrainState
from paddle_mnist.system.files import Journal, write_atomically

log = logging.getLogger("paddle_mnist")

LEARNING_RATE = "train/lr"  # which every line of a training has


class NewestMetrics(Writer):
    """Keeps the newest value of every tag, in `values`."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        self.values.update(values)


class ManyWriters(Writer):
    """Passes every call on to several writers, in order, with copies that each may change."""

    def __init__(self, writers: Sequence[Writer]):
        self.writers = writers

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        for writer in self.writers:
            writer.write(copy.deepcopy(state), dict(values))

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # each, whatever happens to the others
            for writer in reversed(self.writers):
                stack.callback(writer.close)


class JsonlWriter:
    """Writes `metrics.jsonl`: an object a line, {"step", "epoch", "tag", "value", "time"}.

    epoch is 0-based, time in seconds since 1970, value null where it is not finite. Speeds are left
    out: they differ each time, and except for `time`, the file of a resumed run equals that of an
    unbroken one. Lines that a full disk does not take are written later; `close` raises OutputError
    if they could not be.

    `lines` counts the file's lines, with those that it had before.
    """

    def __init__(self, path: Path):
        self.lines = path.read_bytes().count(b"\n") if path.exists() else 0
        self.journal = Journal(path)

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        epoch = state.epoch if state.position else state.epoch - 1
        lines = [
            {
                "step": state.step,
                "epoch": epoch,
                "tag": tag,
                "value": value if math.isfinite(value) else None,
                "time": time.time(),
            }
            for tag, value in values.items()
            if not tag.startswith("speed/")
        ]
        self.journal.append("".join(f"{json.dumps(line)}\n" for line in lines))
        self.lines += len(lines)

    def close(self) -> None:
        self.journal.close()


def cut_jsonl(path: Path, state: TrainState, count: int) -> None:
    """Remove the lines of `metrics.jsonl` that a training which resumes from `state` writes again.

    Incomplete lines are removed too.

    count: lines of the file when the state was saved.
    """
    if not path.exists():
        return
    kept = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True)):
        try:
            values = json.loads(line)
            keep = number < count and not _written_again(state, **values)
            if keep and line.endswith(b"\n"):
                kept.append(line)
        except (ValueError, TypeError, KeyError):
            log.warning("%s: dropping an incomplete line, %.60r", path, line)
    write_atomically(path, b"".join(kept))


def _written_again(state: TrainState, step: int, tag: str, **_: object) -> bool:
    """Return whether a line, written before the state was saved, is written again on resuming.

    A training that is interrupted while it writes the metrics of its newest step, or of the
    evaluation after it, writes all of them again.
    """
    if step != state.step or not state.position:
        return False
    totals = state.running_sums.totals
    train_tags = {LEARNING_RATE, *(f"train/{name}" for name in totals)} if totals else ()
    return tag in state.metrics or tag in train_tags


def short_intervals(steps: Iterable[int], start: int = 0) -> set[int]:
    """Return the steps of a training's lines that cover at most half as many as the last one.

    The metrics of a line are averages since the line before, and the end of an epoch divides the
    steps between two lines: into 94 and 6, for example. Beside averages over many steps, one over
    few looks like a leap of the metric where there is none.

    steps: of the lines, in order. start: the step at which the first of them begins.
    """
    short: set[int] = set()
    last, previous_interval = start, 0
    for step in steps:
        interval = step - last
        if 2 * interval <= previous_interval:
            short.add(step)
        last, previous_interval = step, interval
    return short
