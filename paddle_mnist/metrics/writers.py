"""Keep metrics, pass them to several writers, and store them in `metrics.jsonl`.

`console` and `visualdl` show them.
"""

import contextlib
import copy
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from paddle_mnist.interfaces import Writer
from paddle_mnist.system.files import Journal, write_atomically
from paddle_mnist.train_state import TrainState

log = logging.getLogger("paddle_mnist")

LEARNING_RATE = "train/lr"  # in every line of the training


class NewestMetrics(Writer):
    """Keeps the newest value of every tag, in `values`."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        self.values.update(values)


class ManyWriters(Writer):
    """Passes every call to several writers, in order, with a copy that each may change."""

    def __init__(self, writers: Sequence[Writer]):
        self.writers = writers

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        for writer in self.writers:
            writer.write(copy.deepcopy(state), dict(values))

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # closes all, even if one raises
            for writer in reversed(self.writers):
                stack.callback(writer.close)


class JsonlWriter:
    """Writes `metrics.jsonl`, one object per line: {"step", "epoch", "tag", "value", "time"}.

    epoch is 0-based, time in seconds since 1970, value null if it is not finite. Speeds are left
    out, so that the file of a resumed run equals that of an uninterrupted one, except for `time`.
    When the disk is full, lines are written later; `close` raises OutputError if that failed.

    `lines` counts the lines of the file, including those of earlier starts.
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
    """Remove the lines of `metrics.jsonl` that a run resuming from `state` writes again.

    Removes incomplete lines, too. count: lines of the file when the state was saved.
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
    """Return whether a line that was written before the state was saved is written again.

    If a run is interrupted while it writes the metrics of its newest step, or of the evaluation
    after it, it writes all of them again when it resumes.
    """
    if step != state.step or not state.position:
        return False
    totals = state.running_sums.totals
    train_tags = {LEARNING_RATE, *(f"train/{name}" for name in totals)} if totals else ()
    return tag in state.metrics or tag in train_tags
