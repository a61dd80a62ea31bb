"""Keep metrics, pass them to several writers, and store them in `metrics.jsonl`.

`console` and `visualdl` show them.
"""

import contextlib
import copy
import json
import logging
import math
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Optional, TypedDict

import msgspec

from paddle_mnist.errors import DataError
from paddle_mnist.interfaces import Writer
from paddle_mnist.system.files import Journal, warn_once, write_atomically
from paddle_mnist.system.regular_files import parse_json, read_bytes
from paddle_mnist.train_state import TrainState

log = logging.getLogger("paddle_mnist")

LEARNING_RATE = "train/lr"  # in every line of the training


def chart_of(tag: str, splits: Collection[str]) -> tuple[str, str]:
    """Return the split of a metric, and its name there, so that splits share a chart.

    "valid/loss" is "loss" of the split "valid"; a tag without a split belongs to "train".
    """
    split, _, name = tag.partition("/")
    return (split, name) if split in splits else ("train", tag)


class NewestMetrics(Writer):
    """Keeps the newest value of every tag, in `values`."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        self.values.update(values)


class ManyWriters(Writer):
    """Passes every call to several writers, in order, with copies: none can change the run."""

    def __init__(self, writers: Sequence[Writer]):
        self.writers = writers

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        state = copy.deepcopy(state)
        for writer in self.writers:
            writer.write(state, dict(values))

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # closes all, even if one raises
            for writer in reversed(self.writers):
                stack.callback(writer.close)


class _Value(TypedDict):
    step: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
    tag: str
    value: Optional[float]


class MetricRow(_Value, total=False):
    """A line of `metrics.jsonl`; value is None if it was not finite."""

    time: float


class JsonlWriter:
    """Writes `metrics.jsonl`, one object per line: {"step", "epoch", "tag", "value", "time"}.

    epoch is 0-based, time in seconds since 1970, value null if it is not finite. Speeds are left
    out, so that the file of a resumed run equals that of an uninterrupted one, except for `time`.
    When the disk is full, lines are written later; `close` raises OutputError if that failed.
    """

    def __init__(self, path: Path):
        self._earlier = len(_lines(path))
        self._most = sys.maxsize
        self.journal = Journal(path)

    @property
    def lines(self) -> int:
        """The number of lines in the file, including those of earlier starts."""
        return min(self._earlier + self.journal.lines, self._most)

    def synced_lines(self) -> int:
        """Force the lines to the disk, and return their number. Raises OutputError."""
        self.journal.sync()
        return self.lines

    def leave_out_after(self, lines: int) -> None:
        """Count only these lines: the later ones belong to a step that was undone."""
        self._most = lines

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

    def close(self) -> None:
        self.journal.close()


def cut_jsonl(source: Path, path: Path, state: TrainState, count: int) -> None:
    """Write to `path` the lines of `source` that a run resuming from `state` does not write again.

    source: a `metrics.jsonl`, perhaps `path` itself. count: see `divided_at`.
    """
    kept, _ = divided_at(state, count, source)
    write_atomically(path, b"".join(line + b"\n" for line, _ in kept))


Lines = list[tuple[bytes, MetricRow]]


def divided_at(state: TrainState, count: int, path: Path) -> tuple[Lines, Lines]:
    """Return the lines of a `metrics.jsonl` that belong to a state, and those after it.

    Leaves out damaged lines. count: lines of the file when the state was saved; if the disk was
    full, lines of earlier steps may follow them.
    """
    kept: Lines = []
    later: Lines = []
    for number, (line, row) in enumerate(read_jsonl(path)):
        if row:
            is_earlier = number < count or row["step"] < state.step
            is_kept = is_earlier and not _is_written_again(state, row["step"], row["tag"])
            (kept if is_kept else later).append((line, row))
    return kept, later


def read_jsonl(path: Path) -> list[tuple[bytes, Optional[MetricRow]]]:
    """Return the lines of `metrics.jsonl`, each with its values; None for one that is damaged.

    Warns of damaged lines. Raises DataError if the file cannot be read.
    """
    rows = [(line, _parse_row(line)) for line in _lines(path)]
    if damaged := [line for line, row in rows if row is None]:
        message = "%s: dropping damaged lines (%d), such as %.60r"
        warn_once((path, len(damaged)), message, path, len(damaged), damaged[-1])
    return rows


def _lines(path: Path) -> list[bytes]:
    """Return the lines of a file; [] if there is none. Raises DataError."""
    try:
        return read_bytes(path).splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror}; expected the metrics of a run; move it away"
        ) from error


def _parse_row(line: bytes) -> Optional[MetricRow]:
    with contextlib.suppress(ValueError):
        return parse_json(line, MetricRow)
    return None


def _is_written_again(state: TrainState, step: int, tag: str) -> bool:
    """Return whether a line that was written before the state was saved is written again.

    Version 1.0 could save a state whose log line was partly written.
    """
    totals = state.running_sums.totals
    if step != state.step or not state.position or not totals:
        return False
    return tag in {LEARNING_RATE, *(f"train/{name}" for name in totals)}
