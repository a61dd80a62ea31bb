#!/usr/bin/env python
"""Measure this package. The rows of a table take turns in one run: quote their ratios."""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import commands, faq, feeding, inference, promises, saving, steps
from benchmarks.headlines import headlines
from benchmarks.measured import machine
from benchmarks.turns import Benchmark, Session
from detector import pictures
from markdown_tables import is_code, write_tables

from paddle_mnist.commands import Parser, run_command, run_script
from paddle_mnist.errors import ConfigError

# By the names of their tables.
BENCHMARKS: dict[str, Benchmark] = {}
for module in (commands, steps, feeding, saving, inference, promises, faq, pictures):
    BENCHMARKS.update(module.BENCHMARKS)


def main(argv: Sequence[str]) -> int:
    """Measure and print the tables; return the exit code."""
    titles = {name: benchmark.title for name, benchmark in BENCHMARKS.items()}
    titles["all"] = "All of these."
    lines = [f"{name:18}{title}" for name, title in titles.items()]
    parser = Parser(prog="tools/benchmark.py", description="\n".join([__doc__, "", *lines]))
    parser.add_argument("what", choices=list(titles))
    parser.add_argument("--data", default="auto", metavar="PATH", help="as for training [auto]")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="[3]")
    parser.add_argument("--quick", action="store_true", help="a quick run on few digits")
    parser.add_argument("--json", action="store_true", help="print the samples as a JSON object")
    parser.add_argument(
        "--docs", nargs="+", default=(), metavar="FOLDER", help="put the table into the pages there"
    )
    args = parser.parse_args(argv)
    if args.rounds < 1:
        raise ConfigError(f"rounds is {args.rounds}; expected at least 1")
    if args.what == "all":
        return _run_each(argv)
    # Libraries, those in C++ too, print to standard error instead: only tables belong here.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with out, tempfile.TemporaryDirectory() as folder:
        source = "digits" if args.quick else args.data
        if not args.quick and Path(source).exists():
            source = str(Path(source).absolute())  # for commands that run elsewhere
        session = Session(source, args.rounds, args.quick, Path(folder))
        _measure(args.what, session, args, out)
    return 0


def _run_each(argv: Sequence[str]) -> int:
    """Run each benchmark in a process of its own; return the exit code of the first that fails."""
    for name in BENCHMARKS:
        words = [name if word == "all" else word for word in argv]
        code = subprocess.run([sys.executable, __file__, *words]).returncode
        if code:
            return code
    return 0


def _measure(name: str, session: Session, args: Any, out: Any) -> None:
    benchmark = BENCHMARKS[name]
    report = benchmark.measure(session)
    report.machine = machine()
    table = benchmark.table(report)
    marked = {name: table, **headlines(name, benchmark.rows(report))}
    if not is_code(table):
        values = ", ".join(f"{key} {value}" for key, value in report.machine.items())
        marked[name] = f"{table}\n\nMeasured on: {values}."
    shown = json.dumps(dataclasses.asdict(report)) if args.json else marked[name]
    print(shown, file=out, flush=True)
    for folder in args.docs:
        for path in sorted(Path(folder).glob("*.md")):
            write_tables(path, {f"benchmark {mark}": text for mark, text in marked.items()})


if __name__ == "__main__":
    run_script(lambda argv: run_command(main, argv, prints_data=True))
