"""Time until the images of an AI Studio JSON file are there, and peak memory."""

import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.arrays import Data
from paddle_mnist.mnist.sources import find_source
from paddle_mnist.system.files import write_atomically

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
OURS = CHILD.format(
    imports="from paddle_mnist.mnist.cache import open_data", work="open_data(path)"
)


def _in_a_process(program: str, path: Path, cache: str) -> tuple[float, float]:
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


def measured(source: str, rounds: int) -> dict:
    """Medians over `rounds` of: json.load, cold (an empty cache), cached; and their ratios."""
    path = json_file(source)
    found = {"stdlib": [], "cold": [], "cached": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            found["stdlib"].append(_in_a_process(STDLIB, path, cache))
            found["cold"].append(_in_a_process(OURS, path, cache))
            found["cached"].append(_in_a_process(OURS, path, cache))
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


def table(report: dict) -> str:
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


def digits_as_json(folder: Path) -> Path:
    from paddle_mnist.mnist.cache import open_data

    return as_json(open_data("digits"), folder)


def as_json(data: Data, folder: Path) -> Path:
    """A file of AI Studio's form, three pairs of lists: the one there is, or one made here."""
    source = find_source(data.location)
    if len(source.paths) == 1:
        return source.paths[0].resolve()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{data.name}-{data.hash[:16]}.json.gz"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            lists = [
                (split.pixels(slice(None)).reshape(len(split), -1).tolist(), split.labels.tolist())
                for split in data.splits.values()
            ]
            write_atomically(path, gzip.compress(json.dumps(lists).encode(), 1))
    return path


def json_file(name: str) -> Path:
    source = find_source(name)
    if len(source.paths) != 1:
        raise ConfigError(f"data is {source}; expected an AI Studio JSON file; name it with --data")
    return source.paths[0].resolve()
