"""Write the pages of VisualDL's dashboard (scalars, histograms, ...), and avoid its faults.

They are those of version 2.5.3, the newest there is; each comment says what retires it. The
workarounds for its server are in `apps/dashboard.py`.
"""

import functools
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, TypeVar, cast

import numpy as np

from paddle_mnist.errors import OutputError
from paddle_mnist.interfaces import Observer, View
from paddle_mnist.metrics import visualdl_graph
from paddle_mnist.metrics.spans import LEARNING_RATE, over_few
from paddle_mnist.metrics.visualdl_curves import add_curves
from paddle_mnist.metrics.visualdl_files import VisualDLFiles
from paddle_mnist.progress import TrainState
from paddle_mnist.system.devices import require_zlib
from paddle_mnist.system.files import writing
from paddle_mnist.system.surroundings import encodable, for_another_python

log = logging.getLogger("paddle_mnist")

# The tag of the texts that sum up a run. The page of texts sorts its tags, and opens the first.
ABOUT = "about this run"
GRAPH = "The graph of the net's layers: Graphs > Dynamic; the + on a box shows what is inside it."
HISTOGRAMS = 10  # of each parameter, at least, in a training of known length
DIRECTIONS = 50  # of features: of longer rows the page shows only some points

Method = TypeVar("Method", bound=Callable[..., None])


def _page(name: str) -> Callable[[Method], Method]:
    """Make a method write one page: it does nothing where that page is switched off.

    The first failure to write is logged and ends the writing of all pages.
    """

    def wrap(method: Method) -> Method:
        @functools.wraps(method)
        def write(self: "VisualDLWriter", *args: Any, **kwargs: Any) -> None:
            if name not in self.pages or self.failure:
                return
            try:
                self._files.check()
                with writing(self.folder):
                    method(self, *args, **kwargs)
            except OutputError as error:
                self.failure = error
                log.warning("VisualDL is off until the next start; training continues: %s", error)

        return cast(Method, write)

    return wrap


