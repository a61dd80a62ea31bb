"""Pictures of a run: from its metrics, its predictions, its weights. Drawn without a display."""

import io
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
from matplotlib import rc_context
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

from paddle_mnist.mnist.arrays import CLASSES, DIGITS, Classes
from paddle_mnist.system.files import make_folder, write_atomically

log = logging.getLogger("paddle_mnist")

# Okabe & Ito, "Color Universal Design", 2008: told apart with any kind of colour blindness.
BLUE, VERMILION, GREEN, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9"
COLOURS = (BLUE, VERMILION, GREEN, ORANGE, SKY)
COLUMNS = 10  # of channels
MAPS = "cividis"  # even for all eyes (Nunez, Anderton & Renslow, 2018)
WIDTH = 7.0  # inches; at 120 dots an inch as wide as a README shows

History = Sequence[Mapping[str, Any]]  # the lines of a `metrics.jsonl`


def drawable(classes: Classes) -> Classes:
    """The classes as figures can show them: by number where the font lacks characters of names."""
    font = get_font(findfont(FontProperties()))
    missing = {
        char for name in classes.names for char in name if not font.get_char_index(ord(char))
    }
    if not missing:
        return classes
    log.warning(
        "the font %s lacks %s of the class names, so figures show the classes by number; set "
        "font.family in matplotlibrc to a font that has them",
        *(font.family_name, "".join(sorted(missing))),
    )
    return replace(classes, names=())


def series(history: History, tag: str) -> tuple[list[int], list[float]]:
    """The steps and values of a tag, in order."""
    rows = sorted((row["step"], row["value"]) for row in history if row["tag"] == tag)
    return [step for step, _ in rows], [value for _, value in rows]


