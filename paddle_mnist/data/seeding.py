"""Seed the generators of random numbers as a pure function of a place in the training."""

import contextlib
import hashlib
import random
from collections.abc import Iterator
from typing import Any, Union

import numpy as np
import paddle

from paddle_mnist.system.devices import gpu_count


def seed_of(*key: Union[int, str]) -> int:
    """Return a seed for a place in the training, such as (seed, epoch, index): 32 bits."""
    digest = hashlib.sha256(" ".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:4], "little")


def seed_generators(*key: Union[int, str]) -> None:
    """Seed Python's, NumPy's and Paddle's global generators from a key.

    Code that draws from them, such as random augmentation, then draws the same for the same key,
    in whichever process and after whatever was drawn before.
    """
    seed = seed_of(*key)
    _seed_python_and_numpy(seed)
    if paddle.io.get_worker_info() is None:
        paddle.seed(seed)
    else:  # a forked worker must not touch the GPUs' generators
        paddle.framework.core.default_cpu_generator().manual_seed(seed)


def _seed_python_and_numpy(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)


def foreseen_draws(*key: Union[int, str]) -> tuple[float, float, int]:
    """Seed Python's and NumPy's global generators from a key; return what `draw` returns next.

    If it returns anything else later, somebody has drawn random numbers in between. This takes a
    tenth of the time that a comparison of the generators' states would (`next_draws`).
    """
    seed = seed_of(*key)
    _seed_python_and_numpy(seed)
    foreseen = draw()
    _seed_python_and_numpy(seed)
    return foreseen


def draw() -> tuple[float, float, int]:
    """Return a random number of Python's, NumPy's and Paddle's CPU generator.

    Paddle's, from which nets draw, remains as it was; to restore the others would take longer. Of
    GPUs' generators nothing is drawn: that would wait for the device.
    """
    cpu = paddle.framework.core.default_cpu_generator()
    state = cpu.get_state()
    number = cpu.random()
    cpu.set_state(state)
    return random.random(), np.random.random(), number


def reseed(seed: int, step: int, shard: int = 0) -> None:
    """Seed Paddle's, Python's and NumPy's generators for the forward pass of a shard in a step.

    Otherwise the generators' state would have to be saved with every checkpoint, which Paddle
    2.6.2 cannot do: its pickled states lose all but the seed. With a new seed before each pass
    there is nothing to save: a training resumed at any step draws what the uninterrupted one drew.
    """
    key = (seed, step, shard) if shard else (seed, step)  # as before there were shards
    seed_generators(*key)


@contextlib.contextmanager
def generators_restored() -> Iterator[None]:
    """Give all global generators back as they were: Python's, NumPy's and Paddle's."""
    python, numpy = random.getstate(), np.random.get_state()
    # Not `paddle.set_rng_state(state, "cpu")`: Paddle 2.6.2 cannot set it by a device's name.
    cpu = paddle.framework.core.default_cpu_generator()
    state = cpu.get_state()
    # A forked worker must not touch the GPUs' generators.
    has_gpus = gpu_count() and paddle.io.get_worker_info() is None
    gpus = paddle.get_cuda_rng_state() if has_gpus else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        cpu.set_state(state)
        if gpus:
            paddle.set_cuda_rng_state(gpus)


def next_draws() -> bytes:
    """Return what tells the states of all global generators apart, without a draw.

    Of Paddle's, whose states cannot be compared, these are the numbers that they would draw next.
    """
    numpy = np.random.get_state(legacy=False)
    keys = numpy["state"].pop("key").tobytes()
    with generators_restored():
        drawn: list[Any] = [paddle.framework.core.default_cpu_generator().random()]
        if gpu_count() and paddle.io.get_worker_info() is None:
            drawn.append(paddle.rand([1]).item())
    return repr((random.getstate(), numpy, drawn)).encode() + bytes(keys)
