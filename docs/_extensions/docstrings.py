"""Turns this package's docstrings, which are plain text, into reStructuredText for the API's page.

In them an argument is `name: what it is`, with later lines indented, and a part with a title is the
title with its text indented below. Backticks mark code.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from textwrap import dedent, indent

ARGUMENT = re.compile(r"[\w*.]+(?:, [\w*.]+)*: ")


def to_rst(text: str) -> str:
    """Return a docstring as reStructuredText."""
    lines = dedent(text).splitlines()
    groups = groupby(lines, key=lambda line: bool(line.strip()))
    paragraphs = [list(group) for filled, group in groups if filled]
    return "\n\n".join(map(_paragraph, paragraphs))


def _paragraph(lines: list[str]) -> str:
    if lines[0].startswith(" "):
        return "::\n\n" + indent("\n".join(lines), "    ")
    if ARGUMENT.match(lines[0]):
        return "\n".join(f"* {_escaped(item)}" for item in _items(lines))
    titles = [line for line in lines if not line.startswith(" ")]
    if len(titles) == len(lines):
        return _escaped(" ".join(lines))
    return "\n\n".join(_titled(part) for part in _parts(lines))


def _items(lines: Iterable[str]) -> Iterator[str]:
    """Yield the arguments of a paragraph, each in one line."""
    item: list[str] = []
    for line in lines:
        if item and ARGUMENT.match(line):
            yield " ".join(item)
            item = []
        item.append(line.strip())
    yield " ".join(item)


def _parts(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield a title, or a line of text, with the lines that are indented below it."""
    part: list[str] = []
    for line in lines:
        if part and not line.startswith(" "):
            yield part
            part = []
        part.append(line)
    yield part


def _titled(part: list[str]) -> str:
    title, *body = part
    return f"{_escaped(title)}\n{indent(to_rst(chr(10).join(body)), '    ')}".rstrip()


def _escaped(text: str) -> str:
    """Return one line of text without a meaning in reStructuredText, except for its code."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([*_|\\])", r"\\\1", plain) for plain in parts[::2]]
    parts[1::2] = [f"`{code}`" for code in parts[1::2]]
    # a letter right after code needs a mark between them
    parts[2::2] = [rf"\ {plain}" if plain[:1].isalnum() else plain for plain in parts[2::2]]
    return "".join(parts)


def process(app, what: str, name: str, obj, options, lines: list[str]) -> None:
    lines[:] = to_rst("\n".join(lines)).splitlines()


def setup(app) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
