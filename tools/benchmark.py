#!/usr/bin/env python
"""Measure this package. Everything is measured side by side in one run; quote the ratios.

data        time until the images of an AI Studio JSON file are there, and peak memory: the standard
            library's json.load, this package without its cache, and with it
checkpoint  the share of a training's time that goes into saving, after each epoch and every 50
            steps: the time inside the saves of a real training, over its whole time
watch       what looking into the net costs a training, its writers included: off, every 100 steps
            (the default), every step; the same training takes turns, a step at a time
scale       images a second of the whole machine with 1, 2 and 4 processes, with and without
            --grad_shards; all kinds take turns in each round, each in processes of its own
infer       latency of one image and images a second in batches of 256, with one thread: the net in
            Python, Paddle Inference, and, where they are installed, ONNX Runtime and PyTorch with
            the same net and weights; all take turns
signal      seconds from SIGTERM, sent at random moments of a training and its evaluations, to the
            committed checkpoint; in each round 100 of them
"""

import concurrent.futures
import contextlib
import itertools
import json
import math
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
from paddle_mnist.errors import ConfigError, DeviceError

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


# processes, grad_shards, whether they exchange anything
SCALED = {
    "1 process": (1, None, True),
    "2 processes": (2, None, True),
    "2 processes that exchange nothing: what the machine gives": (2, None, False),
    "4 processes": (4, None, True),
    "1 process, `--grad_shards 4`": (1, 4, True),
    "2 processes, `--grad_shards 4`": (2, 4, True),
    "4 processes, `--grad_shards 4`": (4, 4, True),
}
SCALE_STEPS = 200


def scale(source: str, rounds: int) -> dict:
    """Medians over `rounds` of the images a second, and of the exchange's share of a step."""
    from paddle_mnist.config import read_recipe
    from paddle_mnist.distributed import spawn

    recipe = {**read_recipe("default"), "data": source, "epochs": 1000}
    found = {name: [] for name in SCALED}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name, (nprocs, shards, exchanging) in SCALED.items():
                path = Path(folder, "figures.json")
                told = {**recipe, "grad_shards": shards}
                spawn(_time_steps, (told, exchanging, path), nprocs)
                found[name].append(json.loads(path.read_text()))
    kinds = {
        name: {what: statistics.median(run[what] for run in runs) for what in runs[0]}
        for name, runs in found.items()
    }
    alone = kinds["1 process"]["images_per_second"]
    for kind in kinds.values():
        kind["ratio"] = kind["images_per_second"] / alone
    return {"rounds": rounds, "batch_size": recipe["batch_size"], "kinds": kinds}


def _time_steps(recipe: dict, exchanging: bool, path: Path) -> None:
    """In each of several processes: train some steps; rank 0 writes down what they took."""
    from paddle_mnist import Trainer
    from paddle_mnist.config import TrainConfig
    from paddle_mnist.data import open_data
    from paddle_mnist.data.dataset import epoch_batches
    from paddle_mnist.distributed import join
    from paddle_mnist.exchange import NoExchange, make_exchange
    from paddle_mnist.profiling import NoProfile
    from paddle_mnist.start import build

    class Exchanging(NoProfile):
        seconds = 0.0

        @contextlib.contextmanager
        def part(self, name):
            began = time.perf_counter()
            yield
            if name == "exchange":
                self.seconds += time.perf_counter() - began

    world, config, profile = join(), TrainConfig.from_mapping(recipe), Exchanging()
    parts = build(config, open_data(config.data), None, world)
    trainer = Trainer(
        *(path.with_name("mnist.pdparams"), parts.model, parts.optimizer),
        exchange=make_exchange(parts.model, world, config.grad_shards)
        if exchanging
        else NoExchange(),
        profile=profile,
    )
    batches = itertools.chain.from_iterable(
        epoch_batches(parts.loader, epoch) for epoch in itertools.count()
    )
    for number in range(-20, SCALE_STEPS):
        if number == 0:  # the first ones warm up
            world.gather_objects(None)
            began, profile.seconds = time.perf_counter(), 0.0
        trainer.train_step(next(batches))
    world.gather_objects(None)
    seconds = time.perf_counter() - began
    if world.leads:
        figures = {
            "images_per_second": SCALE_STEPS * config.batch_size / seconds,
            "step_seconds": seconds / SCALE_STEPS,
            "exchange_share": profile.seconds / seconds,
        }
        path.write_text(json.dumps(figures))


