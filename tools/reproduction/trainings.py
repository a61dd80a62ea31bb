"""Trainings with several seeds, each in a process of its own."""

import functools
import json
import multiprocessing
import re
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

from benchmarks.sources import as_json
from benchmarks.timing import TUTORIAL, config_of, run_python

from paddle_mnist.mnist.images import open_data
from reproduction.claims import Workspace

TRAIN_SCORED = 10_000  # images, the first of the training split, that a trained net is scored on
QUIET = {"visualdl": False, "figures": False, "watch": 0, "log_every": 250}
FRUGAL = {"keep_epochs": False, "keep_last": 1, "keep_best": False}
QUICK = {"epochs": 1, "train_limit": 640, "eval_limit": 300}
KEPT = ("eval_acc", "eval_loss", "valid_acc", "valid_loss", "steps", "paddle", "numpy")


@dataclass(frozen=True)
class Row:
    """A way to train, a row of a table: a recipe, and the options that differ from the recipe's.

    With TUTORIAL instead of a recipe, it is the tutorial's own loop, whose only option is epochs.
    """

    title: str
    recipe: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def sized(self, work: Workspace) -> "Row":
        """Return the row itself, or a short training of a quick run."""
        if not work.is_quick:
            return self
        quick = {"epochs": 1} if self.recipe == TUTORIAL else QUICK
        return replace(self, options={**self.options, **quick})

    def name(self, seed: int) -> str:
        """Return the name by which the result of a seed is stored."""
        options = (f"{name}={value}" for name, value in sorted(self.options.items()))
        return " ".join([self.recipe, *options, f"seed={seed}"])

    def train(self, seed: int, data: str, output: Path, threads: int) -> dict[str, Any]:
        """Train, or resume an interrupted training, and return the result."""
        if self.recipe == TUTORIAL:
            return self._run_tutorial(seed, data, output)
        folder = run_folder(output, self.name(seed))
        options = {**FRUGAL, **self.options, "seed": seed, "data": data}
        train(self.recipe, {**options, "threads": threads}, folder)
        result = json.loads((folder / "result.json").read_text("utf-8"))
        train_loss = evaluate_run(folder, data, "train", TRAIN_SCORED).loss
        return {**{key: result[key] for key in KEPT}, "train_loss": train_loss}

    def _run_tutorial(self, seed: int, data: str, output: Path) -> dict[str, Any]:
        """Run `tools/baseline_tutorial.py`, which evaluates on the eval split only."""
        options = {"data": as_json(open_data(data), output), "seed": seed, **self.options}
        words = [f"--{name}={value}" for name, value in options.items()]
        printed = run_python(TUTORIAL, *words).printed
        (accuracy,) = re.findall(r"^eval accuracy ([\d.]+)$", printed, re.MULTILINE)
        return {"eval_acc": float(accuracy)}


def run_folder(output: Path, name: str) -> Path:
    """Return the run directory for a name, in which odd characters become underscores."""
    return output / re.sub(r"[^\w.=-]+", "_", name)


def train(recipe: str, options: Mapping[str, Any], output: Path) -> Mapping[str, float]:
    """Train a recipe, and return its final metrics. options: they extend `QUIET`."""
    from paddle_mnist import train_and_evaluate

    config = config_of(recipe, **{**QUIET, **options, "output": str(output)})
    return train_and_evaluate(config, quiet=True).metrics


def evaluate_run(folder: Path, data: str, split: str, limit: Optional[int] = None) -> Any:
    """Return the `Evaluation` of a run's final weights, on images without augmentation."""
    from paddle_mnist.mnist.evaluation import load_and_evaluate

    return load_and_evaluate("latest", str(folder), data, split, limit=limit).evaluation


def train_losses(folder: Path) -> dict[int, float]:
    """Read the training losses of a run directory, by step."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    return {line["step"]: line["value"] for line in lines if line["tag"] == "train/loss"}


def train_missing(trainings: Mapping[str, tuple[Row, int]], work: Workspace) -> None:
    """Train what has no result yet, several at a time; interrupted trainings are resumed.

    trainings: rows and seeds, by the names of their results.
    """
    missing = [name for name in trainings if name not in work.trainings]
    threads = 1 if work.jobs > 1 else 0
    run = functools.partial(Row.train, data=work.data.path, output=work.output, threads=threads)
    rows, seeds = ([trainings[name][part] for name in missing] for part in (0, 1))
    with ProcessPoolExecutor(work.jobs, multiprocessing.get_context("spawn")) as pool:
        results = zip(missing, pool.map(run, rows, seeds))
        for number, (name, result) in enumerate(results, 1):
            work.store_training(name, result)
            # The eval split must not influence any choice: it is shown only without a valid split.
            split = "valid" if "valid_acc" in result else "eval"
            line = f"{name}: {split} {result[f'{split}_acc']:.4f}"
            print(f"{number} of {len(missing)}: {line}", file=sys.stderr, flush=True)
