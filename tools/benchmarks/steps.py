"""Seconds of training steps: by framework, net, gradients, watch and processes.

A step is made in the process that times it; the steps of a table take turns.
"""

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.rivals import (
    BATCH,
    CORES,
    Step,
    arrays,
    paddle_step,
    step_of_paddle,
    step_of_torch,
    torch_net,
    torch_step,
)
from benchmarks.timing import (
    config_of,
    in_own_process,
    seconds_of,
    seconds_of_steps,
    timed_training,
)
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session, Turn, ratio

# ------------------------------------------------------------------ frameworks

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
ALL_CORES = {"OMP_NUM_THREADS": str(CORES), "MKL_NUM_THREADS": str(CORES)}
PADDLE, PADDLE_ALL = "Paddle's layers, the bare loop, 1 thread", f"the same, {CORES} threads"
STEP_1 = "this package's training step, 1 thread"
STEP = f"this package's training step, {CORES} threads"
TORCH_1 = "PyTorch eager, channels last, 1 thread"
# What makes the step, and the environment of its process.
FRAMEWORKS: dict[str, tuple[Callable[[str], Step], dict[str, str]]] = {
    PADDLE: (paddle_step, ONE_THREAD),
    PADDLE_ALL: (paddle_step, ALL_CORES),
    "this package's convolution in the same loop, 1 thread": (
        partial(paddle_step, threads=1),
        ONE_THREAD,
    ),
    f"this package's convolution in the same loop, {CORES} threads": (
        partial(paddle_step, threads=CORES),
        ONE_THREAD,
    ),
    STEP_1: (partial(paddle_step, threads=1, own_step=True), ONE_THREAD),
    STEP: (partial(paddle_step, threads=CORES, own_step=True), ONE_THREAD),
    TORCH_1: (partial(torch_step, threads=1), {}),
    f"PyTorch eager, channels last, {CORES} threads": (partial(torch_step, threads=CORES), {}),
    f"PyTorch `torch.compile`, channels last, {CORES} threads": (
        partial(torch_step, threads=CORES, is_compiled=True),
        {},
    ),
}


def _frameworks(session: Session) -> Mapping[str, Turn]:
    seconds = 0.1 if session.is_quick else 5

    def turn(make: Callable[[str], Step], environment: dict[str, str]) -> Figures:
        rate = in_own_process(_rate, make, session.source, seconds, **environment)
        return {"rate": rate}

    return {title: partial(turn, *each) for title, each in FRAMEWORKS.items()}


def _rate(make: Callable[[str], Step], source: str, seconds: float) -> float:
    """Return the images a second of steps that run for some seconds, after ten to warm up."""
    step = make(source)
    seconds_of_steps(step, 10)
    rates, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        rates.append(BATCH / statistics.mean(seconds_of_steps(step, 10)))
    return statistics.median(rates)


def _rows_of_frameworks(report: Report) -> Rows:
    rows = report.medians
    best = max((row["rate"] for kind, row in rows.items() if row and "PyTorch" in kind), default=0)
    for kind, row in rows.items():
        if row:
            rates = report.samples[kind]["rate"]
            row["spread"] = f"{row['rate']:,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
            row["times best"] = row["rate"] / best if best else None
    return rows


# ------------------------------------------------------------------ parts of a step

PARTS = {
    "forward": "forward pass and loss",
    "backward": "backward pass",
    "optimizer": "optimizer",
    "logging": "log, files and VisualDL",
    "saving": "a checkpoint per epoch",
}


def _parts(session: Session) -> Figures:
    """Return the microseconds an image of each part of a step, after the first epoch.

    Of the recipe `default` with its files, log and watch, on one thread.
    """
    limit = 640 if session.is_quick else 16_000
    output = str(session.folder / "run")
    size = {"train_limit": limit, "epochs": 3, "batch_size": BATCH, "threads": 1}
    seconds = timed_training(config_of("default", data=session.source, output=output, **size))
    steps = len(seconds["step"]) // 3  # of an epoch, which may have fewer images
    return {part: 1e6 * statistics.mean(seconds[part][steps:]) / BATCH for part in (*PARTS, "step")}


def _rows_of_parts(report: Report) -> Rows:
    (taken,) = report.medians.values()
    rows = {title: taken[part] for part, title in PARTS.items()}
    rows["batches and the loop"] = taken["step"] - sum(rows.values())
    rows["a step"] = taken["step"]
    return {title: {"time": time, "share": time / taken["step"]} for title, time in rows.items()}


