"""`Benchmark`: a table of the pages. Its rows take turns in one measurement; cells are medians."""

import statistics
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, Union

from markdown_tables import Column, Figures, Rows, table_of_rows

from benchmarks.sources import as_json
from paddle_mnist.errors import DeviceError
from paddle_mnist.mnist.images import open_data

Turn = Callable[[], Figures]  # a figure is a value of one turn, or a list of several


@dataclass
class Session:
    """The data, size and folder of a measurement.

    source: of the images. rounds, is_quick: as the command has them. root: an empty folder.
    number: of the current turn, from 1; those of the warm-up are 0 and below.
    """

    source: str
    rounds: int
    is_quick: bool
    root: Path
    number: int = 1

    @property
    def json_file(self) -> Path:
        """The AI Studio file of the images; made here if they come from other files."""
        return as_json(open_data(self.source), self.root)

    @property
    def folder(self) -> Path:
        """A folder of the current turn."""
        folder = self.root / str(self.number)
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def own_cache(self) -> dict[str, str]:
        """The environment of commands that share a cache only with those of the same turn."""
        return {"PADDLE_MNIST_CACHE": str(self.folder)}


@dataclass
class Report:
    """The figures of a measurement. samples: by kind and figure."""

    rounds: int
    samples: dict[str, dict[str, list]]
    machine: dict[str, str] = field(default_factory=dict)

    @property
    def medians(self) -> dict[str, dict[str, Any]]:
        """The medians of each figure of each kind; a kind that could not run has none."""
        return {
            kind: {name: statistics.median(values) for name, values in figures.items()}
            for kind, figures in self.samples.items()
        }


@dataclass(frozen=True)
class Benchmark:
    """A table, and how it is measured.

    title: its line in the command's help.
    kinds: the functions that are compared, by title; each takes a turn and returns its figures.
    head: the header of the first column, of titles. columns: the others, by header.
    rows: makes the rows of the report, by default one for each kind. note: a paragraph below.
    rounds: their number, unless the command sets it. warm_up: turns before these, which do not
    count. text: makes the text that the page shows instead of a table. quick: the kinds that a
    quick run measures, by default all.
    """

    title: str
    kinds: Callable[[Session], Mapping[str, Turn]] = lambda session: {}
    head: str = ""
    columns: Mapping[str, Column] = field(default_factory=dict)
    rows: Callable[[Report], Rows] = lambda report: report.medians
    note: Callable[[Report], str] = lambda report: ""
    rounds: int = 0
    warm_up: int = 0
    text: Optional[Callable[[Report], str]] = None
    quick: Collection[str] = ()

    def measure(self, session: Session) -> Report:
        """Have all kinds take turns; leave out, and say so, those whose libraries are missing."""
        rounds = 1 if session.is_quick else self.rounds or session.rounds
        kinds = self.kinds(session)
        if session.is_quick and self.quick:
            kinds = {title: turn for title, turn in kinds.items() if title in self.quick}
        samples: dict[str, dict[str, list]] = {kind: {} for kind in kinds}
        for number in range(1 - self.warm_up, rounds + 1):
            session.number = number
            for kind, turn in kinds.items():
                try:
                    figures = turn()
                except (ModuleNotFoundError, DeviceError) as error:
                    print(f"{kind} is left out: {error}", file=sys.stderr)
                    continue
                for name, value in figures.items() if number > 0 else ():
                    values = value if isinstance(value, list) else [value]
                    samples[kind].setdefault(name, []).extend(values)
        return Report(rounds, samples)

    def table(self, report: Report) -> str:
        """Return the Markdown table of a report."""
        if self.text:
            return self.text(report)
        rows = {
            title: figures and {"title": title, **figures}  # which `ratio` reads
            for title, figures in self.rows(report).items()
        }
        return table_of_rows(self.head, self.columns, rows, self.note(report))


def ratio(
    figure: str,
    of: Union[str, Callable[[str], Optional[str]]],
    form: str = ".2f",
    is_inverse: bool = False,
) -> Column:
    """Return a column: a figure of each row divided by that of another row, or the inverse.

    of: the title of the other row, or a function that returns it for the title of a row.
    """

    def value(row: Figures, rows: Rows) -> Optional[float]:
        base = rows.get(of(row["title"]) if callable(of) else of)
        if figure not in row or not base:
            return None
        quotient = row[figure] / base[figure]
        return 1 / quotient if is_inverse else quotient

    return form, value
