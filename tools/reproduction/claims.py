"""What the page tells of a claim: trainings, results, figures and a table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddle_mnist.mnist.arrays import Data
from reproduction.trainings import Training
from reproduction.workspace import Scale, Workspace

Report = Mapping[str, Any]
Draw = Callable[[Report, Data], Any]
Find = Callable[[Report], dict[str, Any]]


def nothing_more(report: Report) -> dict[str, Any]:
    """Return no figures beside those of the report."""
    return {}


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
        """Return what was measured, with this code; seconds: per image, by `Row.step_name`."""
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
