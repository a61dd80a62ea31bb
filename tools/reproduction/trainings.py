"""Trainings, each a command of its own, whose results outlive the code around them."""

import functools
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from benchmarks.data import as_json
from filelock import FileLock

from paddle_mnist.errors import PaddleMnistError
from paddle_mnist.mnist.arrays import Data
from paddle_mnist.mnist.config import TrainConfig, read_recipe
from paddle_mnist.system.files import write_atomically
from reproduction.behaviour import behaviour, same

if TYPE_CHECKING:
    from paddle_mnist.training.evaluator import Evaluation

recipe = functools.cache(read_recipe)  # of each, every seed is asked for
TRAIN_IMAGES = 50_000  # of the training split
TRAIN_SCORED = 10_000  # of them, the first, the trained net is scored on
TOOLS = Path(__file__).parents[1]
QUIET = ("--visualdl", "false", "--figures", "false", "--watch", "0", "--log_every", "250")
FRUGAL = ("--keep_epochs", "false", "--keep_last", "1", "--keep_best", "false")
KEPT = ("eval_acc", "eval_loss", "valid_acc", "valid_loss", "steps", "paddle", "numpy")


@dataclass(frozen=True)
class Training:
    """A recipe, a seed, and the options that differ from the recipe's."""

    recipe: str
    seed: int
    told: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return " ".join([self.recipe, *(f"{k}={v}" for k, v in self.told), f"seed={self.seed}"])

    @property
    def folder(self) -> str:
        return re.sub(r"[^\w.=-]+", "_", self.name)

    @property
    def behaviour(self) -> list[float]:
        """What the code that is there makes of its recipe and options."""
        return behaviour(self.recipe, self.told)

    @property
    def images(self) -> int:
        """How many images it is shown, the same one in each epoch anew."""
        config = self._config()
        return config.epochs * (config.train_limit or TRAIN_IMAGES)

    def settings(self, data: Data) -> str:
        """A digest of all that decides the result, but for the code: options and images."""
        return _digest(self._config().binding(), data.hash)

    def _config(self) -> TrainConfig:
        told = {**recipe(self.recipe), **dict(self.told), "seed": self.seed}
        return TrainConfig.from_mapping(told)

    def identity(self, data: Data) -> dict[str, Any]:
        """What its result is a result of."""
        return {"settings": self.settings(data), "behaviour": self.behaviour}

    def run(self, data: Data, output: Path, jobs: int) -> dict[str, Any]:
        """Train, or go on; gives the result."""
        folder, begun = output / self.folder, output / f"{self.folder}.json"
        identity = self.identity(data)
        before = json.loads(begun.read_text("utf-8")) if begun.exists() else identity
        if before["settings"] != identity["settings"] or not same(
            before["behaviour"], identity["behaviour"]
        ):
            shutil.rmtree(folder, ignore_errors=True)  # begun as something else
        output.mkdir(parents=True, exist_ok=True)
        write_atomically(begun, json.dumps(identity).encode())
        command = [str(TOOLS / "train.py"), "--recipe", self.recipe, *QUIET, *FRUGAL]
        command += [str(word) for key, value in self.told for word in (f"--{key}", value)]
        command += ["--seed", str(self.seed), "--data", data.location, "--output", str(folder)]
        run(command + (["--threads", "1"] if jobs > 1 else []), self.name)
        result = json.loads((folder / "result.json").read_text("utf-8"))
        lines = list(map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines()))
        losses = [line for line in lines if line["tag"] == "train/loss"]
        return {
            **{key: result[key] for key in KEPT},
            "train_loss": self._scored(folder, data, "train", TRAIN_SCORED).loss,
            "curve": [[line["step"], round(line["value"], 5)] for line in losses],
            "wrong": self._wrong(folder, data),
        }

    def _wrong(self, folder: Path, data: Data) -> list[list[int]]:
        """[number of the image, digit it was taken for], of the eval split's mistakes."""
        found = self._scored(folder, data, "eval", dict(self.told).get("eval_limit"))
        numbers = (found.labels != found.predictions).nonzero()[0]
        return [[int(number), int(found.predictions[number])] for number in numbers]

    def _scored(self, folder: Path, data: Data, split: str, limit: Optional[int]) -> "Evaluation":
        """What the net is in the end, on the images as they are."""
        from paddle_mnist.mnist.evaluate_checkpoint import load_and_evaluate

        return load_and_evaluate(
            "latest", str(folder), data.location, split, limit=limit
        ).evaluation


