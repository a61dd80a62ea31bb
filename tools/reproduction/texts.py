"""The page's texts: templates in English and Chinese, filled with the same values."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import markdown_tables
import yaml


class Text(NamedTuple):
    """A text in both languages."""

    en: str
    zh: str


EMPTY = Text("", "")


@functools.cache
def templates(language: str) -> dict[str, dict[str, str]]:
    """Read the templates of a language, by claim and name."""
    path = Path(__file__).with_name(f"texts.{language}.yaml")
    return yaml.safe_load(path.read_text("utf-8"))


def fill(claim: str, name: str, /, **values: Any) -> Text:
    """Fill in a claim's template in both languages; a `Text` among the values in its language."""
    return Text(
        *(
            templates(language)[claim][name].format(
                **{k: v[at] if isinstance(v, Text) else v for k, v in values.items()}
            )
            for at, language in enumerate(Text._fields)
        )
    )


def join(texts: Iterable[Text], separator: str = "comma") -> Text:
    """Join the texts by one of the separators, or say that there are none."""
    parts = list(texts) or [fill("common", "none")]
    return Text(*(mark.join(p) for mark, p in zip(fill("separators", separator), zip(*parts))))


@functools.cache
def named(word: str) -> Text:
    """Return a word of a table, or the key of a row, in both languages.

    The English words name the keys, the Chinese ones translate these names and all else. What they
    do not have, such as numbers, code and proper names, is the same in both.
    """
    english, chinese = (templates(language)["words"] for language in Text._fields)
    name = english.get(word, word)
    return Text(name, markdown_tables.translated_phrase(name, chinese))


def table(columns: Mapping[str, str], rows: Iterable[Sequence[Any]], note: Text = EMPTY) -> Text:
    """Return a Markdown table in both languages.

    columns: the format specification of each column's numbers, by the column's header. rows: their
    cells. Strings among headers and cells are translated as `named` does; a `Text` has both
    languages already. note: a paragraph below the table.
    """
    rows = list(rows)
    return Text(
        *(
            markdown_tables.table(
                {_in(language, header): form for header, form in columns.items()},
                ([_in(language, cell) for cell in cells] for cells in rows),
                getattr(note, language),
            )
            for language in Text._fields
        )
    )


def _in(language: str, cell: Any) -> Any:
    if isinstance(cell, str):
        cell = named(cell)
    return getattr(cell, language) if isinstance(cell, Text) else cell


def sentences(*texts: Text) -> Text:
    """Return the texts as sentences, each with its full stop, without those that are empty."""
    return Text(
        *(
            "".join(text + stop for text in language if text).strip()
            for language, stop in zip(zip(EMPTY, *texts), fill("common", "full_stop"))
        )
    )


CONFIRMED, REFUTED, UNDECIDED = (
    fill("common", name) for name in ("confirmed", "refuted", "undecided")
)
