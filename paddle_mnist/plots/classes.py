"""Figures of how a net classifies: the confusion matrix, and each class."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paddle_mnist.plots.figure import BLUE, literal, new_figure

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


def confusion(
    counts: np.ndarray, noun: str = "class", names: Sequence[str] = (), extent: str = ""
) -> "Figure":
    """Draw a confusion matrix.

    The colours tell the mistakes apart; the right answers, many more, are left white.

    counts: int [classes, classes]; row i, column j: samples of class i classified as j.
    noun: what a class is called. names: of the classes; their numbers by default. extent: which
        samples these are, for a second line of the title.
    """
    wrong = counts * (1 - np.eye(len(counts), dtype=int))
    figure, ((axes,),) = new_figure(5.8)
    matrix = axes.imshow(wrong, cmap="Blues", vmin=0, vmax=max(1, wrong.max()))
    for row, line in enumerate(counts):
        for column, count in enumerate(line):
            dark = row != column and count > 0.6 * wrong.max()
            axes.text(
                column,
                row,
                f"{count:,}" if count else "·",
                ha="center",
                va="center",
                fontsize=8,
                color="white" if dark else "black",
                fontweight="bold" if row == column else "normal",
            )
    axes.set(xlabel=f"predicted {noun}", ylabel=f"true {noun}")
    title = _most_frequent(wrong, counts.sum(), names)
    axes.set_title(_on_two_lines(title, extent), loc="left", fontsize=9)
    _name_ticks(axes.xaxis, len(counts), names, below=True)
    _name_ticks(axes.yaxis, len(counts), names)
    figure.colorbar(matrix, label="misclassified samples", shrink=0.8)
    return figure


def _most_frequent(wrong: np.ndarray, total: int, names: Sequence[str]) -> str:
    """Say how many samples were misclassified, and which mistake is the most frequent."""
    title = f"{wrong.sum():,} of {total:,} samples misclassified"
    if not wrong.any():
        return title
    row, column = map(int, np.unravel_index(wrong.argmax(), wrong.shape))
    true, predicted = (literal(names[label]) if names else str(label) for label in (row, column))
    return f"{title}; most often {true} as {predicted} ({wrong.max():,})"


def _on_two_lines(title: str, extent: str) -> str:
    return f"{title}\n{extent}" if extent else title


def per_class(
    counts: np.ndarray, noun: str = "class", names: Sequence[str] = (), extent: str = ""
) -> "Figure":
    """Draw the share of each class that was classified rightly.

    Classes without samples have no bar. Arguments: see `confusion`.
    """
    figure, ((axes,),) = new_figure(3.0)
    classes = np.flatnonzero(counts.sum(axis=1))
    shares = counts.diagonal()[classes] / counts.sum(axis=1)[classes]
    bars = axes.bar(classes, shares, color=BLUE)
    axes.bar_label(bars, [f"{share:.1%}" for share in shares], fontsize=8)
    low = min(shares)
    axes.set(
        xlabel=noun,
        ylabel="accuracy (share)",
        ylim=(max(0, low - 1.5 * (1 - low) - 0.01), 1 + 0.3 * (1 - low) + 0.002),
    )
    _name_ticks(axes.xaxis, len(counts), names, below=True)
    axes.axhline(1, color="black", linewidth=0.5)
    least = classes[shares.argmin()]
    name = literal(names[least]) if names else least
    title = f"lowest accuracy: {name}, {low:.1%}"
    axes.set_title(_on_two_lines(title, extent), loc="left", fontsize=9)
    return figure


def _name_ticks(axis: "Axis", classes: int, names: Sequence[str], below: bool = False) -> None:
    """Set a tick for each class, with its name or number. below: the axis lies below the figure."""
    sideways: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    labels = [literal(name) for name in names] or [str(number) for number in range(classes)]
    axis.set_ticks(range(classes), labels, **(sideways if names and below else {}))
