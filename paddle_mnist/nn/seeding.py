"""Random numbers of a step as a pure function of (seed, step, shard)."""

from paddle_mnist.data.seeding import seed_generators


def reseed(seed: int, step: int, shard: int = 0) -> None:
    """Seed Paddle's, Python's and NumPy's generators for the forward pass of a shard in a step.

    Otherwise the generators' state would have to be saved with every checkpoint, which Paddle
    2.6.2 cannot do: its pickled states lose all but the seed. With a new seed before each pass
    there is nothing to save: a training resumed at any step draws what the uninterrupted one drew.
    """
    if shard:
        seed_generators(seed, step, shard)
    else:  # the key that it had before there were shards
        seed_generators(seed, step)
