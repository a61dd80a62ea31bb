"""Seconds of calls, of steps, of commands, and of the parts of a run."""

import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from paddle_mnist.errors import PaddleMnistError
from paddle_mnist.mnist.config import TrainConfig, read_recipe
from paddle_mnist.training.callbacks import Callback

TOOLS = Path(__file__).parents[1]
LAUNCHER = Path(__file__).with_name("launcher.py")
TRAIN, TUTORIAL = "train.py", "baseline_tutorial.py"


def seconds_of(function: Callable, *args: Any) -> float:
    began = time.perf_counter()
    function(*args)
    return time.perf_counter() - began


def seconds_of_steps(step: Callable[[int], Any], count: int) -> list[float]:
    """Return the seconds of each of `count` steps, which are numbered from 0."""
    return [seconds_of(step, number) for number in range(count)]


# ------------------------------------------------------------------ processes


class Finished(NamedTuple):
    """A command that has succeeded. seconds: from its start. peak_mib: the most memory it had."""

    printed: str
    seconds: float
    peak_mib: float


def run_python(*arguments: Any, cwd: Path = TOOLS, **environment: str) -> Finished:
    """Run Python with these arguments and variables, in a process of its own.

    Raises ModuleNotFoundError where a module is missing, such as PyTorch, PaddleMnistError with the
    command's errors if it fails otherwise.
    """
    words = [sys.executable, *map(str, arguments)]
    launcher = [sys.executable, "-S", str(LAUNCHER), *words]  # -S: faster and smaller
    env = {**os.environ, **environment}
    done = subprocess.run(launcher, check=True, stdout=subprocess.PIPE, cwd=cwd, env=env)
    code, errors, *figures = json.loads(done.stdout)
    if code:
        _, is_missing, module = errors.rpartition("ModuleNotFoundError: ")
        if is_missing:
            raise ModuleNotFoundError(module.strip())
        raise PaddleMnistError(f"{shlex.join(words)}: exit code {code}:\n{errors}")
    return Finished(*figures)


def in_own_process(function: Callable, *args: Any, **environment: str) -> Any:
    """Call a function in a new process with these variables; return what the function returns."""
    spawn = multiprocessing.get_context("spawn")
    # From the start, since the process imports NumPy with the main module. Calls of several threads
    # have no variables.
    patched = patch.dict(os.environ, environment) if environment else contextlib.nullcontext()
    with patched, concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
        return pool.submit(function, *args).result()


# ------------------------------------------------------------------ trainings


def config_of(recipe: str, **changes: Any) -> TrainConfig:
    """Return the configuration of a recipe, with these changes."""
    return TrainConfig.from_mapping({**read_recipe(recipe), **changes})


def train(config: TrainConfig, *callbacks: Any, **arguments: Any) -> None:
    """Train with `fit`, with callbacks in addition to those of the configuration."""
    from paddle_mnist import fit
    from paddle_mnist.mnist.setup import fit_arguments

    given = fit_arguments(config)
    fit(**{**given, **arguments, "callbacks": [*given["callbacks"], *callbacks]})


class PartTimer:
    """A profiler for `fit` that keeps the seconds of each part of its steps, and of whole steps.

    It writes them into a file, because `fit` would save a list with each checkpoint, and saving,
    which is measured, would take longer with each step.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile("w+")  # noqa: SIM115

    @property
    def seconds(self) -> dict[str, list[float]]:
        """The seconds of each call, by part; "step" is a whole step with its batch."""
        seconds: dict[str, list[float]] = defaultdict(list)
        step_end = 0.0
        self._file.seek(0)
        for line in self._file:
            name, value = line.split()
            if name == "end":
                seconds["step"].append(float(value) - step_end)
            if name in ("epoch", "end"):
                step_end = float(value)
            else:
                seconds[name].append(float(value))
        return seconds

    def before_epoch(self) -> None:
        self._file.write(f"epoch {time.perf_counter()}\n")

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._file.write(f"{name} {time.perf_counter() - began}\n")

    def after_step(self) -> None:
        self._file.write(f"end {time.perf_counter()}\n")


class Timing(Callback):
    """Writes the seconds of the steps into the run directory, where other processes find them."""

    def before_training(self, training: Any) -> None:
        self.timer = PartTimer()

    def profiler(self) -> Any:
        return self.timer

    def after_last_step(self, training: Any) -> None:
        if training.world.is_main_process:
            (training.run.path / "seconds.json").write_text(json.dumps(self.timer.seconds))


def timed_training(config: TrainConfig) -> dict[str, list[float]]:
    """Train; return the seconds of each part of each step, and of the whole "step", on rank 0."""
    train(config, Timing())
    return json.loads(Path(config.output, "seconds.json").read_text())
