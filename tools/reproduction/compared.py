"""Claims about accuracies: trainings with several seeds, compared."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from reproduction.trainings import Results, Training

QUICK = {"epochs": 1, "train_limit": 640, "eval_limit": 300}


@dataclass(frozen=True)
class Scale:
    """How much is trained: seeds 1 to `seeds`, or what is customary for the claim."""

    seeds: int = 0
    quick: bool = False


@dataclass(frozen=True)
class Row:
    """One way to train, in words and as a recipe with options."""

    title: str
    recipe: str
    told: Mapping[str, Any]

    def trainings(self, seeds: int, scale: Scale) -> list[Training]:
        told = {**self.told, **QUICK} if scale.quick else self.told
        count = scale.seeds or (2 if scale.quick else seeds)
        return [
            Training(self.recipe, seed, tuple(sorted(told.items()))) for seed in range(1, count + 1)
        ]


@dataclass(frozen=True)
class Compared:
    """A claim, the trainings that test it, and what they say of it.

    rows: by the name that the JSON block gives them. seeds: how many, unless told otherwise.
    split: whose accuracy counts; "valid" where something is chosen by it.
    verdict: from the accuracies of each row.
    """

    id: str
    source: str
    claim: str
    how: str
    rows: Mapping[str, Row]
    seeds: int
    verdict: Callable[[Mapping[str, list[float]]], str]
    split: str = "eval"

    def trainings(self, scale: Scale) -> list[Training]:
        return [one for row in self.rows.values() for one in row.trainings(self.seeds, scale)]

    def report(self, results: Results, scale: Scale) -> dict[str, Any]:
        """Of each row the seeds that are done and what they came to."""
        found = {}
        for name, row in self.rows.items():
            done = [(one, results.get(one)) for one in row.trainings(self.seeds, scale)]
            done = [(one, result) for one, result in done if result]
            if done:
                found[name] = {
                    "seeds": [one.seed for one, _ in done],
                    f"{self.split}_acc": [result[f"{self.split}_acc"] for _, result in done],
                    f"{self.split}_loss": [result[f"{self.split}_loss"] for _, result in done],
                    "train_seconds": [result["train_seconds"] for _, result in done],
                }
        return found

    def table(self, report: Mapping[str, Any]) -> str:
        lines = [
            f"| | {self.split} accuracy: mean | sd | least | most | loss | seeds | minutes each |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for name, row in self.rows.items():
            if name not in report:
                lines.append(f"| {row.title} | not measured yet | | | | | | |")
                continue
            one = report[name]
            scores = one[f"{self.split}_acc"]
            spread = f"{statistics.stdev(scores):.3%}" if len(scores) > 1 else ""
            lines.append(
                f"| {row.title} | {statistics.mean(scores):.3%} | {spread} | {min(scores):.2%} | "
                f"{max(scores):.2%} | {statistics.mean(one[f'{self.split}_loss']):.4f} | "
                f"{len(scores)} | {statistics.median(one['train_seconds']) / 60:.1f} |"
            )
        return "\n".join(lines)

    def judged(self, report: Mapping[str, Any]) -> str:
        missing = [row.title for name, row in self.rows.items() if name not in report]
        if missing:
            return "Not measured yet: " + ", ".join(missing) + "."
        return self.verdict({name: one[f"{self.split}_acc"] for name, one in report.items()})
