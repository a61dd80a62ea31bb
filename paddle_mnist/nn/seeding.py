"""What is drawn in a step is a pure function of (seed, step, shard)."""

import hashlib

import paddle


def reseed(seed: int, step: int, shard: int = 0) -> None:
    """Seed Paddle's generators for one forward pass, that of a shard in a step.

    A generator's state would have to be saved with every checkpoint, and cannot be on Paddle
    2.6.2, whose pickled states lose all but the seed. Seeded anew before each step, there is
    nothing to save: a training that goes on from any step draws what the unbroken one drew.
    """
    which = f"{seed} {step} {shard}" if shard else f"{seed} {step}"
    digest = hashlib.sha256(which.encode()).digest()
    paddle.seed(int.from_bytes(digest[:4], "little"))
