"""Write the pages of VisualDL's dashboard (scalars, histograms, ...).

Comments explain workarounds for faults of version 2.5.3, the newest; `apps/dashboard.py` has those
for its server.
"""

import contextlib
import functools
import logging
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, TypeVar, cast

import numpy as np
import paddle
from paddle.static import InputSpec
from paddle.utils import unique_name

from paddle_mnist.errors import OutputError, summary
from paddle_mnist.interfaces import View
from paddle_mnist.system.environment import encodable, usable_home
from paddle_mnist.system.files import writing
from paddle_mnist.train_state import TrainState

log = logging.getLogger("paddle_mnist")

# The tag of a run's summary. The page of texts sorts its tags, and opens the first.
ABOUT_RUN = "about this run"
GRAPH = "The graph of the net's layers: Graphs > Dynamic; the + on a box shows what is inside it."
DIRECTIONS = 50  # of features: with longer rows, the page shows only some of the points
THRESHOLDS = 100  # of precision-recall and ROC curves, evenly from 0 to 1

Method = TypeVar("Method", bound=Callable[..., None])


def _page(name: str) -> Callable[[Method], Method]:
    """Make a method write one page, if it is chosen. The first error switches all pages off."""

    def wrap(method: Method) -> Method:
        @functools.wraps(method)
        def write(self: "VisualDLWriter", *args: Any, **kwargs: Any) -> None:
            if name not in self.pages:
                return
            try:
                with writing(self.folder):
                    method(self, *args, **kwargs)
            except OutputError as error:
                self.pages.clear()
                log.warning("VisualDL is off until the next start; training continues: %s", error)

        return cast(Method, write)

    return wrap