# ------------------------------------------------------------------ the serial part

THREADS = {f"{count} thread{'s' * (count > 1)}": count for count in sorted({1, CORES})}


def _serial_parts(session: Session) -> Mapping[str, Turn]:
    """Return turns of steps of the same net on one thread and on all cores.

    The serial part is the processor time of the calling thread outside of the chunks, during which
    the other threads wait.
    """
    from paddle_mnist import MNIST
    from paddle_mnist.nn import compiled_net

    model = MNIST()
    step = step_of_paddle(model, *arrays(session.source), BATCH, own_step=True)
    run_chunks, in_chunks = compiled_net.map_chunks, []

    def timed(*args: Any) -> Any:
        began = time.thread_time()
        results = run_chunks(*args)
        in_chunks.append(time.thread_time() - began)
        return results

    def turn(threads: int) -> Figures:
        model.fast_conv = threads
        figures: dict[str, list[float]] = {"step": [], "serial": []}
        with patch.object(compiled_net, "map_chunks", timed):
            for number in range(5 if session.is_quick else 200):
                in_chunks.clear()
                began, began_alone = time.perf_counter(), time.thread_time()
                step(number)
                alone = time.thread_time() - began_alone - sum(in_chunks)
                figures["step"].append(1e6 * (time.perf_counter() - began))
                figures["serial"].append(1e6 * alone)
        return figures

    return {title: partial(turn, threads) for title, threads in THREADS.items()}


# ------------------------------------------------------------------ other nets

SIZE = 64  # of a batch
# The shape of an image, the blocks as in `rivals.BLOCKS`, and the inputs of the last layer.
NETS = {
    "LeNet-5's blocks, 1x28x28": ((1, 28, 28), [(1, 6, 5, 2), (6, 16, 5, 0)], 400),
    "three blocks, 3x32x32": (
        (3, 32, 32),
        [(3, 32, 5, 2), (32, 32, 5, 2), (32, 64, 3, 1)],
        1024,
    ),
}


def _blocks(source: str, shape: tuple[int, ...], blocks: Sequence, features: int) -> Turn:
    """Return a turn of each framework on one thread. source: of images of one channel."""
    draw = np.random.default_rng(1)
    images = draw.random((SIZE, *shape), dtype=np.float32)
    if shape[0] == 1:  # digits, most of whose pixels are 0
        images = arrays(source)[0][:SIZE]
    labels = draw.integers(0, 10, SIZE)
    nets = {"off": _paddle_net(blocks, features, "off"), "on": _paddle_net(blocks, features, 1)}
    steps = {kind: step_of_paddle(net, images, labels, SIZE) for kind, net in nets.items()}
    with contextlib.suppress(ModuleNotFoundError):  # the table says so
        steps["torch"] = step_of_torch(torch_net(blocks, features), images, labels, SIZE, threads=1)
    return lambda: {
        kind: SIZE / statistics.mean(seconds_of_steps(step, 3)) for kind, step in steps.items()
    }


def _paddle_net(blocks: Sequence, features: int, fast_conv: Any) -> Any:
    import paddle
    from paddle import nn

    from paddle_mnist import ConvBlocks

    paddle.seed(1)
    layers = []
    for channels, outputs, kernel, padding in blocks:
        conv = nn.Conv2D(channels, outputs, kernel, padding=padding)
        layers += [conv, nn.ReLU(), nn.MaxPool2D(2, 2)]
    return ConvBlocks(*layers, nn.Flatten(), nn.Linear(features, 10), fast_conv=fast_conv)


# ------------------------------------------------------------------ sparse gradients

VOCABULARIES = (2_000, 20_000, 200_000)
WIDTH, SENTENCES, LENGTH = 64, 32, 20
STEPS = 30  # of each kind in a turn


