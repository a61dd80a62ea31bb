"""Seconds of calls, of parts of a step and of child processes."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from measuring.children import TOOLS, Finished, run_from_small_process

TRAIN, TUTORIAL = TOOLS / "train.py", TOOLS / "baseline_tutorial.py"


def seconds_of(function: Callable, *args: Any) -> float:
    began = time.perf_counter()
    function(*args)
    return time.perf_counter() - began


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


def in_own_process(function: Callable, *args: Any, **environment: str) -> Any:
    """Call a function in a new process with these variables; return what it returns."""
    spawn = multiprocessing.get_context("spawn")
    with (
        patch.dict(os.environ, environment),
        concurrent.futures.ProcessPoolExecutor(1, spawn) as pool,
    ):
        return pool.submit(function, *args).result()


class PartTimer:
    """A profile for `Trainer`: the `seconds` of each part of its steps, and of whole steps.

    They are in a file: `fit` would save a list of them with each checkpoint, as it does with a
    user's history, and so what is measured would grow with the steps.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.before_epoch()

    @property
    def seconds(self) -> dict[str, list[float]]:
        """The seconds of each call, by part; "step" is a whole step."""
        seconds: dict[str, list[float]] = defaultdict(list)
        self._file.seek(0)
        for line in self._file:
            name, value = line.split()
            seconds[name].append(float(value))
        return seconds

    def before_epoch(self) -> None:
        self._step_end = time.perf_counter()

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._file.write(f"{name} {time.perf_counter() - began}\n")

    def after_step(self) -> None:
        began = self._step_end
        self.before_epoch()
        self._file.write(f"step {self._step_end - began}\n")
