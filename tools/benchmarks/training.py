"""Images a second of steady training, whoever trains; and what our own loop adds to a step."""

import contextlib
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from markdown_tables import table as markdown_table
from measuring.parts import build_parts
from threadpoolctl import threadpool_limits

from benchmarks.machine import blas_kernels
from benchmarks.recipes import config_of
from benchmarks.rivals import BATCH, CORES, RIVALS, arrays, rate
from benchmarks.timing import medians, part_timer, seconds_of

STEPS = 500  # of our own loop, at least
IMAGES = 1000  # whose zeros are counted
SIZE = 1024  # of the matrices


def measure(source: str, rounds: int, seconds: float = 5) -> dict:
    """Medians over `rounds` in which all kinds take turns; shares of the loop's own time.

    seconds: of a kind in each round.
    """
    rates: dict[str, list[float]] = {kind: [] for kind in RIVALS}
    for _ in range(rounds):
        for kind in RIVALS:
            with contextlib.suppress(ModuleNotFoundError):  # the table says so
                rates[kind].append(rate(kind, source, seconds))
    return {
        "rounds": rounds,
        "batch_size": BATCH,
        "images_per_second": medians(rates),
        "spread": {kind: (min(values), max(values)) for kind, values in rates.items() if values},
        "loop_shares": _loop_shares(source),
        "gflops": _gflops(),
        "blas": blas_kernels(),
        "products": {kind: _products(source, kind == "trained") for kind in ("new", "trained")},
    }


def _products(source: str, trained: bool) -> dict[str, float]:
    """Count the multiplications of an image's step: all, and those without a zero in them.

    A gradient is 0 where ReLU or the pooling lets none pass, at three of four places and more.
    """
    from paddle_mnist import MNIST
    from paddle_mnist.mnist.sizes import net_sizes
    from paddle_mnist.nn.compiled_net import compiled_net

    images, net = arrays(source)[0][:IMAGES], net_sizes()
    model = MNIST(pretrained=trained)
    parameters = np.concatenate([p.numpy().ravel() for p in model.parameters()])
    _, memory = compiled_net(net).forward(images, parameters, 1)
    active = [np.count_nonzero(images) / IMAGES]
    for number in range(1, len(net.blocks) + 1):
        inputs = memory.inputs[:IMAGES, net.kept.parts[f"inputs{number}"]]
        active.append(np.count_nonzero(inputs) / IMAGES)
    last = net.blocks[-1]
    features = last.outputs * last.pooled_size
    dense = sparse = 3 * features * net.classes  # of the linear layer, forward and back
    for number, block in enumerate(net.blocks):
        outputs = (block.padded_height - block.kernel + 1) * (block.padded_width - block.kernel + 1)
        to_outputs = block.kernel**2 * block.outputs
        to_inputs = block.kernel**2 * block.channels
        gradients = 2 if net.has_input_gradient(number) else 1
        dense += outputs * block.outputs * to_inputs * (1 + gradients)
        sparse += active[number] * to_outputs + active[number + 1] * to_inputs * gradients
    return {"dense": dense, "sparse": sparse}


def _gflops() -> float:
    """What this machine does in products of large float32 matrices, on all cores."""
    draw = np.random.default_rng(1)
    pairs = [draw.random((2, SIZE, SIZE), dtype=np.float32) for _ in range(CORES)]
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(CORES) as pool:

        def multiply() -> None:
            list(pool.map(lambda pair: [pair[0] @ pair[1] for _ in range(4)], pairs))

        seconds = statistics.median(seconds_of(multiply) for _ in range(9))
    return 4 * CORES * 2 * SIZE**3 / seconds / 1e9


