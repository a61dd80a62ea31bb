"""Figures of any numbers: curves with bands, the scores of seeds, bars, the confidence; files."""

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Union

import numpy as np
from scipy import stats

from paddle_mnist.plots.figure import COLOURS, SKY, name_lines, new_figure, save_figures
from paddle_mnist.system.devices import zlib_is_broken
from paddle_mnist.system.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPREAD = 0.12  # of points above one another, in units of the distance between two names
PALETTE = 256  # colours of a file, which no figure here has more of to the eye


@dataclass(frozen=True)
class Line:
    """A curve, and the band around it.

    xs: numbers, or names, which get markers. low, high: the limits of the band at each x.
    """

    xs: Union[Sequence[float], Sequence[str]]
    ys: Sequence[float]
    low: Optional[Sequence[float]] = None
    high: Optional[Sequence[float]] = None


@dataclass(frozen=True)
class Curves:
    """Lines by name. scale: of the y axis, "linear" or "log". title: of the panel."""

    title: str
    xlabel: str
    ylabel: str
    lines: Mapping[str, Line]
    scale: str = "linear"

    def draw(self, axes: "Axes", colours: Sequence[str]) -> None:
        # The first line is what the figure is about: it lies on top of the others.
        for order, ((name, line), colour) in enumerate(zip(self.lines.items(), colours)):
            marker = "o" if isinstance(line.xs[0], str) else None
            axes.plot(
                line.xs,
                line.ys,
                color=colour,
                linewidth=1.5,
                marker=marker,
                markersize=4,
                label=name,
                zorder=3 - order / len(self.lines),
            )
            if line.low is not None and line.high is not None:
                axes.fill_between(line.xs, line.low, line.high, color=colour, alpha=0.2, lw=0)
        axes.set(xlabel=self.xlabel, ylabel=self.ylabel, yscale=self.scale)
        axes.set_title(self.title, loc="left", fontsize=9)
        axes.grid(alpha=0.3)


@dataclass(frozen=True)
class Seeds:
    """The score of each seed, by name: a point each, and a line at their mean.

    form: of the means below the axis. with_names: whether the names stand there, too; otherwise
    their colours tell them apart.
    """

    title: str
    ylabel: str
    scores: Mapping[str, Sequence[float]]
    form: str = "{:.2%}"
    with_names: bool = True

    def draw(self, axes: "Axes", colours: Sequence[str]) -> None:
        labels = []
        for place, ((name, values), colour) in enumerate(zip(self.scores.items(), colours)):
            mean = float(np.mean(values))
            offsets = np.linspace(-SPREAD, SPREAD, len(values)) if len(values) > 1 else [0]
            axes.plot(place + np.array(offsets), values, "o", color=colour, markersize=4)
            axes.plot([place - 0.3, place + 0.3], [mean, mean], color=colour, linewidth=1.5)
            words = textwrap.wrap(name, 14) if self.with_names else []
            labels.append("\n".join([self.form.format(mean), *words]))
        axes.set_xticks(range(len(labels)), labels, fontsize=8)
        for label, colour in zip(axes.get_xticklabels(), colours):
            label.set_color(colour)
        axes.set(xlim=(-0.6, len(labels) - 0.4), ylabel=self.ylabel)
        axes.set_title(self.title, loc="left", fontsize=9)
        axes.grid(alpha=0.3, axis="y")
        if self.form.endswith("%}"):
            axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")


def panels(
    title: str,
    shown: Sequence[Union[Curves, Seeds]],
    colours: Sequence[str] = (*COLOURS, "black"),
) -> "Figure":
    """Draw panels with lines of the same names, two in a row, and one legend below them all."""
    rows = -(-len(shown) // 2)
    figure, grid = new_figure(3 * rows + 0.6, rows, 2)
    figure.suptitle(title, fontsize=10)
    for axes, panel in zip(grid.ravel(), shown):
        panel.draw(axes, colours)
    handles, names = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def bars(
    title: str, groups: Sequence[str], values: Mapping[str, Sequence[Sequence[float]]], label: str
) -> "Figure":
    """Draw groups of bars, of shares from 0 to 1: the mean of each, and a point for each seed.

    groups: their names. values: by name, the scores of the seeds in each group. label: of the y
    axis.
    """
    figure, ((axes,),) = new_figure(3.4)
    width = 0.8 / len(values)
    for number, ((name, scores), colour) in enumerate(zip(values.items(), COLOURS)):
        places = np.arange(len(groups)) + (number - (len(values) - 1) / 2) * width
        means = [float(np.mean(seeds)) for seeds in scores]
        drawn = axes.bar(places, means, 0.94 * width, color=colour, label=name)
        axes.bar_label(drawn, [f"{mean:.1%}" for mean in means], fontsize=9, padding=3)
        for place, seeds in zip(places, scores):
            if len(seeds) > 1:
                offsets = np.linspace(-width / 4, width / 4, len(seeds))
                axes.plot(place + offsets, seeds, ".", color="black", markersize=3)
    axes.set_xticks(range(len(groups)), groups)
    axes.set(ylabel=label, ylim=(0, 1.12), yticks=np.linspace(0, 1, 6))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    name_lines(axes, title)
    return figure


def reliability(title: str, bins: Mapping[str, Sequence[tuple[int, float, float]]]) -> "Figure":
    """Draw the accuracy over the confidence, with a series for each name, above a histogram.

    Each point has the 95% interval of its accuracy (Clopper and Pearson): a few images say little.
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
