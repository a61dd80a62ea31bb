"""`metrics.jsonl`, the history of a run: writing it, and cutting it back when the run resumes."""

import json
import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path

from paddle_mnist.progress import TrainState
from paddle_mnist.system.files import Journal, write_atomically

log = logging.getLogger("paddle_mnist")


class JsonlWriter:
    """Writes `metrics.jsonl`: an object a line, {"step", "epoch", "tag", "value", "time"}.

    epoch is 0-based, time in seconds since 1970, value null where it is not finite. Speeds are left
    out: they differ each time, and the file of a resumed run equals that of an unbroken one but for
    `time`. Lines that a full disk does not take are written later; `close` raises OutputError if
    they could not be.

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
    train_tags = {"train/lr", *(f"train/{name}" for name in totals)} if totals else ()
    return tag in state.metrics or tag in train_tags
