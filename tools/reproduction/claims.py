"""What a claim is: how it is tested, and the verdict on what was measured."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from paddle_mnist.mnist.arrays import Data
from reproduction.texts import Text, fill, templates
from reproduction.trainings import Results, Training

Report = Mapping[str, Any]
Draw = Callable[[Report, Data], Any]


@dataclass(frozen=True)
class Verdict:
    """What the figures of a claim come to.

    summary: one sentence without its period, the claim's line in both summaries of the page.
    outcome: whether it is confirmed or refuted; None where nothing was asserted.
    details: further sentences, in English.
    """

    summary: Text
    outcome: Optional[Text] = None
    details: str = ""

    @property
    def first_sentence(self) -> Text:
        if not self.outcome:
            return self.summary
        return fill("common", "judged", outcome=self.outcome, summary=self.summary)

    def __str__(self) -> str:
        return f"{self.first_sentence.en}. {self.details}".rstrip()


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    seeds: train with seeds 1 to `seeds`; 0: each claim's own number.
    quick: a rehearsal. probe: the least that tells one behaviour from another
    (`reproduction.fingerprint`).
    """

    seeds: int = 0
    quick: bool = False
    probe: bool = False

    def choose(self, full: Any, quick: Any, probe: Any) -> Any:
        """Return the size for this scale."""
        if self.probe:
            return probe
        return quick if self.quick else full


@dataclass(frozen=True)
class Workspace:
    """What the claims are tested on, and where their results are.

    folder: of the stored results. output: of the trainings and other working files.
    jobs: how many trainings run at once.
    """

    data: Data
    folder: Path
    output: Path
    scale: Scale = Scale()
    jobs: int = 1

    @property
    def is_in_process(self) -> bool:
        """Whether trainings run in this process, which saves a rehearsal their starts."""
        return self.scale.quick and self.jobs == 1

    @functools.cached_property
    def results(self) -> Results:
        return Results(self.folder / "trainings.json")


@dataclass(frozen=True)
class Claim:
    """A claim of the documents or of this project; its texts are in `texts.en.yaml` and `.zh.yaml`.

    id: its heading on the page, and its name on the command line. verdict: judges a full report.
    """

    id: str
    verdict: Callable[[Report], Verdict]

    draw = None
    settings = None

    @property
    def source(self) -> str:
        return templates("en")[self.id]["source"]

    @property
    def title(self) -> Text:
        return fill(self.id, "claim")

    @property
    def method(self) -> str:
        """How it is tested, in English."""
        return templates("en")[self.id]["method"].format(**self.settings or {})

    def trainings(self, scale: Scale) -> list[Training]:
        """Return the trainings that the claim rests on."""
        return []

    def measure_missing(self, workspace: Workspace) -> None:
        """Measure what has no stored result."""

    def report(self, workspace: Workspace, seconds: Mapping[str, float]) -> dict[str, Any]:
        """Return what was measured, with this code; seconds: per image, by `Row.step_name`."""
        raise NotImplementedError

    def table(self, report: Report) -> str:
        raise NotImplementedError

    def figures(self, report: Report) -> Report:
        """Return what the page's JSON block holds."""
        return report

    def is_complete(self, report: Report) -> bool:
        """Return whether the report holds all that the verdict needs."""
        return bool(report)

    def judge(self, report: Report) -> Verdict:
        """Return the verdict, or what is missing for it."""
        if self.is_complete(report):
            return self.verdict(report)
        return Verdict(Text(self.progress(report), fill("common", "incomplete").zh))

    def progress(self, report: Report) -> str:
        """Say in English what is missing."""
        return fill("common", "incomplete").en
