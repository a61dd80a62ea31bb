"""Time until the images of an AI Studio JSON file are there, and peak memory."""

import tempfile

from markdown_tables import table as markdown_table
from measuring.sources import json_file

from benchmarks.timing import medians, run_python

# Each runs in a process of its own, so that the peak of its memory is its own too. Imports come
# before the clock starts.
CHILD = """
import sys, time
path = sys.argv[1]
{imports}
started = time.perf_counter()
data = {work}
print(time.perf_counter() - started)
"""
STDLIB = CHILD.format(imports="import gzip, json", work="json.load(gzip.open(path))")
OURS = CHILD.format(
    imports="from paddle_mnist.mnist.cache import open_data", work="open_data(path)"
)
KINDS = {  # the second of ours finds what the first has cached
    "stdlib": ("`json.load(gzip.open(...))`", STDLIB),
    "cold": ("this package, first time", OURS),
    "cached": ("this package, cached", OURS),
}


def measure(source: str, rounds: int) -> dict:
    """Medians over `rounds` of: json.load, cold (an empty cache), cached; and their ratios."""
    path = json_file(source)
    seconds, peaks = {kind: [] for kind in KINDS}, {kind: [] for kind in KINDS}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            for kind, (_, program) in KINDS.items():
                done = run_python("-c", program, path, PADDLE_MNIST_CACHE=cache)
                seconds[kind].append(float(done.printed))
                peaks[kind].append(done.peak_mib)
    seconds, peaks = medians(seconds), medians(peaks)
    return {
        "rounds": rounds,
        "seconds": seconds,
        "peak_mib": peaks,
        "cold_ratio": seconds["stdlib"] / seconds["cold"],
        "cached_ratio": seconds["stdlib"] / seconds["cached"],
        "memory_ratio": peaks["stdlib"] / peaks["cold"],
    }


def table(report: dict) -> str:
    seconds, peaks = report["seconds"], report["peak_mib"]
    return markdown_table(
        {"images ready": "", "seconds": ".3g", "peak MiB": ".0f", "json.load takes": ""},
        [
            (title, seconds[kind], peaks[kind], f"{seconds['stdlib'] / seconds[kind]:.1f}x")
            for kind, (title, _) in KINDS.items()
        ],
    )
