"""Claims that are shown once, without seeds: what was done, what came of it."""

import hashlib
import importlib
import inspect
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from paddle_mnist.mnist import pretrained
from paddle_mnist.mnist.arrays import Data
from paddle_mnist.system.files import write_atomically
from reproduction.behaviour import behaviour, same
from reproduction.compared import Scale

# By name: some of these modules import Paddle, which --help does without.
SAVING = (
    *("paddle_mnist.checkpoint.checkpointer", "paddle_mnist.checkpoint.contents"),
    *("paddle_mnist.system.files", "paddle_mnist.checkpoint.policy"),
    *("paddle_mnist.checkpoint.safe_load", "paddle_mnist.state", "paddle_mnist.checkpoint.store"),
    "paddle_mnist.checkpoint.manifest",
)
PRETRAINED = (
    "the weights that come with the package (recipe `best`, seed 1, trained on another CPU than "
    "that of the seed 1 in `best`)"
)


@dataclass(frozen=True)
class Shown:
    """A claim, and functions that test it, tell what came of it, and judge.

    measure: of the data's place, a folder to work in, and how much is trained.
    draw: of the report and the data.
    settings: what else decides the result, and may be written to JSON.
    uses: what else has a source that decides it, functions and names of modules.
    of_the_weights: whether the weights that come with the package are what is measured.
    """

    id: str
    source: str
    claim: str
    how: str
    measure: Callable[[str, Path, Scale], dict[str, Any]]
    tabulate: Callable[[Mapping[str, Any]], str]
    verdict: Callable[[Mapping[str, Any]], str]
    draw: Optional[Callable[[Mapping[str, Any], Data], Any]] = None
    settings: Any = None
    of_the_weights: bool = False
    uses: tuple[Any, ...] = ()

    def report(self, folder: Path, data: Data) -> dict[str, Any]:
        """What was measured, if with these settings, images and weights, and this code.

        It is the same code if `measure`, and what it uses, have the same text, and trainings
        compute the same.
        """
        path = folder / f"{self.id}.json"
        found = json.loads(path.read_text("utf-8")) if path.exists() else {}
        if found.get("settings") != self._settings(data):
            return {}
        return found["report"] if same(found["behaviour"], self.behaviour()) else {}

    def behaviour(self) -> list[float]:
        """What the code that is there makes of a training."""
        return behaviour()

    def run(self, data: Data, folder: Path, output: Path, scale: Scale) -> None:
        if not self.report(folder, data):
            place = output / self.id
            shutil.rmtree(place, ignore_errors=True)  # of a measurement that was broken off
            self.write(folder, data, self.measure(data.location, place, scale))

    def write(self, folder: Path, data: Data, report: Mapping[str, Any]) -> None:
        found = {"settings": self._settings(data), "behaviour": self.behaviour(), "report": report}
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"{self.id}.json", (json.dumps(found, indent=1) + "\n").encode())

    def figures(self, report: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the page's JSON block holds."""
        return report

    def table(self, report: Mapping[str, Any]) -> str:
        return self.tabulate(report) if self.measured(report) else "Not measured yet."

    def judged(self, report: Mapping[str, Any]) -> str:
        return self.verdict(report) if self.measured(report) else "Not measured yet."

    def measured(self, report: Mapping[str, Any]) -> bool:
        return bool(report)

    def _settings(self, data: Data) -> str:
        weights = pretrained.about()["sha256"] if self.of_the_weights else None
        code = [_source(one) for one in (self.measure, *self.uses)]
        values = json.dumps([code, self.settings, data.hash, weights])
        return hashlib.sha256(values.encode()).hexdigest()[:16]


def _source(code: Any) -> str:
    """The text of a function, or of a module that is given by its name."""
    return inspect.getsource(importlib.import_module(code) if isinstance(code, str) else code)
