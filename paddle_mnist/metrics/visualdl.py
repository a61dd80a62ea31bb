"""VisualDL: what is written for its dashboard, with the ways round its faults in this one place.

They are those of version 2.5.3, the newest there is; each comment says what retires it. Its server
has faults of its own: `dashboard.py` has the ways round those.
"""

import contextlib
import functools
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np

from paddle_mnist.errors import OutputError
from paddle_mnist.metrics import graph_page
from paddle_mnist.state import Observer, TrainState, View
from paddle_mnist.system.files import writing

log = logging.getLogger("paddle_mnist")

# Pages of the same tag in these folders are drawn into one chart.
SPLITS = ("train", "valid", "replay")


def _page(name: str):
    """A method that writes one page: nothing is done where that page is not wanted.

    A fault of the disk is told once, and ends them all.
    """

    def wrap(method: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(method)
        def write(self, *args, **kwargs) -> None:
            if name not in self.pages or self.failure:
                return
            try:
                self._check()
                with writing(self.folder):
                    method(self, *args, **kwargs)
            except OutputError as error:
                self.failure = error
                log.warning("no more VisualDL in this start, training goes on: %s", error)

        return write

    return wrap


class VisualDLWriter(Observer):
    """Writes the dashboard's pages into a fresh folder, those in `pages` (of `config.PAGES`).

    Metrics go into a folder a split ("train/loss" as "loss" into `train/`), so that training and
    validation stand in one chart. As an observer it adds histograms of parameters and gradients.

    When it can no longer write, that is said once, and training goes on without it:
    `metrics.jsonl` has the metrics too. Raises OutputError from `close` then.
    """

    def __init__(self, folder: Path, pages: Sequence[str], every: int = 100):
        """every: steps between histograms."""
        self.folder, self.pages, self.every = folder, set(pages), every
        self.failure: Optional[OutputError] = None
        self._files: dict[str, Any] = {}
        self._threads: list[threading.Thread] = []
        self._errors: list[OSError] = []  # of those threads
        if pages:
            self._file("train")  # at once: a folder that cannot be written is said before training

    @_page("scalars")
    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        for tag, value in values.items():
            split, _, name = tag.partition("/")
            if split not in SPLITS:
                split, name = "train", tag
            self._file(split).add_scalar(_tag(name), value, state.step)

    @_page("histograms")
    def after_step(self, view: View) -> None:
        if view.step % self.every and view.step != 1:
            return
        for name in view.parameters:
            values = {"weights": view.parameter(name), "gradients": view.gradient(name)}
            for kind, array in values.items():
                if array is not None and np.isfinite(array).all():
                    tag = _tag(f"{kind}/{name}")
                    self._file("train").add_histogram(tag, array.ravel(), view.step, buckets=30)

    def advance(self, state: TrainState) -> None:
        """Nothing to do."""

    @_page("text")
    def text(self, tag: str, text: str) -> None:
        self._file("train").add_text(_tag(tag), text, 0)

    @_page("images")
    def images(self, tag: str, images: np.ndarray) -> None:
        """images: uint8 [N, H, W], shown one after the other by a slider."""
        for number, image in enumerate(images):
            # Grey as three colours: VisualDL hands one channel on to Pillow as [H, W, 1], which
            # refuses it; any version that squeezes that away makes this needless.
            colours = np.repeat(image[:, :, None], 3, axis=2)
            self._file("train").add_image(_tag(tag), colours, number)

    @_page("figures")
    def figures(self, figures: Mapping[str, Any], step: int) -> None:
        """figures: of matplotlib, by name."""
        for name, figure in figures.items():
            self._file("train").add_image(_tag(f"figures/{name}"), _pixels(figure), step)

    @_page("curves")
    def curves(
        self, labels: np.ndarray, probabilities: np.ndarray, step: int, noun: str = "class"
    ) -> None:
        """Precision and recall, and ROC, of each class against the others.

        labels: int [N]. probabilities: [N, classes]. noun: what a class is called.
        """
        with _numpy_float():
            file = self._file("train")
            # A tag of its own for each kind: VisualDL knows one kind a tag.
            kinds = {"precision and recall": file.add_pr_curve, "roc": file.add_roc_curve}
            for kind, add in kinds.items():
                for label in np.unique(labels):
                    right = labels == label
                    # It divides the right ones found by the number of wrong ones; weighing them
                    # so that both are as many gives the true positive rate. An add_roc_curve that
                    # divides by tp + fn retires this.
                    balance = (~right).sum() / right.sum() if kind == "roc" else 1.0
                    add(
                        *(f"{kind}/{noun} {label}", right.astype("int64"), probabilities[:, label]),
                        *(step, 100, np.where(right, balance, 1.0)),
                    )

    @_page("embeddings")
    def embeddings(self, features: np.ndarray, labels: np.ndarray, noun: str = "class") -> None:
        """features: [N, width], one row an image. labels: int [N]. noun: what a class is called.

        They are turned into the 50 directions that vary most.
        """
        # Of longer rows the page shows only some points, and with one column of names it waits for
        # ever: a page that draws 1,000 rows of 980 numbers, named once, retires both.
        centred = features - features.mean(axis=0)
        _, _, directions = np.linalg.svd(centred, full_matrices=False)
        names = [[str(label) for label in labels], [f"image {n}" for n in range(len(labels))]]
        self._file("train").add_embeddings(
            *("features", centred @ directions[:50].T, names),
            metadata_header=[noun, "image"],
        )

    @_page("hparams")
    def hparams(self, config: Mapping[str, Any], scores: Mapping[str, float], step: int) -> None:
        """One row of the page that compares runs: what was set, and what came of it."""
        # It knows no bools and no lists, and leaves None out, so that rows would not line up. An
        # add_hparams that takes what JSON takes retires this.
        plain = {
            name: value if type(value) in (int, float, str) else str(value)
            for name, value in config.items()
        }
        self._file("train").add_hparams(plain, list(scores))
        for name, value in scores.items():
            self._file("train").add_scalar(name, value, step)

    @_page("graph")
    def graph(
        self,
        build: Callable[[], Any],
        input_shape: Sequence[Optional[int]],
        dtype: str = "float32",
    ) -> None:
        """Write the graph of a net's layers.

        build: returns the net, a `paddle.nn.Layer`; a class or function at the top level of its
            module, since another process calls it. input_shape: of a batch; None is a free size.
        """
        # add_graph reads a `.pdmodel`, which Paddle 3 writes only with its new intermediate
        # representation switched off, for a whole process; a VisualDL that reads
        # `inference.json` there makes this needless.
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", graph_page.__name__],
            input=pickle.dumps((str(self.folder / "graph"), build, list(input_shape), dtype)),
            env={**os.environ, "FLAGS_enable_pir_api": "0"},
            capture_output=True,
        )
        if done.returncode:
            reason = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()[-1:]
            log.warning("VisualDL could not draw the graph (%s); the rest is there", *reason)

    def close(self) -> None:
        if self.failure:
            raise self.failure
        self._check()
        with writing(self.folder):
            for file in self._files.values():
                file.close()
        self._check(closed=True)  # what was still to be written is, or is not

    def _check(self, closed: bool = False) -> None:
        if self._errors or not (closed or all(thread.is_alive() for thread in self._threads)):
            reason = f" ({self._errors[0].strerror})" if self._errors else ""
            raise OutputError(
                f"{self.folder}: VisualDL can no longer write there{reason}; free space, or switch "
                "it off with --visualdl false, and run the same command again"
            )

    def _tell_errors(self, file) -> None:
        """Have a file of VisualDL keep the errors of its writing, which happens in a thread.

        It prints them and goes on, with a torn file; one that raises them retires this.
        """
        records = file._get_file_writer()._async_writer._record_writer
        write = records.write

        def kept(data) -> None:
            try:
                write(data)
            except OSError as error:
                self._errors.append(error)
                raise

        records.write = kept

    def _file(self, split: str):
        if split not in self._files:
            from visualdl import LogWriter  # here, for it is slow to import

            before = set(threading.enumerate())
            folder = self.folder / split
            with writing(folder):
                # No display name: VisualDL mixes up runs that have the same one. One that keeps
                # runs apart by their folders retires this.
                self._files[split] = LogWriter(logdir=str(folder), flush_secs=5)
                self._tell_errors(self._files[split])
                # The file is opened, and its thread started, by the first value.
                self._files[split].add_text("about", f"written by paddle_mnist: {split}", 0)
            self._threads += [t for t in threading.enumerate() if t not in before]
        return self._files[split]


def _tag(tag: str) -> str:
    """VisualDL refuses a per cent sign in a tag; one that quotes it retires this."""
    return tag.replace("%", "percent")


def _pixels(figure: Any) -> np.ndarray:
    """uint8 [H, W, 3].

    VisualDL's own way asks pyplot, which may look for a display; an add_figure that asks the figure
    retires this.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3]


@contextlib.contextmanager
def _numpy_float() -> Iterator[None]:
    """Its curves use `np.float`, which NumPy 1.24 took away; one that says `float` retires this."""
    if "float" in vars(np):
        yield
        return
    np.float = float
    try:
        yield
    finally:
        del np.float
