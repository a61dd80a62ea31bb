"""The figure of a net's confidence, and the files of figures."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from paddle_mnist.plots.figure import COLOURS, SKY, name_lines, new_figure, save_figures
from paddle_mnist.system.devices import zlib_is_broken
from paddle_mnist.system.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PALETTE = 256  # colours of a file, which no figure here has more of to the eye


def reliability(title: str, bins: Mapping[str, Sequence[tuple[int, float, float]]]) -> "Figure":
    """Draw the accuracy over the confidence, with a series for each name, above a histogram.

    Each point has the 95% interval of its accuracy (Clopper and Pearson): some have few images.
    The names after the first are drawn a little to the right.

    bins: for each name its bins by confidence: (count, mean confidence, accuracy).
    """
    figure, grid = new_figure(4.8, 2, sharex=True, height_ratios=(3, 1))
    (axes,), (below,) = grid
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.7, label="perfectly calibrated")
    for number, ((name, rows), colour) in enumerate(zip(bins.items(), COLOURS)):
        counts, confidence, accuracy = map(np.array, zip(*rows))
        correct = np.rint(counts * accuracy)
        low = np.nan_to_num(stats.beta.ppf(0.025, correct, counts - correct + 1), nan=0.0)
        high = np.nan_to_num(stats.beta.ppf(0.975, correct + 1, counts - correct), nan=1.0)
        shift = 0.006 * number  # as far as to tell the names apart
        axes.errorbar(
            confidence + shift,
            accuracy,
            np.maximum(0, [accuracy - low, high - accuracy]),
            fmt="os"[number % 2],
            color=colour,
            markersize=4,
            elinewidth=1,
            label=name,
        )
    sizes, means, _ = zip(*next(iter(bins.values())))
    drawn = below.bar(means, sizes, width=0.03, color=SKY)
    below.bar_label(drawn, [f"{count:,}" for count in sizes], fontsize=8)
    below.set(xlabel="mean confidence", ylabel="samples", yscale="log", ylim=(0.7, 20 * max(sizes)))
    axes.set(ylabel="accuracy", ylim=(0, 1.03))
    axes.grid(alpha=0.3)
    for axis in (axes.yaxis, below.xaxis):
        axis.set_major_formatter(lambda value, _: f"{value:.0%}")
    name_lines(axes, title)
    return figure


def save_small(figures: Mapping[str, "Figure"], folder: Path) -> None:
    """Write each figure as `<name>.png`, with a palette: a third of the bytes."""
    names = [f"{name}.png" for name in figures]
    save_figures(figures, folder, names)
    for name in names:
        shrink(folder / name)


def shrink(path: Path) -> None:
    """Replace the colours of a PNG by a palette, unless Paddle breaks the zlib that does it."""
    if zlib_is_broken():
        return
    from PIL import Image

    data = io.BytesIO()
    with Image.open(path) as image:
        opaque = image.convert("RGB")
    palette = opaque.quantize(PALETTE, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    palette.save(data, "png", optimize=True)
    write_atomically(path, data.getvalue())
