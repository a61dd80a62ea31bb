"""Images a second with several processes."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from measuring.parts import build_parts

from benchmarks.timing import PartTimer
from benchmarks.trainings import config_of, endless_batches
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session
from paddle_mnist.mnist.config import TrainConfig
from paddle_mnist.system.machine import usable_cpus

ONE = "1 process"
LARGE, PADDLES = f"{ONE}, batches of 256", f"{ONE}, Paddle's convolution"


class Kind(NamedTuple):
    """base: the kind that it is compared with."""

    nprocs: int
    options: dict[str, Any]
    is_exchanging: bool = True
    base: str = ONE


KINDS = {
    ONE: Kind(1, {}),
    f"{ONE}, a thread on each core": Kind(1, {"threads": 0}),
    "2 processes": Kind(2, {}),
    "2 processes without exchange: the machine's limit": Kind(2, {}, is_exchanging=False),
    "4 processes": Kind(4, {}),
    f"{ONE}, `--grad_shards 4`": Kind(1, {"grad_shards": 4}),
    "2 processes, `--grad_shards 4`": Kind(2, {"grad_shards": 4}),
    "4 processes, `--grad_shards 4`": Kind(4, {"grad_shards": 4}),
    LARGE: Kind(1, {"batch_size": 256}, base=LARGE),
    "2 processes, batches of 256": Kind(2, {"batch_size": 256}, base=LARGE),
    PADDLES: Kind(1, {"fast_conv": "off"}, base=PADDLES),
    "2 processes, Paddle's convolution": Kind(2, {"fast_conv": "off"}, base=PADDLES),
}
IMAGES = 12_800  # of each kind in a round
WARM_UP = 20  # steps


def _kinds(session: Session) -> dict[str, Callable[[], Figures]]:
    return {name: partial(_train, session, kind) for name, kind in KINDS.items()}


def _train(session: Session, kind: Kind) -> Figures:
    from paddle_mnist.parallel.world import spawn

    options = {"data": session.source, "epochs": 1000, "threads": 1, **kind.options}
    config = config_of("default", **options)
    return spawn(_time_steps, (config, kind.is_exchanging, session.folder), kind.nprocs)


def _time_steps(config: TrainConfig, is_exchanging: bool, folder: Path) -> Figures:
    """In each of several processes: train some steps; return what they took here."""
    from paddle_mnist import Trainer
    from paddle_mnist.mnist.setup import parts as parts_of
    from paddle_mnist.parallel.gradients import SingleProcessGradients, build_gradient_exchange
    from paddle_mnist.parallel.world import join

    world, profile = join(), PartTimer()
    parts = build_parts(parts_of(config), world)
    exchange = SingleProcessGradients()
    if is_exchanging:
        exchange = build_gradient_exchange(parts.model, world, config.processes.grad_shards)
    path = folder / "mnist.pdparams"
    trainer = Trainer(path, parts.model, parts.optimizer, exchange=exchange, profile=profile)
    batches = endless_batches(parts.loader)
    steps = IMAGES // config.batch_size
    for number in range(-WARM_UP, steps):
        if number == 0:
            world.all_gather_objects(None)
            began = time.perf_counter()
        trainer.train_step(next(batches))
    world.all_gather_objects(None)
    seconds = time.perf_counter() - began
    return {
        "rate": steps * config.batch_size / seconds,
        "exchange": sum(profile.seconds["exchange"][-steps:]) / seconds,  # without the warm-up
    }


def _rows(report: Report) -> Rows:
    rows = report.medians
    for name, row in rows.items():
        row["times"] = row["rate"] / rows[KINDS[name].base]["rate"]
    return rows


def _note(report: Report) -> str:
    return (
        f"Images a second of the whole machine, {usable_cpus()} cores, batches of "
        f"{config_of('default').batch_size} unless said otherwise, one thread a process; each is "
        "compared with one process of the same batches and the same convolution. Medians of "
        f"{report.rounds} rounds, all kinds in turns."
    )


BENCHMARK = Benchmark(
    __doc__,
    code=(
        __name__,
        "paddle_mnist.nn",
        "paddle_mnist.parallel.gradients",
        "paddle_mnist.parallel.world",
    ),
    kinds=_kinds,
    head="processes",
    columns={"times one process": (".2f", "times"), "exchange and waiting": (".1%", "exchange")},
    rows=_rows,
    note=_note,
)
