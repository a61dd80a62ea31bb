"""What Paddle's FAQ says of memory: by optimizer, and by the lengths of sequences."""

import resource
import runpy
import statistics
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.measured import ROOT
from benchmarks.timing import in_own_process
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session, Turn, ratio

# ------------------------------------------------------------------ optimizers

OPTIMIZERS = ("SGD", "Momentum", "Adagrad", "Adam", "AdamW", "Adadelta", "Lamb", "RMSProp")
LAYERS, WIDTH = 16, 2048  # of linear layers, with 64 Mi parameters


def _optimizer(name: str, width: int) -> Figures:
    """Return memory relative to the parameters': the optimizer's state, and peaks of three steps.

    Paddle's allocator counts its own bytes, whatever else the machine does. The process's peak is
    counted from before the net is built.
    """
    import paddle
    from paddle.base import core

    from paddle_mnist import Trainer

    batch = (paddle.ones([1, width]), paddle.zeros([1, 1], "int64"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = paddle.nn.Sequential(
        *(paddle.nn.Linear(width, width, bias_attr=False) for _ in range(LAYERS))
    )
    optimizer = getattr(paddle.optimizer, name)(learning_rate=0.001, parameters=model.parameters())
    trainer = Trainer("unused.pdparams", model, optimizer)
    for _ in range(3):
        trainer.train_step(batch)
    peak = core.host_memory_stat_peak_value("Allocated", 0)
    process = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    size = _bytes(model.state_dict())
    return {
        "state": _bytes(optimizer.state_dict()) / size,
        "peak": peak / size,
        "process": process / size,
    }


def _bytes(state: Mapping[str, Any]) -> int:
    tensors = (value for value in state.values() if hasattr(value, "element_size"))
    return sum(tensor.size * tensor.element_size() for tensor in tensors)


# ------------------------------------------------------------------ lengths

EXAMPLE = "examples/text.py"
EVERY = "all sentences padded to the longest"
OWN = "each batch padded to its longest"
BUCKETS = "batches of similar length"
CUT = "the same, sentences cut at the maximum"
LEFT_OUT = "the same, longer sentences not trained on"
WAYS = (EVERY, OWN, BUCKETS, CUT, LEFT_OUT)


def _lengths(way: str, seed: int, is_quick: bool) -> Figures:
    """Train the example's net, on sentences in memory and one thread.

    Returns the processor seconds of an epoch's steps, the share of padding, the MiB that a step
    needs beside weights and the optimizer's state, and the accuracy of new sentences.
    """
    import paddle
    from paddle.base import core

    from paddle_mnist import BatchLoader, Trainer

    example = runpy.run_path(str(ROOT / EXAMPLE))
    size, most = example["BATCH"], example["MOST_WORDS"]

    def read(count: int, seed: int) -> list:
        reviews = example["Reviews"](count, seed, most if way == CUT else None)
        return [reviews[index] for index in range(count)]

    train, valid = (read(400, 0), read(100, 1)) if is_quick else (read(4000, 0), read(4000, 1))
    lengths = np.array([len(words) for words, _ in train])
    chosen = np.flatnonzero(lengths <= (most if way == LEFT_OUT else lengths.max()))
    buckets = example["by_length"](lengths[chosen], size)
    pad = partial(example["pad"], length=lengths.max()) if way == EVERY else example["pad"]
    order = None if way in (EVERY, OWN) else lambda epoch: chosen[buckets(seed + epoch)]
    loader = BatchLoader(train, size, seed, collate_fn=pad, order=order)
    paddle.seed(seed)
    model = example["Classifier"]()
    optimizer = example["optimizer"](model.parameters())
    trainer = Trainer("unused.pdparams", model, optimizer)
    seconds, words = [], []
    for epoch in range(2 if is_quick else 4):
        began = time.process_time()
        for batch in loader.epoch(epoch):
            trainer.train_step(batch)
            words.append((int((batch[0] > 0).sum()), batch[0].size))
        seconds.append(time.process_time() - began)
    peak = core.host_memory_stat_peak_value("Allocated", 0)
    state = _bytes(model.state_dict()) + _bytes(optimizer.state_dict())
    right = 0
    model.eval()
    with paddle.no_grad():
        for start in range(0, len(valid), size):
            sentences, labels = pad(valid[start : start + size])
            answers = model(paddle.to_tensor(sentences)).argmax(axis=1, keepdim=True)
            right += int((answers.numpy() == labels).sum())
    trained, padded = map(sum, zip(*words))
    return {
        "seconds": statistics.median(seconds),
        "padding": 1 - trained / padded,
        "peak": (peak - state) / 2**20,
        "accuracy": right / len(valid),
    }


def _ways(session: Session) -> Mapping[str, Turn]:
    def turn(way: str) -> Figures:
        options = (way, session.number, session.is_quick)
        return in_own_process(_lengths, *options, OMP_NUM_THREADS="1")

    return {way: partial(turn, way) for way in WAYS}


def _rows_of_lengths(report: Report) -> Rows:
    rows = report.medians
    for way, row in rows.items():
        accuracies = report.samples[way]["accuracy"]
        row["spread"] = f"{row['accuracy']:.2%} ({min(accuracies):.2%} to {max(accuracies):.2%})"
    return rows


BENCHMARKS = {
    "optimizer-memory": Benchmark(
        "Memory by optimizer, on a net whose parameters are most of it.",
        kinds=lambda session: {
            name: partial(in_own_process, _optimizer, name, 256 if session.is_quick else WIDTH)
            for name in OPTIMIZERS
        },
        head="optimizer",
        columns={
            "its state": (".2f", "state"),
            "peak of Paddle's allocator": (".2f", "peak"),
            "the process's peak": (".2f", "process"),
        },
        note=lambda report: (
            f"Times the size of the parameters: {LAYERS * WIDTH**2:,} in float32, {LAYERS} linear "
            "layers. Three steps with one sample, in a process of its own; what the process had "
            f"before the net is left out. Medians of {report.rounds} rounds in turns."
        ),
    ),
    "lengths": Benchmark(
        "What batches of similar length and a maximum length save: time, memory, accuracy.",
        kinds=_ways,
        head="sentences",
        columns={
            "processor time of an epoch, relative": ratio("seconds", EVERY),
            "padding": (".0%", "padding"),
            "memory of a step, MiB": (".1f", "peak"),
            "accuracy": ("", "spread"),
        },
        rows=_rows_of_lengths,
        note=lambda report: (
            f"The net of `{EXAMPLE}`, its 4,000 sentences of 4 to 121 words and its maximum of 32, "
            "4 epochs on one thread; the accuracy is that on 4,000 new sentences, cut only where "
            "the row says so. The memory is the peak of Paddle's allocator beside the weights and "
            f"the optimizer's state. Medians of {report.rounds} seeds (least to most), in turns."
        ),
    ),
}
