"""Trainings, each a command of its own, and their stored results."""

import contextlib
import functools
import hashlib
import json
import logging
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from measuring.children import Finished, command, run_from_small_process
from measuring.sources import as_json

from paddle_mnist.errors import PaddleMnistError
from paddle_mnist.mnist.config import FLAT_OPTIONS, TrainConfig, read_recipe
from paddle_mnist.mnist.images import Images
from paddle_mnist.system.files import write_atomically
from reproduction.workspace import Workspace

TRAIN_IMAGES = 50_000  # of the training split
TRAIN_SCORED = 10_000  # of them, the first, the trained net is scored on
TUTORIAL = "baseline_tutorial.py"
QUIET = {"visualdl": "false", "figures": "false", "watch": 0, "log_every": 250}
FRUGAL = {"keep_epochs": "false", "keep_last": 1, "keep_best": "false"}
# Options that are younger than the stored results, which do not name them, and their values there.
YOUNGER = (
    ("accumulate", 1),
    ("schedule_every", "step"),
    ("drop_last", False),
    ("steps_per_epoch", None),
    ("max_steps", None),
    ("early_stop_min_delta", 0.0),
)
LENGTHS = {"epochs", "train_limit", "eval_limit"}  # options that a step does not depend on
KEPT = ("eval_acc", "eval_loss", "valid_acc", "valid_loss", "steps", "paddle", "numpy")


@dataclass(frozen=True)
class Training:
    """A recipe, a seed, and the options that differ from the recipe's."""

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
        options = _deciding(self.recipe, self.options)
        return options["epochs"] * (options["train_limit"] or TRAIN_IMAGES)

    def settings(self, data: Images) -> str:
        """Return a digest of the options and images."""
        return digest({**_deciding(self.recipe, self.options), "seed": self.seed}, data.hash)

    def run(self, workspace: Workspace) -> dict[str, Any]:
        """Train, or resume an interrupted training, and return the result."""
        data, folder = workspace.data, self._train(workspace)
        result = json.loads((folder / "result.json").read_text("utf-8"))
        on_training_images = self._evaluate(folder, data, "train", TRAIN_SCORED)
        on_eval = self._evaluate(folder, data, "eval", dict(self.options).get("eval_limit"))
        wrong = (on_eval.labels != on_eval.predictions).nonzero()[0]
        return {
            **{key: result[key] for key in KEPT},
            "train_loss": on_training_images.loss,
            "curve": [[step, round(loss, 5)] for step, loss in train_losses(folder).items()],
            "wrong": [[int(number), int(on_eval.predictions[number])] for number in wrong],
        }

    def _train(self, workspace: Workspace) -> Path:
        """Train, or resume an interrupted training, and return its folder."""
        data, output = workspace.data, workspace.output
        folder, started = output / self.folder, output / f"{self.folder}.settings"
        settings = self.settings(data)
        if started.exists() and started.read_text("utf-8") != settings:
            shutil.rmtree(folder, ignore_errors=True)  # started with other options
        output.mkdir(parents=True, exist_ok=True)
        write_atomically(started, settings.encode())
        options = {**FRUGAL, **dict(self.options), "seed": self.seed, "data": data.path}
        if workspace.jobs > 1:
            options["threads"] = 1
        train(self.recipe, options, folder, workspace.is_in_process)
        return folder

    def _evaluate(self, folder: Path, data: Images, split: str, limit: Optional[int]) -> Any:
        """Return the `Evaluation` of the final weights, on images without augmentation."""
        from paddle_mnist.mnist.evaluation import load_and_evaluate

        checkpoint = load_and_evaluate("latest", str(folder), data.path, split, limit=limit)
        return checkpoint.evaluation


@functools.cache
def _deciding(recipe: str, options: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """Return what `deciding` does of a recipe; every seed of a row asks for it."""
    return deciding(TrainConfig.from_mapping({**read_recipe(recipe), **dict(options)}))


def deciding(config: TrainConfig) -> dict[str, Any]:
    """Return the options that decide the result, by flat name, without those in `YOUNGER`."""
    values = config.as_dict()
    return {
        name: values[name]
        for name, one in FLAT_OPTIONS.items()
        if one.declared.must_match and (name, values[name]) not in YOUNGER
    }


class BaselineTutorial(Training):
    """The tutorial's own loop, `tools/baseline_tutorial.py`; its only option is epochs.

    It evaluates on the eval split only.
    """

    @property
    def images(self) -> int:
        return dict(self.options).get("epochs", 5) * TRAIN_IMAGES

    def settings(self, data: Images) -> str:
        return digest(self.options, self.seed, data.hash)

    def run(self, workspace: Workspace) -> dict[str, Any]:
        data = as_json(workspace.data, workspace.output)
        options = {"data": data, "seed": self.seed, **dict(self.options)}
        printed = run_tool("baseline_tutorial.py", options, self.name).printed
        (accuracy,) = re.findall(r"^eval accuracy ([\d.]+)$", printed, re.MULTILINE)
        return {"eval_acc": float(accuracy)}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Log nothing meanwhile."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def train_losses(folder: Path) -> dict[int, float]:
    """Read the training losses of a run directory, by step."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    return {line["step"]: line["value"] for line in lines if line["tag"] == "train/loss"}


def digest(*values: Any) -> str:
    """Return what tells these values from others."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def run_tool(tool: str, options: Mapping[str, Any], name: str) -> Finished:
    """Run one of the tools. name: of what it does. Raises PaddleMnistError if it fails."""
    done = run_from_small_process(command(tool, options))
    if done.code:
        raise PaddleMnistError(f"{name}: exit code {done.code}:\n{done.errors}")
    return done


def train(recipe: str, options: Mapping[str, Any], output: Path, in_process: bool = False) -> None:
    """Train a recipe with `tools/train.py`.

    options: they extend `QUIET`.
    in_process: in this process, for quick runs, which need not wait for another.
    """
    options = {**QUIET, **options, "output": str(output)}
    if not in_process:
        run_tool("train.py", {"recipe": recipe, **options}, f"the training in {output}")
        return
    from paddle_mnist import train_and_evaluate

    with quiet():
        train_and_evaluate(TrainConfig.from_mapping({**read_recipe(recipe), **options}))


def train_missing(trainings: Collection[Training], workspace: Workspace) -> None:
    """Train what has no result yet, several at a time; interrupted trainings are resumed."""
    results, data = workspace.results, workspace.data
    missing = {
        training.settings(data): training
        for training in reversed(trainings)  # of equal ones the first
        if not results.get(training, data)
    }
    missing = list(reversed(missing.values()))

    def run(training: Training) -> str:
        result = training.run(workspace)
        results.put(training, data, result)
        # The eval split must not influence any choice, so it is not shown where valid is known.
        split = "valid" if "valid_acc" in result else "eval"
        return f"{training.name}: {split} {result[f'{split}_acc']:.4f}"

    with ThreadPoolExecutor(workspace.jobs) as pool:
        # Signals are handled in the main thread only.
        lines = (map if workspace.is_in_process else pool.map)(run, missing)
        for number, line in enumerate(lines, 1):
            print(f"{number} of {len(missing)}: {line}", file=sys.stderr, flush=True)
