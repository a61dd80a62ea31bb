"""Create figures, with their colours and names, and save them.

Matplotlib is only imported to draw: its import takes long, and most processes, such as the ranks of
a distributed run, draw nothing.
"""

import contextlib
import importlib
import io
import logging
import math
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import numpy as np

from paddle_mnist.system.devices import zlib_is_broken
from paddle_mnist.system.environment import encodable, environment, for_another_python
from paddle_mnist.system.files import make_folder, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL.Image import Image

log = logging.getLogger("paddle_mnist")

KINDS = ("png", "svg")  # each figure is saved as both
FIGURES = ("curves", "learning_rate", "health")  # of any run; the last only if it was watched
COMPARED = "compare"  # several runs in one figure

# A figure, or a function that draws it when it is saved
AnyFigure = Union["Figure", Callable[[], "Figure"]]

# Okabe & Ito, "Color Universal Design", 2008: distinct with any kind of colour blindness.
BLUE, VERMILION, GREEN, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9"
COLOURS = (BLUE, VERMILION, GREEN, ORANGE, SKY)
WIDTH = 7.0  # inches
SHOWN_DPI = 120  # for the width at which a README shows a figure
SAVED_DPI = 2 * SHOWN_DPI  # for print, and for high-resolution screens


def files_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the files of some figures."""
    return tuple(f"{name}.{kind}" for name in names for kind in KINDS)


COMPARED_FILES = files_of([COMPARED])


def import_matplotlib() -> None:
    """Import Matplotlib without the log lines about fonts of its first import.

    The backend that MPLBACKEND names is not needed here and may not be installed, for example in a
    process that Jupyter started. If it is installed, the caller's pyplot still uses it.
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


def import_to_save() -> None:
    """Import all of Matplotlib that `save_figures` needs."""
    import_matplotlib()
    for name in ("figure", "backends.backend_agg", "backends.backend_svg"):
        importlib.import_module(f"matplotlib.{name}")


def new_figure(
    height: float, rows: int = 1, columns: int = 1, **options: Any
) -> tuple["Figure", np.ndarray]:
    """Return a figure and its axes, [rows, columns]. height: in inches. options: of `subplots`."""
    figure = _empty_figure(height)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def _empty_figure(height: float) -> "Figure":
    import_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), dpi=SHOWN_DPI, layout="constrained")


def new_panels(height: float, count: int) -> tuple["Figure", list["Axes"]]:
    """Return a figure and the axes of its panels, two in a row. height: of a row, in inches."""
    rows, columns = math.ceil(count / 2), min(2, count)
    figure = _empty_figure(height * rows)
    panels = figure.subfigures(rows, columns, squeeze=False).ravel()
    return figure, [panel.subplots() for panel in panels[:count]]


def name_lines(axes: "Axes", title: str = "") -> None:
    """Put a title above the axes, and a legend above the title, in their figure or panel."""
    axes.set_title(title, loc="left", fontsize=9)
    names = axes.get_legend_handles_labels()[1]
    if names:
        columns = 2 if max(map(len, names)) < 20 else 1
        axes.figure.legend(loc="outside upper left", ncols=columns, fontsize=8, frameon=False)


def literal(text: str) -> str:
    """Escape a text so that Matplotlib shows it unchanged: between dollars it reads formulas."""
    return encodable(text).replace("$", r"\$")


class Drawn(NamedTuple):
    """A drawn figure.

    files: their contents, by name. pixels: of its PNG, if that is among them, at SHOWN_DPI: uint8
    [H, W, 3].
    """

    files: Mapping[str, bytes]
    pixels: Optional[np.ndarray]


