"""Seconds from SIGTERM to the committed checkpoint."""

import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.timing import in_own_process
from benchmarks.trainings import config_of, train
from benchmarks.turns import Benchmark, Report, Rows

SIGNALS = 20  # a round
BARE = {"visualdl": False, "figures": False, "watch": 0}


def _stop_trainings(source: str, folder: Path, seed: int) -> dict[str, list[float]]:
    """Stop a training at random moments; return the seconds until each `fit` has ended."""
    from paddle_mnist import Callback
    from paddle_mnist.errors import StoppedError

    draw, seconds = random.Random(seed), []
    sent_at: list[float] = []

    def send() -> None:
        sent_at.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGTERM)

    class Sender(Callback):
        def before_first_step(self, training: Any) -> None:
            timers.append(threading.Timer(draw.uniform(0, 1), send))
            timers[-1].start()

        def close(self) -> None:
            timers[-1].cancel()
            timers[-1].join()

    timers: list[threading.Timer] = []
    output = folder / "run"
    config = config_of("digits", data=source, output=str(output), **BARE)
    while len(seconds) < SIGNALS:
        try:
            train(config, Sender())
            shutil.rmtree(output)  # it is done: from the start again
        except StoppedError:
            seconds.append(time.perf_counter() - sent_at[-1])
    return {"seconds": seconds}


def _rows(report: Report) -> Rows:
    (figures,) = report.samples.values()
    seconds = sorted(figures["seconds"])
    count = len(seconds)
    return {
        f"median of {count}": {"seconds": report.medians["signals"]["seconds"]},
        f"99th percentile of {count}": {"seconds": seconds[-(-99 * count // 100) - 1]},
        f"largest of {count}": {"seconds": seconds[-1]},
    }


BENCHMARK = Benchmark(
    __doc__,
    code=(
        __name__,
        "paddle_mnist.checkpoint.checkpointer",
        "paddle_mnist.checkpoint.contents",
        "paddle_mnist.checkpoint.store",
        "paddle_mnist.system.files",
        "paddle_mnist.system.signals",
    ),
    kinds=lambda session: {
        "signals": lambda: in_own_process(
            _stop_trainings, session.source, session.folder, session.number
        )
    },
    head="from SIGTERM to the committed checkpoint",
    columns={"seconds": (".3f", "seconds")},
    rows=_rows,
)
