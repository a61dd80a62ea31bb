"""Claims about accuracies: trainings with several seeds, compared."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from paddle_mnist.mnist.arrays import Data
from reproduction.trainings import Results, Training

QUICK = {"epochs": 1, "train_limit": 640, "eval_limit": 300}
LENGTHS = {"epochs", "train_limit", "eval_limit"}  # what a step does not depend on
MOST = 100  # seeds that are looked for

Report = Mapping[str, Any]


def scores(report: Report, split: str = "eval") -> dict[str, list[float]]:
    """The accuracies of each row."""
    return {name: one[f"{split}_acc"] for name, one in report.items()}


@dataclass(frozen=True)
class Scale:
    """How much is trained: seeds 1 to `seeds`, or what is customary for the claim."""

    seeds: int = 0
    quick: bool = False


@dataclass(frozen=True)
class Row:
    """One way to train, in words and as a recipe with options.

    quick: the options of a rehearsal.
    """

    title: str
    recipe: str
    told: Mapping[str, Any] = field(default_factory=dict)
    kind: type[Training] = Training
    quick: Mapping[str, Any] = field(default_factory=lambda: QUICK)

    @property
    def step(self) -> str:
        """What of it decides how long a step takes."""
        told = (f"{name}={value}" for name, value in self.told.items() if name not in LENGTHS)
        return " ".join([self.recipe, *told])

    def training(self, seed: int, scale: Scale) -> Training:
        told = {**self.told, **self.quick} if scale.quick else self.told
        return self.kind(self.recipe, seed, tuple(sorted(told.items())))


@dataclass(frozen=True)
class Compared:
    """A claim, the trainings that test it, and what they say of it.

    rows: by the name that the JSON block gives them. seeds: how many a verdict takes.
    split: whose accuracy counts; "valid" where something is chosen by it.
    also: other figures of the trainings that count, with their titles.
    verdict, draw: from the report.
    """

    id: str
    source: str
    claim: str
    how: str
    rows: Mapping[str, Row]
    seeds: int
    verdict: Callable[[Report], str]
    split: str = "eval"
    draw: Optional[Callable[[Report, Data], Any]] = None
    also: Mapping[str, str] = field(default_factory=dict)

    def trainings(self, scale: Scale) -> list[Training]:
        count = scale.seeds or (2 if scale.quick else self.seeds)
        return [
            row.training(seed, scale) for row in self.rows.values() for seed in range(1, count + 1)
        ]

    def results(
        self, results: Results, data: Data, scale: Scale = Scale()
    ) -> dict[str, list[dict[str, Any]]]:
        """Of each row what all trainings that there are came to, with their seeds."""
        found = {}
        for name, row in self.rows.items():
            done = ((seed, results.get(row.training(seed, scale), data)) for seed in range(1, MOST))
            found[name] = [{"seed": seed, **result} for seed, result in done if result]
        return found

    def report(
        self, results: Results, data: Data, scale: Scale, costs: Mapping[str, float]
    ) -> dict[str, Any]:
        """The figures of each row. costs: seconds for each image, by `Row.step`."""
        kept = (f"{self.split}_acc", f"{self.split}_loss", *self.also)
        report = {}
        for name, done in self.results(results, data, scale).items():
            if not done:
                continue
            images = self.rows[name].training(1, scale).images
            report[name] = {"seeds": [result["seed"] for result in done], "images": images}
            for key in kept:
                if key in done[0]:
                    report[name][key] = [result[key] for result in done]
            if self.rows[name].step in costs:
                report[name]["minutes"] = images * costs[self.rows[name].step] / 60
            if self.draw:
                points = [list(zip(*result["curve"])) for result in done]
                report[name]["steps"] = points[0][0]
                report[name]["train_losses"] = list(
                    map(statistics.fmean, zip(*(losses for _, losses in points)))
                )
        return report

    def figures(self, report: Report) -> dict[str, Any]:
        """What the page's JSON block holds: the rows, or a single row's figures alone."""
        return dict(report if len(self.rows) > 1 else report.get(*self.rows, {}))

    def table(self, report: Report) -> str:
        kept = (f"{self.split}_loss", *self.also)
        titles = [f"{self.split} accuracy: mean", "sd", "least", "most", f"{self.split} loss"]
        titles += [*self.also.values(), "seeds", "images seen", "minutes"]
        lines = [f"| | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
        for name, row in self.rows.items():
            if name not in report:
                lines.append(f"| {row.title} | not measured yet |" + " |" * (len(titles) - 1))
                continue
            one = report[name]
            found = one[f"{self.split}_acc"]
            spread = f"{statistics.stdev(found):.3%}" if len(found) > 1 else ""
            minutes = f"{one['minutes']:.1f}" if "minutes" in one else ""
            losses = [f"{statistics.mean(one[key]):.4f}" if key in one else "" for key in kept]
            lines.append(
                f"| {row.title} | {statistics.mean(found):.3%} | {spread} | {min(found):.2%} | "
                f"{max(found):.2%} | {' | '.join(losses)} | "
                f"{len(found)} | {one['images']:,} | {minutes} |"
            )
        return "\n".join(lines)

    def measured(self, report: Report) -> bool:
        """Whether all is there that the verdict takes."""
        asked = set(range(1, self.seeds + 1))
        return all(asked <= set(report.get(name, {}).get("seeds", ())) for name in self.rows)

    def judged(self, report: Report) -> str:
        if self.measured(report):
            return self.verdict(report)
        done = sum(min(self.seeds, len(one["seeds"])) for one in report.values())
        return f"No verdict yet: {done} of {self.seeds * len(self.rows)} trainings are done."
