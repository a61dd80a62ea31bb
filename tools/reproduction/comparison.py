"""Claims about accuracies: trainings with several seeds, compared."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from markdown_tables import table

from paddle_mnist.errors import PaddleMnistError
from reproduction.claims import Claim, Draw, Find, Report
from reproduction.significance import describe
from reproduction.trainings import LENGTHS, QUIET, Training
from reproduction.workspace import Scale, Workspace

QUICK = {"epochs": 1, "train_limit": 640, "eval_limit": 300}
MOST_SEEDS = 100


def scores(report: Report, split: str = "eval") -> dict[str, list[float]]:
    """Return the accuracies of each row."""
    return {name: row[f"{split}_acc"] for name, row in report.items()}


@dataclass(frozen=True)
class Row:
    """One way to train: a recipe and the options that differ from it.

    quick: the options of a quick run.
    """

    title: str
    recipe: str
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: type[Training] = Training
    quick: Mapping[str, Any] = field(default_factory=lambda: QUICK)

    @property
    def step_options(self) -> dict[str, Any]:
        """The options that decide what a step does, and how long it takes."""
        return {name: value for name, value in self.options.items() if name not in LENGTHS}

    @property
    def step_name(self) -> str:
        return " ".join([self.recipe, *(f"{n}={v}" for n, v in self.step_options.items())])

    def training(self, seed: int, scale: Scale) -> Training:
        options = {**self.options, **self.quick} if scale.quick else self.options
        return self.kind(self.recipe, seed, tuple(sorted(options.items())))


@dataclass(frozen=True)
class Comparison(Claim):
    """A claim and the trainings that test it.

    rows: by the names that the JSON block gives them. seeds: how many the page needs of each.
    split: whose accuracy counts; "valid" where it decides a choice.
    also: further figures of the trainings, with their titles. find: gives figures for the page's
    sentences, beside those of the rows. draw: draws the claim's figure.
    """

    rows: Mapping[str, Row]
    seeds: int
    find: Find = lambda report: {}
    split: str = "eval"
    also: Mapping[str, str] = field(default_factory=dict)
    draw: Optional[Draw] = None

    def trainings(self, scale: Scale) -> list[Training]:
        count = scale.seeds or (2 if scale.quick else self.seeds)
        return [
            row.training(seed, scale) for row in self.rows.values() for seed in range(1, count + 1)
        ]

    def results(self, workspace: Workspace) -> dict[str, list[dict[str, Any]]]:
        """Return all stored results of each row, with their seeds."""
        results, data = workspace.results, workspace.data
        return {
            name: [
                {"seed": seed, **result}
                for seed in range(1, MOST_SEEDS)
                if (result := results.get(row.training(seed, workspace.scale), data))
            ]
            for name, row in self.rows.items()
        }

    def report(self, workspace: Workspace, seconds: Mapping[str, float]) -> dict[str, Any]:
        keys = (f"{self.split}_acc", f"{self.split}_loss", *self.also)
        report = {}
        for name, results in self.results(workspace).items():
            if not results:
                continue
            row = self.rows[name]
            images = row.training(1, workspace.scale).images
            report[name] = {"seeds": [result["seed"] for result in results], "images": images}
            for key in keys:
                if key in results[0]:
                    report[name][key] = [result[key] for result in results]
            if row.step_name in seconds:
                report[name]["minutes"] = images * seconds[row.step_name] / 60
            if self.draw:
                report[name]["curves"] = [result["curve"] for result in results]
        return report

    def figures(self, report: Report) -> dict[str, Any]:
        """Return the rows without their curves, or the figures of a single row alone.

        The curves are in `trainings.json`.
        """
        return self._rows(report, lambda key: key != "curves")

    def main_figures(self, report: Report) -> dict[str, Any]:
        """Return the seeds and accuracies of the rows, or of a single row alone."""
        keys = ("seeds", f"{self.split}_acc")
        return self._rows(report, lambda key: key in keys)

    def _rows(self, report: Report, is_kept: Callable[[str], bool]) -> dict[str, Any]:
        rows = {
            name: {key: value for key, value in row.items() if is_kept(key)}
            for name, row in report.items()
        }
        return rows if len(self.rows) > 1 else rows.get(*self.rows, {})

    def stored(self, folder: Path, figures: Report) -> Report:
        return dict.fromkeys(self.rows, figures) if figures.get("seeds") else figures

    def findings(self, report: Report) -> dict[str, Any]:
        """Return the rows, or a single row alone, with what `describe` gives; and `find`'s."""
        described = {
            name: {**row, **describe(row[f"{self.split}_acc"])} for name, row in report.items()
        }
        return {**self._rows(described, lambda key: True), **self.find(report)}

    def table(self, report: Report) -> str:
        columns = {
            "": "",
            f"{self.split} accuracy: mean": ".3%",
            "sd": ".3%",
            "min": ".2%",
            "max": ".2%",
            f"{self.split} loss": ".4f",
            **dict.fromkeys(self.also.values(), ".4f"),
            "seeds": "d",
            "images seen": ",d",
            "minutes": ".1f",
        }
        rows = ((row.title, *self._cells(report.get(name))) for name, row in self.rows.items())
        return table(columns, rows)

    def _cells(self, row: Optional[Report]) -> list[Any]:
        if not row:
            return ["not measured yet"]
        accuracies = row[f"{self.split}_acc"]
        losses = (row.get(key) for key in (f"{self.split}_loss", *self.also))
        return [
            statistics.mean(accuracies),
            statistics.stdev(accuracies) if len(accuracies) > 1 else None,
            min(accuracies),
            max(accuracies),
            *(statistics.mean(values) if values else None for values in losses),
            len(accuracies),
            row["images"],
            row.get("minutes"),
        ]

    def is_complete(self, report: Report) -> bool:
        seeds = set(range(1, self.seeds + 1))
        return all(seeds <= set(report.get(name, {}).get("seeds", ())) for name in self.rows)


def curves_of_seeds(row: Report) -> tuple[list[int], list[list[float]]]:
    """Return the steps of a row's curves, and the losses of each seed at these.

    Left out are the losses at the ends of epochs, which are means of fewer steps than the others; a
    rehearsal has only these.
    """
    curves = [dict(curve) for curve in row["curves"]]
    if any(curve.keys() != curves[0].keys() for curve in curves):
        raise PaddleMnistError("trainings of one row have losses of different steps")
    steps = [step for step in curves[0] if step % QUIET["log_every"] == 0] or list(curves[0])
    return steps, [[curve[step] for step in steps] for curve in curves]
