"""Images a second of steady training, whoever trains; and what our own loop adds to a step."""

import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.rivals import BATCH, CORES, PADDLE, PADDLE_ALL, RIVALS, STEP, TORCH, arrays
from benchmarks.timing import seconds_of
from benchmarks.trainings import config_of, timed_training
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session

SECONDS = 5  # of a kind in each round
STEPS = 1500  # of our own loop, at least
IMAGES = 1000  # whose zeros are counted
SIZE = 1024  # of the matrices


def _kinds(session: Session) -> dict[str, Callable[[], Figures]]:
    seconds = 0.1 if session.is_quick else SECONDS
    return {
        title: lambda rival=rival: {"rate": rival.rate(session.source, seconds)}
        for title, rival in RIVALS.items()
    }


def _facts(session: Session) -> dict[str, Any]:
    return {
        "loop_shares": _loop_shares(session),
        "gflops": _gflops(),
        "products": {
            kind: _products(session.source, kind == "trained") for kind in ("new", "trained")
        },
    }


def _products(source: str, trained: bool) -> dict[str, float]:
    """Count the multiplications of an image's step: all, and those without a zero in them.

    A gradient is 0 where ReLU or the pooling lets none pass, at three of four places and more.
    """
    from paddle_mnist import MNIST
    from paddle_mnist.mnist.options import net_sizes
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


def _loop_shares(session: Session) -> dict[str, float]:
    """The shares of a training's time that are not forward, backward or the optimizer's step.

    Of STEPS steps and more, whole epochs, of the recipe `default`: sampler, batches, log, files,
    VisualDL, a watch (whose looks in the forward pass have a table of their own), a checkpoint an
    epoch. Two loops side by side would not tell: one loop takes up to 4% longer than its own twin
    here.
    """
    from paddle_mnist.mnist.images import open_data

    steps = -(-len(open_data(session.source)["train"]) // BATCH)  # of an epoch; the first warms up
    config = config_of(
        "default",
        data=session.source,
        batch_size=BATCH,
        epochs=1 + (1 if session.is_quick else -(-STEPS // steps)),
        threads=CORES,
        save_every_steps=steps,
        output=str(session.folder / "run"),
    )
    seconds = {part: sum(values[steps:]) for part, values in timed_training(config).items()}
    of_steps = sum(seconds[part] for part in ("forward", "backward", "optimizer"))
    apart = {part: seconds[part] / seconds["step"] for part in ("logging", "saving")}
    return {**apart, "rest": 1 - of_steps / seconds["step"] - sum(apart.values())}


def _rows(report: Report) -> Rows:
    rows = report.medians
    best = max((row["rate"] for kind, row in rows.items() if row and "PyTorch" in kind), default=0)
    for kind, row in rows.items():
        if row:
            rates = report.samples[kind]["rate"]
            row["spread"] = f"{row['rate']:,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
            row["times best"] = row["rate"] / best if best else None
    return rows


def _note(report: Report) -> str:
    shares = report.facts["loop_shares"]
    return (
        f"Batches of {BATCH}, Momentum, the same arrays; medians of "
        f"{report.rounds} rounds in which all take turns (least to most). In a training "
        "with the defaults, everything but forward, backward and optimizer takes "
        f"{sum(shares.values()):.1%} of the time: {shares['logging']:.1%} for log, files and "
        f"VisualDL, {shares['saving']:.1%} for a checkpoint per epoch, {shares['rest']:.1%} for "
        "batches and the loop. The forward pass includes the records of [the watch]"
        "(looking-inside.md#what-watching-costs)."
        f"\n\n{_limits(report)}"
    )


def _limits(report: Report) -> str:
    """Say how much a step multiplies, and what share of the possible that is."""
    products, gflops = report.facts["products"], report.facts["gflops"]
    limits = {kind: gflops * 1e9 / 2 / products["trained"][kind] for kind in ("dense", "sparse")}
    counts = ", ".join(
        f"{products[kind]['sparse'] / 1e6:.2f} million in a {kind} net" for kind in products
    )
    rates = {kind: row["rate"] for kind, row in report.medians.items() if row}
    shares = ", ".join(
        f"{name} {rates[kind] / limits['dense']:.0%}"
        for kind, name in {PADDLE_ALL: "Paddle", TORCH: "PyTorch", STEP: "this package"}.items()
        if kind in rates
    )
    return (
        "The limits: training on one image takes "
        f"{products['new']['dense'] / 1e6:.2f} million multiplications; {counts} "
        "involve no zero. Products of large matrices run at "
        f"{gflops:.0f} GFLOP/s here, on all cores. At that speed the "
        f"limit is {limits['dense']:,.0f} images a second if everything is multiplied, and "
        f"{limits['sparse']:,.0f} if multiplications by zero are skipped. "
        f"Shares of the first limit: {shares}; of the second: this package "
        f"{rates[STEP] / limits['sparse']:.0%}."
    )


BENCHMARK = Benchmark(
    __doc__,
    code=(
        __name__,
        "benchmarks.rivals",
        "benchmarks.torch_net",
        "paddle_mnist.mnist.model",
        "paddle_mnist.nn",
        "paddle_mnist.training.steps",
    ),
    kinds=_kinds,
    head="who trains",
    columns={
        "images a second": ("", "spread"),
        "times Paddle's": (".2f", lambda row, rows: row["rate"] / rows[PADDLE]["rate"]),
        "times PyTorch's best": (".2f", "times best"),
    },
    rows=_rows,
    note=_note,
    facts=_facts,
    quick=(
        PADDLE,
        STEP,
        # of the READMEs' figures
        "this package's training step, 1 thread",
        "PyTorch eager, channels last, 1 thread",
    ),
)