class VisualDLWriter(Observer):
    """Writes chosen pages of the dashboard into a new folder.

    It is a `Writer`, whose metrics go into a sub-folder for each split ("train/loss" as "loss" into
    `train/`), so that training and validation share a chart; and an `Observer`, which adds
    histograms of parameters and gradients.

    When it can no longer write, it logs that once, and training continues without it:
    `metrics.jsonl` has the metrics too. `close` then raises OutputError.
    """

    def __init__(
        self,
        folder: Path,
        pages: Sequence[str],
        every: int = 100,
        splits: Sequence[str] = ("train", "valid"),
        start: int = 0,
    ):
        """pages: of scalars, histograms, images, figures, text, hparams, curves, embeddings, graph.

        Raises DeviceError as `require_pages` does.
        every: steps between histograms. splits: scalars of the same name are drawn into one chart.
        start: the step at which the training starts.
        """
        require_pages(pages)
        self.folder, self.pages, self.every = folder, set(pages), every
        self.splits = splits
        self.failure: Optional[OutputError] = None
        self._lines = [start]  # where training started, and the newest lines' steps
        self._files = VisualDLFiles(folder)
        if pages:
            self._files.open("train")  # at once: if the folder cannot be written, before training

    @_page("scalars")
    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        """Write metrics by tag, but for a training's averages over few steps (`metrics.spans`)."""
        if LEARNING_RATE in values:
            start, *lines = self._lines = [*self._lines[-2:], state.step]
            if state.step in over_few(lines, start):
                return
        for tag, value in values.items():
            split, _, name = tag.partition("/")
            if split not in self.splits:
                split, name = "train", tag
            self._files.open(split).add_scalar(_tag(name), value, state.step)

    @_page("histograms")
    def after_step(self, view: View) -> None:
        """Write histograms of parameters and gradients where they are due."""
        if view.step % self.every and view.step != 1:
            return
        file = self._files.open("train")
        for name in view.parameters:
            values = {"weights": view.parameter(name), "gradients": view.gradient(name)}
            for kind, array in values.items():
                if array is not None and np.isfinite(array).all():
                    tag = _tag(f"{kind}/{name}")
                    file.add_histogram(tag, array.ravel(), view.step, buckets=30)

    @_page("text")
    def text(self, tag: str, text: str, step: int = 0) -> None:
        """Write a text under a tag. Lines that are not indented become items with dots between."""
        # It shows a text as one paragraph, without line breaks; one that keeps them retires this.
        paragraph = re.sub(r"\n(?=\w)", " · ", encodable(text.strip()))
        self._files.open("train").add_text(_tag(tag), paragraph, step)

    @_page("images")
    def images(self, tag: str, images: np.ndarray) -> None:
        """Write images, uint8 [N, H, W], between which a slider chooses."""
        for number, image in enumerate(images):
            # Grey as three colours: VisualDL hands one channel on to Pillow as [H, W, 1], which
            # refuses it; any version that squeezes that away makes this needless.
            colours = np.repeat(image[:, :, None], 3, axis=2)
            self._files.open("train").add_image(_tag(tag), colours, number)

    @_page("figures")
    def figures(self, figures: Mapping[str, np.ndarray], step: int) -> None:
        """Write drawn figures by name: their pixels, uint8 [H, W, 3].

        VisualDL's own way asks pyplot, which may look for a display; an add_figure that asks the
        figure retires this.
        """
        for name, pixels in figures.items():
            self._files.open("train").add_image(_tag(f"figures/{name}"), pixels, step)

    @_page("curves")
    def curves(
        self, labels: np.ndarray, probabilities: np.ndarray, step: int, noun: str = "class"
    ) -> None:
        """Write precision-recall and ROC curves of each class against the others.

        labels: int [N]. probabilities: [N, classes]. noun: what a class is called.
        """
        file = self._files.open("train")
        for label in np.unique(labels):
            name = f"{noun} {label}"
            add_curves(file, name, labels == label, probabilities[:, label], step)

    @_page("embeddings")
    def embeddings(self, features: np.ndarray, labels: np.ndarray, noun: str = "class") -> None:
        """Write features, [N, width], reduced to the 50 directions that vary most.

        labels: int [N], by which the page colours them. noun: what a class is called.
        """
        # A page that draws 1,000 rows of 980 numbers retires the reduction. With one column of
        # names it waits for ever: one that needs no second column retires the images' numbers.
        centred = features - features.mean(axis=0)
        _, _, directions = np.linalg.svd(centred, full_matrices=False)
        names = [[str(label) for label in labels], [f"image {n}" for n in range(len(labels))]]
        self._files.open("train").add_embeddings(
            "features",
            centred @ directions[:DIRECTIONS].T,
            names,
            metadata_header=[noun, "image"],
        )

    @_page("hparams")
    def hparams(self, config: Mapping[str, Any], scores: Mapping[str, float], step: int) -> None:
        """Write the settings and results of this run, a row of the page that compares runs."""
        # It knows no bools and no lists, and leaves None out, so that rows would not line up. To be
        # removed when add_hparams accepts JSON types.
        plain = {
            name: value if type(value) in (int, float) else encodable(str(value))
            for name, value in config.items()
        }
        file = self._files.open("train")
        file.add_hparams(plain, list(scores))
        for name, value in scores.items():
            file.add_scalar(name, value, step)

    @_page("graph")
    def graph(
        self,
        build: Callable[[], Any],
        input_shape: Sequence[Optional[int]],
        step: int = 0,
    ) -> None:
        """Write the graph of a net's layers, and a note of where VisualDL shows it.

        build: returns the net, a `paddle.nn.Layer`; a class or function at the top level of its
            module, since another process calls it. input_shape: of a batch; None is a free size.
        step: of the note.
        """
        # add_graph reads a `.pdmodel`, which Paddle 3 writes only with its new intermediate
        # representation switched off, for a whole process; a VisualDL that reads
        # `inference.json` there makes this needless.
        folder = str(self.folder / "graph")
        net = (build.__module__, build.__qualname__, json.dumps(list(input_shape)))
        process = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", visualdl_graph.__name__, folder, *net],
            env=for_another_python(FLAGS_enable_pir_api="0"),
            capture_output=True,
        )
        if process.returncode:
            output = (process.stderr or process.stdout).decode(errors="replace")
            reason = output.strip().rpartition("\n")[2]
            log.warning("VisualDL could not draw the graph (%s); the rest is there", reason)
        else:
            self.text(ABOUT, GRAPH, step)

    def close(self) -> None:
        """Close the files. Raises OutputError if something could not be written."""
        if self.failure:
            raise self.failure
        self._files.close()


def require_pages(pages: Collection[str]) -> None:
    """Raise DeviceError where Paddle 2 breaks what images need (`zlib_is_broken`)."""
    if not {"images", "figures"}.isdisjoint(pages):
        require_zlib("images and figures on the dashboard")


def _tag(tag: str) -> str:
    """VisualDL refuses a per cent sign in a tag; one that quotes it retires this."""
    return tag.replace("%", "percent")
