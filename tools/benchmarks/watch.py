"""What looking into the net costs a training."""

import contextlib
import tempfile
import time
from pathlib import Path

from markdown_tables import table as markdown_table

from benchmarks.recipes import config_of, endless_batches
from benchmarks.timing import medians

WATCHED = {"off": None, "removed again": 1, "every 100 steps": 100, "every step": 1}
WARM_UP, STEPS = 20, 200  # of each kind, the latter in each round


def measure(source: str, rounds: int) -> dict:
    """The share that a watch adds to a step, medians over `rounds` x 200 steps of each kind.

    Trainings of the same net take turns, two steps each, the second of which is timed, so that what
    else the machine does falls on all of them. What is seen goes into `metrics.jsonl` and to
    VisualDL, as in a run.
    """
    from paddle_mnist.mnist.cache import open_data
    from paddle_mnist.mnist.setup import build

    data = open_data(source)
    config = config_of("default", epochs=1000)
    batches = endless_batches(build(config, data, None).loader)
    seconds = {name: [] for name in WATCHED}
    with contextlib.ExitStack() as stack:
        trainers = {name: _trainer(name, build(config, data, None), stack) for name in WATCHED}
        for number in range(-WARM_UP, STEPS * rounds):
            batch = next(batches)
            for name, trainer in trainers.items():
                _step(trainer, batch)  # so that the caches hold what a step of its own kind leaves
                elapsed = _step(trainer, batch)
                if number >= 0:
                    seconds[name].append(elapsed)
    step = medians(seconds)
    share = {name: value / step["off"] - 1 for name, value in step.items()}
    share["every 100 steps"] += share["every step"] / 100  # the median step there has no look
    return {"steps": len(seconds["off"]), "step_seconds": step["off"], "share": share}


def _step(trainer, batch) -> float:
    """Return the seconds of a training step."""
    began = time.perf_counter()
    trainer.train_step(batch)
    trainer.observe("after_step")
    return time.perf_counter() - began


def _trainer(name: str, parts, stack: contextlib.ExitStack):
    """Return a trainer whose net is watched in this way."""
    from paddle_mnist import Trainer
    from paddle_mnist.metrics.jsonl import JsonlWriter
    from paddle_mnist.metrics.visualdl import VisualDLWriter
    from paddle_mnist.metrics.writers import ManyWriters
    from paddle_mnist.monitor.watch import watch

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    trainer = Trainer(folder / "mnist.pdparams", parts.model, parts.optimizer)
    if WATCHED[name]:
        handle = watch(parts.model, every=WATCHED[name], on_finding=lambda finding: None)
        trainer.observers = [handle]
        if name == "removed again":
            handle.remove()
    files = [JsonlWriter(folder / "metrics.jsonl"), VisualDLWriter(folder, ["scalars"])]
    trainer.log = stack.enter_context(contextlib.closing(ManyWriters(files)))
    return trainer


def table(report: dict) -> str:
    return markdown_table(
        {"watch": "", "adds to the time of a step": ".1%"},
        report["share"].items(),
        f"Medians of {report['steps']} steps of each kind, in turns.",
    )
