"""Write the pages of VisualDL's dashboard (scalars, histograms, ...).

Comments explain workarounds for faults of version 2.5.3, the newest; `apps/dashboard.py` has those
for its server.
"""

import contextlib
import functools
import logging
import os
import re
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
from paddle_mnist.metrics.records import (
    GRAPH,
    RecordFile,
    ResumePoint,
    component,
    next_path,
    now,
    resumed_records,
    scalar,
)
from paddle_mnist.metrics.writers import chart_of
from paddle_mnist.system.environment import encodable, usable_home
from paddle_mnist.system.files import make_folder, matching, remove, write_atomically, writing
from paddle_mnist.system.regular_files import read_bytes
from paddle_mnist.train_state import TrainState

log = logging.getLogger("paddle_mnist")

# The tag of a run's summary. The page of texts sorts its tags, and opens the first.
ABOUT_RUN = "about this run"
ABOUT_GRAPH = (
    "The graph of the net's layers: Graphs > Dynamic; the + on a box shows what is inside it."
)
DIRECTIONS = 50  # of features: with longer rows, the page shows only some of the points
THRESHOLDS = 100  # of precision-recall and ROC curves, evenly from 0 to 1

Method = TypeVar("Method", bound=Callable[..., None])


def _page(name: str) -> Callable[[Method], Method]:
    """Call a method only if its page is chosen; for "", if any page is.

    The first error switches all pages off.
    """

    def wrap(method: Method) -> Method:
        @functools.wraps(method)
        def write(self: "VisualDLWriter", *args: Any, **kwargs: Any) -> None:
            if not self.pages or (name and name not in self.pages):
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
    """Writes chosen pages of the dashboard into a folder.

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
        """pages: names of scalars, histograms, images, figures, text, hparams, curves, embeddings,
        graph.

        every: steps between histograms. splits: those that share charts.
        """
        self.folder, self.pages, self.every = folder, set(pages), every
        self.splits = splits
        self._files: dict[str, RecordFile] = {}  # by split

    @_page("")
    def continue_from(self, root: Path, point: Optional[ResumePoint]) -> None:
        """Take over the records of earlier starts of the run up to a checkpoint, of all pages.

        They go to new files, and then the old ones are deleted, unless they are another run's.

        root: has a folder for each start, as version 1.0 made them, or just one.
        point: of the checkpoint; None to take over nothing.
        """
        old = sorted(root.glob("[0-9]*/*/vdl*.log"))
        folders = [*dict.fromkeys(path.parent for path in old)]
        if point:
            self._take_over(folders, point)
            if graphs := [path for path in old if path.name.startswith(GRAPH)]:
                self._write_graph(read_bytes(graphs[-1]))
        if root == self.folder.parent:
            for path in old:
                remove(path)
            for folder in folders:
                with contextlib.suppress(OSError):  # it is not empty: this start writes there
                    os.removedirs(folder)

    def _take_over(self, folders: Sequence[Path], point: ResumePoint) -> None:
        names: dict[str, dict[str, str]] = {folder.name: {} for folder in folders}
        for row in point.kept:
            split, name = chart_of(row["tag"], self.splits)
            names.setdefault(split, {})[row["tag"]] = _tag(name)
        for split, own in names.items():
            same = [folder for folder in folders if folder.name == split]
            if records := resumed_records(same, point, own):
                self._files[split] = RecordFile(self.folder / split, records)

    @_page("scalars")
    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        """Write metrics by tag."""
        for tag, value in values.items():
            split, name = chart_of(tag, self.splits)
            self._file(split).add(scalar(_tag(name), value, state.step))

    @_page("histograms")
    def after_step(self, view: View) -> None:
        """Write histograms of parameters and gradients every `every` steps, and at the first."""
        if view.step % self.every and view.step != 1:
            return
        for name in view.parameters:
            values = {"weights": view.parameter(name), "gradients": view.gradient(name)}
            for kind, array in values.items():
                if array is not None and np.isfinite(array).all():
                    counts, edges = np.histogram(array.ravel(), bins=30)
                    tag = _tag(f"{kind}/{name}")
                    self._add("histogram", tag, counts, edges, step=view.step)

    @_page("text")
    def text(self, tag: str, text: str, step: int = 0) -> None:
        """Write a text under a tag, with dots between lines that are not indented."""
        # The page shows a text as one paragraph, without line breaks.
        paragraph = re.sub(r"\n(?=\w)", " · ", encodable(text.strip()))
        self._add("text", _tag(tag), paragraph, step=step)

    @_page("images")
    def images(self, tag: str, images: np.ndarray) -> None:
        """Write images, uint8 [N, H, W], with a slider to choose one."""
        for number, image in enumerate(images):
            # Three channels: VisualDL passes one to Pillow as [H, W, 1], which Pillow refuses.
            colours = np.repeat(image[:, :, None], 3, axis=2)
            self._add("image", _tag(tag), colours, step=number)

    @_page("figures")
    def figures(self, figures: Mapping[str, np.ndarray], step: int) -> None:
        """Write figures by name, as pixels: uint8 [H, W, 3]."""
        for name, pixels in figures.items():
            self._add("image", _tag(f"figures/{name}"), pixels, step=step)

    @_page("curves")
    def curves(
        self, labels: np.ndarray, probabilities: np.ndarray, step: int, noun: str = "class"
    ) -> None:
        """Write precision-recall and ROC curves of each class against the others.

        Their tags are "precision and recall/NOUN LABEL" and "roc/NOUN LABEL".
        labels: int [N]. probabilities: [N, classes]. noun: what a class is called.
        """
        # VisualDL's `pr_curve` and `roc_curve` need `np.float`, and divide by wrong counts.
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
            pr_curve = (f"precision and recall/{name}", *counts, precision, recall)
            roc_curve = (f"roc/{name}", *counts, recall, false_positive_rate)
            self._add("pr_curve_raw", *pr_curve, step=step)
            self._add("roc_curve_raw", *roc_curve, step=step)

    @_page("embeddings")
    def embeddings(self, features: np.ndarray, labels: np.ndarray, noun: str = "class") -> None:
        """Write features, [N, width], reduced to the 50 directions that vary most.

        labels: int [N], by which the page colours them. noun: what a class is called.
        """
        # The page is too slow with 1,000 rows of 980 numbers, and hangs with one column of names.
        centred = features - features.mean(axis=0)
        _, _, directions = np.linalg.svd(centred, full_matrices=False)
        names = [[str(label) for label in labels], [f"image {n}" for n in range(len(labels))]]
        reduced = (centred @ directions[:DIRECTIONS].T).tolist()
        header = [noun, "image"]
        self._add("embedding", "features", names, reduced, step=0, labels_meta=header)

    @_page("hparams")
    def hparams(self, config: Mapping[str, Any], scores: Mapping[str, float], step: int) -> None:
        """Write the settings and results of this run, a row of the page that compares runs."""
        # VisualDL accepts neither bools nor lists, and drops None, so that rows do not line up.
        plain = {
            name: value if type(value) in (int, float) else encodable(str(value))
            for name, value in config.items()
        }
        run = encodable(str(self.folder))  # a name of the run, as UTF-8
        self._add("hparam", run, plain, list(scores))
        for name, value in scores.items():
            self._file().add(scalar(name, value, step))

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
        with usable_home():
            from visualdl.component.graph import translate_graph  # here: it is slow to import

        # It reads a `.pdmodel`, which Paddle 3 only writes in its old representation.
        old_representation = getattr(paddle.pir_utils, "DygraphOldIrGuard", contextlib.nullcontext)
        spec = InputSpec(list(input_shape), name="images")
        try:
            with warnings.catch_warnings(), unique_name.guard(), old_representation():
                warnings.simplefilter("ignore")
                graph = translate_graph(build(), [spec], False)
        except OSError:
            raise
        except Exception as error:
            log.warning("VisualDL could not draw the graph (%s); other pages work", summary(error))
        else:
            self._write_graph(graph.encode())
            self.text(ABOUT_RUN, ABOUT_GRAPH, step)

    def _write_graph(self, graph: bytes) -> None:
        """Write the file of the graph, in place of an older one."""
        folder = self.folder / "graph"
        make_folder(folder)
        older = matching(folder, f"{GRAPH}.*.log")
        write_atomically(next_path(folder, GRAPH), graph)
        for path in older:
            remove(path)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _add(self, kind: str, *values: Any, **options: Any) -> None:
        """Write a record that a function of VisualDL's makes. kind: the function's name."""
        record = getattr(component(), kind)(*values, walltime=now(), **options)
        self._file().add(record)

    def _file(self, split: str = "train") -> RecordFile:
        """Return the file of a split, which this start of the run has opened."""
        if split not in self._files:
            self._files[split] = RecordFile(self.folder / split)
        return self._files[split]


def _tag(tag: str) -> str:
    """Replace per cent signs, which VisualDL refuses."""
    return tag.replace("%", "percent")
