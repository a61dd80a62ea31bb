"""Claims about accuracies: trainings with several seeds, compared."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from markdown_tables import table_of_rows

from reproduction.claims import Claim, Find, Report, Workspace
from reproduction.significance import describe
from reproduction.trainings import Row

MOST_SEEDS = 100


def scores(report: Report) -> dict[str, list[float]]:
    """Return the accuracies of each row on the eval split."""
    return {name: row["eval_acc"] for name, row in report.items()}


@dataclass(frozen=True)
class Comparison(Claim):
    """A claim and the trainings that test it.

    rows: by the names that the page's expressions use. seeds: how many the page needs of each.
    also: further figures of the trainings, with the headers of their columns. find: gives figures
    for the page's sentences, beside those of the rows.
    """

    rows: Mapping[str, Row]
    seeds: int
    find: Find = lambda report: {}
    also: Mapping[str, str] = field(default_factory=dict)

    def trainings(self, work: Workspace) -> dict[str, tuple[Row, int]]:
        seeds = range(1, 1 + (work.seeds or work.choose(self.seeds, 2)))
        rows = [row.sized(work) for row in self.rows.values()]
        return {row.name(seed): (row, seed) for row in rows for seed in seeds}

    def report(self, work: Workspace) -> dict[str, Any]:
        """Return the figures of all stored seeds, by row and figure."""
        report: dict[str, Any] = {}
        for name, row in self.rows.items():
            if results := results_of(row, work):
                report[name] = {"seeds": list(results)}
                for key in ("eval_acc", "eval_loss", *self.also):
                    if values := [result[key] for result in results.values() if key in result]:
                        report[name][key] = values
        return report

    def findings(self, report: Report) -> dict[str, Any]:
        """Return the rows, or a single row alone, with what `describe` gives; and `find`'s."""
        rows = {name: {**row, **describe(row["eval_acc"])} for name, row in report.items()}
        return {**(rows if len(self.rows) > 1 else rows[next(iter(rows))]), **self.find(report)}

    def table(self, report: Report) -> str:
        def of(figure: str, summary: Any) -> Any:
            return lambda row, rows: summary(row[figure]) if figure in row else None

        columns = {
            "eval accuracy: mean": (".3%", of("eval_acc", statistics.mean)),
            "sd": (".3%", of("eval_acc", lambda all: statistics.stdev(all) if all[1:] else None)),
            "min": (".2%", of("eval_acc", min)),
            "max": (".2%", of("eval_acc", max)),
            "eval loss": (".4f", of("eval_loss", statistics.mean)),
            **{title: (".4f", of(key, statistics.mean)) for key, title in self.also.items()},
            "seeds": ("d", of("eval_acc", len)),
        }
        rows = {row.title: report.get(name, {}) for name, row in self.rows.items()}
        return table_of_rows("", columns, rows)

    def is_complete(self, report: Report) -> bool:
        seeds = set(range(1, self.seeds + 1))
        return all(seeds <= set(report.get(name, {}).get("seeds", ())) for name in self.rows)


def results_of(row: Row, work: Workspace) -> dict[int, Report]:
    """Return all stored results of a row, by seed."""
    names = {seed: row.sized(work).name(seed) for seed in range(1, MOST_SEEDS)}
    return {seed: work.trainings[name] for seed, name in names.items() if name in work.trainings}