def _sparse(words: int) -> Turn:
    """Return a turn of a text classifier with Adam, whose dense and sparse steps alternate.

    With a sparse gradient and Adam's `lazy_mode`, a step updates only the rows of its words.
    """
    import paddle
    from paddle import nn

    from paddle_mnist import Trainer

    class MeanOfWords(nn.Layer):
        def __init__(self, is_sparse: bool) -> None:
            super().__init__()
            self.words = nn.Embedding(words, WIDTH, sparse=is_sparse)
            self.out = nn.Linear(WIDTH, 2)

        def forward(self, batch: Any) -> Any:
            return self.out(self.words(batch).mean(axis=1))

    def make(is_sparse: bool) -> Trainer:
        model = MeanOfWords(is_sparse)
        adam = paddle.optimizer.Adam(0.001, parameters=model.parameters(), lazy_mode=is_sparse)
        return Trainer("unused.pdparams", model, adam)

    trainers = {"dense": make(False), "sparse": make(True)}

    def turn() -> Figures:
        seconds: dict[str, list[float]] = {kind: [] for kind in trainers}
        for _ in range(STEPS):
            batch = paddle.to_tensor(np.random.randint(0, words, (SENTENCES, LENGTH)))
            labels = paddle.to_tensor(np.random.randint(0, 2, (SENTENCES, 1)))
            for kind, trainer in trainers.items():
                seconds[kind].append(1000 * seconds_of(trainer.train_step, (batch, labels)))
        return seconds

    return turn


# ------------------------------------------------------------------ a watch

OFF, REMOVED, SOMETIMES, ALWAYS = "off", "removed again", "every 100 steps", "every step"
WATCHED = {OFF: None, REMOVED: 1, SOMETIMES: 100, ALWAYS: 1}


def _watches(session: Session) -> Mapping[str, Turn]:
    """Return one turn: what each watch adds to steps of one net, many times, in random order.

    Of one net, because two nets side by side may differ by 4% without any watch. In short blocks,
    each compared with the one without a watch beside it, because a machine's speed changes.
    """
    from paddle_mnist import MNIST, watch

    model = MNIST()
    step = step_of_paddle(model, *arrays(session.source), SIZE)

    def seconds_of_block(kind: str) -> float:
        every = WATCHED[kind]
        watched = watch(model, every=every, on_finding=lambda finding: None) if every else None
        if watched and kind == REMOVED:
            watched.remove()
        # The first find what another kind or the first record has left in the caches.
        seconds = seconds_of_steps(step, 8)[5:]
        if watched:
            watched.remove()
        return statistics.mean(seconds)

    def turn() -> Figures:
        shares: dict[str, list[float]] = {kind: [] for kind in WATCHED}
        for _ in range(5 if session.is_quick else 50):
            kinds = random.sample(list(WATCHED), len(WATCHED))
            seconds = {kind: seconds_of_block(kind) for kind in kinds}
            for kind in WATCHED:
                shares[kind].append(seconds[kind] / seconds[OFF] - 1)
        return shares

    return {"shares": turn}


def _rows_of_watches(report: Report) -> Rows:
    (shares,) = report.medians.values()
    shares[SOMETIMES] += shares[ALWAYS] / 100  # whose timed steps have no record
    return {kind: {"share": share} for kind, share in shares.items()}


# ------------------------------------------------------------------ processes

ONE = "1 process"
LARGE, LAYERS = f"{ONE}, batches of 256", f"{ONE}, Paddle's convolution"
# Processes, options, and the row to compare with.
PROCESSES: dict[str, tuple[int, dict[str, Any], str]] = {
    ONE: (1, {}, ONE),
    f"{ONE}, a thread on each core": (1, {"threads": 0}, ONE),
    "2 processes": (2, {}, ONE),
    f"{ONE}, `--grad_shards 4`": (1, {"grad_shards": 4}, ONE),
    "2 processes, `--grad_shards 4`": (2, {"grad_shards": 4}, ONE),
    LARGE: (1, {"batch_size": 256}, LARGE),
    "2 processes, batches of 256": (2, {"batch_size": 256}, LARGE),
    LAYERS: (1, {"fast_conv": "off"}, LAYERS),
    "2 processes, Paddle's convolution": (2, {"fast_conv": "off"}, LAYERS),
}
WARM_UP = 20  # steps


