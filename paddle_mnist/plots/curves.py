"""Draw the metrics of a run over its steps, or compare several runs, from `metrics.jsonl`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Optional

import numpy as np

from paddle_mnist.metrics.writers import LEARNING_RATE
from paddle_mnist.plots.figure import (
    BLUE,
    COLOURS,
    SKY,
    VERMILION,
    literal,
    name_lines,
    new_figure,
    new_panels,
)
from paddle_mnist.plots.history import TRAIN, History, curve, evaluated_tag, metric_tags, series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Statistics of layers and weights, by tag, with the label and the scale of the y axis.
HEALTH = {
    "zeros": ("zeros (share)", "linear"),
    "std": ("spread of outputs (std)", "log"),
    "dead": ("dead channels", "linear"),
    "update_ratio": ("update of a step / weights", "log"),
}
MAX_POINTS = 2_000  # of a line; more than a screen shows


def figures_of(
    history: History, labels: Mapping[str, str] = {}, splits: Mapping[str, str] = {}
) -> dict[str, Callable[[], "Figure"]]:
    """Return functions that draw the figures of a run of any net, by name; see `FIGURES`.

    labels, splits: see `curves`.
    """
    figures: dict[str, Callable[[], Figure]] = {}
    if metric_tags(history):
        figures["curves"] = partial(curves, history, labels, splits)
    figures["learning_rate"] = partial(learning_rate, history)
    if was_watched(history):
        figures["health"] = partial(health, history)
    return figures


def curves(
    history: History, labels: Mapping[str, str] = {}, splits: Mapping[str, str] = {}
) -> "Figure":
    """Draw every metric over the steps, a panel for each, with a line for each split.

    The loss comes first. A panel's title gives the last evaluated values.
    labels: of the y axes, by metric, instead of its name. splits: names for the legend, by split.
    """
    metrics = metric_tags(history)
    figure, panels = new_panels(3.4, len(metrics))
    for axes, (name, tags) in zip(panels, metrics.items()):
        lines = {tag: curve(history, tag) for tag in tags}
        for number, tag in enumerate(tags):
            split = tag.partition("/")[0]
            axes.plot(
                *_thinned(*lines[tag]),
                color=COLOURS[number % len(COLOURS)],
                marker="" if split == TRAIN else "o",
                markersize=4,
                label=literal(splits.get(split, split)),
            )
        axes.set(xlabel="step", ylabel=labels.get(name, literal(name)))
        axes.grid(alpha=0.3)
        name_lines(axes, _final_values(name, lines))
        if name == "loss":
            _scale_by_logarithm(axes)
    return figure


def _thinned(steps: Sequence[int], values: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return a line of at most `MAX_POINTS`: the ends, and the extremes of neighbours."""
    points, heights = np.arange(len(steps)), np.array(values)
    if len(points) > MAX_POINTS:
        groups = np.array_split(points[1:-1], MAX_POINTS // 2 - 1)
        ends = [group[[heights[group].argmin(), heights[group].argmax()]] for group in groups]
        points = np.unique([*ends, points[[0, -1]]])
    return np.array(steps)[points], heights[points]


def _final_values(name: str, lines: Mapping[str, tuple[list[int], list[float]]]) -> str:
    """Return a title with the last values; those of the evaluated splits if there are any."""
    evaluated = [tag for tag in lines if not tag.startswith(f"{TRAIN}/")] or lines
    ends = ((tag.partition("/")[0], lines[tag][1][-1:]) for tag in evaluated)
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
    axes.plot(*_thinned(*series(history, LEARNING_RATE)), color=BLUE)
    axes.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    axes.grid(alpha=0.3)
    return figure


def range_test(
    rates: np.ndarray, losses: np.ndarray, smoothed: np.ndarray, suggestion: Optional[float]
) -> "Figure":
    """Draw the losses of a range test over the learning rates, all [N], and the suggested rate."""
    figure, ((axes,),) = new_figure(3.4)
    axes.plot(rates, losses, color=SKY, linewidth=1, label="loss of the batch")
    axes.plot(rates, smoothed, color=BLUE, label="smoothed")
    if suggestion:
        label = f"suggestion: {suggestion:.2g}"
        axes.axvline(suggestion, color=VERMILION, linestyle="--", label=label)
    low, high = losses.min(), losses[0]
    room = 0.3 * (high - low) or 1.0  # the losses after it has diverged are left out
    axes.set(xlabel="learning rate", ylabel="loss", xscale="log", ylim=(low - room, high + room))
    axes.grid(alpha=0.3)
    name_lines(axes)
    return figure


def was_watched(history: History) -> bool:
    """Return whether the history has statistics of layers, which `health` draws."""
    return bool(_watched_layers(history))


def health(history: History) -> "Figure":
    """Draw the statistics of a net's layers and weights over the steps, a panel for each of HEALTH.

    history: of a run that was watched.
    """
    panels = _watched_layers(history)
    figure, all_axes = new_panels(2.8, len(panels))
    for axes, (tag, layers) in zip(all_axes, panels.items()):
        for layer, colour in zip(_evenly_spaced(layers, len(COLOURS)), COLOURS):
            line = _thinned(*series(history, f"watch/{layer}/{tag}"))
            axes.plot(*line, color=colour, marker=".", markersize=4, label=layer)
        label, scale = HEALTH[tag]
        axes.set(xlabel="step", ylabel=label, yscale=scale)
        if scale == "linear":
            axes.set_ylim(0, max(1, axes.get_ylim()[1]))
        axes.grid(alpha=0.3)
        name_lines(axes)
    return figure


def _watched_layers(history: History) -> dict[str, list[str]]:
    """Return the layers and weights with each statistic of HEALTH.

    Layers without any zeros or dead channels are left out.
    """
    layers: dict[str, dict[str, None]] = {tag: {} for tag in HEALTH}
    for row in history:
        split, _, name = row["tag"].partition("/")
        layer, _, tag = name.rpartition("/")
        is_drawn = row["value"] is not None and (row["value"] or tag not in ("zeros", "dead"))
        is_bias = tag == "update_ratio" and layer.endswith("bias")
        if split == "watch" and tag in HEALTH and is_drawn and not is_bias:
            layers[tag][layer] = None
    return {tag: list(names) for tag, names in layers.items() if names}


def _evenly_spaced(names: Sequence[str], count: int) -> list[str]:
    """Return at most `count` of the names, evenly spaced, with the first and the last."""
    return [names[round(n)] for n in np.linspace(0, len(names) - 1, min(len(names), count))]


def compare(
    histories: Mapping[str, History],
    monitor: Optional[str] = None,
    labels: Mapping[str, str] = {},
) -> "Figure":
    """Draw several runs over each other, such as a resumed one over the uninterrupted one.

    The panels are the training loss, and the metric `monitor`, or else the first evaluated metric
    that all runs have, if any. labels: of the y axes, by tag.

    Later runs are dashed, so that both are visible where curves coincide. With two runs, the titles
    state the largest difference.
    """
    evaluated = evaluated_tag(list(histories.values()), monitor)
    tags = [f"{TRAIN}/loss", *([evaluated] if evaluated else [])]
    figure, panels = new_panels(3.4, len(tags))
    for axes, tag in zip(panels, tags):
        for number, (name, history) in enumerate(histories.items()):
            axes.plot(
                *_thinned(*curve(history, tag)),
                color=COLOURS[number % len(COLOURS)],
                linestyle="-" if number == 0 else (number, (4, 4)),
                linewidth=3.5 if number == 0 else 2,
                # Matplotlib leaves names that begin with an underscore out of the legend.
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
