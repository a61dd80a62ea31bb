#!/usr/bin/env python
"""Kill a training again and again, at random moments, and see that it ends as if nothing had been.

A training on the embedded digits is killed by SIGKILL, from its first instruction to its last, and
started again by the same command, until it is done; then it must have the weights of an unbroken
one, bit for bit. Trainings follow one another until there were enough kills. With several
processes, one of them is killed, or what started them: the others must end by themselves.
"""

import contextlib
import dataclasses
import hashlib
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import psutil
from markdown_tables import write_table

from paddle_mnist.commands import Parser, run_command, run_script
from paddle_mnist.errors import CheckpointError, ProcessError
from paddle_mnist.training.run_directory import RunDirectory

# The sharpest rules: the newest checkpoint is the only one kept.
OPTIONS = [
    *("--recipe", "digits", "--epochs", "12", "--visualdl", "false", "--log_every", "1"),
    *("--save_every_steps", "7", "--keep_last", "1", "--keep_epochs", "false"),
    *("--keep_best", "false"),
]
TRAIN = [sys.executable, str(Path(__file__).with_name("train.py"))]
SHARDS = ["--grad_shards", "4"]
WAYS = {
    "one": [*TRAIN, *OPTIONS],
    "spawn": [*TRAIN, *OPTIONS, *SHARDS, "--nprocs", "2"],
    "launch": [
        *(sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2"),
        *(TRAIN[1], *OPTIONS, *SHARDS),
    ],
}
PARENTS = {"one": "the process", "spawn": "the parent of the ranks", "launch": "the launcher"}
PATIENCE = 15  # seconds in which whoever is left must have ended


@dataclasses.dataclass
class Report:
    """What came of the kills. lost_steps: done before a kill, and done again after it.

    ended: by who was killed, the seconds until nobody was left. again: seconds from the next start
    to its first step.
    """

    way: str
    kills: int = 0
    trainings: int = 0
    starts: int = 0
    resumes: int = 0
    quarantines: int = 0
    lost_steps: int = 0
    most_lost_steps: int = 0
    ended: dict[str, list[float]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    moments: Counter = dataclasses.field(default_factory=Counter)
    again: list[float] = dataclasses.field(default_factory=list)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the soak test and print the table; return the exit code."""
    return run_command(_soak, argv, log_to=sys.stderr)


def _soak(argv: Sequence[str]) -> None:
    parser = Parser(prog="tools/soak.py", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="[20]")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the moments [1]")
    parser.add_argument("--way", choices=WAYS, default="one", help="how it is started [one]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--docs", metavar="FOLDER", help="put the table into the page there")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        report = Soak(Path(folder), args.way, args.kills, random.Random(args.seed)).run()
    print(json.dumps(vars(report)) if args.json else table(report))
    if args.docs:
        page = Path(args.docs, "several-processes.md")
        write_table(page, f"soak {args.way}", table(report))


def table(report: Report) -> str:
    """Markdown: who was killed, how often and when, and the seconds until all had ended."""
    rows = ["| killed | times | in start-up, in training | seconds until all had ended |"]
    rows.append("|---|---|---|---|")
    for who, seconds in sorted(report.ended.items()):
        early = report.moments[who]
        rows.append(
            f"| {who} | {len(seconds)} | {early}, {len(seconds) - early} | "
            f"median {statistics.median(seconds):.1f}, largest {max(seconds):.1f} |"
        )
    rows += [
        "",
        f"{report.kills} kills, {report.trainings} trainings, {report.resumes} resumes, "
        f"{report.lost_steps} steps done again ({report.most_lost_steps} at most at once), "
        f"{report.quarantines} damaged checkpoints; each training ended with the bits of the "
        "unbroken one.",
    ]
    if report.again:  # or all were killed in start-up
        median, largest = statistics.median(report.again), max(report.again)
        rows[-1] += (
            f" From a start to its first step: median {median:.1f} s, largest {largest:.1f} s."
        )
    return "\n".join(rows)


class Soak:
    def __init__(self, folder: Path, way: str, kills: int, draw: random.Random):
        self.folder, self.way, self.kills, self.draw = folder, way, kills, draw
        self.report, self.log = Report(way), folder / "said"

    def run(self) -> Report:
        """Raises CheckpointError if a training does not end with the bits of the unbroken one,
        ProcessError if anybody is left long after a kill."""
        # Of one process, whoever it is compared with.
        alone = [*WAYS["one"], *(SHARDS if self.way != "one" else [])]
        self._start(self.folder / "unbroken", alone).wait()
        expected = self._final_hash(self.folder / "unbroken")
        while self.report.kills < self.kills:
            run = RunDirectory(self.folder / f"run{self.report.trainings}")
            while self._run_once(run):
                print(f"\r{self.report.kills} kills", end="", file=sys.stderr, flush=True)
            print(file=sys.stderr)
            self.report.trainings += 1
            found = self._final_hash(run.path)
            if found != expected:
                raise CheckpointError(
                    f"training {self.report.trainings} ended with weights {found[:12]}... after "
                    f"{self.report.kills} kills; expected those of the unbroken one, "
                    f"{expected[:12]}..."
                )
            self.report.quarantines += len(list(run.checkpoints.folder.glob("quarantine/*")))
        return self.report

    def _run_once(self, run: RunDirectory) -> bool:
        """One start, and its kill if one is left; whether it was killed."""
        began = time.monotonic()
        process = self._start(run.path, WAYS[self.way])
        self.report.starts += 1
        early = self.draw.random() < 0.2
        if self.report.kills == self.kills:
            process.wait()
        elif early:  # at any time from its first instruction on
            sleep(process, self.draw.uniform(0, 5))
        elif self._wait_for_line(process):  # it loads, trains, saves, evaluates
            self.report.again.append(time.monotonic() - began)
            sleep(process, self.draw.uniform(0, 1.2))
        killed = self._kill(process, early)
        resumed = re.search(r"resuming after step (\d+)", self.log.read_text())
        self.report.resumes += bool(resumed)
        self.report.kills += killed
        if killed:
            saved = max((checkpoint.step for checkpoint in run.checkpoints.all()), default=0)
            lost = max(0, last_step(run) - saved)
            self.report.lost_steps += lost
            self.report.most_lost_steps = max(self.report.most_lost_steps, lost)
        return killed

    def _start(self, folder: Path, command: list[str]) -> psutil.Popen:
        with open(self.log, "wb") as output:
            return psutil.Popen(
                [*command, "--output", str(folder)],
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _kill(self, process: psutil.Popen, early: bool) -> bool:
        """Kill one of the processes and wait for the others; whether there was one to kill."""
        living = ranks(process)
        who = self.draw.choice([*living, None])
        victim = living.get(who, process)
        others = [process, *(process.children(recursive=True) if process.is_running() else [])]
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            return False
        killed = time.monotonic()
        _, left = psutil.wait_procs(others, PATIENCE)
        if left:
            for other in left:
                other.kill()
            raise ProcessError(
                f"{len(left)} of {len(others)} processes were left {PATIENCE} s after the kill of "
                f"{who or PARENTS[self.way]}; expected none; {left[0]} was one:\n"
                f"{self.log.read_text()[-2000:]}",
                exit_code=1,
            )
        if process.returncode == 0:  # it was done
            return False
        name = who or PARENTS[self.way]
        self.report.ended[name].append(time.monotonic() - killed)
        self.report.moments[name] += early
        return True

    def _wait_for_line(self, process: psutil.Popen) -> bool:
        while process.poll() is None:
            if re.search(rb"step \d+/\d+ lr", self.log.read_bytes()):
                return True
            time.sleep(0.005)
        return False

    def _final_hash(self, folder: Path) -> str:
        path = RunDirectory(folder).weights
        if not path.exists():
            said = self.log.read_text()
            raise CheckpointError(f"{folder}: the training ended without weights:\n{said}")
        return hashlib.sha256(path.read_bytes()).hexdigest()


def ranks(process: psutil.Popen) -> dict[str, psutil.Process]:
    """The ranks among the descendants: launch numbers them, `spawn` starts them in turn."""
    found: dict[str, psutil.Process] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in sorted(process.children(recursive=True), key=psutil.Process.create_time):
            number = rank_of(child, len(found))
            if number is not None:
                found[f"rank {number}"] = child
    return found


def rank_of(child: psutil.Process, spawned: int) -> Optional[str]:
    try:
        if any("spawn_main" in word for word in child.cmdline()):
            return str(spawned)
        return child.environ().get("PADDLE_TRAINER_ID")
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def sleep(process: psutil.Popen, seconds: float) -> None:
    """At most so long: not beyond the end of the process."""
    with contextlib.suppress(psutil.TimeoutExpired):
        process.wait(seconds)


def last_step(run: RunDirectory) -> int:
    """The last step that was done, as far as the metrics tell."""
    steps = re.findall(rb'"step": (\d+)', run.metrics.read_bytes()) if run.metrics.exists() else []
    return int(steps[-1]) if steps else 0


if __name__ == "__main__":
    run_script(main)