def _loop_shares(source: str) -> dict[str, float]:
    """The shares of a training's time that are not forward, backward or the optimizer's step.

    Of STEPS steps and more, whole epochs, of the recipe `default`: sampler, batches, log, files,
    VisualDL, a watch (whose looks in the forward pass have a table of their own), a checkpoint an
    epoch. Two loops side by side would not tell: one loop takes up to 4% longer than its own twin
    here.
    """
    from paddle_mnist import Trainer
    from paddle_mnist.checkpoint.checkpointer import StoreCheckpointer
    from paddle_mnist.checkpoint.store import CheckpointStore
    from paddle_mnist.metrics.console import LogWriter, console_logs
    from paddle_mnist.metrics.jsonl import JsonlWriter
    from paddle_mnist.metrics.visualdl import VisualDLWriter
    from paddle_mnist.metrics.writers import ManyWriters
    from paddle_mnist.mnist.cache import open_data
    from paddle_mnist.mnist.setup import parts as parts_of
    from paddle_mnist.monitor.watch import watch

    epochs = 1 + -(-STEPS * BATCH // len(open_data(source)["train"]))
    options = {"data": source, "batch_size": BATCH, "epochs": epochs, "threads": CORES}
    config = config_of("default", **options)
    profile = part_timer()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        parts = build_parts(parts_of(config))
        board = VisualDLWriter(Path(folder, "vdl"), config.visualdl.pages, config.watch.every)
        files = [
            JsonlWriter(Path(folder, "metrics.jsonl")),
            LogWriter(config.epochs, len(parts.loader)),
            board,
        ]
        watched = watch(parts.model, every=config.watch.every, on_finding=lambda _: None)
        trainer = Trainer(
            Path(folder, "mnist.pdparams"),
            parts.model,
            parts.optimizer,
            checkpointer=StoreCheckpointer(CheckpointStore(folder)),
            writer=stack.enter_context(contextlib.closing(ManyWriters(files))),
            observers=[watched, board],
            profile=profile,
        )
        stack.enter_context(console_logs(stack.enter_context(open(os.devnull, "w"))))
        trainer.train(parts.loader, 0, 1)  # warms up
        profile.seconds.clear()
        began = time.perf_counter()
        trainer.train(parts.loader, 1, config.epochs)
        seconds = time.perf_counter() - began
    of_steps = sum(profile.seconds[name] for name in ("forward", "backward", "optimizer"))
    logging = profile.seconds["logging"]
    return {"logging": logging / seconds, "rest": 1 - (of_steps + logging) / seconds}


def table(report: dict) -> str:
    rates = report["images_per_second"]
    best = max((rates[kind] for kind in rates if kind.startswith("torch")), default=None)
    columns = {
        "who trains": "",
        "images a second": "",
        "times Paddle's": ".2f",
        "times PyTorch's best": ".2f",
    }
    rows = []
    for kind, rival in RIVALS.items():
        if kind not in rates:
            rows.append((rival.title, "not installed", None, None))
            continue
        least, most = report["spread"][kind]
        images = f"{rates[kind]:,.0f} ({least:,.0f} to {most:,.0f})"
        ratio = rates[kind] / best if best else None
        rows.append((rival.title, images, rates[kind] / rates["plain"], ratio))
    shares = report["loop_shares"]
    note = (
        f"Batches of {report['batch_size']}, Momentum, the same arrays; medians of "
        f"{report['rounds']} rounds in which all take turns (least to most). In a training "
        "with the defaults, everything but forward, backward and optimizer takes "
        f"{sum(shares.values()):.1%} of the time: {shares['logging']:.1%} for log, files and "
        f"VisualDL, {shares['rest']:.1%} for batches, a checkpoint per epoch and the loop. The "
        "forward pass includes the records of [the watch](looking-inside.md#what-watching-costs)."
    )
    products, gflops = report["products"], report["gflops"]
    limits = {kind: gflops * 1e9 / 2 / products["trained"][kind] for kind in ("dense", "sparse")}
    counts = ", ".join(
        f"{products[kind]['sparse'] / 1e6:.2f} million in a {kind} net" for kind in products
    )
    names = {"plain all": "Paddle", "torch tuned": "PyTorch", "step": "this package"}
    shares_of_limit = ", ".join(
        f"{name} {rates[kind] / limits['dense']:.0%}"
        for kind, name in names.items()
        if kind in rates
    )
    limit = (
        "The limits: training on one image takes "
        f"{products['new']['dense'] / 1e6:.2f} million multiplications; {counts} "
        "involve no zero. Products of large matrices run at "
        f"{gflops:.0f} GFLOP/s here, on all cores ({report['blas']}). At that speed the limit is "
        f"{limits['dense']:,.0f} images a second if everything is multiplied, and "
        f"{limits['sparse']:,.0f} if multiplications by zero are skipped. "
        f"Shares of the first limit: {shares_of_limit}; of the second: this package "
        f"{rates['step'] / limits['sparse']:.0%}."
    )
    return markdown_table(columns, rows, f"{note}\n\n{limit}")
