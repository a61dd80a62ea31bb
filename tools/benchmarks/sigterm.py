"""Seconds from SIGTERM to the committed checkpoint."""

import concurrent.futures
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from markdown_tables import table as markdown_table
from measuring.parts import build_parts

from benchmarks.recipes import config_of

SIGNALS = 20  # a round


def measure(source: str, rounds: int) -> dict:
    """Seconds from SIGTERM to the commit: median, 99th percentile and largest."""
    spawn = multiprocessing.get_context("spawn")  # this process has signal handlers of its own
    with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
        seconds = sorted(pool.submit(_stop_trainings, source, SIGNALS * rounds).result())
    return {
        "signals": len(seconds),
        "median_seconds": statistics.median(seconds),
        "p99_seconds": seconds[-(-99 * len(seconds) // 100) - 1],
        "largest_seconds": seconds[-1],
    }


def _stop_trainings(source: str, count: int) -> list[float]:
    """Stop a training at random moments, so many times; return the seconds of each stop."""
    from paddle_mnist import BatchLoader, Trainer
    from paddle_mnist.checkpoint.checkpointer import StoreCheckpointer
    from paddle_mnist.checkpoint.contents import load_checkpoint
    from paddle_mnist.checkpoint.store import CheckpointStore
    from paddle_mnist.errors import StoppedError
    from paddle_mnist.metrics.console import log_to_console
    from paddle_mnist.mnist.setup import parts as parts_of
    from paddle_mnist.mnist.step import DigitStep
    from paddle_mnist.system import signals
    from paddle_mnist.training.evaluator import EpochEvaluator

    log_to_console(sys.stderr)
    draw, seconds = random.Random(1), []
    config = config_of("digits", data=source)
    arguments = parts_of(config)
    valid = BatchLoader(arguments["valid"]["valid"], 500)
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(folder)
        while len(seconds) < count:
            parts, newest = build_parts(arguments), store.newest()
            if newest and newest.state.epoch < config.epochs:
                load_checkpoint(newest, parts.model, parts.optimizer)
            trainer = Trainer(
                Path(folder, "mnist.pdparams"),
                parts.model,
                parts.optimizer,
                evaluator=EpochEvaluator(DigitStep(), {"valid": valid}),
                checkpointer=StoreCheckpointer(store),
                state=newest and newest.state,
                log_every=1000,
            )
            sent_at: list[float] = []

            def send(sent_at=sent_at):
                sent_at.append(time.perf_counter())
                os.kill(os.getpid(), signal.SIGTERM)

            timer = threading.Timer(draw.uniform(0, 1), send)
            with signals.handlers_installed(), signals.deferred():
                timer.start()
                try:
                    trainer.train(parts.loader, trainer.state.epoch, config.epochs)
                    shutil.rmtree(folder)  # it is done: from the start again
                except StoppedError:
                    seconds.append(time.perf_counter() - sent_at[0])
                finally:
                    timer.join()
    return seconds


def table(report: dict) -> str:
    titles = {"median": "median", "p99": "99th percentile", "largest": "largest"}
    return markdown_table(
        {"from SIGTERM to the committed checkpoint": "", "seconds": ".3f"},
        [
            (f"{title} of {report['signals']}", report[f"{name}_seconds"])
            for name, title in titles.items()
        ],
    )
