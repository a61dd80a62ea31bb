"""Throughput by framework: this package, plain Paddle, PyTorch, JAX, each in its own process."""

import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from benchmarks.timing import in_own_process, seconds_of
from paddle_mnist.mnist.config import TrainConfig
from paddle_mnist.system.machine import usable_cpus

BATCH = 100  # as in the tutorial
STEPS = 10  # timed together
RATE = 0.01
CORES = usable_cpus()

Step = Callable[[int], None]  # trains on the batch of this number


def arrays(source: str) -> tuple[np.ndarray, np.ndarray]:
    """Some thousand images, float32 [N, 1, 28, 28], and labels, int64 [N, 1], in memory."""
    from paddle_mnist.mnist.dataset import MnistDataset
    from paddle_mnist.mnist.images import open_data

    dataset = MnistDataset("train", open_data(source), 6000)
    images, labels = zip(*(dataset[number] for number in range(len(dataset))))
    return np.stack(images), np.stack(labels)


def batch(number: int, count: int, size: int = BATCH) -> slice:
    start = number * size % max(1, count - size)
    return slice(start, start + size)


def paddle_loop(
    source: str, threads: int = 0, own_step: bool = False, batch_size: int = BATCH
) -> Step:
    """Train in a bare loop on arrays.

    threads: of the fast convolution, 0 for Paddle's own layers. own_step: take the step of
    `Trainer`, not the tutorial's.
    """
    import paddle
    from paddle.nn import functional as F

    from paddle_mnist import MNIST
    from paddle_mnist.nn.cross_entropy import CrossEntropy
    from paddle_mnist.training.steps import SupervisedStep

    images, labels = arrays(source)
    model = MNIST(fast_conv=threads)
    compute = SupervisedStep(CrossEntropy())
    optimizer = paddle.optimizer.Momentum(RATE, parameters=model.parameters())

    def step(number: int) -> None:
        chosen = batch(number, len(images), batch_size)
        inputs, targets = paddle.to_tensor(images[chosen]), paddle.to_tensor(labels[chosen])
        if own_step:
            loss = compute(model, (inputs, targets))["loss"]
        else:
            loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()

    return step


def torch_loop(source: str, threads: int, channels_last: bool, is_compiled: bool = False) -> Step:
    import torch
    from torch.nn import functional as F

    from benchmarks.torch_net import torch_net

    torch.set_num_threads(threads)
    images, labels = map(torch.from_numpy, arrays(source))
    model = torch_net(relu_first=False)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    if is_compiled:
        if not shutil.which("g++"):
            raise ModuleNotFoundError("torch.compile compiles with g++")
        model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)

    def step(number: int) -> None:
        chosen = batch(number, len(images))
        optimizer.zero_grad()
        F.cross_entropy(model(images[chosen]), labels[chosen, 0]).backward()
        optimizer.step()

    return step


def jax_loop(source: str) -> Step:
    """The same net and optimizer in JAX, compiled as one function."""
    import jax
    from jax import lax
    from jax import numpy as jnp

    images, labels = arrays(source)
    draw = np.random.default_rng(0)
    shapes = [(20, 1, 5, 5), (20,), (20, 20, 5, 5), (20,), (980, 10), (10,)]
    weights = [jnp.asarray(0.05 * draw.standard_normal(shape), jnp.float32) for shape in shapes]
    velocities = [jnp.zeros_like(weight) for weight in weights]

    def block(inputs, weight, bias):
        outputs = lax.conv(inputs, weight, (1, 1), [(2, 2), (2, 2)]) + bias[:, None, None]
        pairs = (1, 1, 2, 2)
        return jax.nn.relu(lax.reduce_window(outputs, -jnp.inf, lax.max, pairs, pairs, "VALID"))

    def loss(weights, inputs, labels):
        features = block(block(inputs, *weights[:2]), *weights[2:4]).reshape(len(inputs), -1)
        log_shares = jax.nn.log_softmax(features @ weights[4] + weights[5])
        return -jnp.take_along_axis(log_shares, labels, 1).mean()

    @jax.jit
    def update(weights, velocities, inputs, labels):
        gradients = jax.grad(loss)(weights, inputs, labels)
        velocities = [0.9 * old + new for old, new in zip(velocities, gradients)]
        return [w - RATE * velocity for w, velocity in zip(weights, velocities)], velocities

    def step(number: int) -> None:
        nonlocal weights, velocities
        chosen = batch(number, len(images))
        weights, velocities = update(weights, velocities, images[chosen], labels[chosen])
        jax.block_until_ready(weights)

    return step


@dataclass(frozen=True)
class Rival:
    """loop: makes the step, of the data's source. environment: of the process."""

    loop: Callable[[str], Step]
    environment: Mapping[str, str] = field(default_factory=dict)

    def rate(self, source: str, seconds: float) -> float:
        """Return the images a second of a process.

        Raises ModuleNotFoundError where PyTorch or JAX is missing.
        """
        return in_own_process(_rate, self.loop, source, seconds, **self.environment)


def _rate(loop: Callable[[str], Step], source: str, seconds: float) -> float:
    TrainConfig()  # the imports of the package's own parts come before the clock
    step = loop(source)

    def steps(first: int) -> None:
        for number in range(first, first + STEPS):
            step(number)

    steps(0)
    rates, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        rates.append(STEPS * BATCH / seconds_of(steps, len(rates) * STEPS))
    return statistics.median(rates)


ONE_THREAD = {"OMP_NUM_THREADS": "1"}
ALL_CORES = {"OMP_NUM_THREADS": str(CORES), "MKL_NUM_THREADS": str(CORES)}
AVX2 = {**ONE_THREAD, "MKL_DEBUG_CPU_TYPE": "5"}  # has MKL use AVX2 on an AMD processor too


def _paddle(threads: int, **options: bool) -> Rival:
    return Rival(partial(paddle_loop, threads=threads, **options), ONE_THREAD)


def _torch(threads: int, channels_last: bool, **options: bool) -> Rival:
    return Rival(partial(torch_loop, threads=threads, channels_last=channels_last, **options))


PADDLE, PADDLE_ALL = "Paddle's layers, the bare loop, 1 thread", f"the same, {CORES} threads"
STEP = f"this package's training step, {CORES} threads"
TORCH = f"PyTorch eager, channels last, {CORES} threads"
RIVALS = {
    PADDLE: Rival(paddle_loop, ONE_THREAD),
    PADDLE_ALL: Rival(paddle_loop, ALL_CORES),
    "the same, 1 thread, with `MKL_DEBUG_CPU_TYPE=5`": Rival(paddle_loop, AVX2),
    "this package's convolution in the same loop, 1 thread": _paddle(1),
    f"this package's convolution in the same loop, {CORES} threads": _paddle(CORES),
    "this package's training step, 1 thread": _paddle(1, own_step=True),
    STEP: _paddle(CORES, own_step=True),
    "PyTorch eager, channels last, 1 thread": _torch(1, True),
    f"PyTorch eager, {CORES} threads": _torch(CORES, False),
    TORCH: _torch(CORES, True),
    f"PyTorch `torch.compile`, channels last, {CORES} threads": _torch(
        CORES, True, is_compiled=True
    ),
    f"JAX `jit`, {CORES} threads": Rival(jax_loop, ONE_THREAD),
}
