"""The figures that the READMEs quote: cells of the tables that the pages show, and their ratios.

A ratio compares like with like: one thread with one thread.
"""

# By mark: the table, the column, the row, and the row to divide it by. A row is named by the
# beginning of its title.
HEADLINES = {
    "seconds-fast": ("time-to-accuracy", "seconds", "this package, recipe `fast`, images cached"),
    "seconds-cold": ("time-to-accuracy", "seconds", "this package, recipe `fast`, nothing cached"),
    "seconds-tutorial": ("time-to-accuracy", "seconds", "the tutorial's loop"),
    "seconds-torch": ("time-to-accuracy", "seconds", "PyTorch eager"),
    "times-paddle": (
        "train",
        "images a second",
        "this package's training step, 1 thread",
        "Paddle's layers, the bare loop, 1 thread",
    ),
    "times-torch": (
        "train",
        "images a second",
        "this package's training step, 1 thread",
        "PyTorch eager, channels last, 1 thread",
    ),
}


def headlines(name: str, table: str) -> dict[str, str]:
    """Return the figures, by mark, that come from the Markdown table called `name`.

    A rival that is not installed leaves its figures out.
    """
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    figures = {}
    for mark, (source, column, *titles) in HEADLINES.items():
        if source == name:
            columns, _, *rows = lines
            place = columns.index(column)
            cells = [
                next(row for row in rows if row[0].startswith(title))[place] for title in titles
            ]
            if all(cell[:1].isdigit() for cell in cells):
                # Of a cell such as "12,892 (12,684 to 12,980)", a ratio takes the first figure.
                numbers = [float(cell.split()[0].replace(",", "")) for cell in cells]
                figures[mark] = cells[0] if len(cells) == 1 else f"{numbers[0] / numbers[1]:.2f}"
    return figures
