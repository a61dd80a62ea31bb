"""Markdown tables, and their places in the pages.

`python tools/markdown_tables.py docs/en docs/zh` copies the tables of each page of the first folder
into the page of the same name in the second, translated by the glossary there.
"""

import functools
import itertools
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import yaml


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


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: Any, specification: Optional[str]) -> str:
    if specification is None:
        raise ValueError(f"{value!r} is beyond the last column of the table")
    if value is None:
        return ""
    return value if isinstance(value, str) else format(value, specification)


def write_table(path: Path, mark: str, table: str) -> None:
    """Put a table into a page, between the lines `<!-- MARK -->` and `<!-- end -->`.

    Where text follows the first mark on its own line, as in a table's cell, it stays in that line.
    The table is translated if the page's folder has a glossary, `tables.yaml`.
    """
    marks = re.compile(rf"(<!-- {mark} -->(\n?)).*?(<!-- end -->)", re.DOTALL)
    text = path.read_text("utf-8")
    table = translated_for(path, table)
    path.write_text(
        marks.sub(lambda match: f"{match[1]}{table}{match[2]}{match[3]}", text), "utf-8"
    )


def translated_for(path: Path, table: str) -> str:
    """Return a table in the language of a page: translated if its folder has a glossary."""
    glossary = path.with_name("tables.yaml")
    if not glossary.exists():
        return table
    return translated(table, yaml.safe_load(glossary.read_text("utf-8")))


def is_code(text: str) -> bool:
    """Return whether a text between marks is no table, but a block of code."""
    return text.startswith("```")


def translated(table: str, glossary: Mapping[str, str]) -> str:
    """Return a table with each whole phrase of the glossary replaced, the longest first.

    `{}` in a phrase stands for a figure, or for several with commas between them; in its
    translation it is their place, and `{1}` that of the second, where the order changes. A block of
    code stays as it is.
    """
    if is_code(table):
        return table
    phrases = "|".join(map(_pattern, _longest_first(glossary)))
    return re.sub(phrases, lambda match: translated_phrase(match[0], glossary), table)


def translated_phrase(text: str, glossary: Mapping[str, str]) -> str:
    """Return the translation of a text that is one phrase of the glossary; others as they are."""
    for phrase in _longest_first(glossary):
        if match := re.fullmatch(_pattern(phrase), text):
            figures = (figure.replace(", ", "、") for figure in match.groups())
            return glossary[phrase].format(*figures)
    return text


def _longest_first(glossary: Iterable[str]) -> list[str]:
    return sorted(glossary, key=len)[::-1]


@functools.cache
def _pattern(phrase: str) -> str:
    """Return a regular expression for a phrase: no part of a longer word, any figures."""
    figure = r"-?\d+(?:[.,]\d+)*(?:e-?\d+)?"
    text = re.escape(phrase).replace(r"\{\}", rf"({figure}(?:, {figure})*)")
    before = r"(?<!\w)" if re.match(r"\w|{}", phrase) else ""
    after = r"(?!\w)" if re.search(r"(\w|{})$", phrase) else ""
    return f"{before}{text}{after}"


def marked_tables(text: str) -> dict[str, str]:
    """Return the tables of a page, by mark."""
    blocks = re.findall(r"<!-- (?!end)([\w -]+) -->\n(.*?)\n<!-- end -->", text, re.DOTALL)
    return dict(blocks)


def copy_tables(source: Path, target: Path) -> None:
    """Put the tables of each page in `source` into its translation in `target`."""
    for page in sorted(source.glob("*.md")):
        if (target / page.name).exists():
            for mark, text in marked_tables(page.read_text("utf-8")).items():
                write_table(target / page.name, mark, text)


if __name__ == "__main__":
    copy_tables(*map(Path, sys.argv[1:]))
