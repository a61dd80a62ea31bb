"""What is measured for the pages of `docs/` and for the package, apart from the claims."""

import argparse
import json
from pathlib import Path

from detector import training as detector
from markdown_tables import write_table

from paddle_mnist.mnist.arrays import Data
from reproduction import collapse, continued, forgetting, pretrained, readme_figures

INTO_DOCS = {
    "forgetting": forgetting,
    "continued": continued,
    "collapse": collapse,
    "pretrained": pretrained,
    "detector": detector,
    "figures": readme_figures,
}


def measure_for_docs(args: argparse.Namespace, name: str, data: Data) -> None:
    """Measure one of INTO_DOCS, show it, and put it into the pages of `--docs`."""
    report = INTO_DOCS[name].measure(data, args)
    text = INTO_DOCS[name].tabulate(report)
    print(json.dumps(report) if args.json else text)
    if args.docs:
        for path in sorted(Path(args.docs).rglob("*.md")):
            write_table(path, f"reproduce {name}", text)
