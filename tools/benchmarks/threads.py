"""How a step gains from threads: what of it they share, and what runs one at a time."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

from benchmarks.rivals import CORES, Step, paddle_loop
from benchmarks.timing import seconds_of
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session
from paddle_mnist.nn.chunks import chunks_of

BATCHES = (64, 256)
THREADS = [number for number in (1, 2, 4, 8, 16) if number <= CORES]
STEPS = 60  # of a kind in a round
PREDICTED = (8, 16)  # cores


def _title(size: int, threads: int) -> str:
    return f"batches of {size}, {threads} {'thread' if threads == 1 else 'threads'}"


def _kinds(session: Session) -> dict[str, Callable[[], Figures]]:
    import paddle

    kinds = {}
    for size in BATCHES:
        for threads in THREADS:
            paddle.seed(1)
            step = paddle_loop(session.source, threads, own_step=True, batch_size=size)
            kinds[_title(size, threads)] = partial(_time_steps, step)
    return kinds


def _time_steps(step: Step) -> Figures:
    """Return the microseconds of each of some steps, and of these what the threads do not share."""
    from paddle_mnist.nn import compiled_net

    map_chunks, shared = compiled_net.map_chunks, 0.0

    def timed(*args: Any) -> Any:
        nonlocal shared
        began = time.perf_counter()
        results = map_chunks(*args)
        shared += time.perf_counter() - began
        return results

    figures: dict[str, list[float]] = {"step": [], "serial": []}
    with patch.object(compiled_net, "map_chunks", timed):
        for number in range(STEPS):
            shared = 0.0
            seconds = seconds_of(step, number)
            figures["step"].append(1e6 * seconds)
            figures["serial"].append(1e6 * (seconds - shared))
    return figures


def _rows(report: Report) -> Rows:
    rows = report.medians
    for size in BATCHES:
        for threads in THREADS:
            row = rows[_title(size, threads)]
            row["share"] = row["serial"] / row["step"]
            row["times"] = rows[_title(size, 1)]["step"] / row["step"]
    return rows


def _predicted(report: Report, size: int, cores: int) -> float:
    """Return how many times as fast as one core so many would be: Amdahl's law, in whole chunks."""
    one = report.medians[_title(size, 1)]
    chunks = len(chunks_of(size))
    rounds = -(-chunks // cores)
    return one["step"] / (one["serial"] + (one["step"] - one["serial"]) * rounds / chunks)


def _note(report: Report) -> str:
    small, large = (
        " and ".join(f"{_predicted(report, size, cores):.1f}" for cores in PREDICTED)
        for size in BATCHES
    )
    cores = " and ".join(map(str, PREDICTED))
    return (
        f"Steps with Momentum on arrays in memory, medians of {report.rounds} rounds in turns. "
        "Threads share the compiled loops, chunk by chunk; Python, Paddle's tensors, the sum over "
        "the chunks and the optimizer run one at a time.\n\n"
        f"A prediction, not a measurement: by Amdahl's law, from the rows of one thread, {cores} "
        f"cores train {small} times as fast as one with batches of {BATCHES[0]}, which have "
        f"{len(chunks_of(BATCHES[0]))} chunks, and {large} times with batches of {BATCHES[1]}, "
        f"which have {len(chunks_of(BATCHES[1]))}. The law leaves out that cores share caches, "
        "memory and power, and that threads wait for one another."
    )


BENCHMARK = Benchmark(
    __doc__,
    code=(
        __name__,
        "benchmarks.rivals",
        "paddle_mnist.mnist.model",
        "paddle_mnist.nn",
        "paddle_mnist.training.steps",
    ),
    kinds=_kinds,
    head="batches and threads",
    columns={
        "microseconds a step": (",.0f", "step"),
        "of which one at a time": (",.0f", "serial"),
        "share": (".1%", "share"),
        "times one thread": (".2f", "times"),
    },
    rows=_rows,
    note=_note,
    warm_up=1,
)
