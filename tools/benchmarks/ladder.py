"""From the tutorial's loop to ours, one change a row: seconds and accuracy of whole commands."""

import tempfile
from pathlib import Path

from markdown_tables import table as markdown_table
from measuring.sources import json_file

from benchmarks.time_to_accuracy import timed
from benchmarks.timing import TRAIN, TUTORIAL, run_python

BARE = ("--visualdl", "false", "--figures", "false", "--watch", "0")
DEFAULT = ("--visualdl", "true", "--figures", "true", "--watch", "100")
OWN = ("--fast_conv", "off")
ONE = ("--threads", "1")
# Recipe and options: each differs from the one before in what its title says.
STEPS = {
    "the tutorial's loop": None,
    "images in one array, cached; batches by one index": ("tutorial", *OWN, *BARE),
    "the fast convolution, one thread": ("tutorial", "--fast_conv", "on", *ONE, *BARE),
    "a thread on each core": ("tutorial", "--fast_conv", "on", *BARE),
    "the recipe `default`: Momentum, one-cycle, weight decay, batches of 64": ("default", *BARE),
    "one epoch instead of five": ("default", "--epochs", "1", *BARE),
    "42,000 images instead of 50,000": ("fast",),
    "plus the default watching, VisualDL and figures": ("fast", *DEFAULT),
}


def measure(source: str, rounds: int) -> dict:
    """Seconds and eval accuracy of each, seed 1, once; the cache is filled before."""
    path = json_file(source)
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        cache = {"PADDLE_MNIST_CACHE": str(Path(folder, "cache"))}
        fill = "import sys; from paddle_mnist.mnist.cache import open_data; open_data(sys.argv[1])"
        run_python("-c", fill, path, **cache)
        for number, (title, options) in enumerate(STEPS.items()):
            command = [TUTORIAL]
            if options:
                command = [TRAIN, "--recipe", *options, "--output", Path(folder, str(number))]
            seconds, accuracy = timed(*command, "--data", path, **cache)
            rows[title] = {"seconds": seconds, "eval_acc": accuracy}
    return {"rounds": 1, "rows": rows}


def table(report: dict) -> str:
    columns = {
        "change": "",
        "seconds": ".1f",
        "times faster than the row before": ".2f",
        "eval accuracy": ".2%",
    }
    rows, before = [], None
    for title, row in report["rows"].items():
        seconds = row["seconds"]
        rows.append((title, seconds, before and before / seconds, row["eval_acc"]))
        before = seconds
    note = (
        "Whole commands, seed 1, once each, so an accuracy is one of many that chance allows. "
        "[REPRODUCTION.md](../../REPRODUCTION.md#default) has several seeds of `default`."
    )
    return markdown_table(columns, rows, note)
