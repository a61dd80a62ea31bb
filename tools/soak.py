#!/usr/bin/env python
"""Kill a training again and again, at random moments, and see that it ends as if nothing had been.

A training on the embedded digits is killed by SIGKILL, from its first instruction to its last, and
started again by the same command, until it is done; then it must have the weights of an unbroken
one, bit for bit. Trainings follow one another until there were enough kills.
"""

import contextlib
import dataclasses
import hashlib
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from paddle_mnist.cli import Parser, run_command
from paddle_mnist.errors import CheckpointError
from paddle_mnist.rundir import RunDirectory

# The sharpest rules: the newest checkpoint is the only one kept.
OPTIONS = [
    *("--recipe", "digits", "--epochs", "12", "--visualdl", "false", "--log_every", "1"),
    *("--save_every_steps", "7", "--keep_last", "1", "--keep_epochs", "false"),
    *("--keep_best", "false"),
]
COMMAND = [sys.executable, str(Path(__file__).with_name("train.py")), *OPTIONS]


@dataclasses.dataclass
class Report:
    """What came of the kills. lost_steps: done before a kill, and done again after it."""

    kills: int = 0
    trainings: int = 0
    starts: int = 0
    resumes: int = 0
    quarantines: int = 0
    lost_steps: int = 0
    most_lost_steps: int = 0


def main(argv) -> None:
    parser = Parser(prog="tools/soak.py", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="[20]")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the moments [1]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        report = soak(Path(folder), args.kills, random.Random(args.seed))
    found = dataclasses.asdict(report)
    print(json.dumps(found) if args.json else "\n".join(f"{k:16} {n}" for k, n in found.items()))


def soak(folder: Path, kills: int, draw: random.Random) -> Report:
    """Raises CheckpointError if a training does not end with the bits of the unbroken one."""
    report, log = Report(), folder / "log"
    start(folder / "unbroken", log).wait()
    expected = final_hash(folder / "unbroken", log)
    while report.kills < kills:
        run = RunDirectory(folder / f"run{report.trainings}")
        while run_once(run, log, report, kills, draw):
            print(f"\r{report.kills} kills", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        report.trainings += 1
        found = final_hash(run.path, log)
        if found != expected:
            raise CheckpointError(
                f"training {report.trainings} ended with weights {found[:12]}... after "
                f"{report.kills} kills; expected those of the unbroken one, {expected[:12]}..."
            )
        report.quarantines += len(list(run.checkpoints.folder.glob("quarantine/*")))
    return report


def run_once(run: RunDirectory, log: Path, report: Report, kills: int, draw) -> bool:
    """One start, and its kill if one is left; whether it was killed."""
    process = start(run.path, log)
    report.starts += 1
    if report.kills == kills:
        process.wait()
    elif draw.random() < 0.8:  # after the first line: it loads, trains, saves, evaluates
        wait_for_line(process, log)
        sleep(process, draw.uniform(0, 1.2))
    else:  # at any time from its first instruction on
        sleep(process, draw.uniform(0, 5))
    process.kill()
    killed = process.wait() < 0
    resumed = re.search(r"resuming after step (\d+)", log.read_text())
    report.resumes += bool(resumed)
    report.kills += killed
    if killed:
        saved = max((checkpoint.step for checkpoint in run.checkpoints.all()), default=0)
        lost = max(0, last_step(run) - saved)
        report.lost_steps += lost
        report.most_lost_steps = max(report.most_lost_steps, lost)
    return killed


def start(folder: Path, log: Path) -> subprocess.Popen:
    with open(log, "wb") as output:
        return subprocess.Popen(
            [*COMMAND, "--output", str(folder)], stdout=output, stderr=subprocess.STDOUT
        )


def wait_for_line(process: subprocess.Popen, log: Path) -> None:
    while process.poll() is None and b"data: " not in log.read_bytes():
        time.sleep(0.005)


def sleep(process: subprocess.Popen, seconds: float) -> None:
    """At most so long: not beyond the end of the process."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def last_step(run: RunDirectory) -> int:
    """The last step that was done, as far as the metrics tell."""
    steps = re.findall(rb'"step": (\d+)', run.metrics.read_bytes()) if run.metrics.exists() else []
    return int(steps[-1]) if steps else 0


def final_hash(folder: Path, log: Path) -> str:
    path = RunDirectory(folder).weights
    if not path.exists():
        raise CheckpointError(f"{folder}: the training ended without weights:\n{log.read_text()}")
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    run_command(main, log_to=sys.stderr)
