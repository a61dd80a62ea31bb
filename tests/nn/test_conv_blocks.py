"""Compiled blocks of any size compute as Paddle's own layers do."""

import copy

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import nn

from paddle_mnist import ConvBlocks
from paddle_mnist.errors import ConfigError
from paddle_mnist.monitor.hooks import leaf_layers, recording_outputs
from paddle_mnist.nn.covered import covered_net
from paddle_mnist.nn.layers import read_only
from paddle_mnist.nn.layout import BlockSizes, Net
from paddle_mnist.nn.losses import CrossEntropy

PADDLE_3 = paddle.__version__ >= "3"  # hooks take keyword arguments


def block(channels, outputs, kernel, relu_first=True, **options):
    rest = [nn.ReLU(), nn.MaxPool2D(2, 2)]
    conv = nn.Conv2D(channels, outputs, kernel, **options)
    return [conv, *(rest if relu_first else reversed(rest))]


# Few, several and many channels, even and odd sizes, square and not, rows that are left out of a
# pooling window, every size of kernel, with and without padding and biases; what may follow them.
NETS = {
    "two channels, no bias": (
        (2, 9, 12),
        lambda: [*block(2, 3, 3, padding=2, bias_attr=False), *block(3, 9, 1, relu_first=False)],
    ),
    "several channels": (
        (6, 16, 14),
        lambda: [*block(6, 16, 5, relu_first=False), nn.Flatten(), nn.Linear(480, 3)],
    ),
    "few features": (
        (1, 9, 12),
        lambda: [*block(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(48, 4)],
    ),
    "many channels": (
        (3, 16, 13),
        lambda: [*block(3, 33, 3, padding=1), *block(33, 32, 3), *block(32, 5, 1)],
    ),
    "MNIST": (
        (1, 28, 28),
        lambda: [
            *block(1, 20, 5, padding=2),
            *block(20, 20, 5, padding=2),
            nn.Flatten(),
            nn.Linear(980, 10),
        ],
    ),
}


def pair(name: str, seed: int = 0) -> tuple[ConvBlocks, nn.Sequential]:
    """The same net twice: in compiled loops, and in Paddle's layers."""
    paddle.seed(seed)
    layers = NETS[name][1]()
    return ConvBlocks(*layers, fast_conv=1), nn.Sequential(*copy.deepcopy(layers))


def values(draw, shape, whole: bool = False) -> np.ndarray:
    numbers = draw.integers(-2, 3, shape) if whole else draw.standard_normal(shape)
    return numbers.astype("float32")


def passes(model, images: np.ndarray, upstream: np.ndarray) -> list[np.ndarray]:
    """The outputs and all gradients, those of the images too."""
    model.clear_gradients()
    inputs = paddle.to_tensor(images, stop_gradient=False)
    outputs = model(inputs)
    (outputs * paddle.to_tensor(upstream).reshape(outputs.shape)).sum().backward()
    return [t.numpy() for t in (outputs, inputs.grad, *(p.grad for p in model.parameters()))]


def recorded(model: nn.Layer, run) -> dict[str, np.ndarray]:
    """What hooks that only read see of each layer during `run()`."""
    outputs: dict[str, np.ndarray] = {}
    with recording_outputs(leaf_layers(model), outputs):
        run()
    return outputs


@pytest.mark.parametrize("name", NETS)
def test_conv_blocks_hooks_see_the_outputs_of_every_layer(name):
    model, reference = pair(name)
    for parameter, same in zip(model.parameters(), reference.parameters()):
        whole = paddle.to_tensor(values(np.random.default_rng(1), parameter.shape, whole=True))
        parameter.set_value(whole)
        same.set_value(whole)
    images = paddle.to_tensor(values(np.random.default_rng(2), (19, *NETS[name][0]), whole=True))
    expected = recorded(reference, lambda: reference(images))
    seen = [recorded(model, lambda: model(images))]
    if isinstance(model[-1], nn.Linear):
        labels = paddle.zeros([19, 1], "int64")
        seen.append(recorded(model, lambda: model.fused_loss(CrossEntropy(), labels, images)))
    for outputs in seen:
        assert list(outputs) == list(expected)
        for layer, output in expected.items():
            assert np.array_equal(outputs[layer], output), layer


@pytest.mark.parametrize("name", NETS)
@settings(max_examples=12)
@given(
    count=st.sampled_from([1, 2, 3, 26, 51]),
    threads=st.integers(1, 3),
    exact=st.sampled_from(["all", "outputs", "none"]),
    seed=st.integers(0, 2**16),
)
def test_conv_blocks_any_batch_computes_as_paddle(name, count, threads, exact, seed):
    """To the last bit where every sum is exact; ties in a pooling window are then frequent.

    Gradients are not compared where outputs are rounded: of two values of a window that are nearly
    equal, the other one may be the larger, and gets the gradient.
    """
    fast, own = pair(name)
    fast.fast_conv = threads
    draw = np.random.default_rng(seed)
    if exact != "none":
        for ours, theirs in zip(fast.parameters(), own.parameters()):
            ours.set_value(values(draw, ours.shape, whole=True))
            theirs.set_value(ours)
    images = values(draw, (count, *NETS[name][0]), whole=exact != "none")
    assert covered_net(list(fast.children()), paddle.to_tensor(images))
    upstream = values(draw, own(paddle.to_tensor(images)).shape, whole=exact == "all")
    results, expected = passes(fast, images, upstream), passes(own, images, upstream)
    for number, (ours, theirs) in enumerate(zip(results, expected)):
        assert ours.shape == theirs.shape
        if exact == "all" or (exact == "outputs" and number == 0):
            assert np.array_equal(ours, theirs)
        elif exact == "outputs" or number == 0:
            assert np.linalg.norm(ours - theirs) <= 1e-5 * np.linalg.norm(theirs)
    fast.fast_conv = "auto"  # as many threads as there are cores: the same bits
    assert all(map(np.array_equal, results, passes(fast, images, upstream)))


@pytest.mark.parametrize("is_frozen", [False, True])
def test_conv_blocks_compute_the_gradients_asked_for(is_frozen):
    """Of images or not, of some layers, by `backward` or by `grad`."""
    draw = np.random.default_rng(0)
    images, results = values(draw, (4, 6, 16, 14)), []
    for model in pair("several channels"):
        for parameter in model[0].parameters():
            parameter.stop_gradient = is_frozen
        inputs = paddle.to_tensor(images)
        model(inputs).sum().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        inputs.stop_gradient = False
        gradients += paddle.grad(model(inputs).sum(), [model[4].bias])
        gradients += paddle.grad(model(inputs).sum(), [inputs])
        results.append(gradients)
    for ours, theirs in zip(*results):
        assert (ours is None) == (theirs is None)
        assert ours is None or np.allclose(ours.numpy(), theirs.numpy(), atol=1e-5)


UNSUPPORTED = {
    "stride": lambda: block(6, 4, 3, stride=2),
    "groups": lambda: block(6, 4, 3, groups=2),
    "dilation": lambda: block(6, 4, 3, dilation=2),
    "kernel that is not square": lambda: block(6, 4, (3, 5)),
    "even kernel": lambda: block(6, 4, 4),
    "padding by name": lambda: block(6, 4, 3, padding="same"),
    "padding that differs": lambda: block(6, 4, 3, padding=[1, 2]),
    "reflected padding": lambda: block(6, 4, 3, padding_mode="reflect"),
    "another activation": lambda: [nn.Conv2D(6, 4, 3), nn.Sigmoid(), nn.MaxPool2D(2, 2)],
    "another pooling": lambda: [nn.Conv2D(6, 4, 3), nn.ReLU(), nn.AvgPool2D(2, 2)],
    "overlapping windows": lambda: [nn.Conv2D(6, 4, 3), nn.ReLU(), nn.MaxPool2D(3, 2)],
    "BatchNorm first": lambda: [nn.BatchNorm2D(6), *block(6, 4, 3)],
}


def test_conv_blocks_other_layers_are_computed_by_paddle():
    images = paddle.to_tensor(values(np.random.default_rng(0), (2, 6, 16, 14)))
    for name, make in UNSUPPORTED.items():
        layers = make()
        assert covered_net(layers, images) is None, name
        outputs = ConvBlocks(*layers, fast_conv=1)(images)
        assert np.array_equal(outputs.numpy(), nn.Sequential(*layers)(images).numpy()), name


def test_conv_blocks_layer_used_twice_gets_the_sum_of_its_gradients():
    relu, pool, conv = nn.ReLU(), nn.MaxPool2D(2, 2), nn.Conv2D(6, 6, 3, padding=1)
    layers = [conv, relu, pool, conv, relu, pool, nn.Flatten()]
    images = values(np.random.default_rng(0), (2, 6, 16, 14))
    upstream = np.ones((2, 6 * 4 * 3), np.float32)
    fast, own = ConvBlocks(*layers, fast_conv=1), nn.Sequential(*layers)
    for ours, theirs in zip(passes(fast, images, upstream), passes(own, images, upstream)):
        assert ours.shape == theirs.shape and np.allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_conv_blocks_unknown_switch_raises():
    with pytest.raises(ConfigError, match="'auto', 'off'"):
        ConvBlocks(fast_conv=-1)
    with pytest.raises(ConfigError, match="'auto', 'off'"):
        ConvBlocks().fast_conv = "on"


sizes = st.integers(1, 300)


@given(sizes, sizes, sizes, sizes, st.sampled_from([1, 3, 5, 7]))
def test_max_place_bounds_the_places_of_all_lists(channels, height, width, outputs, kernel):
    block = BlockSizes(channels, height, width, outputs, kernel, kernel // 2)
    net = Net((block,), (True,), input_gradient=True)

    inputs = block.inputs.width * channels * block.sums.taps_size(kernel)
    gradients = block.unpooled.width * outputs * net.gradient_maps[0].taps_size(kernel)

    assert block.max_place >= max(inputs, gradients, net.windows[0].size)


def test_conv_blocks_of_enormous_sizes_are_computed_by_paddle():
    layers = block(512, 512, 5, padding=2)
    column = paddle.zeros([1, 512, 2, 1])

    assert covered_net(layers, column.expand([1, 512, 2, 2])) is not None
    assert covered_net(layers, column.expand([1, 512, 2, 2048])) is None


def small_net():
    return ConvBlocks(*block(1, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 4 * 4, 10))


def test_conv_blocks_hook_may_call_a_net_with_hooks_and_take_keywords():
    images, model, inner = paddle.rand([4, 1, 8, 8]), small_net(), small_net()
    seen = []
    inner[1].register_forward_post_hook(read_only(lambda layer, inputs, outputs: None))
    model[0].register_forward_post_hook(read_only(lambda *_: seen.append(inner(images)) or None))
    hook = read_only(lambda layer, inputs, keywords, outputs: seen.append(keywords))
    if PADDLE_3:
        model[0].register_forward_post_hook(hook, with_kwargs=True)
    model(images)
    assert paddle.is_grad_enabled() and seen[1:] == [{}] * PADDLE_3
