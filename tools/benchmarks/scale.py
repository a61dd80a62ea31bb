"""Images a second with several processes; what they say of more, and of GPUs."""

import json
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from markdown_tables import table as markdown_table
from measuring.parts import build_parts

from benchmarks.recipes import config_of, endless_batches
from benchmarks.timing import part_timer
from paddle_mnist.mnist.config import TrainConfig
from paddle_mnist.system.machine import usable_cpus


class Kind(NamedTuple):
    """base: the kind that it is compared with."""

    nprocs: int
    options: dict
    exchanging: bool = True
    base: str = "1 process"


SHARDS, LARGE, OWN = {"grad_shards": 4}, {"batch_size": 256}, {"fast_conv": "off"}
SCALED = {
    "1 process": Kind(1, {}),
    "1 process, a thread on each core": Kind(1, {"threads": 0}),
    "2 processes": Kind(2, {}),
    "2 processes without exchange: the machine's limit": Kind(2, {}, exchanging=False),
    "4 processes": Kind(4, {}),
    "1 process, `--grad_shards 4`": Kind(1, SHARDS),
    "2 processes, `--grad_shards 4`": Kind(2, SHARDS),
    "4 processes, `--grad_shards 4`": Kind(4, SHARDS),
    "1 process, batches of 256": Kind(1, LARGE, base="1 process, batches of 256"),
    "2 processes, batches of 256": Kind(2, LARGE, base="1 process, batches of 256"),
    "1 process, Paddle's convolution": Kind(1, OWN, base="1 process, Paddle's convolution"),
    "2 processes, Paddle's convolution": Kind(2, OWN, base="1 process, Paddle's convolution"),
}
IMAGES = 12_800  # of each kind in a round
FIGURES = ("images_per_second", "step_seconds", "exchange_share")


def measure(source: str, rounds: int) -> dict:
    """Medians over `rounds` of the images a second, and of the exchange's share of a step."""
    from paddle_mnist.parallel.world import spawn

    runs = {name: [] for name in SCALED}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name, kind in SCALED.items():
                path = Path(folder, "figures.json")
                options = {"data": source, "epochs": 1000, "threads": 1, **kind.options}
                config = config_of("default", **options)
                spawn(_time_steps, (config, kind.exchanging, path), kind.nprocs)
                runs[name].append(json.loads(path.read_text()))
    kinds = {
        name: {figure: statistics.median(run[figure] for run in runs[name]) for figure in FIGURES}
        for name in SCALED
    }
    for name, kind in kinds.items():
        base = kinds[SCALED[name].base]
        kind["ratio"] = kind["images_per_second"] / base["images_per_second"]
    batch_size = config_of("default").batch_size
    report = {"rounds": rounds, "batch_size": batch_size, "kinds": kinds}
    return {**report, "foretold": extrapolate(report)}


def _time_steps(config: TrainConfig, exchanging: bool, path: Path) -> None:
    """In each of several processes: train some steps; rank 0 writes down what they took."""
    from paddle_mnist import Trainer
    from paddle_mnist.mnist.setup import parts as parts_of
    from paddle_mnist.parallel.gradients import SingleProcessGradients, build_gradient_exchange
    from paddle_mnist.parallel.world import join

    world, profile = join(), part_timer()
    parts = build_parts(parts_of(config), world)
    exchange = SingleProcessGradients()
    if exchanging:
        exchange = build_gradient_exchange(parts.model, world, config.processes.grad_shards)
    trainer = Trainer(
        path.with_name("mnist.pdparams"),
        parts.model,
        parts.optimizer,
        exchange=exchange,
        profile=profile,
    )
    batches = endless_batches(parts.loader)
    steps = IMAGES // config.batch_size
    for number in range(-20, steps):
        if number == 0:  # the first ones warm up
            world.all_gather_objects(None)
            began = time.perf_counter()
            profile.seconds.clear()
        trainer.train_step(next(batches))
    world.all_gather_objects(None)
    seconds = time.perf_counter() - began
    if world.is_main_process:
        exchanging_seconds = profile.seconds["exchange"]
        figures = (
            steps * config.batch_size / seconds,
            seconds / steps,
            exchanging_seconds / seconds,
        )
        path.write_text(json.dumps(dict(zip(FIGURES, figures))))


def table(report: dict) -> dict[str, str]:
    """Return two tables by their marks: what was measured, and what it says of larger machines."""
    note = (
        f"Images a second of the whole machine, {usable_cpus()} cores, batches of "
        f"{report['batch_size']} unless said otherwise, one thread a process; each is compared "
        "with one process of the same batches and the same convolution. Medians of "
        f"{report['rounds']} rounds, all kinds in turns."
    )
    measured = markdown_table(
        {"processes": "", "times one process": ".2f", "exchange and waiting": ".1%"},
        [(name, kind["ratio"], kind["exchange_share"]) for name, kind in report["kinds"].items()],
        note,
    )
    return {"scale": measured, "foretold": _foretold(report["foretold"])}


# A GPU and its network, assumed, not measured: effective rate, time to start a step's kernels,
# bandwidth and latency of a message between two. Order of magnitude of an A100 on InfiniBand.
GPU = {"flops": 30e12, "start": 1e-3, "bytes_per_second": 2e10, "latency": 1e-5}
# This net: parameters, and FLOPs of an image's step (forward 4.7 M, backward twice that).
NET = {"parameters": 20_350, "flops": 13.4e6}


def extrapolate(report: dict) -> dict:
    """Extrapolate the measured steps to more cores, and simple assumptions to GPUs.

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


def _foretold(model: dict) -> str:
    fit = (
        f"Fitted: {1000 * model['own']:.2f} ms per step that more processes do not shorten, "
        f"{1000 * model['image']:.3f} ms an image, {1000 * model['exchange']:.2f} ms for an "
        "exchange between two processes."
    )
    cores = markdown_table(
        {"cores, one process each": "", "times one process": ".1f"}, model["cores"].items(), fit
    )
    gpus = markdown_table(
        {
            "GPUs, 64 images each": ",",
            "share of the time spent on work: this net": ".0%",
            "1,000 times larger": ".0%",
        },
        [(size, *shares.values()) for size, shares in model["gpus"].items()],
    )
    return f"{cores}\n\n{gpus}"
