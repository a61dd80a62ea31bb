"""The FAQ quotes only messages that the package can print."""

import ast
import re

from conftest import ROOT
from pages import blocks

VARIABLE = "\0"  # in a text of the code: what is put in when it is printed
ELLIPSIS = "…"  # the same in a quotation
FEWEST = 9  # letters of a quotation that can be searched for


def text_of(node):
    """Return the text of an expression, with `VARIABLE` for what is known only when it runs."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return VARIABLE


def matches(quote, text):
    """Return whether a text has the parts of a quotation, in this order."""
    end = 0
    for part in quote.split(ELLIPSIS):
        start = text.find(part, end)
        if start < 0:
            return False
        end = start + len(part)
    return True


def test_faq_quotes_only_messages_of_the_package():
    texts = {
        text_of(node)
        for path in (ROOT / "paddle_mnist").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.expr)
    }
    quotes = {
        line for block in blocks(ROOT / "docs/en/faq.md", "text") for line in block.splitlines()
    }
    for quote in sorted(quotes):
        assert len(re.findall("[A-Za-z]", quote)) >= FEWEST, f"too short to be found: {quote}"
    stale = [quote for quote in quotes if not any(matches(quote, text) for text in texts)]
    assert not stale, "\n".join(sorted(stale))
