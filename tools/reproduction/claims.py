"""What a claim is: how it is tested, and the verdict on what was measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from paddle_mnist.mnist.arrays import Data
from reproduction.texts import Text, fill, templates
from reproduction.trainings import Training
from reproduction.workspace import Scale, Workspace

Report = Mapping[str, Any]
Draw = Callable[[Report, Data], Any]


@dataclass(frozen=True)
class Verdict:
    """What the figures of a claim come to.

    summary: one sentence or two, without the last full stop.
    outcome: whether it is confirmed or refuted; None where nothing was asserted.
    details: further sentences, in the same way; empty ones do not count.
    short: the claim's line in the page's summary, where `summary` is too long for it.
    """

    summary: Text
    outcome: Optional[Text] = None
    details: Sequence[Text] = ()
    short: Optional[Text] = None


def conclude(
    claim: str, outcome: Optional[Text] = None, details: Sequence[Text] = (), **values: Any
) -> Verdict:
    """Return a verdict from the claim's templates `summary` and `short`, filled with the values."""
    summary, short = (fill(claim, name, **values) for name in ("summary", "short"))
    return Verdict(summary, outcome, details, short)


@dataclass(frozen=True)
class Claim:
    """A claim of the documents or of this project; its texts are in `texts.en.yaml` and `.zh.yaml`.

    id: its anchor on the page, and its name on the command line. verdict: judges a full report.
    """

    id: str
    verdict: Callable[[Report], Verdict]

    draw = None
    settings = None

    @property
    def is_of_documents(self) -> bool:
        """Whether a document makes the claim; otherwise it is a question of this project's."""
        return "source" in templates("en")[self.id]

    @property
    def method(self) -> Text:
        """How it is tested."""
        return fill(self.id, "method", **self.settings or {})

    def trainings(self, scale: Scale) -> list[Training]:
        """Return the trainings that the claim rests on."""
        return []

    def measure_missing(self, workspace: Workspace) -> None:
        """Measure what has no stored result."""

    def report(self, workspace: Workspace, seconds: Mapping[str, float]) -> dict[str, Any]:
        """Return what was measured, with this code; seconds: per image, by `Row.step_name`."""
        raise NotImplementedError

    def table(self, report: Report) -> Text:
        raise NotImplementedError

    def figures(self, report: Report) -> Report:
        """Return what `page.json` holds."""
        return report

    def main_figures(self, report: Report) -> Report:
        """Return what the page itself holds as JSON."""
        return {}

    def is_complete(self, report: Report) -> bool:
        """Return whether the report holds all that the verdict needs."""
        return bool(report)

    def judge(self, report: Report) -> Verdict:
        """Return the verdict, or what is missing for it."""
        if self.is_complete(report):
            return self.verdict(report)
        return Verdict(self.progress(report))

    def progress(self, report: Report) -> Text:
        """Say what is missing."""
        return fill("common", "incomplete")
