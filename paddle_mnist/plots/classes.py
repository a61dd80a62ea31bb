"""Draw how a net classifies: the confusion matrix and the accuracy of each class."""

from typing import TYPE_CHECKING

import numpy as np

from paddle_mnist.plots.figure import BLUE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def confusion(counts: np.ndarray, noun: str = "class", extent: str = "") -> "Figure":
    """Draw a confusion matrix.

    Colours show the mistakes; the correct predictions, which are many more, stay white.

    counts: int [classes, classes]; row i, column j: samples of class i classified as j.
    noun: for a class. extent: describes the samples, in a second line of the title.
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
    title = _most_frequent(wrong, counts.sum())
    axes.set_title(f"{title}\n{extent}".rstrip(), loc="left", fontsize=9)
    axes.set_xticks(range(len(counts)))
    axes.set_yticks(range(len(counts)))
    figure.colorbar(matrix, label="misclassified samples", shrink=0.8)
    return figure


def _most_frequent(wrong: np.ndarray, total: int) -> str:
    """Return a title with the number of misclassified samples and the most frequent mistake."""
    title = f"{wrong.sum():,} of {total:,} samples misclassified"
    if not wrong.any():
        return title
    row, column = map(int, np.unravel_index(wrong.argmax(), wrong.shape))
    return f"{title}; most often {row} as {column} ({wrong.max():,})"


def per_class(counts: np.ndarray, noun: str = "class", extent: str = "") -> "Figure":
    """Draw the accuracy of each class. Classes without samples have no bar.

    Arguments: see `confusion`.
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
    axes.set_xticks(range(len(counts)))
    axes.axhline(1, color="black", linewidth=0.5)
    title = f"lowest accuracy: {classes[shares.argmin()]}, {low:.1%}"
    axes.set_title(f"{title}\n{extent}".rstrip(), loc="left", fontsize=9)
    return figure
