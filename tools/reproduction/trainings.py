"""Trainings, each a `tools/train.py` of its own, whose results outlive the code around them."""

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import paddle_mnist
from paddle_mnist.errors import PaddleMnistError
from paddle_mnist.files import write_atomically

# The rooms of the package that decide what a training comes to.
ROOMS = (
    *("augment", "average", "data", "evaluator", "fast_conv", "model", "optim", "randomness"),
    *("sampler", "start", "trainer"),
)
QUIET = ("--visualdl", "false", "--figures", "false", "--watch", "0", "--log_every", "1000")
FRUGAL = ("--keep_epochs", "false", "--keep_last", "1", "--keep_best", "false")


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
    def arguments(self) -> list[str]:
        told = (*self.told, ("seed", self.seed))
        return ["--recipe", self.recipe, *(str(x) for k, v in told for x in (f"--{k}", v))]


class Results:
    """What trainings came to, by name, in a JSON file; only of the code that is there now."""

    def __init__(self, path: Path):
        self.path, self._lock = path, threading.Lock()
        self._found = json.loads(path.read_text("utf-8")) if path.exists() else {}

    def get(self, training: Training) -> Optional[dict[str, Any]]:
        found = self._found.get(training.name)
        return found if found and found["code"] == fingerprint() else None

    def put(self, training: Training, found: dict[str, Any]) -> None:
        with self._lock:
            self._found[training.name] = {"code": fingerprint(), **found}
            lines = (
                f"{json.dumps(name)}: {json.dumps(one)}"
                for name, one in sorted(self._found.items())
            )
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def fingerprint() -> str:
    """Of the code that decides a training's result, whatever its comments and docstrings say."""
    global _fingerprint
    if not _fingerprint:
        import numpy
        import paddle

        digest = hashlib.sha256(f"{paddle.__version__} {numpy.__version__}".encode())
        package = Path(paddle_mnist.__file__).parent
        for room in ROOMS:
            files = [package / f"{room}.py", *sorted((package / room).glob("*.py"))]
            for path in filter(Path.exists, files):
                digest.update(ast.dump(_bare(ast.parse(path.read_text("utf-8")))).encode())
        _fingerprint = digest.hexdigest()[:12]
    return _fingerprint


_fingerprint = ""


def _bare(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            del body[0]
    return tree


def train_all(
    trainings: Collection[Training], results: Results, data: str, output: Path, jobs: int
) -> None:
    """Train what has no result yet, so many at a time; what was broken off goes on."""
    left = [one for one in dict.fromkeys(trainings) if not results.get(one)]
    with ThreadPoolExecutor(jobs) as pool:
        for number, name in enumerate(
            pool.map(lambda one: _train(one, results, data, output, jobs), left), 1
        ):
            print(f"{number} of {len(left)}: {name}", file=sys.stderr, flush=True)


def _train(training: Training, results: Results, data: str, output: Path, jobs: int) -> str:
    folder = output / fingerprint() / training.folder
    script = Path(__file__).parents[1] / "train.py"
    command = [sys.executable, str(script), *training.arguments, *QUIET, *FRUGAL]
    command += ["--data", data, "--output", str(folder)]
    command += ["--threads", "1"] if jobs > 1 else []
    done = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=lambda: os.nice(19), check=False
    )
    if done.returncode:
        raise PaddleMnistError(f"{training.name}: ended with {done.returncode}:\n{done.stderr}")
    result = json.loads((folder / "result.json").read_text("utf-8"))
    kept = ("eval_acc", "eval_loss", "valid_acc", "valid_loss", "steps", "train_seconds")
    found = {key: result[key] for key in kept}
    results.put(training, {**found, "wrong": _wrong(folder, data, training)})
    return f"{training.name}: valid {found['valid_acc']:.4f}"


def _wrong(folder: Path, data: str, training: Training) -> list[list[int]]:
    """[number of the image, digit it was taken for], of the eval split's mistakes."""
    from paddle_mnist.score import score_checkpoint

    limit = dict(training.told).get("eval_limit")
    found = score_checkpoint("latest", str(folder), data, limit=limit).found
    numbers = (found.labels != found.predictions).nonzero()[0]
    return [[int(number), int(found.predictions[number])] for number in numbers]
