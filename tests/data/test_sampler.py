"""The order of samples is a pure function of (seed, epoch)."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from paddle_mnist.data.sampler import SeededOrder


@given(st.integers(1, 300), st.integers(0, 2**32 - 1), st.booleans(), st.integers(0, 10**6))
def test_order_has_each_sample_once(length, seed, shuffle, epoch):
    assert sorted(SeededOrder(length, seed, shuffle)(epoch)) == list(range(length))


def test_order_differs_by_epoch_and_seed_if_shuffled():
    orders = {SeededOrder(50, seed)(epoch).tobytes() for seed in (1, 2) for epoch in (0, 1)}
    assert len(orders) == 4
    plain = SeededOrder(50, shuffle=False)
    assert list(plain(0)) == list(plain(7)) == list(range(50))


def test_order_is_the_same_on_every_version_of_numpy():
    order = SeededOrder(50_000, seed=1)(3).astype("<i8")
    assert hashlib.sha256(order.tobytes()).hexdigest()[:16] == "4fefdf3738e4d0fa"
