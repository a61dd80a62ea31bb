"""The FAQ quotes messages that the code can print, and each that it raises with an exit code."""

import ast
import re

import pytest
from conftest import ROOT
from pages import blocks

from paddle_mnist import errors

FAQ = ROOT / "docs/en/faq.md"
VARIABLE = "\0"  # in a message: what is put in when it is raised
ELLIPSIS = "…"  # the same in a quotation
FEWEST = 10  # letters of a message without which it says nothing of its own


def text_of(node):
    """Return the text of an expression, with `VARIABLE` for what is known only when it runs."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return VARIABLE


def letters(text):
    return len(re.findall("[A-Za-z]", text))


CODES = {
    name: kind.exit_code
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and hasattr(kind, "exit_code")
}
CODES["ProcessError"] = 1  # of the process that died
RAISED, TEXTS = {}, set()  # messages by file and line, and all texts
for path in sorted((ROOT / "paddle_mnist").rglob("*.py")):
    tree = ast.parse(path.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in docstrings:
            continue
        TEXTS.add(text_of(node))
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in CODES and letters(message := text_of(node.args[0])) >= FEWEST:
                RAISED[f"{path.relative_to(ROOT)}:{node.lineno}"] = message


QUOTES = sorted({line for block in blocks(FAQ, "text") for line in block.splitlines()})


def matches(quote, text):
    """Return whether a text has the parts of a quotation, in this order."""
    end = 0
    for part in quote.split(ELLIPSIS):
        start = text.find(part, end)
        if start < 0:
            return False
        end = start + len(part)
    return True


@pytest.mark.parametrize("quote", QUOTES)
def test_a_message_that_is_quoted_can_be_printed(quote):
    assert letters(quote) >= FEWEST, "too little to be found by"
    assert any(matches(quote, text) for text in TEXTS)


def test_every_message_is_quoted():
    """Each whose text is not put together from others; add a new one where its cure is."""
    assert len(RAISED) > 300
    missing = [
        f"{place}: {message.replace(VARIABLE, ELLIPSIS)}"
        for place, message in RAISED.items()
        if not any(matches(quote, message) for quote in QUOTES)
    ]
    assert not missing, "\n".join(missing)
