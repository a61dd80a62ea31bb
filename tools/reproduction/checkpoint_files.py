"""What the documents' ways of finding, keeping and replacing checkpoints come to."""

import os
import threading
import time
from pathlib import Path
from typing import Any

from markdown_tables import table

from paddle_mnist.errors import PaddleMnistError
from paddle_mnist.training.run_directory import RunDirectory
from reproduction.claims import Report, Scale, Verdict
from reproduction.experiment import Experiment
from reproduction.texts import CONFIRMED, REFUTED, fill
from reproduction.trainings import train

EPOCHS = 12


def measure_names(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Write checkpoints of twelve short epochs; return the newest by name and by manifest."""
    options = {"epochs": EPOCHS, "train_limit": 320}
    if scale.probe:
        options.update(train_limit=2, eval_limit=2)
    train("digits", options, output, in_process=scale.probe)
    store = RunDirectory(output).checkpoints
    by_name = max(path.name for path in store.folder.glob("*.pdparams"))
    return {"by_name": by_name, "newest": f"{store.newest().name}.pdparams", "epochs": EPOCHS}


def tabulate_names(report: Report) -> str:
    rows = [
        ("by name, as in the document", f"`{report['by_name']}`"),
        ("by the step in the manifest", f"`{report['newest']}`"),
    ]
    newest = f"the newest of the checkpoints of epochs 0 to {report['epochs'] - 1}"
    return table({newest: "", "is taken to be": ""}, rows)


def judge_names(report: Report) -> Verdict:
    wrong = report["by_name"] != report["newest"]
    summary = fill("names", "wrong" if wrong else "right", **report)
    return Verdict(summary, REFUTED if wrong else CONFIRMED)


def measure_pattern(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Walk into the three traps of the checkpoint pattern with real trainings."""
    options = {"epochs": 2, "train_limit": 64 if scale.probe else 640}
    by_clock, single = output / "by the clock", output / "single"
    train("digits", {**options, "save_every_seconds": 3600}, by_clock, scale.probe)
    saved = RunDirectory(by_clock).checkpoints.all()
    keep_one = {"keep_epochs": "false", "keep_best": "false", "keep_last": 1, "save_every_steps": 1}
    with CheckpointCounter(single / "checkpoints") as counter:
        train("digits", {**options, **keep_one}, single, scale.probe)
    if not counter.counts:
        raise PaddleMnistError(f"{single}: a training that saves each step left no checkpoint")
    oldest, *_, newest = sorted(saved, key=lambda checkpoint: checkpoint.step)
    os.utime(oldest.path)  # as a copy would: now it is the youngest file
    by_mtime = max((checkpoint.path for checkpoint in saved), key=os.path.getmtime)
    return {
        "steps": newest.step,
        "saved": len(saved),
        "looks": len(counter.counts),
        "least": min(counter.counts),
        "by_mtime": by_mtime.stem,
        "newest": RunDirectory(by_clock).checkpoints.newest().name,
    }


class CheckpointCounter(threading.Thread):
    """Counts the checkpoints of a folder every millisecond, from the first one on."""

    def __init__(self, folder: Path):
        super().__init__()
        self.counts: list[int] = []
        self._folder = folder
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            count = len(list(self._folder.glob("*.json")))
            if count or self.counts:
                self.counts.append(count)
            time.sleep(0.001)

    def __enter__(self) -> "CheckpointCounter":
        self.start()
        return self

    def __exit__(self, *_) -> None:
        self._stopped.set()
        self.join()


def _without_looks(report: Report) -> dict[str, Any]:
    return {**report, "looks": None}


def tabulate_pattern(report: Report) -> str:
    rows = [
        (
            "save every hour, the steps left at their default of 1",
            f"{report['steps']} saves in {report['steps']} steps",
            f"{report['saved']}: one per epoch",
        ),
        (
            "keep 1, deleted before the next is written",
            "none at times: a crash loses all",
            f"at least {report['least']}, complete (its manifest is written last), in each of "
            f"{report['looks']:,} looks at a training that saves each step",
        ),
        (
            "the newest by the files' times, one having been touched",
            f"`{report['by_mtime']}`",
            f"`{report['newest']}`",
        ),
    ]
    headers = ("trap", "the pattern, by its own rules (not run)", "this package")
    return table(dict.fromkeys(headers, ""), rows)


def judge_pattern(report: Report) -> Verdict:
    avoided = (
        report["least"] > 0
        and report["by_mtime"] != report["newest"]
        and report["saved"] < report["steps"]
    )
    summary = fill("pattern", "summary", **report)
    outcome = CONFIRMED if avoided else REFUTED
    return Verdict(summary, outcome, "The pattern itself was not run.")


CLAIMS = (
    Experiment("names", judge_names, measure_names, tabulate_names, settings={"epochs": EPOCHS}),
    Experiment(
        "pattern", judge_pattern, measure_pattern, tabulate_pattern, repeatable=_without_looks
    ),
)