def scale_table(report: dict) -> str:
    rows = ["| processes | times one process | exchange and waiting |", "|---|---|---|"]
    for name, kind in report["kinds"].items():
        rows.append(f"| {name} | {kind['ratio']:.2f} | {kind['exchange_share']:.1%} |")
    note = (
        f"Images a second of the whole machine, {os.cpu_count()} cores, batches of "
        f"{report['batch_size']}; medians of {report['rounds']} rounds, all kinds in turns."
    )
    return "\n".join([*rows, "", note])


# A GPU and its network, assumed, not measured: effective rate, time to start a step's kernels,
# bandwidth and latency of a message between two. Order of magnitude of an A100 on InfiniBand.
GPU = {"flops": 30e12, "start": 1e-3, "bytes_per_second": 2e10, "latency": 1e-5}
# This net: parameters, and FLOPs of an image's step (forward 4.5 M, backward twice that).
NET = {"parameters": 20_350, "flops": 13.4e6}


def foretold(report: dict) -> dict:
    """What the measured steps say of more cores, and simple assumptions of GPUs.

    A step on W processes takes own + batch x image / W + exchange, the exchange log2(W) times that
    of two. From one and two processes: own = 2 (t2 - e2) - t1, image = (t1 - own) / batch.
    """
    one, two = (report["kinds"][name] for name in ("1 process", "2 processes"))
    batch, t1, t2 = report["batch_size"], one["step_seconds"], two["step_seconds"]
    exchange = two["exchange_share"] * t2
    own = max(0.0, 2 * (t2 - exchange) - t1)
    image = (t1 - own) / batch
    cores = {
        size: t1 / (own + batch * image / size + exchange * math.log2(size))
        for size in (2, 4, 8, 16, 32)
    }
    gpus = {}
    for size in (8, 64, 256, 1024):
        gpus[size] = {}
        for name, factor in (("this net", 1), ("1,000 times larger", 1000)):
            compute = GPU["start"] + 64 * factor * NET["flops"] / GPU["flops"]
            message = 4 * factor * NET["parameters"]
            ring = 2 * (size - 1) * (message / size / GPU["bytes_per_second"] + GPU["latency"])
            gpus[size][name] = compute / (compute + ring)
    return {"own": own, "image": image, "exchange": exchange, "cores": cores, "gpus": gpus}


def foretold_table(model: dict) -> str:
    rows = ["| cores, one process each | times one process |", "|---|---|"]
    rows += [f"| {size} | {ratio:.1f} |" for size, ratio in model["cores"].items()]
    milliseconds = {k: 1000 * model[k] for k in ("own", "image", "exchange")}
    rows += [
        "",
        "Fitted: {own:.2f} ms a step that do not shrink, {image:.3f} ms an image, "
        "{exchange:.2f} ms for an exchange of two.".format(**milliseconds),
        "",
        "| GPUs, 64 images each | share of work in the time: this net | 1,000 times larger |",
        "|---|---|---|",
    ]
    for size, shares in model["gpus"].items():
        rows.append(f"| {size:,} | " + " | ".join(f"{x:.0%}" for x in shares.values()) + " |")
    return "\n".join(rows)


INFER_BATCH = 256


def inferring(rounds: int) -> dict:
    """Milliseconds of one image (median, 99th percentile), images a second in batches.

    Every engine is given uint8 images, and gives logits; they must agree.
    """
    import numpy as np

    from paddle_mnist import MNIST
    from paddle_mnist.export import export_model
    from paddle_mnist.predictor import Predictor

    model = MNIST(pretrained=True)
    images = np.random.RandomState(0).randint(0, 256, (INFER_BATCH, 28, 28)).astype(np.uint8)
    engines, missing = {"Paddle, the net in Python": _in_python(model)}, []
    with tempfile.TemporaryDirectory() as folder:
        for name, form in (("Paddle Inference", "paddle"), ("ONNX Runtime", "onnx")):
            try:
                export_model(model, Path(folder, form), ["logits"], form)
            except DeviceError:
                missing.append(name)
                continue
            predictor = Predictor(Path(folder, form), device="cpu")
            engines[name] = lambda images, run=predictor.run: run(images)["logits"]
        try:
            engines["PyTorch, the net in Python"] = _in_pytorch(model)
        except ImportError:
            missing.append("PyTorch, the net in Python")
        expected = engines["Paddle Inference"](images)
        found = {name: {"one": [], "batch": []} for name in engines}
        for name, run in engines.items():
            found[name]["difference"] = float(abs(run(images) - expected).max())
        for _ in range(rounds):
            for name, run in engines.items():
                found[name]["one"] += [_seconds(run, images[:1]) for _ in range(100)]
                found[name]["batch"] += [_seconds(run, images) for _ in range(5)]
    return {
        "rounds": rounds,
        "missing": missing,
        "engines": {
            name: {
                "p50_ms": 1000 * statistics.median(seconds["one"]),
                "p99_ms": 1000 * statistics.quantiles(seconds["one"], n=100)[98],
                "images_per_second": INFER_BATCH / statistics.median(seconds["batch"]),
                "difference": seconds["difference"],
            }
            for name, seconds in found.items()
        },
    }


