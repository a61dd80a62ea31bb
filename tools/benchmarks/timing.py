"""Seconds of calls, of parts of a step and of child processes; medians."""

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from measuring.children import TOOLS, Finished, run_from_small_process

TRAIN, TUTORIAL = TOOLS / "train.py", TOOLS / "baseline_tutorial.py"


def seconds_of(function: Callable, *args: Any) -> float:
    began = time.perf_counter()
    function(*args)
    return time.perf_counter() - began


def medians(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median of each kind that has samples."""
    return {kind: statistics.median(values) for kind, values in samples.items() if values}


def in_turns(
    calls: Mapping[str, Callable], rounds: int, warm_up: int = 0, repeats: int = 1
) -> dict[str, list[float]]:
    """Return the seconds of each call; all take turns, in rounds of so many repeats.

    warm_up: rounds before these, which do not count.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(-warm_up, rounds):
        for name, call in calls.items():
            passed = [seconds_of(call) for _ in range(repeats)]
            if number >= 0:
                seconds[name] += passed
    return seconds


def run_python(*arguments: Any, **environment: str) -> Finished:
    """Run Python with these arguments in `tools/`, in a process of its own.

    Raises ModuleNotFoundError where a module is missing, such as PyTorch, CalledProcessError if it
    fails otherwise.
    """
    command = [sys.executable, *arguments]
    done = run_from_small_process(command, cwd=TOOLS, env={**os.environ, **environment})
    if done.code:
        _, is_missing, what = done.errors.rpartition("ModuleNotFoundError: ")
        if is_missing:
            raise ModuleNotFoundError(what.strip())
        raise subprocess.CalledProcessError(done.code, command, done.printed, done.errors)
    return done


def part_timer():
    """Return a profile for `Trainer` that adds up the `seconds` of each part of its steps."""
    from paddle_mnist.monitor.profiler import Profiler

    class PartTimer(Profiler):
        def __init__(self):
            self.seconds = Counter()

        @contextlib.contextmanager
        def part(self, name):
            began = time.perf_counter()
            yield
            self.seconds[name] += time.perf_counter() - began

    return PartTimer()
