"""Figures of a training over its steps, from its `metrics.jsonl`; and of several, compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Optional

import numpy as np

from paddle_mnist.metrics.writers import LEARNING_RATE
from paddle_mnist.plots.figure import BLUE, COLOURS, literal, name_lines, new_figure, new_panels
from paddle_mnist.plots.history import (
    TRAIN,
    History,
    curve,
    evaluated_tag,
    metric_tags,
    series,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def figures_of(history: History) -> dict[str, "Figure"]:
    """Return the figures of a run of any net by name; see `FIGURES`."""
    drawn = {
        "curves": curves(history),
        "learning_rate": learning_rate(history),
        "health": health(history, health_panels(history)),
    }
    return {name: figure for name, figure in drawn.items() if figure}


def curves(
    history: History, labels: Mapping[str, str] = {}, splits: Mapping[str, str] = {}
) -> Optional["Figure"]:
    """Draw every metric over the steps, a panel for each, with a line for each split.

    The loss comes first. A panel's title gives the last evaluated values.
    labels: of the y axes by the metrics' names, which they replace. splits: what the legend calls
        splits, by their names.
    Returns None if nothing was logged.
    """
    metrics = metric_tags(history)
    if not metrics:
        return None
    figure, panels = new_panels(3.4, len(metrics))
    for axes, (name, tags) in zip(panels, metrics.items()):
        for number, tag in enumerate(tags):
            split = tag.partition("/")[0]
            axes.plot(
                *curve(history, tag),
                color=COLOURS[number % len(COLOURS)],
                marker="" if split == TRAIN else "o",
                markersize=4,
                label=literal(splits.get(split, split)),
            )
        axes.set(xlabel="step", ylabel=labels.get(name, literal(name)))
        axes.grid(alpha=0.3)
        name_lines(axes, _at_the_end(name, tags, history))
        if name == "loss":
            _scale_by_logarithm(axes)
    return figure


def _at_the_end(name: str, tags: Sequence[str], history: History) -> str:
    """Return a title with the last values, of the evaluated splits if there are any."""
    evaluated = [tag for tag in tags if not tag.startswith(f"{TRAIN}/")] or tags
    ends = ((tag.partition("/")[0], curve(history, tag)[1][-1:]) for tag in evaluated)
    values = ", ".join(f"{split} {last:.4g}" for split, values in ends for last in values)
    return literal(f"{name} at the end: {values}")


def _scale_by_logarithm(axes: "Axes") -> None:
    """Make the y axis logarithmic, if all values are positive."""
    values = [value for line in axes.lines for value in np.asarray(line.get_ydata())]
    if values and min(values) > 0:
        axes.set_yscale("log")


def learning_rate(history: History) -> "Figure":
    """Draw the learning rate over the steps."""
    figure, ((axes,),) = new_figure(2.6)
    steps, rates = series(history, LEARNING_RATE)
    axes.plot(steps, rates, color=BLUE)
    axes.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    axes.grid(alpha=0.3)
    return figure


@dataclass(frozen=True)
class HealthPanel:
    """One panel of the figure of a net's health: what the watch measured in several layers.

    tag: the last part of `watch/{layer}/{tag}`. label: of the y axis. layers: one line each.
    scale: "linear" or "log". limits: of the y axis; None fits it to the values.
    grows: whether the upper limit gives way to higher values.
    """

    tag: str
    label: str
    layers: Sequence[str]
    scale: str = "linear"
    limits: Optional[tuple[float, float]] = None
    grows: bool = False


def was_watched(history: History) -> bool:
    """Return whether the run watched its net, without which there is no `health` to draw."""
    return any(row["tag"].startswith("watch/") for row in history)


def health_panels(history: History) -> list[HealthPanel]:
    """Return the panels of the health of any net that was watched.

    Of a net of many layers, five lines stand for all, from the first layer to the last. Zeros and
    dead channels are drawn of the layers that had any.
    """
    layers: dict[str, list[str]] = {}  # and parameters, by what was measured of them
    for row in history:
        prefix, _, rest = row["tag"].partition("/")
        layer, _, tag = rest.rpartition("/")
        names = layers.setdefault(tag, [])
        is_drawn = row["value"] if tag in ("zeros", "dead") else row["value"] is not None
        if prefix == "watch" and is_drawn and layer not in names:
            names.append(layer)
    matrices = [name for name in layers.get("update_ratio", []) if not name.endswith("bias")]
    panels = (
        HealthPanel("zeros", "zeros (share)", layers.get("zeros", []), limits=(0, 1)),
        HealthPanel("std", "spread of outputs (std)", layers.get("std", []), "log"),
        HealthPanel("dead", "dead channels", layers.get("dead", []), limits=(0, 1), grows=True),
        HealthPanel("update_ratio", "change a step / weights", matrices, "log"),
    )
    return [replace(panel, layers=_some(panel.layers)) for panel in panels if panel.layers]


def _some(names: Sequence[str]) -> list[str]:
    """Return as many names as there are colours, evenly spaced, the first and the last included."""
    last, steps = len(names) - 1, len(COLOURS) - 1
    if last <= steps:
        return list(names)
    return [names[round(number * last / steps)] for number in range(steps + 1)]


def health(history: History, panels: Sequence[HealthPanel]) -> Optional["Figure"]:
    """Draw what was measured of a net's layers over the steps.

    Returns None if the run was not watched.
    """
    if not was_watched(history):
        return None
    figure, all_axes = new_panels(2.8, len(panels))
    for axes, panel in zip(all_axes, panels):
        for layer, colour in zip(panel.layers, COLOURS):
            steps, values = series(history, f"watch/{layer}/{panel.tag}")
            axes.plot(steps, values, color=colour, marker=".", markersize=4, label=layer)
        axes.set(xlabel="step", ylabel=panel.label, yscale=panel.scale)
        axes.grid(alpha=0.3)
        name_lines(axes)
        if panel.limits:
            low, high = panel.limits
            axes.set_ylim(low, max(high, axes.get_ylim()[1]) if panel.grows else high)
    return figure


def compare(
    histories: Mapping[str, History],
    monitor: Optional[str] = None,
    labels: Mapping[str, str] = {},
) -> "Figure":
    """Draw several runs over each other: a resumed one over the uninterrupted one, say.

    Two panels: the training's loss, and the metric `monitor`, or the first evaluated metric that
    all runs have; without one there is no second. labels: of the y axes, by tag.

    Later ones are drawn dashed over earlier ones, so that equal curves show both. The title states
    the largest difference between two runs.
    """
    evaluated = evaluated_tag(list(histories.values()), monitor)
    tags = [f"{TRAIN}/loss", *([evaluated] if evaluated else [])]
    figure, panels = new_panels(3.4, len(tags))
    for axes, tag in zip(panels, tags):
        for number, (name, history) in enumerate(histories.items()):
            axes.plot(
                *curve(history, tag),
                color=COLOURS[number % len(COLOURS)],
                linestyle="-" if number == 0 else (number, (4, 4)),
                linewidth=3.5 if number == 0 else 2,
                # Matplotlib leaves names with an underscore in front out of the legend.
                label=literal(f"./{name}" if name.startswith("_") else name),
            )
        axes.set(xlabel="step", ylabel=labels.get(tag, literal(tag)))
        axes.grid(alpha=0.3)
        name_lines(axes, _difference([series(history, tag) for history in histories.values()]))
    _scale_by_logarithm(panels[0])
    return figure


def _difference(lines: Sequence[tuple[list[int], list[float]]]) -> str:
    if len(lines) != 2:
        return ""
    first, second = (dict(zip(steps, values)) for steps, values in lines)
    common = first.keys() & second.keys()
    if not common:
        return "no step in common"
    return f"largest difference: {max(abs(first[s] - second[s]) for s in common):.3g}"
