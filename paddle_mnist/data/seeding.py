"""Seed the generators of random numbers as a pure function of a place in the training."""

import contextlib
import hashlib
import random
from collections.abc import Iterator
from typing import Union

import numpy as np
import paddle

from paddle_mnist.system.devices import gpu_count

SEEDING = 2  # version of the random numbers of samples: 1 seeded before each, 2 before each batch
TRAIN, VALID = "train", "valid"  # splits whose samples draw different random numbers


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
    random.seed(seed)
    np.random.seed(seed)
    if paddle.io.get_worker_info() is None:
        paddle.seed(seed)
    else:  # a forked worker must not touch the GPUs' generators
        paddle.framework.core.default_cpu_generator().manual_seed(seed)


def reseed(seed: int, step: int, shard: int = 0) -> None:
    """Seed Paddle's, Python's and NumPy's generators for the forward pass of a shard in a step.

    Otherwise the generators' state would have to be saved with every checkpoint, which Paddle
    2.6.2 cannot do: its pickled states lose all but the seed. With a new seed before each pass
    there is nothing to save: a run resumed at any step draws what the uninterrupted one drew.
    """
    key = (seed, step, shard) if shard else (seed, step)  # as before there were shards
    seed_generators(*key)


@contextlib.contextmanager
def generators_restored() -> Iterator[None]:
    """Restore all global generators at the end: Python's, NumPy's and Paddle's."""
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
