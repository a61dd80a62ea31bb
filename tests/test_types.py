"""The signatures of the public names, as the source has them."""

import ast
import inspect
import os
import textwrap
from collections.abc import Iterator
from typing import Any

from conftest import ROOT

import paddle_mnist

PATH = ROOT / "tests/public_signatures.txt"
SPECIAL = "__call__ __enter__ __exit__ __len__ __iter__ __getitem__ __add__ __radd__".split()


def test_public_signatures_are_those_that_were_written_down():
    """A diff shows any change: UPDATE_SIGNATURES=1 writes them down."""
    lines = (_wrapped(line) for name in paddle_mnist.__all__ for line in _lines(name))
    now = "".join(f"{line}\n" for line in lines)
    if os.environ.get("UPDATE_SIGNATURES"):
        PATH.write_text(now)
    assert now == PATH.read_text(), "run again with UPDATE_SIGNATURES=1"


def _wrapped(line: str) -> str:
    return textwrap.fill(
        line, 100, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


def _lines(name: str) -> Iterator[str]:
    """Yield the signature of a public name and, of a class, those of its public members."""
    value = getattr(paddle_mnist, name)
    if not isinstance(value, type):
        yield from _function(name, _definition(value))
        return
    seen = set()
    for base in value.__mro__:
        if not base.__module__.startswith("paddle_mnist."):
            continue
        for node in _definition(base).body:
            member = _member(node)
            if member in SPECIAL or member == "__init__" or member[:1] not in ("", "_"):
                if member not in seen:
                    place = name if member == "__init__" else f"{name}.{member}"
                    yield from _function(place, node)
                seen.add(member)


def _definition(value: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def _member(node: Any) -> str:
    """Return the name of a member with a signature or an annotation."""
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    return getattr(node, "name", "")


def _function(place: str, node: Any) -> Iterator[str]:
    if isinstance(node, ast.AnnAssign):
        default = f" = {ast.unparse(node.value)}" if node.value else ""
        yield f"{place}: {ast.unparse(node.annotation)}{default}"
        return
    arrow = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    yield f"{place}({ast.unparse(node.args)}){arrow}"
