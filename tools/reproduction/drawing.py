"""Figures of the documents, as small files."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paddle_mnist.plots import figure
from paddle_mnist.system.devices import zlib_is_broken
from paddle_mnist.system.files import write_atomically

COLOURS = 256  # of a palette, which no figure here has more of to the eye


def save_figures(figures: Mapping[str, Any], folder: Path) -> None:
    """Write each figure as `<name>.png`, with a palette: a third of the bytes."""
    names = [f"{name}.png" for name in figures]
    figure.save_figures(figures, folder, names)
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
    palette = opaque.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    palette.save(data, "png", optimize=True)
    write_atomically(path, data.getvalue())
