"""What is measured for the pages of `docs/` and for the package, apart from the claims."""

import argparse
import json
from pathlib import Path
from typing import Any

from markdown_tables import write_table

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.arrays import Data
from paddle_mnist.system.files import write_atomically
from reproduction import collapse, detector, forgetting, pretrained

INTO_DOCS = ("forgetting", "collapse", "pretrained", "detector", "figures")


def measure_for_docs(args: argparse.Namespace, name: str, data: Data) -> None:
    """Measure one of INTO_DOCS, show it, and put it into the pages of `--docs`."""
    output, figures = Path(args.output), Path(args.docs or args.output, "figures")
    if name == "collapse":
        report = collapse.measured(data.location, args.seed)
        text = collapse.tabulate(report)
    elif name == "pretrained":
        report = pretrained.measured(data.location, output, args.seed)
        text = pretrained.tabulate(report)
    elif name == "detector":
        report = detector.measured(data, output, args.seed)
        text = detector.tabulate(report)
    elif name == "forgetting":
        report = _measure_forgetting(args, data)
        text = forgetting.tabulate(report)
        if args.docs:
            from reproduction.drawing import save_figures

            save_figures({"forgetting": forgetting.figure(report)}, figures)
    else:
        from reproduction.drawing import draw_readme_figures

        report = draw_readme_figures(data.location, output, args.seed, figures)
        text = "\n".join(report)
    print(json.dumps(report) if args.json else text)
    if args.docs:
        for path in sorted(Path(args.docs).rglob("*.md")):
            write_table(path, f"reproduce {name}", text)


def _measure_forgetting(args: argparse.Namespace, data: Data) -> dict[str, Any]:
    """Train, or with `--page-only` read what is stored below `--docs`; store what was trained."""
    stored = Path(args.docs or args.output, "reproduction/forgetting.json")
    if args.page_only:
        if not stored.exists():
            raise DataError(f"{stored} does not exist; leave out --page-only to measure it")
        return json.loads(stored.read_text("utf-8"))
    seeds = args.seeds or forgetting.SEEDS
    folder = Path(args.output, "forgetting")
    report = forgetting.measured(data.location, folder, args.epochs, seeds)
    stored.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(stored, f"{json.dumps(report)}\n".encode())
    return report
