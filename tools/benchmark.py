#!/usr/bin/env python
"""Measure this package. Everything is measured side by side in one run; quote the ratios.

data   time until the images of an AI Studio JSON file are there, and peak memory: the standard
       library's json.load, this package without its cache, and with it
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from paddle_mnist.cli import Parser, run_command
from paddle_mnist.data.sources import find_source
from paddle_mnist.errors import ConfigError

# Each runs in a process of its own, so that the peak of its memory is its own too. Imports come
# before the clock starts.
CHILD = """
import resource, sys, time
path = sys.argv[1]
{imports}
started = time.perf_counter()
data = {work}
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(seconds, peak)
"""
STDLIB = CHILD.format(imports="import gzip, json", work="json.load(gzip.open(path))")
OURS = CHILD.format(imports="from paddle_mnist.data import open_data", work="open_data(path)")


def measure(program: str, path: Path, cache: str) -> tuple[float, float]:
    """Seconds and peak MiB of one process."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        env={**os.environ, "PADDLE_MNIST_CACHE": cache},
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, peak = done.stdout.split()
    return float(seconds), float(peak)


def data(path: Path, rounds: int) -> dict:
    """Medians over `rounds` of: json.load, cold (an empty cache), cached; and their ratios."""
    found = {"stdlib": [], "cold": [], "cached": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            found["stdlib"].append(measure(STDLIB, path, cache))
            found["cold"].append(measure(OURS, path, cache))
            found["cached"].append(measure(OURS, path, cache))
    seconds = {name: statistics.median(s for s, _ in runs) for name, runs in found.items()}
    peak = {name: statistics.median(p for _, p in runs) for name, runs in found.items()}
    return {
        "rounds": rounds,
        "seconds": seconds,
        "peak_mib": peak,
        "cold_ratio": seconds["stdlib"] / seconds["cold"],
        "cached_ratio": seconds["stdlib"] / seconds["cached"],
        "memory_ratio": peak["stdlib"] / peak["cold"],
    }


def as_markdown(report: dict) -> str:
    rows = ["| images ready | seconds | peak MiB | json.load takes |", "|---|---|---|---|"]
    for name, title in (
        ("stdlib", "`json.load(gzip.open(...))`"),
        ("cold", "this package, first time"),
        ("cached", "this package, cached"),
    ):
        seconds = report["seconds"][name]
        ratio = report["seconds"]["stdlib"] / seconds
        rows.append(f"| {title} | {seconds:.3g} | {report['peak_mib'][name]:.0f} | {ratio:.1f}x |")
    return "\n".join(rows)


def write_readmes(folder: Path, what: str, table: str) -> None:
    """Put a table between its marks, `<!-- benchmark WHAT -->` and `<!-- end -->`."""
    for path in sorted(folder.glob("README*.md")):
        marks = re.compile(rf"(<!-- benchmark {what} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = marks.sub(lambda found: f"{found[1]}{table}\n{found[2]}", path.read_text("utf-8"))
        path.write_text(text, "utf-8")


def main(argv) -> None:
    parser = Parser(prog="tools/benchmark.py", description=__doc__)
    parser.add_argument("what", choices=["data"])
    parser.add_argument("--data", default="auto", metavar="PATH", help="the JSON file [auto]")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="[3]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--readme", metavar="FOLDER", help="put the table into the READMEs there")
    args = parser.parse_args(argv)
    source = find_source(args.data)
    if len(source.paths) != 1:
        raise ConfigError(f"data is {source}; expected an AI Studio JSON file; name it with --data")
    report = data(source.paths[0].resolve(), max(1, args.rounds))
    print(json.dumps(report) if args.json else as_markdown(report))
    if args.readme:
        write_readmes(Path(args.readme), args.what, as_markdown(report))


if __name__ == "__main__":
    run_command(main, log_to=sys.stderr)
