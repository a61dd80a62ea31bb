"""Where the time of a step goes, by operator: of the fast convolution and of Paddle's layers."""

import cProfile
import pstats
import time
from pathlib import Path

from measure.rivals import BATCH, paddle_loop

STEPS = 30
# Functions of `fast_conv`, and what they do. Whatever else is called there counts as the rest.
OPERATORS = {
    "_product": "matrix products: convolution, gradient of the second block's input",
    "_weight_gradient": "matrix products: gradients of the kernels",
    "_windows": "windows of 3x3 cells",
    "_convolve": "pool, bias, ReLU",
    "_unpool": "gradient of the pool",
    "_fill": "cells of images",
    "_pixels": "cells of images",
    "_bias_gradient": "gradients of the biases",
    "_matrix": "kernels as matrices",
    "forward": "the rest of forward",
    "backward": "the rest of backward",
    "run": "ReLU's gradient",
    "step": "batches, optimizer, the rest of the loop",
}


def measured(source: str, rounds: int) -> dict:
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
    if path.name == "fast_conv.py":
        return OPERATORS.get(name, "the rest of the fast convolution")
    if "numpy" in str(path) or "numpy" in name:
        return "NumPy, called by these"
    if "run_backward" in name or "backward" in name:
        return "Paddle: backward pass of the linear layer and the loss"
    return "Paddle and the loop: linear layer, loss, optimizer, batches"


def table(report: dict) -> str:
    rows = ["| operator | share of a step |", "|---|---|"]
    shares = sorted(report["shares"].items(), key=lambda one: -one[1])
    rows += [f"| {title} | {share:.1%} |" for title, share in shares if share >= 0.001]
    whole = sum(report["shares"].values())
    note = (
        f"{report['steps']} steps of {report['batch_size']} images, one thread; {whole:.1%} told."
    )
    return "\n".join([*rows, "", note])
