"""`Benchmark`: a table of the pages. What it compares takes turns in one run; cells are medians."""

import statistics
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from markdown_tables import Column, Figures, Rows, table_of_rows
from measuring.sources import json_file

from paddle_mnist.errors import DeviceError

Turn = Callable[[], Figures]  # a figure is a value of one turn, or a list of several


@dataclass
class Session:
    """The data, size and folder of a measurement.

    source: of the images. rounds, is_quick: as the command has them. root: an empty folder.
    number: of the present turn, from 1; those of the warm-up are 0 and below.
    """

    source: str
    rounds: int
    is_quick: bool
    root: Path
    number: int = 1

    @property
    def json_file(self) -> Path:
        """The images' AI Studio file. Raises ConfigError for other sources."""
        return json_file(self.source)

    @property
    def folder(self) -> Path:
        """A folder of the present turn."""
        folder = self.root / str(self.number)
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def own_cache(self) -> dict[str, str]:
        """The environment of commands that find cached only what others of this turn have."""
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

    title: its line in the command's help. code: the files and folders of the repository that decide
    the figures: when they have changed, the table is stale.
    kinds: what is compared, by title: functions that take a turn and return its figures.
    head: the header of the first column, of titles. columns: what the others show, by header.
    rows: makes the rows of the report, by default one of each kind. note: a paragraph below.
    rounds: how many, if it is not for the command to say. warm_up: turns before these, which do not
    count. text: what the page shows instead of a table. quick: the kinds that a quick run measures,
    by default all.
    """

    title: str
    code: Sequence[str] = ()
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
            session.number = number  # which turns read
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
        return table_of_rows(self.head, self.columns, self.rows(report), self.note(report))


def ratio(figure: str, of: str, form: str = ".2f", is_inverse: bool = False) -> Column:
    """Return a column: a figure of each row divided by that of the row `of`, or the inverse."""

    def value(row: Figures, rows: Rows) -> Optional[float]:
        if figure not in row or not rows.get(of):
            return None
        quotient = row[figure] / rows[of][figure]
        return 1 / quotient if is_inverse else quotient

    return form, value
