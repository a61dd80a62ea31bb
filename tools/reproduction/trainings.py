"""Trainings with several seeds, each in a process of its own."""

import functools
import json
import multiprocessing
import re
import sys
from collections.abc import Collection, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from benchmarks.sources import as_json
from benchmarks.timing import TUTORIAL, config_of, run_python

from paddle_mnist.mnist.images import open_data
from reproduction.claims import Workspace

TRAIN_IMAGES = 50_000  # of the training split
TRAIN_SCORED = 10_000  # of them, the first, the trained net is scored on
TUTORIAL_EPOCHS = 5  # of the tutorial's own loop
QUIET = {"visualdl": False, "figures": False, "watch": 0, "log_every": 250}
FRUGAL = {"keep_epochs": False, "keep_last": 1, "keep_best": False}
KEPT = ("eval_acc", "eval_loss", "valid_acc", "valid_loss", "steps", "paddle", "numpy")


@dataclass(frozen=True)
class Training:
    """A recipe, a seed, and the options that differ from the recipe's.

    Instead of a recipe, TUTORIAL: the tutorial's own loop, whose only option is epochs.
    """

    recipe: str
    seed: int
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        options = (f"{name}={value}" for name, value in self.options)
        return " ".join([self.recipe, *options, f"seed={self.seed}"])

    @property
    def folder(self) -> str:
        return re.sub(r"[^\w.=-]+", "_", self.name)

    @property
    def images(self) -> int:
        """The number of images that it is shown, counting an image once per epoch."""
        if self.recipe == TUTORIAL:
            return dict(self.options).get("epochs", TUTORIAL_EPOCHS) * TRAIN_IMAGES
        return _images(self.recipe, self.options)

    def run(self, data: str, output: Path, threads: int) -> dict[str, Any]:
        """Train, or resume an interrupted training, and return the result."""
        if self.recipe == TUTORIAL:
            return self._run_tutorial(data, output)
        folder = output / self.folder
        options = {**FRUGAL, **dict(self.options), "seed": self.seed, "data": data}
        train(self.recipe, {**options, "threads": threads}, folder)
        result = json.loads((folder / "result.json").read_text("utf-8"))
        on_training_images = _evaluate(folder, data, "train", TRAIN_SCORED)
        on_eval = _evaluate(folder, data, "eval", dict(self.options).get("eval_limit"))
        wrong = (on_eval.labels != on_eval.predictions).nonzero()[0]
        return {
            **{key: result[key] for key in KEPT},
            "train_loss": on_training_images.loss,
            "curve": [[step, round(loss, 5)] for step, loss in train_losses(folder).items()],
            "wrong": [[int(number), int(on_eval.predictions[number])] for number in wrong],
        }

    def _run_tutorial(self, data: str, output: Path) -> dict[str, Any]:
        """Run `tools/baseline_tutorial.py`, which evaluates on the eval split only."""
        options = {"data": as_json(open_data(data), output), "seed": self.seed}
        words = [f"--{name}={value}" for name, value in {**options, **dict(self.options)}.items()]
        printed = run_python(TUTORIAL, *words).printed
        (accuracy,) = re.findall(r"^eval accuracy ([\d.]+)$", printed, re.MULTILINE)
        return {"eval_acc": float(accuracy)}


@functools.cache
def _images(recipe: str, options: tuple[tuple[str, Any], ...]) -> int:
    """Return the images that a training is shown; every seed of a row asks for it."""
    values = config_of(recipe, **dict(options)).as_dict()
    return values["epochs"] * (values["train_limit"] or TRAIN_IMAGES)


def train(recipe: str, options: Mapping[str, Any], output: Path) -> None:
    """Train a recipe. options: they extend `QUIET`."""
    from paddle_mnist import train_and_evaluate

    config = config_of(recipe, **{**QUIET, **options, "output": str(output)})
    train_and_evaluate(config, quiet=True)


def _evaluate(folder: Path, data: str, split: str, limit: Optional[int]) -> Any:
    """Return the `Evaluation` of the final weights, on images without augmentation."""
    from paddle_mnist.mnist.evaluation import load_and_evaluate

    return load_and_evaluate("latest", str(folder), data, split, limit=limit).evaluation


def train_losses(folder: Path) -> dict[int, float]:
    """Read the training losses of a run directory, by step."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    return {line["step"]: line["value"] for line in lines if line["tag"] == "train/loss"}


def train_missing(trainings: Collection[Training], work: Workspace) -> None:
    """Train what has no result yet, several at a time; interrupted trainings are resumed."""
    missing = [one for one in dict.fromkeys(trainings) if one.name not in work.trainings]
    threads = 1 if work.jobs > 1 else 0
    data, output = work.data.path, work.output
    run = functools.partial(Training.run, data=data, output=output, threads=threads)
    with ProcessPoolExecutor(work.jobs, multiprocessing.get_context("spawn")) as pool:
        results = zip(missing, pool.map(run, missing))
        for number, (training, result) in enumerate(results, 1):
            work.store_training(training.name, result)
            # The eval split must not influence any choice: it is shown only without a valid one.
            split = "valid" if "valid_acc" in result else "eval"
            line = f"{training.name}: {split} {result[f'{split}_acc']:.4f}"
            print(f"{number} of {len(missing)}: {line}", file=sys.stderr, flush=True)