class Verbatim(Training):
    """The tutorial's own loop, `tools/baseline_tutorial.py`, which scores the eval split only.

    told: epochs.
    """

    @property
    def behaviour(self) -> list[float]:
        return []

    @property
    def images(self) -> int:
        return dict(self.told).get("epochs", 5) * TRAIN_IMAGES

    def settings(self, data: Data) -> str:
        return _digest(
            (TOOLS / "baseline_tutorial.py").read_text("utf-8"), self.told, self.seed, data.hash
        )

    def run(self, data: Data, output: Path, jobs: int) -> dict[str, Any]:
        command = [str(TOOLS / "baseline_tutorial.py"), "--data", str(as_json(data, output))]
        command += ["--seed", str(self.seed)]
        command += [str(word) for key, value in self.told for word in (f"--{key}", value)]
        said = run(command, self.name)
        (accuracy,) = re.findall(r"^eval accuracy ([\d.]+)$", said, re.MULTILINE)
        return {"eval_acc": float(accuracy)}


def _digest(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def run(command: list[str], name: str) -> str:
    """Run one of the tools; gives what it printed. Raises PaddleMnistError with what went wrong."""
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PaddleMnistError(f"{name}: ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


class Results:
    """What trainings came to, by name, in a JSON file, with what they were results of.

    Several processes may put theirs into one file.
    """

    def __init__(self, path: Path):
        self.path = path
        self._found = self._read()

    def _read(self) -> dict[str, Any]:
        return json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}

    def get(self, training: Training, data: Data) -> Optional[dict[str, Any]]:
        """The result, if there is one of these settings, these images, and what the code computes.

        It is the same code as long as it computes the same (`reproduction.behaviour`), and the same
        training whatever its recipe is called.
        """
        settings = training.settings(data)
        alike = [one for one in self._found.values() if one["settings"] == settings]
        return next((one for one in alike if same(one["behaviour"], training.behaviour)), None)

    def versions(self) -> list[str]:
        """Of the libraries that the trainings were made with."""
        return [
            f"{name} {', '.join(sorted(found))}"
            for name in ("paddle", "numpy")
            if (found := {one[name] for one in self._found.values() if name in one})
        ]

    def put(self, training: Training, data: Data, found: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"):
            self._found = {**self._read(), training.name: {**training.identity(data), **found}}
            lines = (
                f"{json.dumps(name)}: {json.dumps(one)}"
                for name, one in sorted(self._found.items())
            )
            write_atomically(self.path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def train_all(
    trainings: Collection[Training], results: Results, data: Data, output: Path, jobs: int
) -> None:
    """Train what has no result yet, so many at a time; what was broken off goes on."""
    missing: dict[str, Training] = {}
    for one in trainings:
        if not results.get(one, data):
            missing.setdefault(one.settings(data), one)
    left = missing.values()
    for one in left:
        one.behaviour  # noqa: B018 - here, for Paddle's seed is the whole process's

    def train(training: Training) -> str:
        found = training.run(data, output, jobs)
        results.put(training, data, found)
        # Nothing is to be chosen by the eval split, so that nobody should see it too early.
        split = "valid" if "valid_acc" in found else "eval"
        return f"{training.name}: {split} {found[f'{split}_acc']:.4f}"

    with ThreadPoolExecutor(jobs) as pool:
        for number, said in enumerate(pool.map(train, left), 1):
            print(f"{number} of {len(left)}: {said}", file=sys.stderr, flush=True)
