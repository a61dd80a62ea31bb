"""The pages' figures: numbers and tables between marks, and predicates for what sentences claim.

The pages are written by hand. In their Markdown, comments that no reader sees hold

`<!-- reproduce claimed.both.mean:.2% -->98.47%<!-- end -->`
    a number: an expression over the claims' figures, with a format as in an f-string
`<!-- reproduce table claimed -->`, or on other pages `<!-- reproduce collapse -->`
    a table
`<!-- holds claimed.both.high < 0.986 -->`
    what the sentence beside it claims, as a predicate over the same figures
"""

import functools
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple, Optional

from markdown_tables import fill, glossary_of, marked, translated

from paddle_mnist.errors import PaddleMnistError
from reproduction.claims import Claim, Workspace

# Each page in English and, if it is translated, in Chinese; the claims are in the first.
PAGES = (
    ("REPRODUCTION.md", "docs/zh/reproduction.md"),
    ("README.md", "README.zh-CN.md"),
    ("docs/en/train.md", "docs/zh/train.md"),
    ("docs/en/incremental.md", "docs/zh/incremental.md"),
    ("docs/en/looking-inside.md", "docs/zh/looking-inside.md"),
    ("docs/en/deployment.md", "docs/zh/deployment.md"),
    ("docs/en/design-notes.md",),
)
SIGNIFICANT_DIGITS = 6  # of a number in an expression
FILLED = r"reproduce [^\n]+?"  # the mark of a number or of a table
PREDICATE = re.compile(r"<!-- holds (.+?) -->")
MARK = re.compile(r"<!-- (?:reproduce|holds) .+? -->")
# Markdown takes a line that begins with a comment for HTML, to its end.
HIDDEN = re.compile(r"^ *<!-- (?:reproduce|holds) [^\n]*?-->[^\n]*\S[^\n]*$", re.MULTILINE)
FUNCTIONS = {"all": all, "len": len, "max": max, "mean": mean, "median": median, "min": min}


class Namespace(dict):
    """A dictionary whose items are attributes, too."""

    __getattr__ = dict.__getitem__


class Contents(NamedTuple):
    """What the pages' marks show. tables: by mark. names: the values that expressions may use."""

    tables: Mapping[str, str]
    names: Mapping[str, Any]

    def value(self, expression: str) -> Any:
        """Evaluate an expression of the repository's own pages.

        Raises NameError or LookupError where its figures are not measured.
        """
        try:
            return eval(expression, {"__builtins__": {}, **FUNCTIONS, **self.names})
        except (AttributeError, SyntaxError, TypeError, ValueError) as error:
            raise PaddleMnistError(
                f"{expression}: {error}; expected an expression over the claims' figures"
            ) from error

    def text(self, mark: str, path: Path) -> str:
        """Return the text for a mark of a page, `not measured` if its figures are missing."""
        if mark in self.tables:
            return translated(self.tables[mark], glossary_of(path))
        try:
            # f"""{EXPRESSION:FORMAT}""": the formats are Python's.
            return self.value(f'f"""{{{mark.removeprefix("reproduce ")}}}"""')
        except (NameError, LookupError):
            return "not measured"


def stored_contents(claims: Iterable[Claim], work: Workspace) -> Contents:
    """Return what the stored results give for the pages, without MNIST and without a run."""
    tables: dict[str, str] = {}
    names: dict[str, Any] = {"versions": work.versions()}
    for claim in claims:
        report = claim.report(work)
        for mark in (f"reproduce table {claim.id}", f"reproduce {claim.id}"):
            tables[mark] = claim.table(report)
        if claim.is_complete(report):
            names[claim.id] = claim.findings(report)
    return Contents(tables, json.loads(json.dumps(rounded(names)), object_hook=Namespace))


def write_pages(contents: Contents, root: Path) -> None:
    """Write the figures into the pages that are there."""
    for path in (root / name for pair in PAGES for name in pair):
        if path.exists():
            fill(path, FILLED, functools.partial(contents.text, path=path))


def problems(contents: Contents, root: Path) -> Iterator[str]:
    """Yield a line for each number, table and sentence of the pages that is not as measured."""
    for place, match, path in _found(root, marked(FILLED)):
        lines = match["text"].rstrip("\n").split("\n")
        expected = contents.text(match["mark"], path).split("\n")
        for line, measured in itertools.zip_longest(lines, expected):
            if line != measured:
                yield f"{place}: {match['mark']} is {line!r}; expected {measured!r}"
    for place, predicate, holds in predicates(contents, root):
        if not holds:
            reason = "has no figures" if holds is None else "does not hold: rewrite the sentence"
            yield f"{place}: {predicate} {reason}"
    for place, _, _ in _found(root, HIDDEN):
        yield f"{place}: begins with a comment, so that Markdown takes the line for HTML"
    for english, chinese in (names for names in PAGES if len(names) > 1):
        there, here = (
            Counter(match[0] for _, match, path in _found(root, MARK) if path == root / name)
            for name in (english, chinese)
        )
        for mark in (there - here) | (here - there):
            yield f"{english} has {mark} {there[mark]} times, {chinese} {here[mark]} times"


def predicates(contents: Contents, root: Path) -> Iterator[tuple[str, str, Optional[bool]]]:
    """Yield each predicate's place, the predicate, and whether it holds; None: not measured."""
    for place, match, _ in _found(root, PREDICATE):
        try:
            yield place, match[1], bool(contents.value(match[1]))
        except (NameError, LookupError):
            yield place, match[1], None


def _found(root: Path, pattern: re.Pattern) -> Iterator[tuple[str, re.Match, Path]]:
    """Yield each match in the pages that exist, with its place and its page."""
    for path in (root / name for names in PAGES for name in names):
        text = path.read_text("utf-8") if path.exists() else ""
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path.relative_to(root)}:{line}", match, path


def headings(root: Path) -> dict[str, str]:
    """Return the questions of the English page, by anchor."""
    text = (root / PAGES[0][0]).read_text("utf-8")
    return dict(re.findall(r'^<a id="(\w+)"></a>\n\n### (.+)$', text, re.MULTILINE))


def rounded(value: Any) -> Any:
    """Return figures rounded to SIGNIFICANT_DIGITS digits, at any depth."""
    if isinstance(value, Mapping):
        return {key: rounded(figure) for key, figure in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(figure) for figure in value]
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if isinstance(value, float) else value
