"""Images a second of steady training, whoever trains; and what our own loop adds to a step."""

import contextlib
import itertools
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from measure.rivals import BATCH, CORES, KINDS, rate

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
        "loop_share": _loop_share(source, rounds),
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


BLOCK = 25  # steps


def _loop_share(source: str, rounds: int) -> float:
    """What the `Trainer` adds to the bare loop: sampler, log, files, VisualDL, a watch.

    Both train in one process, in turns of BLOCK steps, with the same fast convolution.
    """
    from measure.rivals import paddle_loop
    from paddle_mnist import Trainer
    from paddle_mnist.config import TrainConfig, read_recipe
    from paddle_mnist.data import open_data
    from paddle_mnist.start import build
    from paddle_mnist.visual import VisualDLWriter
    from paddle_mnist.watching import watch
    from paddle_mnist.writers import JsonlWriter, LogWriter, ManyWriters, log_to_console

    told = {"batch_size": BATCH, "train_limit": BLOCK * BATCH, "epochs": 1000, "threads": CORES}
    config = TrainConfig.from_mapping({**read_recipe("default"), **told})
    bare = paddle_loop(source, CORES)
    seconds: dict[str, list[float]] = {"bare": [], "ours": []}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        parts = build(config, open_data(source), None)
        files = [
            JsonlWriter(Path(folder, "metrics.jsonl")),
            VisualDLWriter(Path(folder, "vdl"), ["scalars"]),
            LogWriter(1000, len(parts.loader)),
        ]
        trainer = Trainer(
            *(Path(folder, "mnist.pdparams"), parts.model, parts.optimizer),
            writer=stack.enter_context(contextlib.closing(ManyWriters(files))),
            observers=[watch(parts.model, every=100, tell=lambda finding: None)],
        )
        with open(os.devnull, "w") as nowhere:
            log_to_console(nowhere)
            for turn in itertools.count(-2):
                began = time.perf_counter()
                for number in range(len(parts.loader)):
                    bare(number)
                middle = time.perf_counter()
                trainer.train_epoch(parts.loader, turn + 2)
                if turn >= 0:  # the first ones warm up
                    seconds["bare"].append(middle - began)
                    seconds["ours"].append(time.perf_counter() - middle)
                if turn == 20 * rounds:
                    break
            log_to_console(sys.stderr)
    return statistics.median(seconds["ours"]) / statistics.median(seconds["bare"]) - 1


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
        f"{report['rounds']} rounds in which all take turns (least to most). What sampler, log, "
        f"files, VisualDL and a watch add to a step of the bare loop: {report['loop_share']:.1%}."
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
