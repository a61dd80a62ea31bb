"""The figures that the READMEs quote: cells of the tables that the pages show, and their ratios.

A ratio compares like with like: one thread with one thread.
"""

WHOLE, STEADY = ("time-to-accuracy", "times faster"), ("train", "images a second")
STEP = "this package's training step, 1 thread"
# By mark: the table, the column, the row, and the row to divide it by. A row is named by the
# beginning of its title.
HEADLINES = {
    "faster-fast": (*WHOLE, "this package, recipe `fast`, images cached"),
    "faster-torch": (*WHOLE, "PyTorch eager"),
    "accuracy-fast": ("time-to-accuracy", "eval accuracy", "this package, recipe `fast`"),
    "times-paddle": (*STEADY, STEP, "Paddle's layers, the bare loop, 1 thread"),
    "times-torch": (*STEADY, STEP, "PyTorch eager, channels last, 1 thread"),
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
            rows = [row for row in rows if len(row) == len(columns)]  # not those of a second table
            cells = [
                next((row[place] for row in rows if row[0].startswith(title)), "")
                for title in titles
            ]
            if all(cell[:1].isdigit() for cell in cells):
                # Of cells such as "12,892 (12,684 to 12,980)" or "98.40% (of 3)", the first one.
                first, *base = (cell.split()[0].replace(",", "") for cell in cells)
                figures[mark] = f"{float(first) / float(base[0]):.2f}" if base else first
    return figures
