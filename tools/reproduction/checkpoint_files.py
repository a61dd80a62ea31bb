"""What the documents' ways of finding, keeping and replacing checkpoints come to."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from markdown_tables import table

from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.errors import PaddleMnistError
from reproduction.claims import Experiment, Report
from reproduction.trainings import train
from reproduction.workspace import Scale

EPOCHS = 12


def measure_names(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Write checkpoints of twelve short epochs; return the newest by name and by manifest."""
    train("digits", {"epochs": EPOCHS, "train_limit": 320}, output)
    store = RunDirectory(output).checkpoints
    by_name = max(path.name for path in store.folder.glob("*.pdparams"))
    return {"by_name": by_name, "newest": f"{store.newest().name}.pdparams", "epochs": EPOCHS}


def tabulate_names(report: Report) -> str:
    rows = [
        ("by name, as in the document", f"`{report['by_name']}`"),
        ("by the step in the manifest", f"`{report['newest']}`"),
    ]
    newest = f"newest of the checkpoints of epochs 0 to {report['epochs'] - 1}"
    return table({newest: "", "taken as the newest": ""}, rows)


def measure_pattern(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Walk into the three traps of the checkpoint pattern with real trainings."""
    options = {"epochs": 2, "train_limit": 640}
    by_clock, single = output / "by the clock", output / "single"
    train("digits", {**options, "save_every_seconds": 3600}, by_clock)
    saved = RunDirectory(by_clock).checkpoints.all()
    keep_one = {"keep_epochs": "false", "keep_best": "false", "keep_last": 1, "save_every_steps": 1}
    with checkpoints_counted(single / "checkpoints") as counts:
        train("digits", {**options, **keep_one}, single)
    if not counts:
        raise PaddleMnistError(f"{single}: a training that saves each step left no checkpoint")
    oldest, *_, newest = sorted(saved, key=lambda checkpoint: checkpoint.step)
    os.utime(oldest.path)  # as a copy would: now it is the youngest file
    by_mtime = max((checkpoint.path for checkpoint in saved), key=os.path.getmtime)
    return {
        "steps": newest.step,
        "saved": len(saved),
        "looks": len(counts),
        "least": min(counts),
        "by_mtime": by_mtime.stem,
        "newest": RunDirectory(by_clock).checkpoints.newest().name,
    }


@contextmanager
def checkpoints_counted(folder: Path) -> Iterator[list[int]]:
    """Count the checkpoints of a folder every millisecond, from the first one on."""
    counts, ended = [], threading.Event()

    def look() -> None:
        while not ended.wait(0.001):
            count = len(list(folder.glob("*.json")))
            if count or counts:
                counts.append(count)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield counts
    finally:
        ended.set()
        thread.join()


def tabulate_pattern(report: Report) -> str:
    steps = report["steps"]
    rows = [
        (
            "save every hour, steps left at their default of 1",
            f"{steps} saves in {steps} steps",
            f"{report['saved']}: one per epoch",
        ),
        (
            "keep 1, deleted before the next is written",
            "sometimes none: a crash loses all",
            f"at least {report['least']} complete checkpoint in each of {report['looks']:,} looks "
            "during a training that saves each step",
        ),
        (
            "the newest by the files' times, after one was touched",
            f"`{report['by_mtime']}`",
            f"`{report['newest']}`",
        ),
    ]
    headers = ("trap", "the pattern, by its own rules (not run)", "this package")
    return table(dict.fromkeys(headers, ""), rows)


CLAIMS = (
    Experiment("names", measure_names, tabulate_names, settings={"epochs": EPOCHS}),
    Experiment("pattern", measure_pattern, tabulate_pattern),
)
