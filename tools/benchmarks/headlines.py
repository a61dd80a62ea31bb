"""The figures that the READMEs quote: cells of the tables that the pages show."""

# By mark: the table, the beginning of the row's title (the last such row counts), the column.
HEADLINES = {
    "seconds-fast": ("time-to-accuracy", "this package, recipe `fast`, images cached", "seconds"),
    "seconds-tutorial": ("time-to-accuracy", "the tutorial's loop", "seconds"),
    "seconds-torch": ("time-to-accuracy", "PyTorch eager", "seconds"),
    "times-paddle": ("train", "this package's", "times Paddle's"),
    "times-torch": ("train", "this package's", "times PyTorch's best"),
}


def headlines(name: str, table: str) -> dict[str, str]:
    """Return the figures, by mark, that come from the Markdown table called `name`.

    A rival that is not installed leaves its figures out.
    """
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    columns, _, *rows = lines
    figures = {}
    for mark, (source, title, column) in HEADLINES.items():
        if source == name:
            row = [row for row in rows if row[0].startswith(title)][-1]
            cells = dict(zip(columns, row))
            if column in cells:
                figures[mark] = cells[column]
    return figures
