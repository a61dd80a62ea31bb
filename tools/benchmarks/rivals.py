"""Who trains the net: this package, plain Paddle, PyTorch. Each in a process of its own.

`python -m benchmarks.rivals KIND SOURCE SECONDS` prints the images a second of each tenth step.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from paddle_mnist.mnist.config import TrainConfig
from paddle_mnist.system.machine import usable_cpus

BATCH = 100  # as in the tutorial
STEPS = 10  # timed together
RATE = 0.01
CORES = usable_cpus()

Step = Callable[[int], None]  # trains on the batch of this number


def arrays(source: str) -> tuple[np.ndarray, np.ndarray]:
    """Some thousand images, float32 [N, 1, 28, 28], and labels, int64 [N, 1], in memory."""
    from paddle_mnist.mnist.cache import open_data
    from paddle_mnist.mnist.dataset import MnistDataset

    dataset = MnistDataset("train", open_data(source), 6000)
    images, labels = zip(*(dataset[number] for number in range(len(dataset))))
    return np.stack(images), np.stack(labels)


def batch(number: int, count: int) -> slice:
    start = number * BATCH % max(1, count - BATCH)
    return slice(start, start + BATCH)


def paddle_loop(source: str, threads: int = 0) -> Step:
    """The bare loop on arrays; threads: of the fast convolution, 0 for Paddle's own layers."""
    import paddle
    from paddle.nn import functional as F

    from paddle_mnist import MNIST

    images, labels = arrays(source)
    model = MNIST()
    model.fast_conv = threads
    optimizer = paddle.optimizer.Momentum(RATE, parameters=model.parameters())

    def step(number: int) -> None:
        chosen = batch(number, len(images))
        logits = model(paddle.to_tensor(images[chosen]))
        F.cross_entropy(logits, paddle.to_tensor(labels[chosen])).backward()
        optimizer.step()
        optimizer.clear_grad()

    return step


def torch_loop(source: str, threads: int, channels_last: bool) -> Step:
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.set_num_threads(threads)
    images, labels = map(torch.from_numpy, arrays(source))
    block = [nn.MaxPool2d(2), nn.ReLU()]
    convolutions = nn.Conv2d(1, 20, 5, padding=2), nn.Conv2d(20, 20, 5, padding=2)
    model = nn.Sequential(
        convolutions[0], *block, convolutions[1], *block, nn.Flatten(), nn.Linear(980, 10)
    )
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)

    def step(number: int) -> None:
        chosen = batch(number, len(images))
        optimizer.zero_grad()
        F.cross_entropy(model(images[chosen]), labels[chosen, 0]).backward()
        optimizer.step()

    return step


MKL = {"MKL_DEBUG_CPU_TYPE": "5"}  # has MKL use AVX2 on an AMD processor too
KINDS: dict[str, tuple[str, Callable[[str], Step], dict[str, str]]] = {
    "plain": ("Paddle's layers, the bare loop, 1 thread", paddle_loop, {}),
    "plain all": (
        f"the same, {CORES} threads",
        paddle_loop,
        {"OMP_NUM_THREADS": str(CORES), "MKL_NUM_THREADS": str(CORES)},
    ),
    "plain, AVX2": ("the same, 1 thread, with `MKL_DEBUG_CPU_TYPE=5`", paddle_loop, MKL),
    "fast 1": (
        "this package's convolution, 1 thread",
        lambda source: paddle_loop(source, 1),
        {},
    ),
    "fast": (
        f"this package's convolution, {CORES} threads",
        lambda source: paddle_loop(source, CORES),
        {},
    ),
    "torch 1": (
        "PyTorch eager, channels last, 1 thread",
        lambda source: torch_loop(source, 1, True),
        {},
    ),
    "torch": (
        f"PyTorch eager, {CORES} threads",
        lambda source: torch_loop(source, CORES, False),
        {},
    ),
    "torch tuned": (
        f"PyTorch eager, channels last, {CORES} threads",
        lambda source: torch_loop(source, CORES, True),
        {},
    ),
}


def rate(kind: str, source: str, seconds: float) -> float:
    """The median images a second of a process of this kind. Raises ImportError without PyTorch."""
    _, _, environment = KINDS[kind]
    threads = {"OMP_NUM_THREADS": "1"} if "torch" not in kind else {}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.rivals", kind, source, str(seconds)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, **threads, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if "No module named 'torch'" in done.stderr:
        raise ImportError("torch")
    done.check_returncode()
    return statistics.median(json.loads(done.stdout.splitlines()[-1]))


def main(kind: str, source: str, seconds: str) -> None:
    step = KINDS[kind][1](source)
    for number in range(STEPS):
        step(number)
    rates, ends = [], time.perf_counter() + float(seconds)
    while time.perf_counter() < ends:
        began = time.perf_counter()
        for number in range(STEPS):
            step(len(rates) * STEPS + number)
        rates.append(STEPS * BATCH / (time.perf_counter() - began))
    print(json.dumps(rates))


if __name__ == "__main__":
    TrainConfig()  # the imports of the package's own parts come before the clock
    main(*sys.argv[1:])
