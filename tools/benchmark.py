#!/usr/bin/env python
"""Measure this package. Everything is measured side by side in one run; quote the ratios."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from benchmarks import (
    any_size,
    checkpoint,
    clocks,
    data,
    evaluation,
    feeding,
    inference,
    ladder,
    log,
    memory,
    operators,
    promises,
    rehearsal,
    scale,
    sigterm,
    sparse,
    time_to_accuracy,
    training,
    watch,
)
from benchmarks.headlines import headlines
from benchmarks.machine import machine
from detector import pictures
from markdown_tables import is_code, write_table
from measuring.sources import as_json

from paddle_mnist.commands import Parser, run_command, run_script
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.cache import open_data

BENCHMARKS = {
    "data": data,
    "clocks": clocks,
    "train": training,
    "feeding": feeding,
    "time-to-accuracy": time_to_accuracy,
    "ladder": ladder,
    "memory": memory,
    "evaluate": evaluation,
    "operators": operators,
    "conv-blocks": any_size,
    "checkpoint": checkpoint,
    "rehearsal": rehearsal,
    "watch": watch,
    "sparse": sparse,
    "promises": promises,
    "scale": scale,
    "infer": inference,
    "pictures": pictures,
    "signal": sigterm,
    "log": log,
}
# What a rehearsal shortens, besides the rounds and the data.
QUICK = {
    "train": {"seconds": 0.5},
    "time-to-accuracy": {"seeds": 1},
    "feeding": {"sizes": (100, 200)},
    "rehearsal": {"steps": 3, "width": 50},
}
TITLES = {name: module.__doc__.splitlines()[0] for name, module in BENCHMARKS.items()}


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Measure and print the tables; return the exit code."""
    return run_command(_benchmark, argv, prints_data=True)


def _benchmark(argv: Sequence[str]) -> int:
    titles = [f"{name:18}{title}" for name, title in {**TITLES, "all": "All of these."}.items()]
    description = "\n".join([__doc__, "", *titles])
    parser = Parser(prog="tools/benchmark.py", description=description)
    parser.add_argument("what", choices=[*BENCHMARKS, "all"])
    parser.add_argument("--data", default="auto", metavar="PATH", help="as for training [auto]")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="[3]")
    parser.add_argument("--quick", action="store_true", help="a quick run on few digits")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument(
        "--docs", nargs="+", default=(), metavar="FOLDER", help="put the table into the pages there"
    )
    args = parser.parse_args(argv)
    if args.rounds < 1:
        raise ConfigError(f"rounds is {args.rounds}; expected at least 1")
    if args.what == "all":
        return _run_each(argv)
    # What libraries print, those in C++ too, is no part of a table.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with out, tempfile.TemporaryDirectory() as folder:
        if args.quick:
            args.rounds, args.data = 1, as_json(open_data("digits"), Path(folder))
        elif Path(args.data).exists():
            args.data = Path(args.data).absolute()  # for commands that run elsewhere
        _measure(args.what, args, out)
    return 0


def _run_each(argv: Sequence[str]) -> int:
    """Run each benchmark in a process of its own, which no other has left anything in.

    Returns the exit code of the first that fails.
    """
    for name in BENCHMARKS:
        words = [name if word == "all" else word for word in argv]
        code = subprocess.run([sys.executable, __file__, *words]).returncode
        if code:
            return code
    return 0


def _measure(name: str, args, out) -> None:
    benchmark = BENCHMARKS[name]
    options = QUICK.get(name, {}) if args.quick else {}
    report = benchmark.measure(str(args.data), args.rounds, **options)
    tables = benchmark.table(report)
    if isinstance(tables, str):
        tables = {name: tables}
    report["machine"] = machine()
    values = ", ".join(f"{key} {value}" for key, value in report["machine"].items())
    tables = {mark: _with_note(text, f"Measured on: {values}.") for mark, text in tables.items()}
    print(json.dumps(report) if args.json else "\n\n".join(tables.values()), file=out, flush=True)
    marked = {**tables, **headlines(name, tables[name])}
    for folder in args.docs:
        for path in sorted(Path(folder).glob("*.md")):
            for mark, text in marked.items():
                write_table(path, f"benchmark {mark}", text)


def _with_note(text: str, note: str) -> str:
    """Return a table with a note below; a block of code has none."""
    return text if is_code(text) else f"{text}\n\n{note}"


if __name__ == "__main__":
    run_script(main)
