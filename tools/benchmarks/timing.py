"""Seconds of calls, of parts of a step and of child processes; medians."""

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

TOOLS = Path(__file__).parents[1]
TRAIN, TUTORIAL = TOOLS / "train.py", TOOLS / "baseline_tutorial.py"


def seconds_of(function: Callable, *args: Any) -> float:
    began = time.perf_counter()
    function(*args)
    return time.perf_counter() - began


def medians(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median of each kind that has samples."""
    return {kind: statistics.median(values) for kind, values in samples.items() if values}


class Finished(NamedTuple):
    """A child process. seconds: from its start to its end. peak_mib: of its memory."""

    seconds: float
    output: str
    peak_mib: float


def run_python(*arguments: Any, **environment: str) -> Finished:
    """Run Python with these arguments in `tools/`, in a process of its own.

    Raises ModuleNotFoundError where a module is missing, such as PyTorch, CalledProcessError if it
    fails otherwise.
    """
    command = [sys.executable, *map(str, arguments)]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=TOOLS, env={**os.environ, **environment}, stdout=output, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        printed, complaints = output.read(), errors.read()
    if process.returncode:
        _, is_missing, what = complaints.rpartition("ModuleNotFoundError: ")
        if is_missing:
            raise ModuleNotFoundError(what.strip())
        raise subprocess.CalledProcessError(process.returncode, command, printed, complaints)
    return Finished(seconds, printed, usage.ru_maxrss / 1024)


def part_timer(*names: str):
    """Return a profile for `Trainer` that adds up the `seconds` of these parts of its steps."""
    from paddle_mnist.monitor.profiler import NoProfile

    class PartTimer(NoProfile):
        seconds = 0.0

        @contextlib.contextmanager
        def part(self, name):
            began = time.perf_counter()
            yield
            if name in names:
                self.seconds += time.perf_counter() - began

    return PartTimer()
