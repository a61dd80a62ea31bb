"""Buffers that a net changes are the same for any division of a batch into shards."""

import numpy as np
import paddle
import pytest
from paddle import nn

from paddle_mnist.data.loader import Shard
from paddle_mnist.data.sampler import ShardSpec
from paddle_mnist.interfaces import StepOutputs
from paddle_mnist.parallel.gradients import GradientExchange
from paddle_mnist.parallel.world import ALONE


class Counts(nn.Layer):
    """Counts its passes, and adds up the mean of its inputs, in each of the ways to do it."""

    def __init__(self, is_replaced):
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.is_replaced = is_replaced
        self.register_buffer("passes", paddle.zeros([1], "int64"))
        self.register_buffer("total", paddle.zeros([2]))

    def forward(self, inputs):
        passes, total = self.passes + 1, self.total + inputs.mean(axis=0)
        if self.is_replaced:
            self.passes, self.total = passes, total
        else:
            self.passes.set_value(passes), self.total.set_value(total)
        return self.linear(inputs)


@pytest.mark.parametrize("is_replaced", [True, False], ids=["replaced", "in place"])
@pytest.mark.parametrize(("samples", "shards"), [(7, 1), (7, 2), (7, 3), (8, 4), (3, 8)])
def test_buffers_change_once_a_step_however_many_shards_it_has(is_replaced, samples, shards):
    batch = np.random.RandomState(samples).randn(samples, 2).astype("float32")
    model = Counts(is_replaced)
    exchange = GradientExchange(model, ALONE, ordered=True)
    for _ in range(3):
        for index, part, size in ShardSpec(shards).slices(slice(0, samples)):
            exchange.before_pass()
            loss = model(paddle.to_tensor(batch[part])).mean()
            loss.backward()
            shard = Shard(None, index, size, batch_size=samples)
            exchange.add(shard, StepOutputs(loss, {}))
        exchange.finish()
    assert model.passes.item() == 3
    np.testing.assert_allclose(model.total, 3 * batch.mean(axis=0), rtol=1e-5)
