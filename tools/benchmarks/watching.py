"""What looking into the net costs a training."""

import contextlib
import itertools
import statistics
import tempfile
import time
from pathlib import Path

WATCHED = {"off": None, "removed again": 1, "every 100 steps": 100, "every step": 1}


def measured(source: str, rounds: int) -> dict:
    """The share that a watch adds to a step, medians over `rounds` x 200 steps of each kind.

    Trainings of the same net take turns, a step each, so that what else the machine does falls on
    all of them. What is seen goes into `metrics.jsonl` and to VisualDL, as in a run.
    """
    from paddle_mnist import Trainer
    from paddle_mnist.data.loader import epoch_batches
    from paddle_mnist.metrics.jsonl import JsonlWriter
    from paddle_mnist.metrics.visualdl import VisualDLWriter
    from paddle_mnist.metrics.writers import ManyWriters
    from paddle_mnist.mnist.cache import open_data
    from paddle_mnist.mnist.config import TrainConfig, read_recipe
    from paddle_mnist.mnist.setup import build
    from paddle_mnist.monitor.watch import watch

    data = open_data(source)
    config = TrainConfig.from_mapping({**read_recipe("default"), "epochs": 1000})
    batches = itertools.chain.from_iterable(
        epoch_batches(build(config, data, None).loader, epoch) for epoch in itertools.count()
    )
    seconds = {name: [] for name in WATCHED}
    trainers = {}
    with contextlib.ExitStack() as stack:
        for name, every in WATCHED.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            parts = build(config, data, None)
            trainer = Trainer(folder / "mnist.pdparams", parts.model, parts.optimizer)
            if every:
                handle = watch(parts.model, every=every, on_finding=lambda finding: None)
                trainer.observers = [handle]
            if name == "removed again":
                handle.remove()
            files = [JsonlWriter(folder / "metrics.jsonl"), VisualDLWriter(folder, ["scalars"])]
            trainer.log = stack.enter_context(contextlib.closing(ManyWriters(files)))
            trainers[name] = trainer
        for number in range(-20, 200 * rounds):
            batch = next(batches)
            for name, trainer in trainers.items():
                began = time.perf_counter()
                trainer.train_step(batch)
                trainer.observe("after_step")
                if number >= 0:  # the first ones warm up
                    seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    share = {name: value / medians["off"] - 1 for name, value in medians.items()}
    share["every 100 steps"] += share["every step"] / 100  # the median step there has no look
    return {
        "steps": len(seconds["off"]),
        "step_seconds": medians["off"],
        "share": share,
    }


def table(report: dict) -> str:
    rows = ["| watch | adds to the time of a step |", "|---|---|"]
    rows += [f"| {name} | {share:.1%} |" for name, share in report["share"].items()]
    return "\n".join([*rows, "", f"Medians of {report['steps']} steps of each kind, in turns."])
