"""Random numbers of a step as a pure function of (seed, step, shard)."""

import hashlib

import paddle


def reseed(seed: int, step: int, shard: int = 0) -> None:
    """Seed Paddle's generators for the forward pass of one shard in one step.

    Otherwise the generators' state would have to be saved with every checkpoint, which Paddle
    2.6.2 cannot do: its pickled states lose all but the seed. With a new seed before each pass
    there is nothing to save: a training resumed at any step draws what the uninterrupted one drew.
    """
    key = f"{seed} {step} {shard}" if shard else f"{seed} {step}"
    digest = hashlib.sha256(key.encode()).digest()
    paddle.seed(int.from_bytes(digest[:4], "little"))
