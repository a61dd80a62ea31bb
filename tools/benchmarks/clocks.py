"""The clocks of a start, apart: import, images ready, first step, steady step; --help."""

import tempfile
import time

from markdown_tables import table as markdown_table
from measuring.sources import json_file

from benchmarks.timing import TRAIN, medians, run_python

STEADY = 100  # steps
# Times since the process was started, the moment of which is on its command line.
CHILD = f"""
import itertools, sys, time
def lap(): print(time.time() - float(sys.argv[2]))
from paddle_mnist.system.devices import require_paddle
require_paddle()
from paddle_mnist.mnist.run import train_and_evaluate
from paddle_mnist.mnist.setup import parts as parts_of
from paddle_mnist import TrainConfig, Trainer
from paddle_mnist.data.loader import epoch_batches
from measuring.parts import build_parts
lap()
arguments = parts_of(TrainConfig(data=sys.argv[1], epochs=100))
lap()
parts = build_parts(arguments)
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
    "package": "`import paddle_mnist` (in a running Python)",
    "import": "Paddle and everything a training needs, imported",
    "cold": "images ready, first time",
    "cached": "images ready, cached",
    "compiling": "first step, including the compilation of the convolution",
    "first": "first step, already compiled",
    "steady": "a steady step",
}


def measure(source: str, rounds: int) -> dict:
    """Median seconds of each, over `rounds`."""
    path = json_file(source)
    seconds: dict[str, list[float]] = {name: [] for name in TITLES}
    for _ in range(rounds):
        seconds["help"].append(run_python(TRAIN, "--help").seconds)
        imported, bare = run_python("-c", "import paddle_mnist"), run_python("-c", "")
        seconds["package"].append(imported.seconds - bare.seconds)
        with tempfile.TemporaryDirectory() as cache:
            for kind in ("cold", "cached"):
                done = run_python("-c", CHILD, path, time.time(), PADDLE_MNIST_CACHE=cache)
                laps = [float(line) for line in done.printed.split()[-4:]]
                seconds["import"].append(laps[0])
                seconds[kind].append(laps[1] - laps[0])
                seconds["compiling" if kind == "cold" else "first"].append(laps[2] - laps[1])
                seconds["steady"].append((laps[3] - laps[2]) / STEADY)
    return {"rounds": rounds, "seconds": medians(seconds)}


def table(report: dict) -> str:
    rows = [(title, report["seconds"][name]) for name, title in TITLES.items()]
    return markdown_table({"what": "", "seconds": ".3f"}, rows)
