"""What is drawn in a step is a pure function of (seed, step)."""

import hashlib

import paddle


def reseed(seed: int, step: int) -> None:
    """Seed Paddle's generators for one step.

    A generator's state would have to be saved with every checkpoint, and cannot be on Paddle
    2.6.2, whose pickled states lose all but the seed. Seeded anew before each step, there is
    nothing to save: a training that goes on from any step draws what the unbroken one drew.
    """
    digest = hashlib.sha256(f"{seed} {step}".encode()).digest()
    paddle.seed(int.from_bytes(digest[:4], "little"))
