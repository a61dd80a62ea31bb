"""A claim of the documents, what is stored of its measurement, and the experiments."""

import functools
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from benchmarks.measured import ROOT, machine

from paddle_mnist.mnist.images import Images
from paddle_mnist.system.files import write_atomically
from paddle_mnist.system.lock import locked

Report = Mapping[str, Any]
Find = Callable[[Report], dict[str, Any]]

SEED = 1  # of what is trained once


@dataclass(frozen=True)
class Workspace:
    """The stored results, and the data, the place and the size of measurements.

    root: of the pages, with the results in `docs/reproduction`. data: None if nothing is measured.
    output: of trainings and other working files. seeds: train with seeds 1 to `seeds`; 0: each
    claim's own number. jobs: how many trainings run at once.
    """

    root: Path = ROOT
    data: Optional[Images] = None
    output: Path = Path("work/output/reproduce")
    seeds: int = 0
    jobs: int = 1
    is_quick: bool = False

    @property
    def folder(self) -> Path:
        """The folder of the stored results."""
        return self.root / "docs/reproduction"

    def choose(self, full: Any, quick: Any) -> Any:
        """Return the size of a measurement: full, or of a quick run."""
        return quick if self.is_quick else full

    def report(self, name: str) -> dict[str, Any]:
        """Return a stored report, an empty one if nothing is stored."""
        path = self.folder / f"{name}.json"
        return json.loads(path.read_text("utf-8"))["report"] if path.exists() else {}

    def store(self, name: str, report: Report) -> None:
        """Store a report, with the commit, the date and the machine of its measurement."""
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"measured": machine(), "report": report}, indent=1) + "\n"
        write_atomically(self.folder / f"{name}.json", text.encode())

    @functools.cached_property
    def trainings(self) -> dict[str, Any]:
        """The stored results of trainings, by name."""
        path = self.folder / "trainings.json"
        return json.loads(path.read_text("utf-8")) if path.exists() else {}

    def store_training(self, name: str, result: Report) -> None:
        """Add the result of a run to the stored ones, which other processes may extend, too."""
        path = self.folder / "trainings.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f"{path.name}.lock")):
            vars(self).pop("trainings", None)  # others may have stored some since
            measured = {key: machine()[key] for key in ("commit", "date", "cpu")}
            self.trainings[name] = {**result, **measured}
            stored = sorted(self.trainings.items())
            lines = (f"{json.dumps(key)}: {json.dumps(result)}" for key, result in stored)
            write_atomically(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())

    def versions(self) -> str:
        """Return the versions of the libraries that the trainings ran with."""
        results = self.trainings.values()
        return ", ".join(
            f"{name} {', '.join(sorted(versions))}"
            for name in ("paddle", "numpy")
            if (versions := {training[name] for training in results if name in training})
        )


@dataclass(frozen=True)
class Claim:
    """A claim of the documents, or a question of this project.

    id: its anchor on the page, and its name on the command line.
    """

    id: str

    def trainings(self, work: Workspace) -> dict[str, Any]:
        """Return the rows and seeds of the trainings that the claim rests on, by name."""
        return {}

    def measure_into(self, work: Workspace) -> None:
        """Measure and store what does not come from trainings."""

    def report(self, work: Workspace) -> Report:
        """Return the stored report, an empty one if nothing was measured."""
        raise NotImplementedError

    def table(self, report: Report) -> str:
        """Return the claim's table for the page, or its figures if the page has no table."""
        raise NotImplementedError

    def findings(self, report: Report) -> dict[str, Any]:
        """Return the figures of the page's sentences, by the names that its marks use."""
        raise NotImplementedError

    def is_complete(self, report: Report) -> bool:
        """Return whether the report holds all that the page needs."""
        return bool(report)


@dataclass(frozen=True)
class Experiment(Claim):
    """A claim that one experiment tests, without seeds.

    measure: takes the workspace, and an empty folder to work in. tabulate: makes the table; None if
    the page's sentences hold all figures. find: gives figures for them, beside those of the report.
    """

    measure: Callable[[Workspace, Path], Report]
    tabulate: Optional[Callable[[Report], str]] = None
    find: Find = lambda report: {}

    def measure_into(self, work: Workspace) -> None:
        folder = work.output / self.id
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted measurement
        folder.mkdir(parents=True)
        work.store(self.id, self.measure(work, folder))

    def report(self, work: Workspace) -> Report:
        return work.report(self.id)

    def findings(self, report: Report) -> dict[str, Any]:
        return {**report, **self.find(report)}

    def table(self, report: Report) -> str:
        if not report:
            return "not measured yet"
        return (self.tabulate or functools.partial(json.dumps, indent=1))(report)
