"""The order of samples is a pure function of (seed, epoch)."""

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paddle_mnist.data.sampler import BatchSampler

samplers = st.builds(
    BatchSampler,
    length=st.integers(1, 300),
    batch_size=st.integers(1, 70),
    seed=st.integers(0, 2**32 - 1),
    shuffle=st.booleans(),
)
epochs = st.integers(0, 10**6)


@given(samplers, epochs)
def test_batches_yield_each_sample_once(sampler, epoch):
    batches = list(sampler.batches(epoch))
    assert sorted(np.concatenate(batches)) == list(range(sampler.length))
    assert len(batches) == len(sampler)
    assert {len(batch) for batch in batches[:-1]} <= {sampler.batch_size}


@given(samplers, epochs, st.data())
def test_batches_from_a_position_yield_the_rest(sampler, epoch, data):
    start = data.draw(st.integers(0, len(sampler)))
    whole, rest = list(sampler.batches(epoch)), list(sampler.batches(epoch, start))
    assert len(rest) == len(whole) - start
    assert all(map(np.array_equal, whole[start:], rest))


def test_order_differs_by_epoch_and_seed_if_shuffled():
    orders = {
        BatchSampler(50, 8, seed).order(epoch).tobytes() for seed in (1, 2) for epoch in (0, 1)
    }
    assert len(orders) == 4
    plain = BatchSampler(50, 8, shuffle=False)
    assert list(plain.order(0)) == list(plain.order(7)) == list(range(50))


def test_order_is_the_same_on_every_version_of_numpy():
    order = BatchSampler(50_000, 64, seed=1).order(3).astype("<i8")
    assert hashlib.sha256(order.tobytes()).hexdigest()[:16] == "4fefdf3738e4d0fa"
