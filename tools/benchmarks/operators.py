"""Where the time of a step goes, by operator of the fast convolution and of the loop around it."""

import cProfile
import pstats
import time
from pathlib import Path

from markdown_tables import table as markdown_table

from benchmarks.rivals import BATCH, paddle_loop

STEPS = 30
# Functions of `fast_conv`, and what they do. Whatever else is called there counts as the rest.
OPERATORS = {
    "_product": "matrix products: convolution, gradient of the second block's input",
    "_weight_gradient": "matrix products: gradients of the kernels",
    "_windows": "windows of 3x3 cells",
    "_convolve": "pool, bias, ReLU",
    "_unpool": "gradient of the pool",
    "_fill_cells": "cells of images",
    "_to_pixels": "cells of images",
    "_bias_gradient": "gradients of the biases",
    "_matrix": "kernels as matrices",
    "forward": "the rest of forward",
    "backward": "the rest of backward",
    "run": "ReLU's gradient",
}
# The same of Paddle's own functions, by a part of their names.
PADDLE = {
    "run_backward": "Paddle: backward pass of the linear layer and the loss",
    "linear": "Paddle: linear layer",
    "matmul": "Paddle: linear layer",
    "add": "Paddle: linear layer",
    "cross_entropy": "Paddle: loss",
    "momentum": "Paddle: optimizer",
    "optimizer": "Paddle: optimizer",
    "to_tensor": "Paddle: tensors from arrays, and back",
    "numpy": "Paddle: tensors from arrays, and back",
}
REST = "what else Python does"


def measure(source: str, rounds: int) -> dict:
    """Shares of the time of STEPS x `rounds` steps of one thread, by Python's own profiler."""
    step = paddle_loop(source, threads=1)
    for number in range(10):
        step(number)
    profile, began = cProfile.Profile(), time.perf_counter()
    profile.enable()
    for number in range(STEPS * rounds):
        step(number)
    profile.disable()
    whole = time.perf_counter() - began
    shares: dict[str, float] = {}
    for (path, _, name), (_, _, own, _, _) in pstats.Stats(profile).stats.items():
        title = _title(Path(path), name)
        shares[title] = shares.get(title, 0.0) + own / whole
    return {"steps": STEPS * rounds, "batch_size": BATCH, "shares": shares}


def _title(path: Path, name: str) -> str:
    if path.name in ("fast_conv.py", "chunks.py"):
        return OPERATORS.get(name, "the rest of the fast convolution")
    if "numpy" in path.parts or "numpy." in name or "dot" in name:
        return "NumPy, called by these"
    for part, title in PADDLE.items():
        if part in name or part in path.stem:
            return title
    return REST


def table(report: dict) -> str:
    shares = sorted(report["shares"].items(), key=lambda share: -share[1])
    named = sum(share for title, share in shares if title != REST)
    return markdown_table(
        {"operator": "", "share of a step": ".1%"},
        [(title, share) for title, share in shares if share >= 0.001],
        f"{report['steps']} steps of {report['batch_size']} images, one thread; "
        f"{named:.1%} has a name.",
    )
