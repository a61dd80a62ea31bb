"""Turns this package's docstrings, which are plain text, into reStructuredText for the API's page.

In them an argument is `name: what it is`, with later lines indented, and a part with a title is the
title with its text indented below. Backticks mark code. Each argument becomes an item with an
anchor of its own, and names of this package and of pages become links.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from textwrap import dedent, indent

from docutils.nodes import make_id

import paddle_mnist

ARGUMENT = re.compile(r"([\w*.]+(?:, [\w*.]+)*)( \(`?\w+`?\))?: ")
NEXT_ARGUMENT = re.compile(r"(?<=\.) (?=[a-z_]\w*(?:, \w+)*: )")  # behind another in its line
_anchors: set[str] = set()  # those of the pages read so far; `Watch` and `watch` would share some


def to_rst(text: str, owner: str) -> str:
    """Return the docstring of `owner`, a dotted name, as reStructuredText."""
    lines = dedent(text).splitlines()
    groups = groupby(lines, key=lambda line: bool(line.strip()))
    paragraphs = [list(group) for filled, group in groups if filled]
    return "\n\n".join(_paragraph(paragraph, owner) for paragraph in paragraphs)


def _paragraph(lines: list[str], owner: str) -> str:
    if lines[0].startswith(" "):
        return "::\n\n" + indent("\n".join(lines), "    ")
    if ARGUMENT.match(lines[0]):
        return "\n\n".join(_linked(item, owner) for item in _items(lines))
    titles = [line for line in lines if not line.startswith(" ")]
    if len(titles) == len(lines):
        return _escaped(" ".join(lines))
    return "\n\n".join(_titled(part, owner) for part in _parts(lines))


def _items(lines: Iterable[str]) -> Iterator[str]:
    """Yield the arguments of a paragraph, each in one line."""
    item: list[str] = []
    for line in lines:
        if item and ARGUMENT.match(line):
            yield from NEXT_ARGUMENT.split(" ".join(item))
            item = []
        item.append(line.strip())
    yield from NEXT_ARGUMENT.split(" ".join(item))


def _linked(item: str, owner: str) -> str:
    """Return an item of a list for an argument, whose name is a link to it."""
    argument = ARGUMENT.match(item)
    if argument is None:
        return f"* {_escaped(item)}"
    names, group = argument[1], _escaped(argument[2] or "")
    label = f"{owner}.{names.partition(',')[0].lstrip('*')}"
    text = f"{group}: {_escaped(item[argument.end() :])}"
    if label.lower() in _anchors:
        return f"* ``{names}``{text}"
    _anchors.add(label.lower())
    return f"* .. _{label}:\n\n  `{names} <#{make_id(label)}>`__{text}"


def _parts(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield a title, or a line of text, with the lines that are indented below it."""
    part: list[str] = []
    for line in lines:
        if part and not line.startswith(" "):
            yield part
            part = []
        part.append(line)
    yield part


def _titled(part: list[str], owner: str) -> str:
    title, *body = part
    return f"{_escaped(title)}\n{indent(to_rst(chr(10).join(body), owner), '    ')}".rstrip()


def _escaped(text: str) -> str:
    """Return one line of text without a meaning in reStructuredText, except for code and links."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([*_|\\])", r"\\\1", plain) for plain in parts[::2]]
    parts[::2] = [re.sub(r"docs/en/([\w-]+)\.md", r":doc:`\1`", plain) for plain in parts[::2]]
    parts[1::2] = map(_code, parts[1::2])
    # a letter right after code needs a mark between them
    parts[2::2] = [rf"\ {plain}" if plain[:1].isalnum() else plain for plain in parts[2::2]]
    return "".join(parts)


def _code(marked: str) -> str:
    """Return code in backticks: a public name, or a call of one, as a link to its entry."""
    code = marked.strip("`")
    called = re.fullmatch(r"(\w+)(?:\([^<>]*\))?", code)
    if called and called[1] in paddle_mnist.__all__:
        return f":py:obj:`{code} <paddle_mnist.{called[1]}>`"
    return f"`{marked}`"


def process(app, what: str, name: str, obj, options, lines: list[str]) -> None:
    lines[:] = to_rst("\n".join(lines), name).splitlines()


def setup(app) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
