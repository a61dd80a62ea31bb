"""Claims that are shown once, without seeds: what was done, what came of it."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from paddle_mnist.files import write_atomically
from reproduction.compared import Scale
from reproduction.trainings import fingerprint


@dataclass(frozen=True)
class Shown:
    """A claim, and functions that test it, tell what came of it, and judge.

    measure: of the data's place, a folder to work in, and how much is trained.
    """

    id: str
    source: str
    claim: str
    how: str
    measure: Callable[[str, Path, Scale], dict[str, Any]]
    tabulate: Callable[[Mapping[str, Any]], str]
    verdict: Callable[[Mapping[str, Any]], str]
    draw: Optional[Callable[[Mapping[str, Any]], Any]] = None

    def report(self, folder: Path) -> dict[str, Any]:
        """What was measured with this code; nothing if it was not."""
        path = folder / f"{self.id}.json"
        found = json.loads(path.read_text("utf-8")) if path.exists() else {}
        return found["report"] if found.get("code") == fingerprint() else {}

    def run(self, data: str, folder: Path, output: Path, scale: Scale) -> None:
        if not self.report(folder):
            place = output / fingerprint() / self.id
            shutil.rmtree(place, ignore_errors=True)  # of a measurement that was broken off
            found = self.measure(data, place, scale)
            text = json.dumps({"code": fingerprint(), "report": found}, indent=1)
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / f"{self.id}.json", f"{text}\n".encode())

    def table(self, report: Mapping[str, Any]) -> str:
        return self.tabulate(report) if report else "Not measured yet."

    def judged(self, report: Mapping[str, Any]) -> str:
        return self.verdict(report) if report else "Not measured yet."
