"""The page's texts: templates in English and Chinese, filled with the same values."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Union

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


def in_each(text: Callable[[str], str]) -> Text:
    """Return a text from a function that gives it for a language."""
    return Text(*map(text, Text._fields))


def fill(claim: str, name: str, /, **values: Any) -> Text:
    """Fill in a claim's template in both languages.

    Strings among the values are translated as `named` does; a `Text` has both languages already.
    """

    def filled(language: str) -> str:
        translated = {key: _in(language, value) for key, value in values.items()}
        return templates(language)[claim][name].format(**translated)

    return in_each(filled)


def _in(language: str, value: Any) -> Any:
    if isinstance(value, str):
        value = named(value)
    return getattr(value, language) if isinstance(value, Text) else value


@functools.cache
def named(word: str) -> Text:
    """Return a word of a table, or the key of a row, in both languages.

    The English words name the keys, the Chinese ones translate these names and all else. What they
    do not have, such as numbers, code and proper names, is the same in both.
    """
    english, chinese = (templates(language)["words"] for language in Text._fields)
    name = english.get(word, word)
    return Text(name, markdown_tables.translated_phrase(name, chinese))


def join(texts: Iterable[Union[str, Text]], separator: str = "comma") -> Text:
    """Join the texts, translated as in `fill`, or say that there are none."""
    parts = list(texts) or [fill("common", "none")]

    def joined(language: str) -> str:
        return templates(language)["separators"][separator].join(_in(language, p) for p in parts)

    return in_each(joined)


def frame(form: str, *texts: Text) -> Text:
    """Put the texts into a form that is the same in both languages."""
    return Text(*(form.format(*parts) for parts in zip(*texts)))


def sentences(*texts: Text) -> Text:
    """Return the texts as sentences, each with its full stop, without those that are empty."""
    stops = fill("common", "full_stop")
    ended = (frame("{}{}", text, stops) if text != EMPTY else EMPTY for text in texts)
    return Text(*("".join(parts).strip() for parts in zip(EMPTY, *ended)))


def paragraphs(*texts: Text) -> Text:
    """Return the texts with empty lines between them, without those that are empty."""
    return Text(*("\n\n".join(filter(None, parts)) for parts in zip(*texts)))


def table(columns: Mapping[str, str], rows: Iterable[Sequence[Any]], note: Text = EMPTY) -> Text:
    """Return a Markdown table in both languages.

    columns: the format specification of each column's numbers, by the column's header. rows: their
    cells. Headers and cells are translated as in `fill`. note: a paragraph below the table.
    """
    rows = list(rows)

    def in_language(language: str) -> str:
        translated = {_in(language, header): form for header, form in columns.items()}
        cells = ([_in(language, cell) for cell in row] for row in rows)
        return markdown_tables.table(translated, cells, getattr(note, language))

    return in_each(in_language)


CONFIRMED, REFUTED, UNDECIDED = (
    fill("common", name) for name in ("confirmed", "refuted", "undecided")
)
