#!/usr/bin/env python
"""Kill a training at random moments until it is done, and compare its weights, bit for bit.

A training on the embedded digits is killed by SIGKILL, from its first instruction to its last, and
started again by the same command; in the end it must have the weights of an unbroken one. Trainings
follow one another until there were enough kills. With several processes, one of them is killed, or
their parent: the others must end by themselves.
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

import psutil
from markdown_tables import table as markdown_table
from markdown_tables import write_table

from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.commands import Parser, run_command, run_script
from paddle_mnist.errors import CheckpointError, ProcessError

# The sharpest rules: the newest checkpoint is the only one kept.
OPTIONS = """
    --recipe digits --epochs 12 --visualdl false --log_every 1
    --save_every_steps 7 --keep_last 1 --keep_epochs false --keep_best false
""".split()
TRAIN = str(Path(__file__).with_name("train.py"))
SHARDS = ["--grad_shards", "4"]
LAUNCH = ["-m", "paddle.distributed.launch", "--nproc_per_node", "2"]
# The ways to start a training: the arguments of Python.
WAYS = {
    "one": [TRAIN, *OPTIONS],
    "spawn": [TRAIN, *OPTIONS, *SHARDS, "--nprocs", "2"],
    "launch": [*LAUNCH, TRAIN, *OPTIONS, *SHARDS],
}
PARENTS = {"one": "the process", "spawn": "the parent of the ranks", "launch": "the launcher"}
EXIT_SECONDS = 15  # after a kill, in which the other processes must have ended


@dataclasses.dataclass
class Report:
    """The results of the kills.

    lost_steps: done before a kill, and again after it.
    ended: for each kind of process that was killed, the seconds until all others had ended.
    moments: how many kills of each kind came during start-up.
    again: seconds from a start to its first step.
    """

    way: str
    kills: int = 0
    trainings: int = 0
    resumes: int = 0
    quarantines: int = 0
    lost_steps: int = 0
    most_lost_steps: int = 0
    ended: dict[str, list[float]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    moments: Counter = dataclasses.field(default_factory=Counter)
    again: list[float] = dataclasses.field(default_factory=list)


def main(argv: Sequence[str]) -> None:
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
    """Return a Markdown table: which processes were killed, when, and how soon all had ended."""
    columns = ("killed", "times", "in start-up, in training", "seconds until all had ended")
    rows = []
    for killed, seconds in sorted(report.ended.items()):
        early = report.moments[killed]
        moments = f"{early}, {len(seconds) - early}"
        rows.append((killed, len(seconds), moments, _spread(seconds)))
    note = (
        f"{report.kills} kills, {report.trainings} training{'s' * (report.trainings != 1)}, "
        f"{report.resumes} resumes, "
        f"{report.lost_steps} steps done again ({report.most_lost_steps} at most at once), "
        f"{report.quarantines} damaged checkpoints; each training ended with the bits of the "
        "unbroken one."
    )
    if report.again:  # or all were killed in start-up
        note += f" From a start to its first step: {_spread(report.again, ' s')}."
    return markdown_table(dict.fromkeys(columns, ""), rows, note)


def _spread(seconds: Sequence[float], unit: str = "") -> str:
    median, largest = statistics.median(seconds), max(seconds)
    return f"median {median:.1f}{unit}, largest {largest:.1f}{unit}"


class Soak:
    """Trainings in a folder, started one way, that are killed at moments drawn at random."""

    def __init__(self, folder: Path, way: str, kills: int, draw: random.Random):
        self.folder, self.way, self.kills, self.draw = folder, way, kills, draw
        self.report, self.log = Report(way), folder / "output.log"

    def run(self) -> Report:
        """Train and kill until there were enough kills.

        Raises CheckpointError if a training does not end with the bits of the unbroken one,
        ProcessError if a process is left long after a kill.
        """
        # The unbroken training is one process, however the others are started.
        command = [*WAYS["one"], *(SHARDS if self.way != "one" else [])]
        self._start(self.folder / "unbroken", command).wait()
        expected = self._final_hash(self.folder / "unbroken")
        while self.report.kills < self.kills:
            run = RunDirectory(self.folder / f"run{self.report.trainings}")
            while self._run_once(run):
                print(f"\r{self.report.kills} kills", end="", file=sys.stderr, flush=True)
            print(file=sys.stderr)
            self.report.trainings += 1
            weights = self._final_hash(run.path)
            if weights != expected:
                raise CheckpointError(
                    f"training {self.report.trainings} ended with weights {weights[:12]}... after "
                    f"{self.report.kills} kills; expected those of the unbroken one, "
                    f"{expected[:12]}..."
                )
            self.report.quarantines += len(list(run.checkpoints.folder.glob("quarantine/*")))
        return self.report

    def _run_once(self, run: RunDirectory) -> bool:
        """Start a training, and kill it if a kill is left; return whether it was killed."""
        began = time.monotonic()
        process = self._start(run.path, WAYS[self.way])
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
                [sys.executable, *command, "--output", str(folder)],
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _kill(self, process: psutil.Popen, early: bool) -> bool:
        """Kill one of the processes and wait for the others; return whether it was still alive."""
        living = ranks(process)
        rank = self.draw.choice([*living, None])
        name, victim = rank or PARENTS[self.way], living.get(rank, process)
        others = [process, *(process.children(recursive=True) if process.is_running() else [])]
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            return False
        killed = time.monotonic()
        _, left = psutil.wait_procs(others, EXIT_SECONDS)
        for other in left:
            other.kill()
        if left:
            raise ProcessError(
                f"{len(left)} of {len(others)} processes were left {EXIT_SECONDS} s after the kill "
                f"of {name}; expected none; {left[0]} was one:\n{self.log.read_text()[-2000:]}",
                exit_code=1,
            )
        if process.returncode == 0:  # it was done
            return False
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
            output = self.log.read_text()
            raise CheckpointError(f"{folder}: the training ended without weights:\n{output}")
        return hashlib.sha256(path.read_bytes()).hexdigest()


def ranks(process: psutil.Popen) -> dict[str, psutil.Process]:
    """Return the ranks among the descendants: launch numbers them, `spawn` starts them in turn."""
    processes: dict[str, psutil.Process] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in sorted(process.children(recursive=True), key=psutil.Process.create_time):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                number = child.environ().get("PADDLE_TRAINER_ID")
                if any("spawn_main" in word for word in child.cmdline()):
                    number = str(len(processes))
                if number is not None:
                    processes[f"rank {number}"] = child
    return processes


def sleep(process: psutil.Popen, seconds: float) -> None:
    """Wait so long, or until the process ends."""
    with contextlib.suppress(psutil.TimeoutExpired):
        process.wait(seconds)


def last_step(run: RunDirectory) -> int:
    """Return the last step in the metrics, 0 without one."""
    steps = re.findall(rb'"step": (\d+)', run.metrics.read_bytes()) if run.metrics.exists() else []
    return int(steps[-1]) if steps else 0


if __name__ == "__main__":
    run_script(lambda argv: run_command(main, argv, prints_data=True))
