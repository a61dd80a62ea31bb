"""The clocks of a start, apart: import, images ready, first step, steady step; --help."""

import time

from benchmarks.timing import TRAIN, run_python
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session

STEADY = 100  # steps
# Times since the process was started, the moment of which is on its command line.
CHILD = f"""
import itertools, sys, time
def lap(): print(time.time() - float(sys.argv[2]))
from paddle_mnist.system.devices import require_paddle
require_paddle()
from paddle_mnist.mnist.setup import parts as parts_of
from paddle_mnist import TrainConfig, Trainer
from benchmarks.trainings import endless_batches
from measuring.parts import build_parts
lap()
arguments = parts_of(TrainConfig(data=sys.argv[1], epochs=100))
lap()
parts = build_parts(arguments)
trainer = Trainer("unused", parts.model, parts.optimizer)
batches = endless_batches(parts.loader)
trainer.train_step(next(batches)).item()
lap()
for number in range({STEADY}):
    trainer.train_step(next(batches))
trainer.loss.item()
lap()
"""


def _start(session: Session) -> Figures:
    """Seconds of each: of a training with nothing cached, and of another."""
    imported, bare = run_python("-c", "import paddle_mnist"), run_python("-c", "")
    cold, cached = _laps(session), _laps(session)
    return {
        "`tools/train.py --help`": run_python(TRAIN, "--help").seconds,
        "`import paddle_mnist` (in a running Python)": imported.seconds - bare.seconds,
        "Paddle and everything a training needs, imported": [cold[0], cached[0]],
        "images ready, first time": cold[1],
        "images ready, cached": cached[1],
        "first step, including the compilation of the convolution": cold[2],
        "first step, already compiled": cached[2],
        "a steady step": [cold[3] / STEADY, cached[3] / STEADY],
    }


def _laps(session: Session) -> list[float]:
    done = run_python("-c", CHILD, session.json_file, time.time(), **session.own_cache)
    times = [0.0, *map(float, done.printed.split()[-4:])]
    return [after - before for before, after in zip(times, times[1:])]


def _rows(report: Report) -> Rows:
    (seconds,) = report.medians.values()
    return {title: {"seconds": value} for title, value in seconds.items()}


BENCHMARK = Benchmark(
    __doc__,
    code=(
        __name__,
        "paddle_mnist.commands",
        "paddle_mnist.data",
        *(f"paddle_mnist.mnist.{name}" for name in ("cache", "json_reader", "model", "setup")),
        "paddle_mnist.nn",
    ),
    kinds=lambda session: {"start": lambda: _start(session)},
    head="what",
    columns={"seconds": (".3f", "seconds")},
    rows=_rows,
)
