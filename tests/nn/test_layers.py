"""Tests of what forward passes may change, and of the gradients of sparse embeddings."""

import zlib

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import nn

from paddle_mnist.nn.layers import KeptBuffers, dense_gradient, running_statistics
from paddle_mnist.system.arrays import ArrayCopies, TensorCopies


class Counter(nn.Layer):
    """Buffers of every kind, changed in place, replaced, and made in the pass."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("mean", paddle.zeros([3]))
        self.register_buffer("replaced", paddle.zeros([3]))
        self.register_buffer("count", paddle.zeros([], "int64"))
        self.register_buffer("flag", paddle.zeros([], "bool"))
        self.register_buffer("later", None)

    def forward(self, inputs):
        outputs = self.linear(inputs)
        if self.training:
            self.mean.set_value(0.9 * self.mean + 0.1 * outputs.detach().mean(axis=0))
            self.replaced = self.replaced + outputs.detach().mean(axis=0)
            self.count = self.count + 1
            self.later, self.seen = outputs.detach(), inputs + 1
        return outputs


def frozen(layer):
    for parameter in layer.parameters():
        parameter.stop_gradient = True
    return layer


LAYERS = {
    "BatchNorm1D": (lambda: nn.BatchNorm1D(3), "_mean _variance"),
    "BatchNorm, frozen": (lambda: frozen(nn.BatchNorm1D(3)), "_mean _variance bias weight"),
    "a subclass": (lambda: type("Own", (nn.BatchNorm1D,), {})(3), "_mean _variance"),
    "twice in a net": (lambda: nn.Sequential(*2 * [nn.BatchNorm1D(3)]), "0._mean 0._variance"),
    "SpectralNorm": (lambda: nn.SpectralNorm([3, 2]), "weight_u weight_v"),
    "LayerNorm": (lambda: nn.LayerNorm(3), ""),
    "Linear, frozen": (lambda: frozen(nn.Linear(3, 3)), ""),
    "LSTM": (lambda: nn.LSTM(2, 3, num_layers=2, dropout=0.5), ""),
    "custom buffers": (Counter, "count mean replaced"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_running_statistics_finds_what_a_pass_may_change(name):
    make, expected = LAYERS[name]
    model = make()
    tensors = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    names = {id(tensor): own_name for own_name, tensor in tensors.items()}
    statistics = [names[id(tensor)] for tensor in running_statistics(model)]
    assert sorted(statistics) == expected.split()


embedded = st.lists(st.integers(0, 7), min_size=1, max_size=12)


def embedding_gradient(sparse, indices, weights):
    layer = nn.Embedding(8, 3, sparse=sparse)
    layer.weight.set_value(weights)
    outputs = layer(paddle.to_tensor(indices))
    (outputs**3).sum().backward()
    return layer.weight


@settings(max_examples=30)
@given(embedded, st.integers(0, 9))
def test_dense_gradient_of_a_sparse_one_equals_that_of_a_dense_embedding(indices, seed):
    weights = np.random.RandomState(seed).randn(8, 3).astype("float32")
    sparse, dense = (embedding_gradient(kind, indices, weights) for kind in (True, False))
    assert sparse.grad.is_selected_rows() and not dense.grad.is_selected_rows()
    np.testing.assert_allclose(dense_gradient(sparse), dense.grad, rtol=1e-5)
    assert np.array_equal(dense_gradient(dense), dense.grad)
    assert list(dense_gradient(sparse).shape) == [8, 3]
    assert dense_gradient(nn.Linear(2, 2).weight) is None


CHANGES = {
    "nothing": lambda layer: None,
    "in place": lambda layer: layer.floats.scale_(2.0),
    "set": lambda layer: layer.floats.set_value(layer.floats + 1),
    "replaced": lambda layer: setattr(layer, "floats", layer.floats * 2),
    "memory replaced": lambda layer: paddle.ones([2, 3])._share_buffer_to(layer.floats),
    "integers": lambda layer: layer.count.add_(paddle.ones([], "int64")),
    "a number": lambda layer: layer.scalar.scale_(2.0),
    "order": lambda layer: layer.transposed.set_value(layer.transposed * 2),
}


@pytest.mark.parametrize("kind", [ArrayCopies, TensorCopies])
@pytest.mark.parametrize("change", CHANGES)
def test_checksum_of_buffers_is_that_of_their_present_values(change, kind):
    layer = nn.BatchNorm1D(4)
    layer.register_buffer("floats", paddle.arange(6, dtype="float32").reshape([2, 3]))
    layer.register_buffer("count", paddle.zeros([], "int64"))
    layer.register_buffer("scalar", paddle.to_tensor(1.5))
    layer.register_buffer("transposed", paddle.arange(6, dtype="float64").reshape([2, 3]).t())
    layer.register_buffer("not_saved", paddle.ones([2]), persistable=False)
    buffers = KeptBuffers(layer, kind)
    buffers.keep()
    CHANGES[change](layer)
    layer.not_saved.zero_()
    names = ("_mean", "_variance", "floats", "count", "scalar", "transposed")
    present = b"".join(getattr(layer, n).numpy().tobytes() for n in names)
    assert buffers.checksum() == zlib.crc32(present)
