"""The clocks of a start, apart: import, images ready, first step, steady step; --help."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.data import json_file

TOOLS = Path(__file__).parents[1]
STEADY = 100  # steps
# Times since the process was started, which is told on the command line.
CHILD = f"""
import itertools, sys, time
def lap(): print(time.time() - float(sys.argv[2]))
from paddle_mnist.system.devices import require_paddle
require_paddle()
from paddle_mnist.mnist.run import train_and_evaluate
from paddle_mnist.mnist.setup import build
from paddle_mnist import TrainConfig, Trainer
from paddle_mnist.mnist.cache import open_data
from paddle_mnist.data.loader import epoch_batches
lap()
data = open_data(sys.argv[1])
lap()
parts = build(TrainConfig(epochs=100), data, None)
trainer = Trainer("unused", parts.model, parts.optimizer)
epochs = (epoch_batches(parts.loader, number) for number in itertools.count())
batches = itertools.chain.from_iterable(epochs)
trainer.train_step(next(batches)).item()
lap()
for number in range({STEADY}):
    trainer.train_step(next(batches))
trainer.loss.item()
lap()
"""
TITLES = {
    "help": "`tools/train.py --help`",
    "package": "`import paddle_mnist` (in a Python that is there)",
    "import": "Paddle and all that trains, imported",
    "cold": "images ready, first time",
    "cached": "images ready, cached",
    "first": "first step",
    "steady": "a steady step",
}


def measured(source: str, rounds: int) -> dict:
    """Median seconds of each, over `rounds`."""
    path = str(json_file(source))
    found: dict[str, list[float]] = {name: [] for name in TITLES}
    for _ in range(rounds):
        found["help"].append(_seconds([str(TOOLS / "train.py"), "--help"]))
        found["package"].append(_seconds(["-c", "import paddle_mnist"]) - _seconds(["-c", ""]))
        with tempfile.TemporaryDirectory() as cache:
            for kind in ("cold", "cached"):
                began = time.time()
                done = subprocess.run(
                    [sys.executable, "-c", CHILD, path, str(began)],
                    env={**os.environ, "PADDLE_MNIST_CACHE": cache},
                    check=True,
                    capture_output=True,
                    text=True,
                )
                laps = [float(line) for line in done.stdout.split()[-4:]]
                found["import"].append(laps[0])
                found[kind].append(laps[1] - laps[0])
                found["first"].append(laps[2] - laps[1])
                found["steady"].append((laps[3] - laps[2]) / STEADY)
    seconds = {name: statistics.median(values) for name, values in found.items()}
    return {"rounds": rounds, "seconds": seconds}


def _seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return time.perf_counter() - began


def table(report: dict) -> str:
    rows = ["| what | seconds |", "|---|---|"]
    rows += [f"| {title} | {report['seconds'][name]:.3f} |" for name, title in TITLES.items()]
    return "\n".join(rows)
