"""Figures of a training over its steps, from its `metrics.jsonl`; and of several, compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from matplotlib.figure import Figure

from paddle_mnist.plots.figure import BLUE, COLOURS, VERMILION, new_figure
from paddle_mnist.plots.history import History, series


def curves(history: History) -> Figure:
    """Draw loss and accuracy over the steps, of training and of validation."""
    figure, ((loss, accuracy),) = new_figure(3.2, 1, 2)
    for axes, name, label in (
        (loss, "loss", "loss (nats)"),
        (accuracy, "acc", "accuracy (share of right answers)"),
    ):
        for split, colour, marker in (("train", BLUE, ""), ("valid", VERMILION, "o")):
            steps, values = series(history, f"{split}/{name}")
            axes.plot(steps, values, color=colour, marker=marker, markersize=4, label=split)
        axes.set(xlabel="step", ylabel=label)
        axes.grid(alpha=0.3)
        axes.legend()
    loss.set_yscale("log")
    return figure


def learning_rate(history: History) -> Figure:
    """Draw the learning rate over the steps."""
    figure, ((axes,),) = new_figure(2.6)
    steps, rates = series(history, "train/lr")
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


def health(history: History, panels: Sequence[HealthPanel]) -> Optional[Figure]:
    """Draw how a net's layers fare over the steps, two panels a row.

    Returns None if the run was not watched.
    """
    if not was_watched(history):
        return None
    rows = (len(panels) + 1) // 2
    figure, grid = new_figure(2.6 * rows, rows, 2, sharex=True)
    for axes, panel in zip(grid.ravel(), panels):
        for layer, colour in zip(panel.layers, COLOURS):
            steps, values = series(history, f"watch/{layer}/{panel.tag}")
            axes.plot(steps, values, color=colour, marker=".", markersize=4, label=layer)
        axes.set(ylabel=panel.label, yscale=panel.scale)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        if panel.limits:
            low, high = panel.limits
            axes.set_ylim(low, max(high, axes.get_ylim()[1]) if panel.grows else high)
    for axes in grid.ravel()[len(panels) :]:
        axes.axis("off")
    for axes in grid[-1]:
        axes.set_xlabel("step")
    return figure


def compare(histories: Mapping[str, History]) -> Figure:
    """Draw several runs over each other: a resumed one over the uninterrupted one, say.

    Later ones are drawn dashed over earlier ones, so that equal curves show both. The title states
    the largest difference between two runs.
    """
    figure, ((loss, accuracy),) = new_figure(3.4, 1, 2)
    for axes, tag, label in (
        (loss, "train/loss", "training loss (nats)"),
        (accuracy, "valid/acc", "validation accuracy (share)"),
    ):
        lines = {name: series(history, tag) for name, history in histories.items()}
        for number, (name, (steps, values)) in enumerate(lines.items()):
            axes.plot(
                steps,
                values,
                color=COLOURS[number % len(COLOURS)],
                linestyle="-" if number == 0 else (number, (4, 4)),
                linewidth=3.5 if number == 0 else 2,
                label=name,
            )
        axes.set(xlabel="step", ylabel=label)
        axes.set_title(_difference(list(lines.values())), fontsize=9)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    loss.set_yscale("log")
    return figure


def _difference(lines: Sequence[tuple[list[int], list[float]]]) -> str:
    if len(lines) != 2:
        return ""
    first, second = (dict(zip(steps, values)) for steps, values in lines)
    common = first.keys() & second.keys()
    if not common:
        return "no step in common"
    return f"largest difference: {max(abs(first[s] - second[s]) for s in common):.3g}"
