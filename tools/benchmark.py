#!/usr/bin/env python
"""Measure this package. Everything is measured side by side in one run; quote the ratios.

data        time until the images of an AI Studio JSON file are there, and peak memory: the standard
            library's json.load, this package without its cache, and with it
checkpoint  the share of a training's time that goes into saving, after each epoch and every 50
            steps: the time inside the saves of a real training, over its whole time
watch       what looking into the net costs a training, its writers included: off, every 100 steps
            (the default), every step; the same training takes turns, a step at a time
signal      seconds from SIGTERM, sent at random moments of a training and its evaluations, to the
            committed checkpoint; in each round 100 of them
"""

import concurrent.futures
import contextlib
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from paddle_mnist.cli import Parser, run_command, write_table
from paddle_mnist.data.sources import find_source
from paddle_mnist.errors import ConfigError

# Each runs in a process of its own, so that the peak of its memory is its own too. Imports come
# before the clock starts.
CHILD = """
import resource, sys, time
path = sys.argv[1]
{imports}
started = time.perf_counter()
data = {work}
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(seconds, peak)
"""
STDLIB = CHILD.format(imports="import gzip, json", work="json.load(gzip.open(path))")
OURS = CHILD.format(imports="from paddle_mnist.data import open_data", work="open_data(path)")


