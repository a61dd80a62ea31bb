#!/usr/bin/env python
"""Interrupt a run at each line that it executes, resume it, and compare the bits of its result.

Programs of `fit_rows` are trained, each in a process of its own. From the end of step 2 on, each
line of the package, or of a net, a step or a callback of the program, is a point when
`TrainingLoop.train` comes to it for the first or the N-th time. There the process raises an
exception, sends itself SIGTERM, or is killed by SIGKILL. Another process then resumes the run: it
must end with the files of an unbroken run, or with an error of the package that says why not.
"""

import collections
import functools
import gc
import hashlib
import json
import logging
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Optional

import fit_rows
import numba  # noqa: F401, before Paddle 2, whose zlib breaks it
import paddle
import small_nets
import stateful_rows

import paddle_mnist
from paddle_mnist import Callback, is_rehearsal
from paddle_mnist.commands import Parser, run_command, run_script
from paddle_mnist.errors import PaddleMnistError, StoppedError
from paddle_mnist.proof.compare import differing_files
from paddle_mnist.training.loop import TrainingLoop

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = (module.__file__ for module in (fit_rows, small_nets, stateful_rows))
TRACED = (f"{Path(paddle_mnist.__file__).parent}{os.sep}", *PROGRAMS)  # beginnings of paths
KINDS = ("raise", "SIGTERM", "SIGKILL")
FIRST_STEP = 2  # after which the points begin
SHARDED = "dropout"  # whose batches are divided
NETS = ("BatchNorm", "GAN", "EMA", SHARDED)  # by default
TIMEOUT = 120  # seconds, of a process that trains

fork = multiprocessing.get_context("fork")


class Point(NamedTuple):
    """A line of a file, the process in which a fault comes there, and at which visit, from 1."""

    file: str
    line: int
    rank: int
    visit: int

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" + f" visit {self.visit}" * (self.visit > 1)
        return place + f" rank {self.rank}" * (self.rank > 0)


class FaultError(Exception):
    """The fault of kind "raise"."""


def train(program: str, output: Path, callback: Callback, processes: int) -> None:
    """Train a program, or resume it, with the names that layers have in a new process."""
    options = {"nprocs": processes, "grad_shards": 2} if program == SHARDED else {}
    with paddle.utils.unique_name.guard():
        fit_rows.train(
            program,
            output / "run",
            callbacks=[callback],
            save_every_steps=2,
            eval_every_steps=3,
            **options,
        )


# ------------------------------------------------------------------------------ points


class Traces(Callback):
    """Calls a function at the points of `TrainingLoop.train`, in one of the processes.

    at_visit: called at every visit of a point. By default, nothing is traced.
    """

    def __init__(self, rank: int = 0, at_visit: Optional[Callable[[Point], None]] = None):
        self.rank, self.at_visit = rank, at_visit

    def after_step(self, view: Any) -> None:
        is_traced = paddle.distributed.get_rank() == self.rank and not is_rehearsal()
        if self.at_visit and is_traced and view.step == FIRST_STEP:
            _trace(self.rank, self.at_visit)


def _trace(rank: int, at_visit: Callable[[Point], None]) -> None:
    visits = collections.Counter[tuple[str, int]]()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(TRACED):
            return None
        if event == "line":
            place = frame.f_code.co_filename, frame.f_lineno
            visits[place] += 1
            at_visit(Point(_relative(place[0]), place[1], rank, visits[place]))
        elif event == "return" and frame.f_code is TrainingLoop.train.__code__:
            sys.settrace(None)
        return trace

    frame: Optional[FrameType] = sys._getframe(2)  # of the loop, which calls `after_step`
    sys.settrace(trace)
    while frame:
        if frame.f_code.co_filename.startswith(TRACED):
            frame.f_trace = trace
        is_outermost = frame.f_code is TrainingLoop.train.__code__
        frame = None if is_outermost else frame.f_back


@functools.cache
def _relative(path: str) -> str:
    return os.path.relpath(path, ROOT)


def _record(file: Path, visit: int, point: Point) -> None:
    if point.visit == visit:
        with open(file, "a") as lines:
            lines.write(f"{json.dumps(point)}\n")


def _inject(kind: str, at: Point, file: Path, point: Point) -> None:
    """Let a fault come at a point, and record that it has come."""
    if point == at:
        sys.settrace(None)
        file.touch()
        if kind == "raise":
            raise FaultError
        os.kill(os.getpid(), getattr(signal, kind))


# ------------------------------------------------------------------------------ runs


def in_process(function: Callable[..., None], log: Path, *arguments: Any) -> str:
    """Call a function in a forked process; return how it ended, "" without an error."""
    end = log.with_suffix(".end")
    process = fork.Process(target=_call, args=(function, log, end, arguments))
    process.start()
    process.join(TIMEOUT)
    if process.exitcode is None:
        process.kill()
        process.join()
        return f"did not end in {TIMEOUT} s"
    if process.exitcode:
        return f"exit code {process.exitcode}"
    return end.read_text()


