"""Figures of digits and of the net that reads them; `plots` draws those of any run."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from paddle_mnist.plots.figure import WIDTH, literal, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of runs on digits; `digit_figures_of` in `mnist/run_figures.py` draws them.
DIGIT_FIGURES = (
    "curves",
    "learning_rate",
    "confusion_matrix",
    "per_class",
    "kernels",
    "feature_maps",
    "mistakes",
    "health",
)
COLUMNS = 10  # of channels
MISTAKES, IMAGES_IN_A_ROW = 20, 5  # how many mistakes are drawn, and how many beside each other
# Distinct with any kind of colour blindness: Nunez, Anderton & Renslow, 2018; Brewer, 1994.
MAPS, SIGNED = "cividis", "PuOr"


def kernels(weight: np.ndarray) -> "Figure":
    """Draw the first layer's kernels, numbered from 0, row by row. weight: [C, 1, k, k]."""
    page = tiles(weight[:, 0])
    figure, ((axes,),) = new_figure(1.1 + 0.6 * len(page) / weight.shape[2])
    top = np.abs(weight).max()
    image = axes.imshow(page, cmap=SIGNED, vmin=-top, vmax=top)
    size = weight.shape[2] + 1
    ticks = [size * column + size / 2 - 1 for column in range(COLUMNS)]
    axes.set_xticks(ticks, range(COLUMNS))
    rows = range(len(page) // size)
    axes.set_yticks(ticks[: len(rows)], [COLUMNS * row for row in rows])
    axes.set(xlabel="kernel: this number ...", ylabel="... plus this")
    axes.spines[:].set_visible(False)
    figure.colorbar(image, label="weight", shrink=0.8)
    return figure


def feature_maps(image: np.ndarray, maps: Mapping[str, np.ndarray], title: str) -> "Figure":
    """Draw an image and the outputs of the layers it passes through.

    Each channel has its own scale. If a layer's outputs have both signs, 0 is white, and both signs
    are equally strong; otherwise the scale goes from the least to the greatest.

    image: [28, 28]. maps: by layer, in order, [C, H, W] each. title: of the image.
    """
    rows = [math.ceil(len(channels) / COLUMNS) for channels in maps.values()]
    heights = [1.4, *(0.25 + 0.68 * row for row in rows)]
    figure, grid = new_figure(sum(heights) + 0.3, 1 + len(maps), height_ratios=heights)
    first, *others = grid[:, 0]
    figure.suptitle(literal(title), fontsize=10)
    first.imshow(image, cmap="gray")
    first.set_title("input: {} x {}".format(*image.shape))
    for axes, (name, channels) in zip(others, maps.items()):
        signed = channels.min() < 0
        scale = "orange below 0, purple above" if signed else "each scaled to its maximum"
        count, *size = channels.shape
        axes.set_title(f"{name}: {count} channels of {' x '.join(map(str, size))}, {scale}")
        page = tiles(_balanced(channels) if signed else stretched(channels))
        axes.imshow(page, cmap=SIGNED if signed else MAPS, vmin=0, vmax=1)
    for axes in grid[:, 0]:
        axes.axis("off")
        axes.title.set_fontsize(8.5)
    return figure


def _balanced(channels: np.ndarray) -> np.ndarray:
    """Scale each channel of [C, H, W] so that 0 becomes 0.5, and the largest magnitude 0 or 1."""
    magnitude = np.abs(channels).max(axis=(1, 2), keepdims=True)
    scaled: np.ndarray = 0.5 + channels / np.where(magnitude > 0, 2 * magnitude, 1)
    return scaled


def stretched(channels: np.ndarray) -> np.ndarray:
    """Scale each channel of [C, H, W] to 0..1."""
    low = channels.min(axis=(1, 2), keepdims=True)
    spread = channels.max(axis=(1, 2), keepdims=True) - low
    scaled: np.ndarray = (channels - low) / np.where(spread > 0, spread, 1)
    return scaled


def tiles(channels: np.ndarray, columns: int = COLUMNS) -> np.ndarray:
    """Arrange [C, H, W] side by side, with a masked row and column after each."""
    count, height, width = channels.shape
    rows = math.ceil(count / columns)
    page: np.ndarray = np.ma.zeros((rows * columns, height + 1, width + 1))
    page[...] = np.ma.masked
    page[:count, :height, :width] = channels
    page = page.reshape(rows, columns, height + 1, width + 1)
    return page.swapaxes(1, 2).reshape(rows * (height + 1), columns * (width + 1))


def worst(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return the indices, int [<= MISTAKES], of the mistakes with the highest confidence.

    labels: int [N]. probabilities: [N, 10].
    """
    predictions = probabilities.argmax(axis=1)
    wrong = np.flatnonzero(predictions != labels)
    order = np.argsort(-probabilities[wrong, predictions[wrong]], kind="stable")
    return wrong[order][:MISTAKES]


def gallery(images: np.ndarray, captions: Sequence[str], title: str) -> "Figure":
    """Draw images [N, 28, 28] with captions, row by row."""
    rows = max(1, math.ceil(len(images) / IMAGES_IN_A_ROW))
    width = WIDTH / IMAGES_IN_A_ROW  # of a cell, in inches
    side, height = 0.72 * width, 0.72 * width + 0.42
    figure, ((axes,),) = new_figure(rows * height + 0.4)
    figure.suptitle(literal(title), fontsize=10)
    # One system of axes for all images: Matplotlib takes twice as long for one each.
    axes.axis("off")
    for number, (image, caption) in enumerate(zip(images, captions)):
        row, column = divmod(number, IMAGES_IN_A_ROW)
        middle, bottom = (column + 0.5) * width, (row + 1) * height
        top = bottom - side
        extent = (middle - side / 2, middle + side / 2, bottom, top)
        axes.imshow(image, cmap="gray_r", extent=extent)
        axes.text(middle, top - 0.06, literal(caption), fontsize=8, ha="center", va="bottom")
    axes.set(xlim=(0, WIDTH), ylim=(rows * height, 0))
    return figure