def measure(program: str, path: Path, cache: str) -> tuple[float, float]:
    """Seconds and peak MiB of one process."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        env={**os.environ, "PADDLE_MNIST_CACHE": cache},
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, peak = done.stdout.split()
    return float(seconds), float(peak)


def data(path: Path, rounds: int) -> dict:
    """Medians over `rounds` of: json.load, cold (an empty cache), cached; and their ratios."""
    found = {"stdlib": [], "cold": [], "cached": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            found["stdlib"].append(measure(STDLIB, path, cache))
            found["cold"].append(measure(OURS, path, cache))
            found["cached"].append(measure(OURS, path, cache))
    seconds = {name: statistics.median(s for s, _ in runs) for name, runs in found.items()}
    peak = {name: statistics.median(p for _, p in runs) for name, runs in found.items()}
    return {
        "rounds": rounds,
        "seconds": seconds,
        "peak_mib": peak,
        "cold_ratio": seconds["stdlib"] / seconds["cold"],
        "cached_ratio": seconds["stdlib"] / seconds["cached"],
        "memory_ratio": peak["stdlib"] / peak["cold"],
    }


SAVE_EVERY = 50  # steps


def checkpoint(source: str, rounds: int) -> dict:
    """What saving costs the default recipe, medians over `rounds` trainings of 200 steps."""
    from paddle_mnist.config import TrainConfig, read_recipe
    from paddle_mnist.data import open_data
    from paddle_mnist.start import build

    data = open_data(source)
    images = len(data["train"])
    shortened = {"train_limit": min(200 * 64, images), "epochs": -(-200 * 64 // images)}
    config = TrainConfig.from_mapping({**read_recipe("default"), **shortened})
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            _time_saving(build(config, data, None), config.epochs, Path(folder, str(number)))
            for number in range(rounds + 1)
        ][1:]  # the first warms up
    save, step = (statistics.median(run[what] for run in runs) for what in ("save", "step"))
    steps = -(-images // config.batch_size)
    return {
        "rounds": rounds,
        "dataset": data.name,
        "steps_an_epoch": steps,
        "step_seconds": step,
        "save_seconds": save,
        "every_epoch_share": save / (save + steps * step),
        "every_50_steps_share": save / (save + SAVE_EVERY * step),
    }


def _time_saving(parts, epochs: int, folder: Path) -> dict:
    """Median seconds of a step and of a save, deletion of an older one included."""
    from paddle_mnist import Trainer
    from paddle_mnist.checkpoint.checkpointer import StoreCheckpointer
    from paddle_mnist.checkpoint.policy import Keep, SaveWhen
    from paddle_mnist.checkpoint.store import CheckpointStore

    class Timed(StoreCheckpointer):
        def __init__(self, *args):
            super().__init__(*args)
            self.ends, self.steps, self.saves = time.perf_counter(), [], []

        def after_step(self, state, model, optimizer):
            state.settle()  # the step is done when its loss is there
            began = time.perf_counter()
            self.steps.append(began - self.ends)
            super().after_step(state, model, optimizer)
            self.ends = time.perf_counter()
            if state.step % SAVE_EVERY == 0:
                self.saves.append(self.ends - began)

    timed = Timed(
        CheckpointStore(folder), SaveWhen(every_steps=SAVE_EVERY), Keep(epochs=False, last=1)
    )
    trainer = Trainer(
        folder / "mnist.pdparams", parts.model, parts.optimizer, checkpointer=timed, log_every=1000
    )
    trainer.train(parts.loader, 0, epochs)
    return {"step": statistics.median(timed.steps), "save": statistics.median(timed.saves)}


WATCHED = {"off": None, "removed again": 1, "every 100 steps": 100, "every step": 1}


def watching(source: str, rounds: int) -> dict:
    """The share that a watch adds to a step, medians over `rounds` x 200 steps of each kind.

    Trainings of the same net take turns, a step each, so that what else the machine does falls on
    all of them. What is seen goes into `metrics.jsonl` and to VisualDL, as in a run.
    """
    from paddle_mnist import Trainer
    from paddle_mnist.config import TrainConfig, read_recipe
    from paddle_mnist.data import open_data
    from paddle_mnist.data.dataset import epoch_batches
    from paddle_mnist.start import build
    from paddle_mnist.visual import VisualDLWriter
    from paddle_mnist.watching import watch
    from paddle_mnist.writers import JsonlWriter, ManyWriters

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
                handle = watch(parts.model, every=every, tell=lambda finding: None)
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


def watching_table(report: dict) -> str:
    rows = ["| watch | adds to the time of a step |", "|---|---|"]
    rows += [f"| {name} | {share:.1%} |" for name, share in report["share"].items()]
    return "\n".join([*rows, "", f"Medians of {report['steps']} steps of each kind, in turns."])


def stopping(source: str, rounds: int) -> dict:
    """Seconds from SIGTERM to the commit: median, 99th percentile and largest."""
    from paddle_mnist import MnistDataset, Trainer, signals
    from paddle_mnist.checkpoint.checkpointer import StoreCheckpointer
    from paddle_mnist.checkpoint.contents import load_checkpoint
    from paddle_mnist.checkpoint.store import CheckpointStore
    from paddle_mnist.config import TrainConfig, read_recipe
    from paddle_mnist.data import open_data
    from paddle_mnist.errors import StoppedError
    from paddle_mnist.evaluator import EpochEvaluator
    from paddle_mnist.start import build

    data, draw, seconds = open_data(source), random.Random(1), []
    config = TrainConfig.from_mapping({**read_recipe("digits"), "data": source})
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(folder)
        while len(seconds) < 100 * rounds:
            parts, newest = build(config, data, None), store.newest()
            if newest and newest.state.epoch < config.epochs:
                load_checkpoint(newest, parts.model, parts.optimizer)
            trainer = Trainer(
                *(Path(folder, "mnist.pdparams"), parts.model, parts.optimizer),
                evaluator=EpochEvaluator({"valid": MnistDataset("valid", data)}, 1, config.epochs),
                checkpointer=StoreCheckpointer(store),
                state=newest and newest.state,
                log_every=1000,
            )
            sent: list[float] = []

            def send(sent=sent):
                sent.append(time.perf_counter())
                os.kill(os.getpid(), signal.SIGTERM)

            timer = threading.Timer(draw.uniform(0, 1), send)
            with signals.handled(), signals.held():
                timer.start()
                try:
                    trainer.train(parts.loader, trainer.state.epoch, config.epochs)
                    shutil.rmtree(folder)  # it is done: from the start again
                except StoppedError:
                    seconds.append(time.perf_counter() - sent[0])
                finally:
                    timer.join()
    seconds.sort()
    return {
        "signals": len(seconds),
        "median_seconds": statistics.median(seconds),
        "p99_seconds": seconds[-(-99 * len(seconds) // 100) - 1],
        "largest_seconds": seconds[-1],
    }


def stopping_table(report: dict) -> str:
    rows = ["| from SIGTERM to the committed checkpoint | seconds |", "|---|---|"]
    for name, title in (("median", "median"), ("p99", "99th percentile"), ("largest", "largest")):
        rows.append(f"| {title} of {report['signals']} | {report[f'{name}_seconds']:.3f} |")
    return "\n".join(rows)


def checkpoint_table(report: dict) -> str:
    milliseconds = {name: 1000 * report[f"{name}_seconds"] for name in ("step", "save")}
    rows = ["| a checkpoint | share of the training's time |", "|---|---|"]
    each = f"after each epoch ({report['steps_an_epoch']} steps)"
    rows.append(f"| {each} | {report['every_epoch_share']:.2%} |")
    rows.append(f"| every {SAVE_EVERY} steps | {report['every_50_steps_share']:.2%} |")
    note = "One save takes {save:.1f} ms, one step {step:.1f} ms (medians).".format(**milliseconds)
    return "\n".join([*rows, "", note])


def data_table(report: dict) -> str:
    rows = ["| images ready | seconds | peak MiB | json.load takes |", "|---|---|---|---|"]
    for name, title in (
        ("stdlib", "`json.load(gzip.open(...))`"),
        ("cold", "this package, first time"),
        ("cached", "this package, cached"),
    ):
        seconds = report["seconds"][name]
        ratio = report["seconds"]["stdlib"] / seconds
        rows.append(f"| {title} | {seconds:.3g} | {report['peak_mib'][name]:.0f} | {ratio:.1f}x |")
    return "\n".join(rows)


def json_file(name: str) -> Path:
    source = find_source(name)
    if len(source.paths) != 1:
        raise ConfigError(f"data is {source}; expected an AI Studio JSON file; name it with --data")
    return source.paths[0].resolve()


def main(argv) -> None:
    parser = Parser(prog="tools/benchmark.py", description=__doc__)
    parser.add_argument("what", choices=["data", "checkpoint", "signal", "watch"])
    parser.add_argument("--data", default="auto", metavar="PATH", help="as for training [auto]")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="[3]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--docs", metavar="FOLDER", help="put the table into the pages there")
    args = parser.parse_args(argv)
    rounds = max(1, args.rounds)
    if args.what == "data":
        report = data(json_file(args.data), rounds)
        table = data_table(report)
    elif args.what == "checkpoint":
        report = checkpoint(args.data, rounds)
        table = checkpoint_table(report)
    elif args.what == "watch":
        report = watching(args.data, rounds)
        table = watching_table(report)
    else:
        spawn = multiprocessing.get_context("spawn")  # this process has its own way with signals
        with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
            report = pool.submit(stopping, args.data, rounds).result()
        table = stopping_table(report)
    print(json.dumps(report) if args.json else table)
    if args.docs:
        for path in sorted(Path(args.docs).glob("*.md")):
            write_table(path, f"benchmark {args.what}", table)


if __name__ == "__main__":
    run_command(main, log_to=sys.stderr)