def _call(function: Callable[..., None], log: Path, end: Path, arguments: Sequence[Any]) -> None:
    with open(log, "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    text = ""
    try:
        function(*arguments)
    except BaseException as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        if FaultError in map(type, (error, error.__cause__)):
            text = "raise"
        elif isinstance(error, StoppedError):
            text = "SIGTERM"
        elif isinstance(error, PaddleMnistError) and str(error):
            text = f"refused: {error}"
    end.write_text(text)


def warm_up(names: Sequence[str], folder: Path) -> None:
    """Train each net here, for what forks inherit."""
    logging.disable(logging.WARNING)
    for name in names:
        train(name, folder / f"first {name}", Traces(), 1)
    logging.disable(logging.NOTSET)
    gc.freeze()


class Net:
    """A net whose runs are interrupted, in a folder.

    unbroken: its unbroken run, in one process. points: of all of its processes.
    resumed: what was wrong after each resume, by what there was to resume from.
    """

    def __init__(self, name: str, folder: Path, processes: int, visit: int):
        self.name, self.folder, self.processes = name, folder / name, processes
        self.points: list[Point] = []
        self.resumed: dict[str, Optional[str]] = {}
        self.unbroken = self._run_unbroken("unbroken", Traces(), 1)
        for rank in range(processes):
            lines = self.folder / f"points{rank}"
            callback = Traces(rank, functools.partial(_record, lines, visit))
            self._run_unbroken(f"traced{rank}", callback, processes)
            self.points += [Point(*json.loads(line)) for line in lines.read_text().splitlines()]

    def _run_unbroken(self, name: str, callback: Callback, processes: int) -> Path:
        output = self.folder / name
        output.mkdir(parents=True)
        if end := self._run(output, callback, processes):
            log = (output / "log").read_text()
            raise PaddleMnistError(f"{self.name}: the unbroken run ended with {end}\n{log}")
        return output

    def _run(self, output: Path, callback: Callback, processes: int, log: str = "log") -> str:
        return in_process(train, output / log, self.name, output, callback, processes)

    def failure(self, kind: str, point: Point) -> Optional[str]:
        """Interrupt a run at a point, and resume it; return what is wrong, or None."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            output, came = Path(folder), Path(folder, "came")
            callback = Traces(point.rank, functools.partial(_inject, kind, point, came))
            end = self._run(output, callback, self.processes)
            if not came.exists():
                return f"the run did not come there: {end}"
            if problem := self._unexpected_end(kind, end):
                return problem
            left = contents(output / "run")
            if left not in self.resumed:  # many points leave the same files behind
                self.resumed[left] = self._failure_of_resume(output)
            return self.resumed[left]

    def _unexpected_end(self, kind: str, end: str) -> Optional[str]:
        """Return what is wrong with the end of an interrupted run, which may have gone on to its
        end; where there are several processes, the others may tell how it ended.
        """
        expected = {"raise": "raise", "SIGTERM": "SIGTERM", "SIGKILL": "exit code -9"}[kind]
        is_reported = self.processes > 1 and end.startswith("refused: rank")
        if is_reported or end == expected or (not end and kind != "SIGKILL"):
            return None
        return f"ended with {end!r}; expected {expected!r}"

    def _failure_of_resume(self, output: Path) -> Optional[str]:
        """Resume in one process, whatever there were before: it must give the same bits."""
        end = self._run(output, Traces(), 1, "resumed")
        if end:
            return None if end.startswith("refused: ") else f"the resumed run ended with {end}"
        return "; ".join(differing_files(self.unbroken, output, "resumed")) or None


def contents(run: Path) -> str:
    """Return a digest of the files of a run, except for times and what follows from them."""
    sha256 = hashlib.sha256()
    for path in sorted(run.rglob("*")):
        if path.is_file() and path.suffix != ".log" and not path.name.startswith(".lock"):
            name = re.sub(r"\.[0-9a-f]{16}\.part$", ".part", path.name)
            text = path.read_text("latin-1")
            text = re.sub(r'"(time|saved_at|train_seconds|checksum|run_id)": [^,\n}]+', "", text)
            text = text.replace(str(run), "")
            sha256.update(f"{name}\n{text}\n".encode())
    return sha256.hexdigest()


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="tests/faults.py", description=__doc__)
    parser.add_argument(
        "--net", choices=fit_rows.ROWS, action="append", help="may be repeated [four]"
    )
    parser.add_argument("--kind", choices=KINDS, action="append", help="may be repeated [all]")
    parser.add_argument("--file", default="", metavar="TEXT", help="of points: part of its path")
    parser.add_argument("--visit", type=int, default=1, metavar="N", help="of each line [1]")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="of each run [1]")
    parser.add_argument("--sample", type=int, metavar="N", help="N points at random [all]")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the sample [1]")
    args = parser.parse_args(argv)
    began = time.monotonic()
    names = (args.net or NETS) if args.processes == 1 else [SHARDED]
    with tempfile.TemporaryDirectory() as folder:
        warm_up(names, Path(folder))
        nets = [Net(name, Path(folder), args.processes, args.visit) for name in names]
        tried = [
            (net, kind, point)
            for net in nets
            for kind in args.kind or KINDS
            for point in net.points
            if args.file in point.file
        ]
        if args.sample is not None:
            tried = random.Random(args.seed).sample(tried, min(args.sample, len(tried)))
        failed = 0
        for number, (net, kind, point) in enumerate(tried, 1):
            if problem := net.failure(kind, point):
                print(f"{net.name} {kind} {point}: {problem}", flush=True)
                failed += 1
            if sys.stderr.isatty():
                print(f"\r{number} of {len(tried)}", end="", file=sys.stderr, flush=True)
    print(
        f"{len(tried) - failed} of {len(tried)} points hold; they left "
        f"{sum(len(net.resumed) for net in nets)} different runs to resume; "
        f"{time.monotonic() - began:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    run_script(lambda argv: run_command(main, argv, prints_data=True))
