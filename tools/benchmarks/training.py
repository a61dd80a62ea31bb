"""Images a second of steady training, whoever trains; and what our own loop adds to a step."""

import contextlib
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.rivals import BATCH, CORES, KINDS, rate

SECONDS = 5  # of a kind in each round


def measured(source: str, rounds: int) -> dict:
    """Medians over `rounds` in which all kinds take turns; shares of the loop's own time."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind, rates in found.items():
            with contextlib.suppress(ImportError):  # said in the table
                rates.append(rate(kind, source, SECONDS))
    medians = {kind: statistics.median(rates) for kind, rates in found.items() if rates}
    return {
        "rounds": rounds,
        "batch_size": BATCH,
        "images_per_second": medians,
        "spread": {kind: (min(found[kind]), max(found[kind])) for kind in medians},
        "loop_share": _loop_share(source),
        "gflops": _gflops(),
    }


IMAGE = 13.4e6  # FLOPs of an image's step: forward 4.7 M, backward twice that but for its input
SIZE = 1024  # of the matrices


def _gflops() -> float:
    """What this machine does in products of large float32 matrices, on all cores."""
    draw = np.random.default_rng(1)
    pairs = [draw.random((2, SIZE, SIZE), dtype=np.float32) for _ in range(CORES)]
    found = []
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(CORES) as pool:
        for _ in range(9):
            began = time.perf_counter()
            list(pool.map(lambda pair: [pair[0] @ pair[1] for _ in range(4)], pairs))
            found.append(4 * CORES * 2 * SIZE**3 / (time.perf_counter() - began) / 1e9)
    return statistics.median(found)


STEPS = 500  # of our own loop


def _loop_share(source: str) -> float:
    """The share of a training's time that is not forward, backward or the optimizer's step.

    Of STEPS steps and more, whole epochs, of the recipe `default`: sampler, batches, log, files,
    VisualDL, a watch (whose looks in the forward pass have a table of their own), a checkpoint an
    epoch. Two loops side by side would not tell: one loop takes
    up to 4 % longer than its own twin here.
    """
    from paddle_mnist import Trainer
    from paddle_mnist.checkpoint.checkpointer import StoreCheckpointer
    from paddle_mnist.checkpoint.store import CheckpointStore
    from paddle_mnist.metrics.console import LogWriter, log_to_console
    from paddle_mnist.metrics.jsonl import JsonlWriter
    from paddle_mnist.metrics.visualdl import VisualDLWriter
    from paddle_mnist.metrics.writers import ManyWriters
    from paddle_mnist.mnist.cache import open_data
    from paddle_mnist.mnist.config import TrainConfig, read_recipe
    from paddle_mnist.mnist.setup import build
    from paddle_mnist.monitor.profiler import NoProfile
    from paddle_mnist.monitor.watch import watch

    class Training(NoProfile):
        seconds = 0.0

        @contextlib.contextmanager
        def part(self, name):
            began = time.perf_counter()
            yield
            if name in ("forward", "backward", "optimizer"):
                self.seconds += time.perf_counter() - began

    data = open_data(source)
    epochs = -(-STEPS * BATCH // len(data["train"]))
    told = {"batch_size": BATCH, "epochs": 1 + epochs, "threads": CORES}
    config, profile = TrainConfig.from_mapping({**read_recipe("default"), **told}), Training()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        parts = build(config, data, None)
        board = VisualDLWriter(Path(folder, "vdl"), config.visualdl, config.watch)
        files = [
            JsonlWriter(Path(folder, "metrics.jsonl")),
            LogWriter(config.epochs, len(parts.loader)),
            board,
        ]
        trainer = Trainer(
            *(Path(folder, "mnist.pdparams"), parts.model, parts.optimizer),
            checkpointer=StoreCheckpointer(CheckpointStore(folder)),
            writer=stack.enter_context(contextlib.closing(ManyWriters(files))),
            observers=[watch(parts.model, every=config.watch, on_finding=lambda _: None), board],
            profile=profile,
        )
        with open(os.devnull, "w") as nowhere:
            log_to_console(nowhere)
            trainer.train(parts.loader, 0, 1)  # warms up
            began, profile.seconds = time.perf_counter(), 0.0
            trainer.train(parts.loader, 1, config.epochs)
            seconds = time.perf_counter() - began
            log_to_console(sys.stderr)
    return 1 - profile.seconds / seconds


def table(report: dict) -> str:
    rates = report["images_per_second"]
    rows = ["| who trains | images a second | times Paddle's | times PyTorch's best |"]
    rows.append("|---|---|---|---|")
    best = max((rates[kind] for kind in rates if kind.startswith("torch")), default=None)
    for kind, (title, *_) in KINDS.items():
        if kind not in rates:
            rows.append(f"| {title} | not installed | | |")
            continue
        compared = f"{rates[kind] / best:.2f}" if best else ""
        low, high = report["spread"][kind]
        rows.append(
            f"| {title} | {rates[kind]:,.0f} ({low:,.0f} to {high:,.0f}) | "
            f"{rates[kind] / rates['plain']:.2f} | {compared} |"
        )
    note = (
        f"Batches of {report['batch_size']}, Momentum, the same arrays; medians of "
        f"{report['rounds']} rounds in which all take turns (least to most). Of a training "
        "with all that is on by default, what is not forward, backward or optimizer (sampler, "
        "batches, log, files, VisualDL, a watch, a checkpoint an epoch) takes "
        f"{report['loop_share']:.1%}."
    )
    most = report["gflops"] * 1e9 / IMAGE
    shares = ", ".join(
        f"{title} {rates[kind] / most:.0%}"
        for kind, title in (
            ("plain", "Paddle"),
            ("fast", "this package"),
            ("torch tuned", "PyTorch"),
        )
        if kind in rates
    )
    limit = (
        f"The limit: products of large matrices run at {report['gflops']:.0f} GFLOP/s here, on all "
        f"cores; an image's step is {IMAGE / 1e6:.1f} MFLOP, so that {most:,.0f} images a second "
        f"would be all. Reached: {shares}."
    )
    return "\n".join([*rows, "", note, "", limit])