class VisualDLWriter:
    """Writes chosen pages of the dashboard into a new folder.

    Metrics go into a subfolder for each split ("train/loss" as "loss" into `train/`), so that
    training and validation share a chart.

    When it cannot write, it logs that once, and training continues without it: `metrics.jsonl` has
    the metrics, too.
    """

    def __init__(
        self,
        folder: Path,
        pages: Sequence[str],
        every: int = 100,
        splits: Sequence[str] = ("train", "valid"),
    ):
        """pages: of scalars, histograms, images, figures, text, hparams, curves, embeddings, graph.

        every: steps between histograms. splits: those that share charts.
        """
        self.folder, self.pages, self.every = folder, set(pages), every
        self.splits = splits
        self._files: dict[str, Any] = {}  # a `visualdl.LogWriter` for each split

    @_page("scalars")
    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        """Write metrics by tag."""
        for tag, value in values.items():
            split, _, name = tag.partition("/")
            if split not in self.splits:
                split, name = "train", tag
            self._file(split).add_scalar(_tag(name), value, state.step)

    @_page("histograms")
    def after_step(self, view: View) -> None:
        """Write histograms of parameters and gradients every `every` steps, and at the first."""
        if view.step % self.every and view.step != 1:
            return
        file = self._file()
        for name in view.parameters:
            values = {"weights": view.parameter(name), "gradients": view.gradient(name)}
            for kind, array in values.items():
                if array is not None and np.isfinite(array).all():
                    tag = _tag(f"{kind}/{name}")
                    file.add_histogram(tag, array.ravel(), view.step, buckets=30)

    @_page("text")
    def text(self, tag: str, text: str, step: int = 0) -> None:
        """Write a text under a tag, with dots between lines that are not indented."""
        # The page shows a text as one paragraph, without line breaks.
        paragraph = re.sub(r"\n(?=\w)", " · ", encodable(text.strip()))
        self._file().add_text(_tag(tag), paragraph, step)

    @_page("images")
    def images(self, tag: str, images: np.ndarray) -> None:
        """Write images, uint8 [N, H, W], with a slider to choose one."""
        for number, image in enumerate(images):
            # Three channels: VisualDL passes one to Pillow as [H, W, 1], which Pillow refuses.
            colours = np.repeat(image[:, :, None], 3, axis=2)
            self._file().add_image(_tag(tag), colours, number)

    @_page("figures")
    def figures(self, figures: Mapping[str, np.ndarray], step: int) -> None:
        """Write figures by name, as pixels: uint8 [H, W, 3]."""
        # Not `add_figure`, which uses pyplot, and that may look for a display.
        for name, pixels in figures.items():
            self._file().add_image(_tag(f"figures/{name}"), pixels, step)

    @_page("curves")
    def curves(
        self, labels: np.ndarray, probabilities: np.ndarray, step: int, noun: str = "class"
    ) -> None:
        """Write precision-recall and ROC curves of each class against the others.

        Their tags are "precision and recall/NOUN LABEL" and "roc/NOUN LABEL".
        labels: int [N]. probabilities: [N, classes]. noun: what a class is called.
        """
        # `add_pr_curve` and `add_roc_curve` need `np.float`, and divide by wrong counts.
        from visualdl.component import base_component  # here: it is slow to import

        now, file = round(1000 * time.time()), self._file()._get_file_writer()
        for label in np.unique(labels):
            name, is_class = f"{noun} {label}", labels == label
            levels = np.floor(probabilities[:, label] * (THRESHOLDS - 1))
            predicted = levels >= np.arange(THRESHOLDS)[:, None]
            tp, fp = (predicted & is_class).sum(axis=1), (predicted & ~is_class).sum(axis=1)
            fn, tn = is_class.sum() - tp, (~is_class).sum() - fp
            # As in scikit-learn, the precision is 1 where nothing is predicted.
            precision = np.where(tp + fp, tp / np.maximum(tp + fp, 1), 1.0).tolist()
            recall = (tp / (tp + fn)).tolist()
            false_positive_rate = (fp / np.maximum(fp + tn, 1)).tolist()
            counts = [values.tolist() for values in (tp, fp, tn, fn)]
            pr_curve = (f"precision and recall/{name}", *counts, precision, recall, step, now)
            roc_curve = (f"roc/{name}", *counts, recall, false_positive_rate, step, now)
            file.add_record(base_component.pr_curve_raw(*pr_curve))
            file.add_record(base_component.roc_curve_raw(*roc_curve))

    @_page("embeddings")
    def embeddings(self, features: np.ndarray, labels: np.ndarray, noun: str = "class") -> None:
        """Write features, [N, width], reduced to the 50 directions that vary most.

        labels: int [N], by which the page colours them. noun: what a class is called.
        """
        # The page is too slow with 1,000 rows of 980 numbers, and hangs with one column of names.
        centred = features - features.mean(axis=0)
        _, _, directions = np.linalg.svd(centred, full_matrices=False)
        names = [[str(label) for label in labels], [f"image {n}" for n in range(len(labels))]]
        reduced = centred @ directions[:DIRECTIONS].T
        self._file().add_embeddings("features", reduced, names, metadata_header=[noun, "image"])

    @_page("hparams")
    def hparams(self, config: Mapping[str, Any], scores: Mapping[str, float], step: int) -> None:
        """Write the settings and results of this run, a row of the page that compares runs."""
        # VisualDL accepts neither bools nor lists, and drops None, so that rows do not line up.
        plain = {
            name: value if type(value) in (int, float) else encodable(str(value))
            for name, value in config.items()
        }
        file = self._file()
        file.add_hparams(plain, list(scores))
        for name, value in scores.items():
            file.add_scalar(name, value, step)

    @_page("graph")
    def graph(
        self,
        build: Callable[[], paddle.nn.Layer],
        input_shape: Sequence[Optional[int]],
        step: int = 0,
    ) -> None:
        """Write the graph of a net's layers, and a note that says where VisualDL shows it.

        build: returns a new net, since VisualDL changes it. input_shape: of a batch; None is a
            free size. step: of the note.
        """
        # `add_graph` reads a `.pdmodel`, which Paddle 3 only writes in its old representation.
        old_representation = getattr(paddle.pir_utils, "DygraphOldIrGuard", contextlib.nullcontext)
        spec = InputSpec(list(input_shape), name="images")
        try:
            with warnings.catch_warnings(), unique_name.guard(), old_representation():
                warnings.simplefilter("ignore")
                self._file("graph").add_graph(build(), [spec])
        except OSError:
            raise
        except Exception as error:
            log.warning("VisualDL could not draw the graph (%s); the rest is there", summary(error))
        else:
            self.text(ABOUT_RUN, GRAPH, step)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _file(self, split: str = "train") -> Any:
        """Return the `visualdl.LogWriter` of a split."""
        if split not in self._files:
            with usable_home():
                from visualdl import LogWriter  # here: it is slow to import

            # No display name: VisualDL mixes up runs with the same one.
            file = self._files[split] = LogWriter(logdir=str(self.folder / split))
            writer = file._get_file_writer()
            # The page of settings hashes this path as UTF-8 to name a run.
            writer._file_name = encodable(writer._file_name)
            # Write here, not in VisualDL's thread, which prints errors and leaves a torn file.
            thread, writer._async_writer = writer._async_writer, writer._async_writer._record_writer
            thread._worker.stop()
        return self._files[split]


def _tag(tag: str) -> str:
    """Replace per cent signs, which VisualDL refuses."""
    return tag.replace("%", "percent")
