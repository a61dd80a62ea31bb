"""Whether the code has changed since the tables of the pages were measured.

A measured table ends with a record of the commit and of the code, a comment that a browser does not
show. A line below it says that the code has changed.
"""

import ast
import functools
import hashlib
import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markdown_tables import translated_for

ROOT = Path(__file__).parents[2]
CHANGED = "The measured code has changed since; figures may differ a little."
_TABLE = re.compile(r"(?<=<!-- benchmark )([\w-]+) -->\n(.*?)(?=<!-- end -->)", re.DOTALL)
_RECORD = re.compile(r"<!-- measured at (.+), code (\w+) -->\n")


class Stale(NamedTuple):
    """A table that is older than the code it measured. commit: where, or why it is not known."""

    page: Path
    name: str
    commit: str

    def __str__(self) -> str:
        return f"{self.page}: {self.name}, measured at {self.commit}"


def record(modules: Sequence[str]) -> str:
    """Return the comment that tells what is measured now: the commit, and a hash of the code."""
    git = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    try:
        commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or no repository
        commit = "an unknown commit"
    return f"<!-- measured at {commit}, code {code_hash(modules)} -->"


def code_hash(modules: Sequence[str], root: Path = ROOT) -> str:
    """Return a hash of the syntax trees of modules and packages, without docstrings.

    It is the same in all versions of Python. modules: of `paddle_mnist`, or below `tools`.
    """
    trees = [
        (path.relative_to(root).as_posix(), _tree(path.read_text("utf-8")))
        for module in modules
        for path in _files(module, root)
    ]
    return hashlib.sha256(json.dumps(trees).encode()).hexdigest()[:16]


def _files(module: str, root: Path) -> Sequence[Path]:
    base = root if module.split(".")[0] == "paddle_mnist" else root / "tools"
    path = base.joinpath(*module.split("."))
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


@functools.cache
def _tree(source: str) -> Any:
    return _plain(ast.parse(source))


def _plain(node: Any) -> Any:
    """Return a syntax tree as lists and strings; fields that are empty vary between versions."""
    if isinstance(node, list):
        return [_plain(one) for one in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
        fields["body"] = node.body[1:]
    if isinstance(node, ast.JoinedStr):  # Python 3.12.1 adds empty strings
        fields["values"] = [one for one in node.values if getattr(one, "value", None) != ""]
    named = [[name, _plain(value)] for name, value in fields.items() if value not in (None, [])]
    return [type(node).__name__, *named]


def stale_tables(pages: Sequence[Path], codes: Mapping[str, str]) -> Iterator[Stale]:
    """Yield the tables of other code than today's. codes: today's hash of each benchmark's code."""
    for page in pages:
        for name, table in _TABLE.findall(page.read_text("utf-8")):
            if name in codes:
                measured = _RECORD.search(table)
                if not measured:
                    yield Stale(page, name, "an unknown commit, as there is no record")
                elif measured[2] != codes[name]:
                    yield Stale(page, name, measured[1])


def with_notes(page: Path, codes: Mapping[str, str]) -> str:
    """Return the text of a page, with the line below each stale table and no other."""
    stale = {one.name for one in stale_tables([page], codes)}
    note = translated_for(page, f"{CHANGED}\n")

    def noted(match: "re.Match[str]") -> str:
        name, table = match.groups()
        if not (name in codes and (measured := _RECORD.search(table))):
            return match[0]
        return f"{name} -->\n{table[: measured.end()]}{note if name in stale else ''}"

    return _TABLE.sub(noted, page.read_text("utf-8"))
