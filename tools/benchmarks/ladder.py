"""From the tutorial's loop to ours, one change a row: seconds and accuracy of whole commands."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.accuracy import TOOLS, timed
from benchmarks.data import json_file

BARE = ("--visualdl", "false", "--figures", "false", "--watch", "0")
OWN = ("--fast_conv", "off")
ONE = ("--threads", "1")
# Each with what the one before has, but for what is said.
STEPS = {
    "the tutorial's loop": None,
    "images in one array, cached; batches by one index": ("tutorial", *OWN, *BARE),
    "the fast convolution, one thread": ("tutorial", "--fast_conv", "on", *ONE, *BARE),
    "a thread on each core": ("tutorial", "--fast_conv", "on", *BARE),
    "the recipe `default`: Momentum, one-cycle, weight decay, batches of 64": ("default", *BARE),
    "one epoch instead of five": ("default", "--epochs", "1", *BARE),
    "42,000 images instead of 50,000": ("fast",),
    "all that is looked at and drawn by default, besides": (
        *("fast", "--visualdl", "true", "--figures", "true", "--watch", "100"),
    ),
}


def measured(source: str, rounds: int) -> dict:
    """Seconds and eval accuracy of each, seed 1, once; the cache is filled before."""
    path = str(json_file(source))
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        cache = {"PADDLE_MNIST_CACHE": str(Path(folder, "cache"))}
        fill = "import sys; from paddle_mnist.mnist.cache import open_data; open_data(sys.argv[1])"
        subprocess.run([sys.executable, "-c", fill, path], env={**os.environ, **cache}, check=True)
        for number, (title, told) in enumerate(STEPS.items()):
            if told is None:
                command = [str(TOOLS / "baseline_tutorial.py"), "--data", path]
            else:
                output = ("--output", str(Path(folder, str(number))))
                command = [str(TOOLS / "train.py"), "--recipe", *told, "--data", path, *output]
            seconds, accuracy = timed(command, cache)
            found[title] = {"seconds": seconds, "eval_acc": accuracy}
    return {"rounds": 1, "rows": found}


def table(report: dict) -> str:
    rows = ["| change | seconds | times faster than the row before | eval accuracy |"]
    rows.append("|---|---|---|---|")
    before = None
    for title, one in report["rows"].items():
        ratio = f"{before / one['seconds']:.2f}" if before else ""
        before = one["seconds"]
        rows.append(f"| {title} | {before:.1f} | {ratio} | {one['eval_acc']:.2%} |")
    note = (
        "Whole commands, seed 1, each once: an accuracy is one draw of many. What several seeds "
        "of `default` reach is in [REPRODUCTION.md](../REPRODUCTION.md#default)."
    )
    return "\n".join([*rows, "", note])
