"""What a measurement gave, as JSON below `--docs`."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paddle_mnist.errors import DataError
from paddle_mnist.system.files import write_atomically


def measured_or_stored(
    args: argparse.Namespace, name: str, measure: Callable[[Path], dict[str, Any]]
) -> dict[str, Any]:
    """Measure and store, or with `--page-only` read what is stored below `--docs`.

    measure: takes the folder of the trainings, below `--output`. Raises DataError if nothing is
    stored.
    """
    stored = Path(args.docs or args.output) / f"reproduction/{name}.json"
    if not args.page_only:
        report = measure(Path(args.output, name))
        stored.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(stored, f"{json.dumps(report)}\n".encode())
        return report
    if stored.exists():
        return json.loads(stored.read_text("utf-8"))
    raise DataError(f"{stored} does not exist; leave out --page-only to measure it")
