"""The page's texts: templates in English and Chinese, filled with the same values."""

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml


class Text(NamedTuple):
    """A text in both languages."""

    en: str
    zh: str


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


def named(name: str) -> Text:
    """Return the name of a row in both languages."""
    return Text(name, templates("zh")["row_names"].get(name, name))


CONFIRMED, REFUTED, UNDECIDED = (
    fill("common", name) for name in ("confirmed", "refuted", "undecided")
)
EMPTY = Text("", "")
