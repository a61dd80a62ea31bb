"""New figures, their colours, and how they are saved.

Matplotlib is imported when it draws: that takes long, and most processes, such as the ranks of a
distributed training, draw nothing.
"""

import contextlib
import importlib
import io
import logging
import math
import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paddle_mnist.plots.figure_files import KINDS
from paddle_mnist.system.devices import zlib_is_broken
from paddle_mnist.system.files import make_folder, write_atomically
from paddle_mnist.system.surroundings import encodable, environment, for_another_python

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito, "Color Universal Design", 2008: told apart with any kind of colour blindness.
BLUE, VERMILION, GREEN, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9"
COLOURS = (BLUE, VERMILION, GREEN, ORANGE, SKY)
WIDTH = 7.0  # inches
SHOWN_DPI = 120  # at which a figure is as wide as a README shows it
SAVED_DPI = 2 * SHOWN_DPI  # for print, and for screens of high resolution


def import_matplotlib() -> None:
    """Import Matplotlib without what its first import logs about fonts.

    A backend that the environment names, as Jupyter does for what it starts, is not needed here,
    and may not be installed. Where it is, it stays the one of the caller's pyplot.
    """
    if "matplotlib.font_manager" in sys.modules:
        return
    is_first = "matplotlib" not in sys.modules
    fonts, backend = logging.getLogger("matplotlib.font_manager"), os.environ.get("MPLBACKEND")
    level = fonts.level
    fonts.setLevel(logging.ERROR)
    try:
        with environment(MPLBACKEND=None):
            importlib.import_module("matplotlib.font_manager")
    finally:
        fonts.setLevel(level)
    if is_first and backend:
        with contextlib.suppress(ValueError):  # the import would have failed
            importlib.import_module("matplotlib").rcParams["backend"] = backend


def new_figure(
    height: float, rows: int = 1, columns: int = 1, **options: Any
) -> tuple["Figure", np.ndarray]:
    """Return a figure and its axes, [rows, columns]. height: in inches. options: of `subplots`."""
    import_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), dpi=SHOWN_DPI, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def name_lines(axes: "Axes", title: str = "") -> None:
    """Put the title above the axes, and between them a legend, where it hides nothing."""
    names = axes.get_legend_handles_labels()[1]
    rows = 0
    if names:
        width = axes.get_position().width * WIDTH
        needed = sum(0.32 + 0.062 * len(name) for name in names)  # of signs and letters, 8 points
        columns = max(1, int(len(names) * min(1, width / needed)))
        rows = math.ceil(len(names) / columns)
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=columns,
            fontsize=8,
            frameon=False,
            borderaxespad=0.1,
            handlelength=1.4,
            columnspacing=1.2,
        )
    axes.set_title(title, loc="left", fontsize=9, pad=6 + 14 * rows)  # points


def literal(text: str) -> str:
    """Escape a text that Matplotlib should show unchanged: it reads formulas between dollars."""
    return encodable(text).replace("$", r"\$")


def missing_characters(texts: Collection[str]) -> tuple[str, str]:
    """Return the characters that the font of figures lacks, in order, and the font's name."""
    import_matplotlib()
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties()))
    characters = {character for text in texts for character in text}
    missing = [char for char in sorted(characters) if not font.get_char_index(ord(char))]
    return "".join(missing), font.family_name


def save_figures(figures: Mapping[str, "Figure"], folder: Path, only: Collection[str] = ()) -> None:
    """Write each figure as `<name>.png` and `<name>.svg`. Raises OutputError.

    Each file appears when it is complete, so that the names of the files tell which are missing.
    only: write only the files of these names.
    """
    from matplotlib import rc_context

    make_folder(folder)
    for name, figure in figures.items():
        for kind in KINDS:
            path = folder / f"{name}.{kind}"
            if only and path.name not in only:
                continue
            if kind == "png" and zlib_is_broken():
                write_atomically(path, _png_of_another_process(figure))
                continue
            # Without dates and random names; still, the solver of the layout may move a text by
            # a hundredth of a dot.
            metadata = {"Date": None} if kind == "svg" else {"Software": None}
            data = io.BytesIO()
            with rc_context({"svg.hashsalt": name}):
                figure.savefig(data, format=kind, dpi=SAVED_DPI, metadata=metadata)
            write_atomically(path, data.getvalue())
            figure.set_layout_engine("none")  # the layout is done; once is slow enough


def _png_of_another_process(figure: "Figure") -> bytes:
    """Return a figure as PNG, compressed by a process that does not import Paddle."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas, shown = FigureCanvasAgg(figure), figure.dpi
    figure.set_dpi(SAVED_DPI)
    canvas.draw()
    size = canvas.get_width_height()
    program = (
        "import sys; from PIL import Image; "
        f"Image.frombytes('RGBA', {size}, sys.stdin.buffer.read()).save(sys.stdout.buffer, 'png')"
    )
    pixels = bytes(canvas.buffer_rgba())
    figure.set_dpi(shown)
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=for_another_python(), input=pixels, stdout=subprocess.PIPE, check=True
    ).stdout
