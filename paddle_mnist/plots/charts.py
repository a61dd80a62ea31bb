"""Lines and bars of any numbers."""

from collections.abc import Mapping, Sequence
from typing import Any, Union

import numpy as np
from matplotlib.figure import Figure

from paddle_mnist.plots.figure import COLOURS, new_figure

Line = Union[Sequence[float], Mapping[Any, float]]


def panels(values: Mapping[tuple[str, str], Mapping[str, Line]]) -> Figure:
    """Draw lines in panels, one panel below the other.

    values: for each panel, by the labels of its x and y axis, its lines by name. A line is drawn
        over the numbers from 1, or, if it is a mapping, over its keys; keys that are names get
        points. A y axis whose label ends in "(share)" is linear, any other logarithmic.
    """
    figure, grid = new_figure(3.2 * len(values) + 0.4, len(values))
    for (axes,), ((xlabel, ylabel), lines) in zip(grid, values.items()):
        for (name, line), colour in zip(lines.items(), (*COLOURS, "black")):
            points = line if isinstance(line, Mapping) else dict(enumerate(line, 1))
            marker = "o" if isinstance(next(iter(points)), str) else None
            xs, ys = list(points), list(points.values())
            axes.plot(xs, ys, color=colour, linewidth=1, marker=marker, label=name)
        scale = "linear" if ylabel.endswith("(share)") else "log"
        axes.set(xlabel=xlabel, ylabel=ylabel, yscale=scale)
        axes.grid(alpha=0.3)
    grid[0, 0].legend(fontsize=8)
    return figure


def bars(values: Mapping[str, Sequence[float]], titles: Sequence[str], label: str) -> Figure:
    """Draw groups of bars, of shares from 0 to 1.

    values: by name, one for each group. titles: of the groups. label: of the y axis.
    """
    figure, ((axes,),) = new_figure(3.0)
    width = 0.8 / len(values)
    for number, ((name, heights), colour) in enumerate(zip(values.items(), COLOURS)):
        places = np.arange(len(titles)) + (number - (len(values) - 1) / 2) * width
        group = axes.bar(places, heights, width, color=colour, label=name)
        axes.bar_label(group, [f"{height:.1%}" for height in heights], fontsize=8)
    axes.set_xticks(range(len(titles)), titles)
    axes.set(ylabel=label, ylim=(0, 1.12))
    axes.legend(fontsize=8, ncols=len(values), loc="upper center")
    return figure
