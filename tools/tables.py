"""Markdown tables, and their places in the pages."""

import re
from pathlib import Path


def write_table(path: Path, mark: str, table: str) -> None:
    """Put a table into a page, between the lines `<!-- MARK -->` and `<!-- end -->`.

    Where text follows the first mark on its own line, as in a table's cell, it stays in that line.
    """
    marks = re.compile(rf"(<!-- {mark} -->(\n?)).*?(<!-- end -->)", re.DOTALL)
    text = path.read_text("utf-8")
    path.write_text(
        marks.sub(lambda match: f"{match[1]}{table}{match[2]}{match[3]}", text), "utf-8"
    )