def _processes(session: Session) -> Mapping[str, Turn]:
    """Return trainings on 12,800 images by several processes."""

    def turn(nprocs: int, options: dict[str, Any]) -> Figures:
        bare = {"visualdl": False, "figures": False, "watch": 0, "epochs": 1, "threads": 1}
        given = {**bare, "data": session.source, "train_limit": 12_800, **options}
        output = str(session.folder / f"{len(list(session.folder.iterdir()))}")
        config = config_of("default", **given, nprocs=nprocs, output=output)
        seconds = in_own_process(timed_training, config)
        first = min(WARM_UP, len(seconds["step"]) // 2)
        steps = seconds["step"][first:]
        return {
            "rate": len(steps) * config.batch_size / sum(steps),
            "exchange": sum(seconds.get("exchange", ())[first:]) / sum(steps),
        }

    return {
        title: partial(turn, nprocs, options) for title, (nprocs, options, _) in PROCESSES.items()
    }


BENCHMARKS = {
    "train": Benchmark(
        "Images a second of steady training, by framework.",
        kinds=_frameworks,
        head="who trains",
        columns={
            "images a second": ("", "spread"),
            "times Paddle's": ratio("rate", PADDLE),
            "times PyTorch's best": (".2f", "times best"),
        },
        rows=_rows_of_frameworks,
        note=lambda report: (
            f"Batches of {BATCH}, Momentum, the same arrays; medians of {report.rounds} rounds in "
            "which all take turns (least to most)."
        ),
        quick=(PADDLE, STEP, STEP_1, TORCH_1),
    ),
    "operators": Benchmark(
        "Where the time of a step goes.",
        kinds=lambda session: {"step": lambda: _parts(session)},
        head="what",
        columns={"microseconds an image": (".1f", "time"), "share": (".1%", "share")},
        rows=_rows_of_parts,
        note=lambda report: (
            f"The recipe `default`, one thread, batches of {BATCH}; means of the steps after the "
            f"first epoch, medians of {report.rounds} rounds. The forward pass includes the "
            "records of [the watch](#the-watch)."
        ),
    ),
    "threads": Benchmark(
        "The serial part of a training step, in which one thread works and the others wait.",
        kinds=_serial_parts,
        head="this package's training step",
        columns={
            "microseconds": (",.0f", "step"),
            "of which serial": (",.0f", "serial"),
            "share": (".1%", lambda row, _: row["serial"] / row["step"]),
        },
        note=lambda report: (
            f"Batches of {BATCH}, Momentum, the same arrays; medians of "
            f"{len(next(iter(report.samples.values()))['step'])} steps of each kind, in turns. "
            "Serial is the processor time of the calling thread outside of the compiled chunks."
        ),
        warm_up=1,
    ),
    "conv-blocks": Benchmark(
        "Steps of nets of other sizes: `ConvBlocks`, the same in Paddle's layers, and in PyTorch.",
        kinds=lambda session: {title: _blocks(session.source, *net) for title, net in NETS.items()},
        head="net",
        columns={
            "Paddle's layers": (",.0f", "off"),
            "`ConvBlocks`": (",.0f", "on"),
            "PyTorch, channels last": (",.0f", lambda row, _: row.get("torch", "not installed")),
            "times Paddle's": (".2f", lambda row, _: row["on"] / row["off"]),
            "times PyTorch's": (
                ".2f",
                lambda row, _: row["on"] / row["torch"] if "torch" in row else None,
            ),
        },
        note=lambda report: (
            f"Images a second, steps of batches of {SIZE} with Momentum, one thread; medians of "
            f"{report.rounds} rounds in turns. The images of one channel are digits; those of "
            "three are random, and have no zeros."
        ),
        warm_up=1,  # which compiles
    ),
    "sparse": Benchmark(
        "What an embedding gains from `sparse=True`: the time of a step, by the number of words.",
        kinds=lambda session: {f"{words:,}": _sparse(words) for words in VOCABULARIES},
        head="words",
        columns={
            "dense, ms a step": (".3g", "dense"),
            "`sparse=True`, ms a step": (".3g", "sparse"),
            "times faster": (".1f", lambda row, rows: row["dense"] / row["sparse"]),
        },
        note=lambda report: (
            f"{WIDTH} numbers a word, batches of {SENTENCES} x {LENGTH} words, Adam; medians of "
            f"{STEPS * report.rounds} steps of each kind, in turns."
        ),
        warm_up=1,
    ),
    "watch": Benchmark(
        "What looking into the net costs a run.",
        kinds=_watches,
        head="watch",
        columns={"adds to the time of a step": (".1%", "share")},
        rows=_rows_of_watches,
        note=lambda report: (
            f"Medians of {len(report.samples['shares'][OFF])} blocks of 3 steps, in turns; each is "
            "compared with one without a watch."
        ),
    ),
    "scale": Benchmark(
        "Images a second with several processes.",
        kinds=_processes,
        head="processes",
        columns={
            "times one process": ratio("rate", lambda title: PROCESSES[title][2]),
            "exchange and waiting": (".1%", "exchange"),
        },
        note=lambda report: (
            f"Images a second of the whole machine, {CORES} cores, batches of "
            f"{config_of('default').batch_size} unless said otherwise, one thread a process; each "
            "is compared with one process of the same batches and the same convolution. Medians of "
            f"{report.rounds} rounds, all kinds in turns."
        ),
    ),
}
