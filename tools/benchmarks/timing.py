"""Seconds of calls, of steps, of commands, and of the parts of a run."""

import concurrent.futures
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from measuring.children import TOOLS, Finished, run_from_small_process

from paddle_mnist.mnist.config import TrainConfig, read_recipe

TRAIN, TUTORIAL = "train.py", "baseline_tutorial.py"


def seconds_of(function: Callable, *args: Any) -> float:
    began = time.perf_counter()
    function(*args)
    return time.perf_counter() - began


def seconds_of_steps(step: Callable[[int], Any], count: int) -> float:
    """Return the seconds of a step: the mean of `count` steps, which are numbered from 0."""
    return seconds_of(lambda: [step(number) for number in range(count)]) / count


def median_rate(step: Callable[[int], Any], samples: int, seconds: float) -> float:
    """Return the samples a second of steps that run for some seconds, after ten to warm up."""
    seconds_of_steps(step, 10)
    rates, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        rates.append(samples / seconds_of_steps(step, 10))
    return statistics.median(rates)


def run_python(*arguments: Any, **environment: str) -> Finished:
    """Run Python with these arguments in `tools/`, in a process of its own.

    Raises ModuleNotFoundError where a module is missing, such as PyTorch, CalledProcessError if it
    fails otherwise.
    """
    command = [sys.executable, *map(str, arguments)]
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


def config_of(recipe: str, **changes: Any) -> TrainConfig:
    """Return the configuration of a recipe, with these changes."""
    return TrainConfig.from_mapping({**read_recipe(recipe), **changes})


def train(config: TrainConfig, *callbacks: Any, **arguments: Any) -> None:
    """Train with `fit`, with callbacks besides those of the configuration."""
    from paddle_mnist import fit
    from paddle_mnist.mnist.setup import fit_arguments

    given = fit_arguments(config)
    fit(**{**given, **arguments, "callbacks": [*given["callbacks"], *callbacks]})


def timed_training(config: TrainConfig) -> dict[str, list[float]]:
    """Train, and return the seconds of each part of each step, and of the whole "step".

    Of several processes, those of the first.
    """
    from benchmarks.callbacks import Timing

    train(config, Timing())
    return json.loads(Path(config.output, "seconds.json").read_text())
