"""Measurements for the pages of `docs/` and for the package, apart from the claims."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Optional

from detector import training as detector
from markdown_tables import write_table

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.images import Images
from paddle_mnist.system.files import write_atomically
from reproduction import charts, incremental, initialization, pretrained
from reproduction.trainings import train

README_FIGURES = ("curves.png", "feature_maps.png", "mistakes.png")


class ForDocs(NamedTuple):
    """A measurement, and what makes a text of it.

    is_stored: whether the report is kept as JSON below `--docs`, and read with `--page-only`.
    draw: draws a figure of the report.
    """

    measure: Callable[[Images, argparse.Namespace], Any]
    tabulate: Callable[[Any], str]
    is_stored: bool = False
    draw: Optional[Callable[[Any], Any]] = None


def measure_for_docs(args: argparse.Namespace, name: str, data: Optional[Images]) -> None:
    """Measure one of INTO_DOCS, show it, and put it into the pages of `--docs`.

    data: None with `--page-only`. Raises DataError if nothing is stored then.
    """
    one = INTO_DOCS[name]
    folder = Path(args.docs or args.output)
    stored = folder / f"reproduction/{name}.json"
    if data:
        report = one.measure(data, args)
        if one.is_stored:
            stored.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(stored, f"{json.dumps(report)}\n".encode())
    elif stored.exists():
        report = json.loads(stored.read_text("utf-8"))
    else:
        raise DataError(f"{stored} does not exist; leave out --page-only to measure it")
    text = one.tabulate(report)
    print(text)
    if args.docs:
        if one.draw:
            charts.save_small({name: one.draw(report)}, folder / "figures")
        for path in sorted(folder.rglob("*.md")):
            write_table(path, f"reproduce {name}", text)


def draw_for_readmes(data: Images, args: argparse.Namespace) -> list[str]:
    """Train the recipe `default`, unless that is done, and draw; return the figures' paths."""
    from paddle_mnist.mnist.report import plot_runs

    run, folder = Path(args.output, "default"), Path(args.docs or args.output, "figures")
    train("default", {"data": data.path, "seed": args.seed, "log_every": 100}, run)
    plot_runs([run], str(folder), "cpu", README_FIGURES)
    paths = [folder / name for name in README_FIGURES]
    for path in paths:
        charts.shrink(path)
    return [str(path) for path in paths]


INTO_DOCS = {
    "forgetting": ForDocs(
        incremental.measure_forgetting,
        incremental.tabulate_forgetting,
        is_stored=True,
        draw=incremental.draw_forgetting,
    ),
    "continued": ForDocs(
        incremental.measure_continued, incremental.tabulate_continued, is_stored=True
    ),
    "collapse": ForDocs(initialization.measure_collapse, initialization.tabulate_collapse),
    "pretrained": ForDocs(pretrained.measure, pretrained.tabulate),
    "detector": ForDocs(detector.measure, detector.tabulate),
    "figures": ForDocs(draw_for_readmes, "\n".join),
}
