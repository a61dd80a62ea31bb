#!/usr/bin/env python
"""Kill a run at random moments until it finishes, and compare its weights, bit for bit.

A run on the embedded digits is killed by SIGKILL, from its first instruction to its last, and
started again by the same command; in the end it must have the weights of an unbroken one. Trainings
follow one another until there are enough kills. With several processes, one of them is killed, or
their parent; the others must end by themselves.
"""

import contextlib
import hashlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

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
# The ways to start a run: the arguments of Python.
WAYS = {
    "one": [TRAIN, *OPTIONS],
    "spawn": [TRAIN, *OPTIONS, *SHARDS, "--nprocs", "2"],
    "launch": [*LAUNCH, TRAIN, *OPTIONS, *SHARDS],
}
PARENTS = {"one": "the process", "spawn": "the parent of the ranks", "launch": "the launcher"}
EXIT_SECONDS = 15  # after a kill, in which the other processes must have ended


class Kill(NamedTuple):
    """A kill of one process.

    in_start_up: before the first step after a start. seconds: until all other processes had ended.
    lost_steps: steps that were trained before the kill, and again after it.
    """

    process: str
    in_start_up: bool
    seconds: float
    lost_steps: int


def main(argv: Sequence[str]) -> None:
    parser = Parser(prog="tools/soak.py", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="[20]")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the moments [1]")
    parser.add_argument("--way", choices=WAYS, default="one", help="how it is started [one]")
    parser.add_argument("--docs", metavar="FOLDER", help="put the table into the page there")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), args.way, random.Random(args.seed))
        soak.run(args.kills)
    print(soak.table())
    if args.docs:
        page = Path(args.docs, "several-processes.md")
        write_table(page, f"soak {args.way}", soak.table())


class Soak:
    """Trainings in a folder, started one way, that are killed at moments drawn at random.

    resumes: starts that resumed from a checkpoint. quarantines: damaged checkpoints.
    """

    def __init__(self, folder: Path, way: str, draw: random.Random):
        self.folder, self.way, self.draw, self.log = folder, way, draw, folder / "output.log"
        self.kills: list[Kill] = []
        self.trainings = self.resumes = self.quarantines = 0

    def run(self, kills: int) -> None:
        """Train and kill until there are enough kills.

        Raises CheckpointError if a run does not end with the bits of the unbroken one,
        ProcessError if a process is left long after a kill.
        """
        # The unbroken training is one process, however the others are started.
        command = [*WAYS["one"], *(SHARDS if self.way != "one" else [])]
        self._start(self.folder / "unbroken", command).wait()
        expected = self._final_hash(self.folder / "unbroken")
        while len(self.kills) < kills:
            run = RunDirectory(self.folder / f"run{self.trainings}")
            while self._run_once(run, is_killed=len(self.kills) < kills):
                print(f"\r{len(self.kills)} kills", end="", file=sys.stderr, flush=True)
            print(file=sys.stderr)
            self.trainings += 1
            weights = self._final_hash(run.path)
            if weights != expected:
                raise CheckpointError(
                    f"training {self.trainings} ended with weights {weights[:12]}... after "
                    f"{len(self.kills)} kills; expected those of the unbroken one, "
                    f"{expected[:12]}..."
                )
            self.quarantines += len(list(run.checkpoints.folder.glob("quarantine/*")))

    def table(self) -> str:
        """Return a Markdown table of the processes that were killed, and a note on the whole."""
        rows = []
        for process in sorted({kill.process for kill in self.kills}):
            kills = [kill for kill in self.kills if kill.process == process]
            early = sum(kill.in_start_up for kill in kills)
            seconds = [kill.seconds for kill in kills]
            ended = f"median {statistics.median(seconds):.1f}, largest {max(seconds):.1f}"
            rows.append((process, len(kills), f"{early}, {len(kills) - early}", ended))
        lost = [kill.lost_steps for kill in self.kills]
        note = (
            f"{len(self.kills)} kills, {self.trainings} training{'s' * (self.trainings != 1)}, "
            f"{self.resumes} resumes, {sum(lost)} steps done again ({max(lost, default=0)} at most "
            f"at once), {self.quarantines} damaged checkpoints; each training ended with the bits "
            "of the unbroken one."
        )
        columns = ("killed", "times", "in start-up, in training", "seconds until all had ended")
        return markdown_table(dict.fromkeys(columns, ""), rows, note)

    def _run_once(self, run: RunDirectory, is_killed: bool) -> bool:
        """Start a run, and kill it if it should be killed; return whether it was killed."""
        process = self._start(run.path, WAYS[self.way])
        if not is_killed:
            process.wait()
        elif self.draw.random() < 0.2:  # at any time from its first instruction on
            sleep(process, self.draw.uniform(0, 5))
        elif self._wait_for_step(process):  # it loads, trains, saves, evaluates
            sleep(process, self.draw.uniform(0, 1.2))
        in_start_up = not self._has_trained()
        killed, seconds = self._kill(process)
        self.resumes += "resuming after step" in self.log.read_text()
        if killed:
            saved = max((checkpoint.step for checkpoint in run.checkpoints.all()), default=0)
            lost = max(0, last_step(run) - saved)
            self.kills.append(Kill(killed, in_start_up, seconds, lost))
        return bool(killed)

    def _start(self, folder: Path, command: list[str]) -> psutil.Popen:
        with open(self.log, "wb") as output:
            return psutil.Popen(
                [sys.executable, *command, "--output", str(folder)],
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _kill(self, process: psutil.Popen) -> tuple[str, float]:
        """Kill one of the processes, and wait for the others.

        Returns its name and the seconds until these had ended; no name if training was finished.
        """
        living = ranks(process)
        rank = self.draw.choice([*living, None])
        name, victim = rank or PARENTS[self.way], living.get(rank, process)
        others = [process, *(process.children(recursive=True) if process.is_running() else [])]
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            return "", 0
        killed = time.monotonic()
        _, left = psutil.wait_procs(others, EXIT_SECONDS)
        for other in left:
            other.kill()
        if left:
            raise ProcessError(
                f"{len(left)} of {len(others)} processes were left {EXIT_SECONDS} s after the kill "
                f"of {name}; expected all to end; {left[0]} was one:\n"
                f"{self.log.read_text()[-2000:]}",
                exit_code=1,
            )
        return "" if process.returncode == 0 else name, time.monotonic() - killed

    def _wait_for_step(self, process: psutil.Popen) -> bool:
        while process.poll() is None:
            if self._has_trained():
                return True
            time.sleep(0.005)
        return False

    def _has_trained(self) -> bool:
        return bool(re.search(rb"step \d+/\d+ lr", self.log.read_bytes()))

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
