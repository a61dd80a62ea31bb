"""A claim of the page: its trainings, results, figures and table; and the experiments."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from benchmarks.measured import machine

from paddle_mnist.mnist.images import Images
from paddle_mnist.system.files import write_atomically
from reproduction.trainings import Training
from reproduction.workspace import Scale, Workspace

Report = Mapping[str, Any]
Draw = Callable[[Report, Images], Any]
Find = Callable[[Report], dict[str, Any]]
Measure = Callable[[str, Path, Scale], dict[str, Any]]


@dataclass(frozen=True)
class Claim:
    """A claim of the documents, or a question of this project.

    id: its anchor on the page, and its name on the command line.
    """

    id: str

    draw = None

    def trainings(self, scale: Scale) -> list[Training]:
        """Return the trainings that the claim rests on."""
        return []

    def measure_missing(self, workspace: Workspace) -> None:
        """Measure what has no stored result."""

    def report(self, workspace: Workspace, seconds: Mapping[str, float]) -> dict[str, Any]:
        """Return what was measured; seconds: per image, by `Row.step_name`."""
        raise NotImplementedError

    def stored(self, folder: Path, figures: Report) -> Report:
        """Return the report that the page is written from; figures: what `page.json` holds."""
        return figures

    def table(self, report: Report) -> str:
        raise NotImplementedError

    def figures(self, report: Report) -> Report:
        """Return what `page.json` holds."""
        return report

    def main_figures(self, report: Report) -> Report:
        """Return what the page itself holds as JSON."""
        return {}

    def findings(self, report: Report) -> dict[str, Any]:
        """Return the figures of the page's sentences, by the names that its marks use."""
        return dict(report)

    def is_complete(self, report: Report) -> bool:
        """Return whether the report holds all that the page tells."""
        return bool(report)


@dataclass(frozen=True)
class Experiment(Claim):
    """A claim that one experiment tests, without seeds.

    measure: takes the data's location, a folder to work in, and the scale.
    code: the files and folders of the package that decide the result.
    find: gives figures for the page's sentences, beside those of the report.
    draw: draws the claim's figure. summarize: reduces a report to what `page.json` holds.
    """

    measure: Measure
    tabulate: Callable[[Report], str]
    find: Find = lambda report: {}
    draw: Optional[Draw] = None
    code: Sequence[str] = ("paddle_mnist/mnist/model.py", "paddle_mnist/nn")
    summarize: Callable[[Report], Report] = dict

    def report(self, workspace: Workspace, seconds: Mapping[str, float]) -> dict[str, Any]:
        """Return the stored result; `reproduce.py --anew` measures it again."""
        return self.stored(workspace.folder, {})

    def measure_missing(self, workspace: Workspace) -> None:
        if self.report(workspace, {}):
            return
        output = workspace.output / self.id
        shutil.rmtree(output, ignore_errors=True)  # an interrupted measurement's
        output.mkdir(parents=True)
        report = self.measure(workspace.data.path, output, workspace.scale)
        workspace.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"measured": machine(), "report": report}, indent=1) + "\n"
        write_atomically(workspace.folder / f"{self.id}.json", text.encode())

    def figures(self, report: Report) -> Report:
        return self.summarize(report)

    def stored(self, folder: Path, figures: Report) -> dict[str, Any]:
        path = folder / f"{self.id}.json"
        return json.loads(path.read_text("utf-8"))["report"] if path.exists() else {}

    def findings(self, report: Report) -> dict[str, Any]:
        return {**report, **self.find(report)}

    def table(self, report: Report) -> str:
        return self.tabulate(report) if report else "not measured yet"
