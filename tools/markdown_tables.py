"""Markdown tables, and their places in the pages.

`python tools/markdown_tables.py docs/en docs/zh` copies the tables of each page of the first folder
into the page of the same name in the second, translated by the glossary there.
"""

import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

import yaml

Figures = Mapping[str, Any]  # by name
Rows = Mapping[str, Figures]  # by title
# The format of a column's numbers, and the figure or what computes it from those of all rows.
Column = tuple[str, Union[str, Callable[[Figures, Rows], Any]]]


def table(columns: Mapping[str, str], rows: Iterable[Sequence[Any]], note: str = "") -> str:
    """Return a Markdown table.

    columns: the format specification of each column's numbers, by the column's header.
    rows: their cells; None and what a short row lacks stay empty, strings are taken as they are.
    note: a paragraph below the table.
    """
    lines = [_line(columns), "|---" * len(columns) + "|"]
    for cells in rows:
        pairs = itertools.zip_longest(cells, columns.values())
        lines.append(_line(_cell(*pair) for pair in pairs))
    return "\n".join([*lines, "", note] if note else lines)


def table_of_rows(head: str, columns: Mapping[str, Column], rows: Rows, note: str = "") -> str:
    """Return a Markdown table with a row for each title; one without figures is not available.

    head: the header of the titles. columns: by header.
    """

    def value(column: Any, figures: Figures) -> Any:
        return column(figures, rows) if callable(column) else figures.get(column)

    cells = (
        (title, *(value(column, figures) for _, column in columns.values()))
        if figures
        else (title, "not available")
        for title, figures in rows.items()
    )
    return table({head: "", **{header: form for header, (form, _) in columns.items()}}, cells, note)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: Any, specification: Optional[str]) -> str:
    if specification is None:
        raise ValueError(f"{value!r} is beyond the last column of the table")
    if value is None:
        return ""
    return value if isinstance(value, str) else format(value, specification)


def write_tables(page: Path, tables: Mapping[str, str]) -> None:
    """Put tables into a page, by mark, translated if the page's folder has a glossary."""
    glossary = glossary_of(page)
    pattern = "|".join(map(re.escape, tables))
    fill(page, pattern, lambda mark: translated(tables[mark], glossary))


def fill(page: Path, pattern: str, text_of: Callable[[str], str]) -> None:
    """Replace the text of each mark of a page whose name matches the pattern."""

    def filled(match: re.Match[str]) -> str:
        return f"{match['start']}{text_of(match['mark'])}{match['line']}{match['end']}"

    page.write_text(marked(pattern).sub(filled, page.read_text("utf-8")), "utf-8")


def marked(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for `<!-- MARK -->TEXT<!-- end -->`.

    The text is in the mark's own line, as in a table's cell, or in lines between the two comments.

    pattern: of the marks' names. Groups of the result: mark; text, with the newline at its end if
    it is in lines of its own; start, line and end, which stay as they are.
    """
    return re.compile(
        rf"(?P<start><!-- (?P<mark>{pattern}) -->(?P<line>\n?))(?P<text>.*?)(?P<end><!-- end -->)",
        re.DOTALL,
    )


@functools.cache
def glossary_of(page: Path) -> Mapping[str, str]:
    """Read the glossary of a page's folder, by which its tables are translated; empty if none."""
    glossary = page.with_name("tables.yaml")
    return yaml.safe_load(glossary.read_text("utf-8")) if glossary.exists() else {}


def is_code(text: str) -> bool:
    """Return whether a text between marks is a block of code instead of a table."""
    return text.startswith("```")


def translated(table: str, glossary: Mapping[str, str]) -> str:
    """Return a table with each whole phrase of the glossary translated, the longest first.

    `{}` in a phrase stands for a number, or for several with commas between them; in its
    translation it is their place, and `{1}` that of the second, where the order changes. Code
    stays as it is, unless it is part of a phrase.
    """
    if is_code(table) or not glossary:
        return table
    phrases = _longest_first(glossary)

    def translation(match: re.Match[str]) -> str:
        for phrase in phrases:
            if parts := _pattern(phrase).fullmatch(match[0]):
                return glossary[phrase].format(*(x.replace(", ", "、") for x in parts.groups()))
        return match[0]  # code

    code = "`[^`\n]*`"
    return re.sub(
        "|".join([*(_pattern(phrase).pattern for phrase in phrases), code]), translation, table
    )


def _longest_first(glossary: Iterable[str]) -> list[str]:
    return sorted(glossary, key=len)[::-1]


@functools.cache
def _pattern(phrase: str) -> re.Pattern[str]:
    """Return a regular expression for a phrase: no part of a longer word, any figures."""
    figure = r"[-+]?\d+(?:[.,]\d+)*(?:e-?\d+)?"
    text = re.escape(phrase).replace(r"\{\}", rf"({figure}(?:, {figure})*)")
    before = r"(?<!\w)" if re.match(r"\w|{}", phrase) else ""
    after = r"(?!\w)" if re.search(r"(\w|{})$", phrase) else ""
    return re.compile(f"{before}{text}{after}")


def marked_tables(text: str) -> dict[str, str]:
    """Return the tables of a page, by mark."""
    found = marked(r"(?:benchmark|reproduce) [\w -]+").finditer(text)
    return {match["mark"]: match["text"].rstrip("\n") for match in found if match["line"]}


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    for page in sorted(source.glob("*.md")):
        if (target / page.name).exists():
            write_tables(target / page.name, marked_tables(page.read_text("utf-8")))
