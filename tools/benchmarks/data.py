"""Time until the images of an AI Studio JSON file are there, and peak memory."""

import gzip
import itertools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock
from markdown_tables import table as markdown_table

from benchmarks.timing import medians, run_python
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.arrays import Data
from paddle_mnist.mnist.sources import find_source
from paddle_mnist.system.files import write_atomically

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


def endless_batches(loader) -> Iterator:
    """Yield the batches of one epoch after the other."""
    from paddle_mnist.data.loader import epoch_batches

    for epoch in itertools.count():
        yield from epoch_batches(loader, epoch)


def digits_as_json(folder: Path) -> Path:
    """Write the embedded digits into a file of AI Studio's form."""
    from paddle_mnist.mnist.cache import open_data

    return as_json(open_data("digits"), folder)


def as_json(data: Data, folder: Path) -> Path:
    """Return a file of AI Studio's form, three pairs of lists: the data's own, or one made here."""
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
    """Return the AI Studio file that the data comes from. Raises ConfigError for other sources."""
    source = find_source(name)
    if len(source.paths) != 1:
        raise ConfigError(f"data is {source}; expected an AI Studio JSON file; name it with --data")
    return source.paths[0].resolve()