def _new(height: float, rows: int = 1, columns: int = 1, **options) -> tuple[Figure, np.ndarray]:
    figure = Figure(figsize=(WIDTH, height), dpi=120, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def curves(history: History) -> Figure:
    """Loss and accuracy over the steps, of training and of validation."""
    figure, ((loss, accuracy),) = _new(3.2, 1, 2)
    for axes, name, label in (
        (loss, "loss", "loss (nats)"),
        (accuracy, "acc", "accuracy (share of right answers)"),
    ):
        for split, colour, mark in (("train", BLUE, ""), ("valid", VERMILION, "o")):
            steps, values = series(history, f"{split}/{name}")
            axes.plot(steps, values, color=colour, marker=mark, markersize=4, label=split)
        axes.set(xlabel="step", ylabel=label)
        axes.grid(alpha=0.3)
        axes.legend()
    loss.set_yscale("log")
    return figure


def learning_rate(history: History) -> Figure:
    """The rate of each step that was logged."""
    figure, ((axes,),) = _new(2.6)
    axes.plot(*series(history, "train/lr"), color=BLUE)
    axes.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    axes.grid(alpha=0.3)
    return figure


def confusion(counts: np.ndarray, classes: Classes = DIGITS) -> Figure:
    """counts: int [10, 10]; row i, column j: images of class i that were taken for j.

    The colours tell the mistakes apart; the right answers, many more, are left white.
    """
    wrong = counts * (1 - np.eye(len(counts), dtype=int))
    figure, ((axes,),) = _new(5.6)
    shown = axes.imshow(wrong, cmap="Blues", vmin=0, vmax=max(1, wrong.max()))
    for row, line in enumerate(counts):
        for column, count in enumerate(line):
            dark = row != column and count > 0.6 * wrong.max()
            axes.text(
                *(column, row, f"{count:,}" if count else "·"),
                ha="center",
                va="center",
                fontsize=8,
                color="white" if dark else "black",
                fontweight="bold" if row == column else "normal",
            )
    axes.set(xlabel="taken for", ylabel=f"the {classes.noun}")
    _name_ticks(axes.xaxis, classes)
    _name_ticks(axes.yaxis, classes)
    figure.colorbar(shown, label="mistakes (images)", shrink=0.8)
    return figure


def _name_ticks(axis: Axis, classes: Classes) -> None:
    """A tick for each class, with its name or number."""
    sideways = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    turned = sideways if classes.names and axis.axis_name == "x" else {}
    axis.set_ticks(range(CLASSES), [_plain(classes[label]) for label in range(CLASSES)], **turned)


def _plain(name: str) -> str:
    """A name as Matplotlib shows it unchanged: between two dollar signs it sees a formula."""
    return name.replace("$", r"\$")


def per_class(labels: np.ndarray, predictions: np.ndarray, classes: Classes = DIGITS) -> Figure:
    """The share of each class that was classified rightly. labels, predictions: int [N]."""
    figure, ((axes,),) = _new(2.8)
    there = [label for label in range(CLASSES) if (labels == label).any()]
    shares = [(predictions[labels == label] == label).mean() for label in there]
    bars = axes.bar(there, shares, color=BLUE)
    axes.bar_label(bars, [f"{share:.1%}" for share in shares], fontsize=8)
    low = min(shares)
    axes.set(
        xlabel=classes.noun,
        ylabel="accuracy (share)",
        ylim=(max(0, low - 1.5 * (1 - low) - 0.01), 1 + 0.3 * (1 - low) + 0.002),
    )
    _name_ticks(axes.xaxis, classes)
    axes.axhline(1, color="black", linewidth=0.5)
    return figure


def kernels(weight: np.ndarray) -> Figure:
    """The first layer's kernels, numbered from 0, row by row. weight: [C, 1, k, k]."""
    tiles = _tiles(weight[:, 0])
    figure, ((axes,),) = _new(1.1 + 0.6 * len(tiles) / weight.shape[2])
    top = np.abs(weight).max()
    shown = axes.imshow(tiles, cmap="PuOr", vmin=-top, vmax=top)
    size = weight.shape[2] + 1
    ticks = [size * at + size / 2 - 1 for at in range(COLUMNS)]
    axes.set_xticks(ticks, range(COLUMNS))
    rows = range(len(tiles) // size)
    axes.set_yticks(ticks[: len(rows)], [COLUMNS * row for row in rows])
    axes.set(xlabel="kernel: this number ...", ylabel="... plus this")
    axes.spines[:].set_visible(False)
    figure.colorbar(shown, label="weight", shrink=0.8)
    return figure


def feature_maps(image: np.ndarray, maps: Mapping[str, np.ndarray], answer: str) -> Figure:
    """One image on its way through the net; each channel from its own darkest to its brightest.

    image: [28, 28]. maps: by layer, in order, [C, H, W] each. answer: what came of it.
    """
    rows = [math.ceil(len(channels) / COLUMNS) for channels in maps.values()]
    figure, grid = _new(
        *(1.6 + 0.75 * sum(rows), 1 + len(maps)), height_ratios=[2, *(0.3 + r for r in rows)]
    )
    for (axes,), name in zip(grid, ["", *maps]):
        axes.axis("off")
        shape = " x ".join(map(str, maps[name].shape)) if name else ""
        axes.set_title(f"{name}: {shape}" if name else _plain(answer))
        axes.title.set_fontsize(9)
        if name:
            axes.imshow(_tiles(_stretched(maps[name])), cmap=MAPS)
        else:
            axes.imshow(image, cmap="gray")
    return figure


def _stretched(channels: np.ndarray) -> np.ndarray:
    """[C, H, W], each channel from 0 to 1."""
    low = channels.min(axis=(1, 2), keepdims=True)
    spread = channels.max(axis=(1, 2), keepdims=True) - low
    return (channels - low) / np.where(spread > 0, spread, 1)


def _tiles(channels: np.ndarray) -> np.ndarray:
    """[C, H, W] side by side, with nothing (masked) between them."""
    count, height, width = channels.shape
    rows = math.ceil(count / COLUMNS)
    tiles = np.ma.zeros((rows * COLUMNS, height + 1, width + 1))
    tiles[...] = np.ma.masked
    tiles[:count, :height, :width] = channels
    tiles = tiles.reshape(rows, COLUMNS, height + 1, width + 1)
    return tiles.swapaxes(1, 2).reshape(rows * (height + 1), COLUMNS * (width + 1))


def worst(labels: np.ndarray, probabilities: np.ndarray, count: int = 20) -> np.ndarray:
    """The mistakes that a net was most sure about: their indices, int [<= count].

    labels: int [N]. probabilities: [N, 10].
    """
    taken = probabilities.argmax(axis=1)
    wrong = np.flatnonzero(taken != labels)
    return wrong[np.argsort(-probabilities[wrong, taken[wrong]], kind="stable")][:count]


def mistakes(
    images: np.ndarray,
    labels: np.ndarray,
    probabilities: np.ndarray,
    of: str,
    names: Optional[Sequence[str]] = None,
    classes: Classes = DIGITS,
) -> Figure:
    """Images that were read wrongly: what they are, what the net said, how sure it was of both.

    images: [N, 28, 28]. labels: int [N]. probabilities: [N, 10]. of: the title. names: what each
    image is called, in a line of its own.
    """
    columns = 5
    rows = max(1, math.ceil(len(labels) / columns))
    figure, grid = _new(1.55 * rows + 0.4, rows, columns)
    figure.suptitle(of, fontsize=10)
    for axes in grid.ravel():
        axes.axis("off")
    titles = [f"{name}\n" for name in names] if names else [""] * len(labels)
    for axes, image, label, shares, title in zip(
        grid.ravel(), images, labels, probabilities, titles
    ):
        axes.imshow(image, cmap="gray_r")
        said = shares.argmax()
        between = ", " if classes == DIGITS else ",\n"  # longer words need a line each
        what = f"{classes.one(label)} ({shares[label]:.0%})"
        answer = f"said {classes[said]} ({shares[said]:.0%})"
        axes.set_title(_plain(f"{title}{what}{between}{answer}"), fontsize=8)
    return figure


def watched(history: History) -> bool:
    """Whether the run looked into its net, without which there is no `health` to draw."""
    return any(row["tag"].startswith("watch/") for row in history)


def health(history: History) -> Optional[Figure]:
    """How layers and steps fare over time; None where the run was not watched."""
    if not watched(history):
        return None
    shown = (
        ("zeros", "zeros (share)", ("relu1", "relu2"), "linear"),
        ("std", "spread of outputs (std)", ("conv1", "conv2", "fc"), "log"),
        ("dead", "dead channels (of 20)", ("relu1", "relu2"), "linear"),
        (
            *("update_ratio", "change a step / weights"),
            *(("conv1.weight", "conv2.weight", "fc.weight"), "log"),
        ),
    )
    figure, grid = _new(5.2, 2, 2, sharex=True)
    for axes, (what, label, places, scale) in zip(grid.ravel(), shown):
        for place, colour in zip(places, COLOURS):
            steps, values = series(history, f"watch/{place}/{what}")
            axes.plot(steps, values, color=colour, marker=".", markersize=4, label=place)
        axes.set(ylabel=label, yscale=scale)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    grid[0, 0].set_ylim(0, 1)
    grid[1, 0].set_ylim(0, max(1, grid[1, 0].get_ylim()[1]))
    for axes in grid[1]:
        axes.set_xlabel("step")
    return figure


def compare(histories: Mapping[str, History]) -> Figure:
    """Several runs over each other: a resumed one over the uninterrupted one, say.

    Later ones are drawn dashed over earlier ones, so that equal curves show both. The title tells
    by how much two runs differ at most.
    """
    figure, ((loss, accuracy),) = _new(3.4, 1, 2)
    for axes, tag, label in (
        (loss, "train/loss", "training loss (nats)"),
        (accuracy, "valid/acc", "validation accuracy (share)"),
    ):
        drawn = {name: series(history, tag) for name, history in histories.items()}
        for number, (name, (steps, values)) in enumerate(drawn.items()):
            axes.plot(
                *(steps, values),
                color=COLOURS[number % len(COLOURS)],
                linestyle="-" if number == 0 else (number, (4, 4)),
                linewidth=3.5 if number == 0 else 2,
                label=name,
            )
        axes.set(xlabel="step", ylabel=label)
        axes.set_title(_difference(list(drawn.values())), fontsize=9)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    loss.set_yscale("log")
    return figure


def _difference(drawn: Sequence[tuple[list[int], list[float]]]) -> str:
    if len(drawn) != 2:
        return ""
    first, second = (dict(zip(*one)) for one in drawn)
    common = first.keys() & second.keys()
    if not common:
        return "no step in common"
    return f"largest difference: {max(abs(first[s] - second[s]) for s in common):.3g}"


def panels(
    values: Mapping[tuple[str, str], Mapping[str, Union[Sequence[float], Mapping[Any, float]]]],
) -> Figure:
    """A line for each name, over the numbers from 1 or, of a mapping, over its keys; logarithmic.

    One panel over the other, by the labels of their axes; shares from 0 to 1 are linear. Over keys
    that are names there are points.
    """
    figure, grid = _new(3.2 * len(values) + 0.4, len(values))
    for (axes,), ((xlabel, ylabel), drawn) in zip(grid, values.items()):
        for (name, heights), colour in zip(drawn.items(), (*COLOURS, "black")):
            if not isinstance(heights, Mapping):
                heights = dict(enumerate(heights, 1))
            marker = "o" if isinstance(next(iter(heights)), str) else None
            axes.plot(*zip(*heights.items()), color=colour, linewidth=1, marker=marker, label=name)
        scale = "linear" if ylabel.endswith("(share)") else "log"
        axes.set(xlabel=xlabel, ylabel=ylabel, yscale=scale)
        axes.grid(alpha=0.3)
    grid[0, 0].legend(fontsize=8)
    return figure


def reliability(bins: Mapping[str, Sequence[tuple[int, float, float]]]) -> Figure:
    """Of each name (how many, mean confidence, share of right answers) by confidence.

    The first name's points tell how many they are of: a few images say little.
    """
    figure, ((axes,),) = _new(3.6)
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.5)
    for (name, one), colour in zip(bins.items(), COLOURS):
        _, sure, right = zip(*one)
        axes.plot(sure, right, color=colour, marker="o", markersize=4, label=name)
    for count, x, y in next(iter(bins.values())):
        axes.annotate(f"{count:,}", (x, y), (3, -8), textcoords="offset points", fontsize=6)
    axes.set(xlabel="mean confidence (share)", ylabel="right answers (share)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def bars(values: Mapping[str, Sequence[float]], titles: Sequence[str], label: str) -> Figure:
    """Groups of bars. values: by name, one for each title. label: of the y axis; from 0 to 1."""
    figure, ((axes,),) = _new(3.0)
    width = 0.8 / len(values)
    for number, ((name, heights), colour) in enumerate(zip(values.items(), COLOURS)):
        at = np.arange(len(titles)) + (number - (len(values) - 1) / 2) * width
        drawn = axes.bar(at, heights, width, color=colour, label=name)
        axes.bar_label(drawn, [f"{height:.1%}" for height in heights], fontsize=8)
    axes.set_xticks(range(len(titles)), titles)
    axes.set(ylabel=label, ylim=(0, 1.12))
    axes.legend(fontsize=8, ncols=len(values), loc="upper center")
    return figure


def save(figures: Mapping[str, Figure], folder: Path, only: Collection[str] = ()) -> None:
    """Write each as `<name>.png` and `<name>.svg`, or `only` some files. Raises OutputError.

    A file that is there is whole, so that a look at the names tells what is missing.
    """
    make_folder(folder)
    for name, figure in figures.items():
        for kind in ("png", "svg"):
            path = folder / f"{name}.{kind}"
            if only and path.name not in only:
                continue
            # Without dates and random names; still, the solver of the layout may move a text by
            # a hundredth of a dot.
            metadata = {"Date": None} if kind == "svg" else {"Software": None}
            picture = io.BytesIO()
            with rc_context({"svg.hashsalt": name}):
                figure.savefig(picture, format=kind, metadata=metadata)
            write_atomically(path, picture.getvalue())
            figure.set_layout_engine("none")  # it is laid out; once is slow enough
