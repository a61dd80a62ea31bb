"""Figures of digits and of the net that reads them; figures of any training are in `plots`."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Optional

import numpy as np
from matplotlib.figure import Figure

from paddle_mnist.mnist.arrays import DIGITS, Classes
from paddle_mnist.plots.curves import HealthPanel
from paddle_mnist.plots.figure import literal, missing_characters, new_figure

log = logging.getLogger("paddle_mnist")

COLUMNS = 10  # of channels
MAPS = "cividis"  # even for all eyes (Nunez, Anderton & Renslow, 2018)

HEALTH = (
    HealthPanel("zeros", "zeros (share)", ("relu1", "relu2"), limits=(0, 1)),
    HealthPanel("std", "spread of outputs (std)", ("conv1", "conv2", "fc"), "log"),
    HealthPanel("dead", "dead channels (of 20)", ("relu1", "relu2"), limits=(0, 1), grows=True),
    HealthPanel(
        "update_ratio",
        "change a step / weights",
        ("conv1.weight", "conv2.weight", "fc.weight"),
        "log",
    ),
)


def drawable(classes: Classes) -> Classes:
    """Return the classes as figures can show them: by number if the font lacks characters."""
    missing, font = missing_characters(classes.names)
    if not missing:
        return classes
    log.warning(
        "the font %s lacks %s of the class names, so figures show the classes by number; set "
        "font.family in matplotlibrc to a font that has them",
        font,
        missing,
    )
    return replace(classes, names=())


def kernels(weight: np.ndarray) -> Figure:
    """Draw the first layer's kernels, numbered from 0, row by row. weight: [C, 1, k, k]."""
    tiles = _tiles(weight[:, 0])
    figure, ((axes,),) = new_figure(1.1 + 0.6 * len(tiles) / weight.shape[2])
    top = np.abs(weight).max()
    image = axes.imshow(tiles, cmap="PuOr", vmin=-top, vmax=top)
    size = weight.shape[2] + 1
    ticks = [size * column + size / 2 - 1 for column in range(COLUMNS)]
    axes.set_xticks(ticks, range(COLUMNS))
    rows = range(len(tiles) // size)
    axes.set_yticks(ticks[: len(rows)], [COLUMNS * row for row in rows])
    axes.set(xlabel="kernel: this number ...", ylabel="... plus this")
    axes.spines[:].set_visible(False)
    figure.colorbar(image, label="weight", shrink=0.8)
    return figure


def feature_maps(image: np.ndarray, maps: Mapping[str, np.ndarray], title: str) -> Figure:
    """Draw an image and the outputs of the layers it passes through.

    Each channel is scaled from its own darkest to its brightest value.

    image: [28, 28]. maps: by layer, in order, [C, H, W] each. title: of the image.
    """
    rows = [math.ceil(len(channels) / COLUMNS) for channels in maps.values()]
    height = 1.6 + 0.75 * sum(rows)
    heights = [2, *(0.3 + row for row in rows)]
    figure, grid = new_figure(height, 1 + len(maps), height_ratios=heights)
    first, *others = grid[:, 0]
    first.set_title(literal(title))
    first.imshow(image, cmap="gray")
    for axes, (name, channels) in zip(others, maps.items()):
        axes.set_title(f"{name}: {' x '.join(map(str, channels.shape))}")
        axes.imshow(_tiles(_stretched(channels)), cmap=MAPS)
    for axes in grid[:, 0]:
        axes.axis("off")
        axes.title.set_fontsize(9)
    return figure


def _stretched(channels: np.ndarray) -> np.ndarray:
    """Scale each channel of [C, H, W] to 0..1."""
    low = channels.min(axis=(1, 2), keepdims=True)
    spread = channels.max(axis=(1, 2), keepdims=True) - low
    return (channels - low) / np.where(spread > 0, spread, 1)


def _tiles(channels: np.ndarray) -> np.ndarray:
    """Arrange [C, H, W] side by side, with nothing (masked) between them."""
    count, height, width = channels.shape
    rows = math.ceil(count / COLUMNS)
    tiles = np.ma.zeros((rows * COLUMNS, height + 1, width + 1))
    tiles[...] = np.ma.masked
    tiles[:count, :height, :width] = channels
    tiles = tiles.reshape(rows, COLUMNS, height + 1, width + 1)
    return tiles.swapaxes(1, 2).reshape(rows * (height + 1), COLUMNS * (width + 1))


def worst(labels: np.ndarray, probabilities: np.ndarray, count: int = 20) -> np.ndarray:
    """Return the indices, int [<= count], of the mistakes that a net was most sure about.

    labels: int [N]. probabilities: [N, 10].
    """
    predictions = probabilities.argmax(axis=1)
    wrong = np.flatnonzero(predictions != labels)
    order = np.argsort(-probabilities[wrong, predictions[wrong]], kind="stable")
    return wrong[order][:count]


def mistakes(
    images: np.ndarray,
    labels: np.ndarray,
    probabilities: np.ndarray,
    title: str,
    names: Optional[Sequence[str]] = None,
    classes: Classes = DIGITS,
) -> Figure:
    """Draw images that were misread, with their class and the net's answer and confidence.

    images: [N, 28, 28]. labels: int [N]. probabilities: [N, 10]. names: what each image is called,
    in a line of its own.
    """
    columns = 5
    rows = max(1, math.ceil(len(labels) / columns))
    figure, grid = new_figure(1.55 * rows + 0.4, rows, columns)
    figure.suptitle(title, fontsize=10)
    for axes in grid.ravel():
        axes.axis("off")
    prefixes = [f"{name}\n" for name in names] if names else [""] * len(labels)
    separator = ", " if classes == DIGITS else ",\n"  # longer words need a line each
    for axes, image, label, shares, prefix in zip(
        grid.ravel(), images, labels, probabilities, prefixes
    ):
        axes.imshow(image, cmap="gray_r")
        prediction = shares.argmax()
        truth = f"{classes.describe(label)} ({shares[label]:.0%})"
        answer = f"said {classes[prediction]} ({shares[prediction]:.0%})"
        axes.set_title(literal(f"{prefix}{truth}{separator}{answer}"), fontsize=8)
    return figure