def _seconds(run, images) -> float:
    began = time.perf_counter()
    run(images)
    return time.perf_counter() - began


def _in_python(model):
    import paddle

    from paddle_mnist.export import Served

    served = Served(model, ["logits"])
    served.eval()

    def run(images):
        with paddle.no_grad():
            return served(paddle.to_tensor(images))[0].numpy()

    return run


def _in_pytorch(model):
    """The same net and weights; PyTorch keeps a linear layer's weights the other way round."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    layers = {
        "conv1": nn.Conv2d(1, 20, 5, padding=2),
        "conv2": nn.Conv2d(20, 20, 5, padding=2),
        "fc": nn.Linear(980, 10),
    }
    for name, layer in layers.items():
        for kind in ("weight", "bias"):
            value = model.state_dict()[f"{name}.{kind}"].numpy()
            value = value.T if name == "fc" and kind == "weight" else value
            getattr(layer, kind).data = torch.from_numpy(value.copy())
    block = [nn.ReLU(), nn.MaxPool2d(2)]
    net = nn.Sequential(
        layers["conv1"], *block, layers["conv2"], *block, nn.Flatten(), layers["fc"]
    )

    @torch.no_grad()
    def run(images):
        return net(torch.from_numpy(images)[:, None].float() / 256).numpy()

    return run


def inferring_table(report: dict) -> str:
    rows = ["| engine | one image: median ms | 99th percentile | images a second |"]
    rows.append("|---|---|---|---|")
    for name, engine in report["engines"].items():
        rows.append(
            f"| {name} | {engine['p50_ms']:.2f} | {engine['p99_ms']:.2f} | "
            f"{engine['images_per_second']:,.0f} |"
        )
    rows += [f"| {name} | not installed | | |" for name in report["missing"]]
    most = max(engine["difference"] for engine in report["engines"].values())
    note = f"One thread, batches of {INFER_BATCH}. Logits differ by at most {most:.2g}."
    return "\n".join([*rows, "", note])


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
    parser.add_argument("what", choices=["data", "checkpoint", "scale", "infer", "signal", "watch"])
    parser.add_argument("--data", default="auto", metavar="PATH", help="as for training [auto]")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="[3]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--docs", metavar="FOLDER", help="put the table into the pages there")
    args = parser.parse_args(argv)
    rounds, more = max(1, args.rounds), {}
    if args.what == "data":
        report = data(json_file(args.data), rounds)
        table = data_table(report)
    elif args.what == "checkpoint":
        report = checkpoint(args.data, rounds)
        table = checkpoint_table(report)
    elif args.what == "scale":
        report = scale(args.data, rounds)
        table = scale_table(report)
        report["foretold"] = foretold(report)
        more = {"foretold": foretold_table(report["foretold"])}
    elif args.what == "infer":
        report = inferring(rounds)
        table = inferring_table(report)
    elif args.what == "watch":
        report = watching(args.data, rounds)
        table = watching_table(report)
    else:
        spawn = multiprocessing.get_context("spawn")  # this process has its own way with signals
        with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
            report = pool.submit(stopping, args.data, rounds).result()
        table = stopping_table(report)
    tables = {args.what: table, **more}
    print(json.dumps(report) if args.json else "\n\n".join(tables.values()))
    if args.docs:
        for path in sorted(Path(args.docs).glob("*.md")):
            for name, text in tables.items():
                write_table(path, f"benchmark {name}", text)


if __name__ == "__main__":
    run_command(main, log_to=sys.stderr)
