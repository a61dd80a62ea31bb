"""What looking into the net costs a training."""

import contextlib
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from markdown_tables import table as markdown_table
from measuring.parts import build_parts

from benchmarks.recipes import config_of, endless_batches
from benchmarks.timing import medians

WATCHED = {"off": None, "removed again": 1, "every 100 steps": 100, "every step": 1}
BLOCK, BLOCKS = 25, 8  # steps of a kind in a row, and how often in each round


def measure(source: str, rounds: int) -> dict:
    """The share that a watch adds to a step, medians over `rounds` x 200 steps of each kind.

    It is one training that is watched in turns: two trainings side by side may differ by 4% without
    any watch. What is seen goes into `metrics.jsonl` and to VisualDL, as in a run.
    """
    from paddle_mnist.mnist.setup import parts as parts_of

    parts = build_parts(parts_of(config_of("default", data=source, epochs=1000)))
    batches = endless_batches(parts.loader)
    seconds = {name: [] for name in WATCHED}
    draw = random.Random(1)  # none always follows the same other

    def step() -> float:
        batch = next(batches)
        began = time.perf_counter()
        trainer.train_step(batch)
        for observer in trainer.observers:
            trainer._write_metrics_of(observer, observer.after_step(trainer._view()))
        return time.perf_counter() - began

    with tempfile.TemporaryDirectory() as folder, _trainer(parts, Path(folder)) as trainer:
        for _ in range(BLOCKS * rounds):
            for name in draw.sample(list(WATCHED), len(WATCHED)):
                with _watched(trainer, name):
                    step()  # finds what another kind has left in the caches
                    seconds[name] += [step() for _ in range(BLOCK)]
    median = medians(seconds)
    share = {name: value / median["off"] - 1 for name, value in median.items()}
    share["every 100 steps"] += share["every step"] / 100  # the median step there has no look
    return {"steps": len(seconds["off"]), "step_seconds": median["off"], "share": share}


@contextlib.contextmanager
def _trainer(parts, folder: Path) -> Iterator:
    """Give a trainer that writes into a folder."""
    from paddle_mnist import Trainer
    from paddle_mnist.metrics.jsonl import JsonlWriter
    from paddle_mnist.metrics.visualdl import VisualDLWriter
    from paddle_mnist.metrics.writers import ManyWriters

    trainer = Trainer(folder / "mnist.pdparams", parts.model, parts.optimizer)
    files = [JsonlWriter(folder / "metrics.jsonl"), VisualDLWriter(folder, ["scalars"])]
    with contextlib.closing(ManyWriters(files)) as trainer.writers:
        yield trainer


@contextlib.contextmanager
def _watched(trainer, name: str) -> Iterator[None]:
    """Watch the trainer's net meanwhile in one of these ways."""
    from paddle_mnist.monitor.watch import watch

    trainer.observers = []
    if WATCHED[name] is None:
        yield
        return
    handle = watch(trainer.model, every=WATCHED[name], on_finding=lambda finding: None)
    trainer.observers = [handle]
    if name == "removed again":
        handle.remove()
    yield
    handle.remove()


def table(report: dict) -> str:
    return markdown_table(
        {"watch": "", "adds to the time of a step": ".1%"},
        report["share"].items(),
        f"Medians of {report['steps']} steps of each kind, in turns.",
    )
