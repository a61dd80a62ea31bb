"""What the documents' ways of saving, naming and resuming come to."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paddle_mnist.errors import PaddleMnistError
from paddle_mnist.rundir import RunDirectory
from reproduction.compared import QUICK, Scale
from reproduction.shown import Shown
from reproduction.trainings import QUIET, TOOLS, run

TRAIN = TOOLS / "train.py"
EPOCHS = 12


def names(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """Real checkpoints of twelve short epochs; the newest by name, and by what they say."""
    told = ["--recipe", "digits", "--epochs", str(EPOCHS), "--train_limit", "320", *QUIET]
    _train([*told, "--output", str(output)])
    store = RunDirectory(output).checkpoints
    by_name = sorted(path.name for path in store.folder.glob("*.pdparams"))[-1]
    return {"by_name": by_name, "newest": f"{store.newest().name}.pdparams", "epochs": EPOCHS}


def names_table(report: Mapping[str, Any]) -> str:
    return "\n".join(
        [
            "| the newest of the checkpoints of epochs "
            f"0 to {report['epochs'] - 1} | is taken to be |",
            "|---|---|",
            f"| by name, as in the document | `{report['by_name']}` |",
            f"| by the step in the manifest | `{report['newest']}` |",
        ]
    )


def names_verdict(report: Mapping[str, Any]) -> str:
    wrong = report["by_name"] != report["newest"]
    return (
        "Refuted: names sorted as texts lose epochs."
        if wrong
        else "Confirmed: the names sort rightly."
    )


def resumed(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """The recipe `tutorial-resume`, unbroken, and killed and resumed: as in the document, whose
    order is the same in each epoch; and shuffled, in the middle of an epoch."""
    found = {}
    for way, more in (
        ("after its first epoch", []),
        ("shuffled, within its second epoch", ["--shuffle", "true", "--save_every_steps", "50"]),
    ):
        told = ["--recipe", "tutorial-resume", "--fast_conv", "on", "--data", data, *QUIET, *more]
        if scale.quick:
            told += [word for key, value in QUICK.items() for word in (f"--{key}", str(value))]
            told += ["--epochs", "2", "--batch_size", "4"]
        unbroken, broken = output / way / "unbroken", output / way / "broken"
        _train([*told, "--output", str(unbroken)])
        killed_at = _killed([*told, "--output", str(broken)], broken, within=bool(more))
        _train([*told, "--output", str(broken)])
        losses = [_losses(folder) for folder in (unbroken, broken)]
        found[way] = {
            "sha256": [
                hashlib.sha256((folder / "mnist.pdparams").read_bytes()).hexdigest()
                for folder in (unbroken, broken)
            ],
            "killed_at": killed_at,
            "steps": RunDirectory(unbroken).checkpoints.newest().step,
            "losses_compared": len(losses[0]),
            "losses_equal": losses[0] == losses[1],
        }
    return found


def _killed(arguments: list[str], folder: Path, within: bool) -> int:
    """Train until the first epoch is saved, or, within the second, more; the step that is saved."""
    store, first = RunDirectory(folder).checkpoints, folder / "checkpoints/mnist_epoch0.json"
    with subprocess.Popen(
        [sys.executable, str(TRAIN), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while process.poll() is None and not (
            first.exists() and (not within or store.newest().name != first.stem)
        ):
            time.sleep(0.01)
        process.kill()
    if process.returncode != -signal.SIGKILL or (folder / "result.json").exists():
        raise PaddleMnistError(
            f"{folder}: the training was to be killed after its first epoch, but it ended with "
            f"{process.returncode}; expected {-signal.SIGKILL}"
        )
    return store.newest().step


def _losses(folder: Path) -> list[tuple[int, float]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    return [(line["step"], line["value"]) for line in lines if line["tag"] == "train/loss"]


def resumed_table(report: Mapping[str, Any]) -> str:
    rows = [
        "| killed by SIGKILL | resumed from step | SHA-256 of the unbroken | of the resumed |",
        "|---|---|---|---|",
    ]
    for way, one in report.items():
        digests = " | ".join(f"`{digest[:16]}...`" for digest in one["sha256"])
        rows.append(f"| {way} | {one['killed_at']:,} of {one['steps']:,} | {digests} |")
    return "\n".join(rows)


def resumed_verdict(report: Mapping[str, Any]) -> str:
    same = all(len(set(one["sha256"])) == 1 and one["losses_equal"] for one in report.values())
    count = sum(one["losses_compared"] for one in report.values())
    return (
        f"Confirmed, and more: the weights are the same bits, and so are all {count} losses of the "
        "logs."
        if same
        else "Refuted: not the same."
    )


def pattern(data: str, output: Path, scale: Scale) -> dict[str, Any]:
    """The three traps of the checkpoint pattern, walked into with real trainings."""
    told = ["--recipe", "digits", "--epochs", "2", "--train_limit", "640", *QUIET]
    by_clock, one = output / "by the clock", output / "one"
    _train([*told, "--save_every_seconds", "3600", "--output", str(by_clock)])
    saved = RunDirectory(by_clock).checkpoints.all()
    only = ["--keep_epochs", "false", "--keep_best", "false", "--keep_last", "1"]
    only += ["--save_every_steps", "1", "--output", str(one)]
    with subprocess.Popen(
        [sys.executable, str(TRAIN), *told, *only],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        counts = []
        while process.poll() is None:
            counts.append(len(list((one / "checkpoints").glob("*.json"))))
            time.sleep(0.001)
    if process.returncode or not any(counts):
        raise PaddleMnistError(
            f"{one}: a training that saves each step ended with {process.returncode} and "
            f"{max(counts, default=0)} checkpoints; expected 0, and some"
        )
    after_the_first = counts[next(i for i, count in enumerate(counts) if count) :]
    oldest, *_, newest = sorted(saved, key=lambda one: one.step)
    os.utime(oldest.path)  # as a copy would: now it is the youngest file
    files = [checkpoint.path for checkpoint in saved]
    return {
        "steps": newest.step,
        "saved": len(saved),
        "looks": len(after_the_first),
        "least": min(after_the_first),
        "by_mtime": max(files, key=os.path.getmtime).stem,
        "newest": RunDirectory(by_clock).checkpoints.newest().name,
    }


def pattern_table(report: Mapping[str, Any]) -> str:
    return "\n".join(
        [
            "| trap | the pattern, by its own rules (not run) | here |",
            "|---|---|---|",
            "| save every hour, the steps left at their default of 1 | "
            f"{report['steps']} saves in {report['steps']} steps | "
            f"{report['saved']}: one an epoch |",
            "| keep 1, deleted before the next is written | none at times: a crash loses all | "
            f"never fewer than {report['least']} manifests, each written after all of its "
            f"checkpoint, in {report['looks']:,} looks at a training that saves each step |",
            "| the newest by the files' times, one having been touched | "
            f"`{report['by_mtime']}` | `{report['newest']}` |",
        ]
    )


def pattern_verdict(report: Mapping[str, Any]) -> str:
    fine = (
        report["least"] > 0
        and report["by_mtime"] != report["newest"]
        and report["saved"] < report["steps"]
    )
    return (
        "Confirmed as traps of the pattern; none of the three catches anybody here."
        if fine
        else "Not all are avoided here."
    )


def _train(arguments: list[str]) -> None:
    run([str(TRAIN), *arguments], f"the training in {arguments[-1]}")


CLAIMS = (
    Shown(
        "names",
        "ModelArts: resume",
        "the newest checkpoint is the last by name",
        "twelve epochs of the embedded digits",
        names,
        names_table,
        names_verdict,
    ),
    Shown(
        "resumed",
        "the tutorial, part three",
        'a resumed training has "about the same" losses as an unbroken one',
        "recipe `tutorial-resume`, which follows the document's code (Momentum, three epochs; its "
        "text says Adam and five), killed by SIGKILL and started again",
        resumed,
        resumed_table,
        resumed_verdict,
        uses=(_killed, _losses),
    ),
    Shown(
        "pattern",
        "the checkpoint pattern, MindSpore's `CheckpointConfig`",
        "save every N steps or seconds, keep the newest K",
        "real trainings of the embedded digits, against the rules that MindSpore's documentation "
        "gives (2.4: if steps are set, and by default they are 1, the seconds are void); MindSpore "
        "itself was not run",
        pattern,
        pattern_table,
        pattern_verdict,
    ),
)