def save_figures(
    figures: Mapping[str, AnyFigure], folder: Path, only: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Write each figure as `<name>.png` and `<name>.svg`. Raises OutputError.

    Files are written atomically: a file that exists is complete.
    only: draw and write only the files of these names.

    Returns the pixels of each PNG by the figure's name, at SHOWN_DPI: uint8 [H, W, 3].
    """
    names = [name for name in figures if not only or not {*only}.isdisjoint(files_of([name]))]
    return write_figures(((name, draw(name, figures[name], only)) for name in names), folder)


def write_figures(figures: Iterable[tuple[str, Drawn]], folder: Path) -> dict[str, np.ndarray]:
    """Write the files of figures as they are drawn; return their pixels, by name."""
    pixels = {}
    with ThreadPoolExecutor(1) as disk:  # while it is waited for, the next figure is drawn
        writing = disk.submit(make_folder, folder)
        for name, drawn in figures:
            writing.result()
            writing = disk.submit(_write_files, folder, drawn.files)
            if drawn.pixels is not None:
                pixels[name] = drawn.pixels
        writing.result()
    return pixels


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        write_atomically(folder / name, data)


def draw(name: str, value: AnyFigure, only: Collection[str] = ()) -> Drawn:
    """Draw the files of a figure, or only those of some names."""
    figure = value() if callable(value) else value
    files: dict[str, bytes] = {}
    pixels = None
    with _glyphs_named(name), _as_file(figure) as canvas:
        for file in files_of([name]):
            if only and file not in only:
                continue
            if file.endswith(".svg"):
                files[file] = _svg(figure, name)
                continue
            image = _image(canvas)
            files[file] = _png(image)
            pixels = np.asarray(image.reduce(SAVED_DPI // SHOWN_DPI))
    return Drawn(files, pixels)


@contextlib.contextmanager
def _glyphs_named(name: str) -> Iterator[None]:
    """Name in one line the characters that the fonts lack: Matplotlib warns of each, many times."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", "Glyph .* missing")
        yield
    missing: dict[str, None] = {}  # in the order of the text
    for warning in caught:
        if glyph := re.match(r"Glyph (\d+) .* missing", str(warning.message)):
            missing[chr(int(glyph[1]))] = None
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    if missing:
        log.warning("%s: Matplotlib's fonts lack %s; boxes stand for them", name, "".join(missing))


@contextlib.contextmanager
def _as_file(figure: "Figure") -> Iterator["FigureCanvasAgg"]:
    """Lay out a figure once, and set the resolution of files inside the context.

    `savefig` would lay it out, and draw it to do so, once more for each file. Yields the canvas
    that has laid it out, and knows the sizes of its texts.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    shown, canvas = figure.dpi, figure.canvas
    figure.set_dpi(SAVED_DPI)
    try:
        saved = FigureCanvasAgg(figure)
        if layout := figure.get_layout_engine():
            layout.execute(figure)
            figure.set_layout_engine("none")
        yield saved
    finally:
        figure.set_canvas(canvas)
        figure.set_dpi(shown)


def _svg(figure: "Figure", name: str) -> bytes:
    """Return a figure as SVG, without a date and random names."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    data = io.BytesIO()
    # Even so, the layout solver may move a text by a hundredth of a dot.
    # Images of one system of axes stay apart: joining them would take longer.
    with rc_context({"svg.hashsalt": name, "image.composite_image": False}):
        FigureCanvasSVG(figure).print_svg(data, metadata={"Date": None})
    figure.set_dpi(SAVED_DPI)  # print_svg has changed it
    return data.getvalue()


def _image(canvas: "FigureCanvasAgg") -> "Image":
    from PIL import Image

    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")  # it is opaque


def _png(image: "Image") -> bytes:
    """Return an image as PNG, compressed by another process where Paddle breaks zlib."""
    if not zlib_is_broken():
        data = io.BytesIO()
        image.save(data, "png", dpi=(SAVED_DPI, SAVED_DPI))
        return data.getvalue()
    program = (
        "import sys; from PIL import Image; "
        f"image = Image.frombytes({image.mode!r}, {image.size}, sys.stdin.buffer.read()); "
        f"image.save(sys.stdout.buffer, 'png', dpi=({SAVED_DPI}, {SAVED_DPI}))"
    )
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command,
        env=for_another_python(),
        input=image.tobytes(),
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
