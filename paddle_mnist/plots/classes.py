"""Figures of how a net classifies: the confusion matrix, each class, the confidence."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from paddle_mnist.plots.figure import BLUE, COLOURS, literal, new_figure


def confusion(counts: np.ndarray, noun: str = "class", names: Sequence[str] = ()) -> Figure:
    """Draw a confusion matrix.

    The colours tell the mistakes apart; the right answers, many more, are left white.

    counts: int [classes, classes]; row i, column j: samples of class i classified as j.
    noun: what a class is called. names: of the classes; their numbers by default.
    """
    wrong = counts * (1 - np.eye(len(counts), dtype=int))
    figure, ((axes,),) = new_figure(5.6)
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
    axes.set(xlabel="taken for", ylabel=f"the {noun}")
    _name_ticks(axes.xaxis, len(counts), names)
    _name_ticks(axes.yaxis, len(counts), names)
    figure.colorbar(matrix, label="mistakes (images)", shrink=0.8)
    return figure


def per_class(counts: np.ndarray, noun: str = "class", names: Sequence[str] = ()) -> Figure:
    """Draw the share of each class that was classified rightly.

    Classes without samples have no bar. Arguments: see `confusion`.
    """
    figure, ((axes,),) = new_figure(2.8)
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
    _name_ticks(axes.xaxis, len(counts), names)
    axes.axhline(1, color="black", linewidth=0.5)
    return figure


def _name_ticks(axis: Axis, classes: int, names: Sequence[str]) -> None:
    """Set a tick for each class, with its name or number."""
    sideways = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    labels = [literal(name) for name in names] or [str(number) for number in range(classes)]
    axis.set_ticks(range(classes), labels, **(sideways if names and axis.axis_name == "x" else {}))


def reliability(bins: Mapping[str, Sequence[tuple[int, float, float]]]) -> Figure:
    """Draw the share of right answers over the confidence, a line for each name.

    bins: for each name its bins by confidence: (count, mean confidence, share of right answers).
    The first name's points are labelled with their counts: a few images say little.
    """
    figure, ((axes,),) = new_figure(3.6)
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.5)
    for (name, rows), colour in zip(bins.items(), COLOURS):
        _, confidence, accuracy = zip(*rows)
        axes.plot(confidence, accuracy, color=colour, marker="o", markersize=4, label=name)
    for count, x, y in next(iter(bins.values())):
        axes.annotate(f"{count:,}", (x, y), (3, -8), textcoords="offset points", fontsize=6)
    axes.set(xlabel="mean confidence (share)", ylabel="right answers (share)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure
