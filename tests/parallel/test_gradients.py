"""Gradients are summed over the shards of a batch in their own precision.

test_distributed.py checks the same over processes.
"""

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paddle import nn

from paddle_mnist.data.sampler import Shard, ShardSpec
from paddle_mnist.interfaces import StepOutputs
from paddle_mnist.metrics.sums import Mean
from paddle_mnist.parallel.gradients import GradientExchange
from paddle_mnist.parallel.world import SINGLE_PROCESS, tree_sum

SAMPLES, WIDTH = 12, 3
BATCH = np.random.RandomState(1).standard_normal([SAMPLES, WIDTH])
TWO_BRANCHES = {
    "float32": ("float32", "float32"),
    "float64 unused": ("float32", "float64"),
    "bfloat16 and float64": ("bfloat16", "float64"),
}


class TwoBranches(nn.Layer):
    """Two weights of the given dtypes; a batch whose first number is not above 0 needs one."""

    def __init__(self, used, other):
        super().__init__()
        self.used = self.create_parameter([WIDTH], dtype=used)
        self.other = self.create_parameter([WIDTH], dtype=other)
        self.register_buffer("mean", paddle.zeros([WIDTH], "float64"))
        self.register_buffer("passes", paddle.zeros([1], "int64"))
        numbers = np.random.RandomState(2).standard_normal([2, WIDTH])
        for parameter, values in zip(self.parameters(), numbers):
            parameter.set_value(paddle.to_tensor(values).astype(parameter.dtype))

    def forward(self, inputs):
        self.mean.set_value(self.mean + inputs.mean(axis=0))
        self.passes = self.passes + 1  # in another tensor
        outputs = (inputs * self.used.astype("float64")).sum(axis=1)
        if inputs[0, 0].item() > 0:
            outputs = outputs * (inputs * self.other.astype("float64")).sum(axis=1)
        return outputs


def exchanged(dtypes, batch, shards, world=SINGLE_PROCESS, ordered=True):
    """A model with the gradients of a batch, divided into shards, and the result of the step."""
    model = TwoBranches(*TWO_BRANCHES[dtypes])
    exchange = GradientExchange(model, world, ordered)
    exchange.buffers.keep()
    for index, part, size in ShardSpec(shards, world.rank, world.size).slices(slice(0, len(batch))):
        exchange.begin_shard()
        outputs = model(paddle.to_tensor(batch[part]))
        shard = Shard(None, index, size, batch_size=len(batch))
        metric = Mean(outputs.sum(), size)
        exchange.backward(shard, StepOutputs(outputs.mean(), {"mean": metric}))
    return model, exchange.reduce()


def gradients(model):
    """The gradients as float64; they have the dtypes of their parameters."""
    for parameter in model.parameters():
        assert parameter.grad is None or parameter.grad.dtype == parameter.dtype
        yield parameter.grad is not None and parameter.grad.astype("float64").numpy()


def check(dtypes, is_used, shards, world=SINGLE_PROCESS, ordered=True):
    batch = BATCH.copy()
    batch[:, 0] = np.abs(batch[:, 0]) if is_used else -np.abs(batch[:, 0])
    if is_used == "in one shard":
        batch[1:, 0] *= -1  # the first shard alone
    model, result = exchanged(dtypes, batch, shards, world, ordered)
    rounding = {"float64": 1e-14, "float32": 1e-5, "bfloat16": 1e-2}
    used, other = (parameter.astype("float64").numpy() for parameter in model.parameters())
    by_branch = np.zeros(SAMPLES, bool)
    for part in np.array_split(np.arange(SAMPLES), shards):
        by_branch[part] = batch[part[:1], 0] > 0
    factors = np.where(by_branch, batch @ other, 1)
    expected = [
        (batch * factors[:, None]).mean(axis=0),
        (batch * (by_branch * (batch @ used))[:, None]).mean(axis=0),
    ]
    for dtype, gradient, exact in zip(TWO_BRANCHES[dtypes], gradients(model), expected):
        assert (gradient is False) == (not exact.any())  # none for a weight that no shard has used
        if gradient is not False:
            np.testing.assert_allclose(gradient, exact, rtol=rounding[dtype], atol=rounding[dtype])
    loss = (factors * (batch @ used)).mean()
    close = pytest.approx(loss, rel=1e-14 if "float64" in TWO_BRANCHES[dtypes] else 1e-5)
    total, count = result.metrics["mean"].to_numpy()
    assert (result.loss.item(), total / count, count) == (close, close, SAMPLES)
    np.testing.assert_allclose(model.mean, batch.mean(axis=0), rtol=1e-14, atol=1e-14)
    assert model.passes.item() == 1  # of all shards together


@pytest.mark.parametrize("dtypes", TWO_BRANCHES)
@pytest.mark.parametrize("is_used", [True, False, "in one shard"])
@pytest.mark.parametrize("shards", [1, 5, 16])  # 5 differ in size, of 16 some are empty
def test_gradient_exchange_of_shards_sums_in_the_precision_of_each_parameter(
    dtypes, is_used, shards
):
    check(dtypes, is_used, shards)


@given(
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=8, max_size=8),
    size=st.sampled_from([2, 4, 8]),
)
def test_tree_sum_of_ranks_equals_that_of_all_shards(values, size):
    values, own = [np.float32(value) for value in values], 8 // size
    blocks = [tree_sum(values[rank * own : (rank + 1) * own]) for rank in range(size)]
    assert tree_sum(blocks) == tree_sum(values)
