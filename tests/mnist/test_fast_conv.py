"""The net in compiled loops: Paddle's own layers are what it is compared with."""

import copy
import json
import sys
import tracemalloc
from typing import Union

import forked
import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle.nn import functional as F

from paddle_mnist import MNIST, watch
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.options import NetOptions
from paddle_mnist.mnist.sizes import net_sizes
from paddle_mnist.nn import sparse_layout
from paddle_mnist.nn.compiled_net import CompiledNet
from paddle_mnist.nn.fast_layers import fast_net
from paddle_mnist.nn.implementations import warn_of_other_implementations
from paddle_mnist.nn.sparse_layout import VERSION

QUIET = ["--figures", "false", "--visualdl", "false"]


def net(threads: Union[str, int], weights=None) -> MNIST:
    paddle.seed(3)
    model = MNIST()
    model.fast_conv = threads
    if weights:
        model.set_state_dict(weights)
    return model


def whole(model: MNIST, draw: np.random.Generator) -> dict[str, np.ndarray]:
    """Small whole numbers as weights: every sum is exact, in whatever order it is made."""
    return {
        name: draw.integers(-1, 2, parameter.shape).astype("float32")
        for name, parameter in model.named_parameters()
    }


def gradients(model: MNIST, images: np.ndarray, upstream: np.ndarray) -> list[np.ndarray]:
    """The features and all gradients, for a loss that weighs the features by `upstream`."""
    features = model.features(paddle.to_tensor(images))
    (features * paddle.to_tensor(upstream)).sum().backward()
    blocks = [p for name, p in model.named_parameters() if not name.startswith("fc")]
    return [features.numpy(), *(p.grad.numpy() for p in blocks)]


@settings(max_examples=40, deadline=None)
@given(
    count=st.one_of(st.integers(1, 8), st.sampled_from([24, 25, 26, 49, 50, 51, 100, 101])),
    threads=st.integers(1, 4),
    levels=st.integers(1, 4),
    seed=st.integers(0, 2**16),
)
def test_where_sums_are_exact_every_bit_is_paddles(count, threads, levels, seed):
    """With few levels nearly every pool has several largest: the first of them gets it all."""
    draw = np.random.default_rng(seed)
    images = draw.integers(0, levels, (count, 1, 28, 28)).astype("float32")
    upstream = draw.integers(-1, 2, (count, 980)).astype("float32")
    weights = whole(MNIST(), draw)
    own = gradients(net(0, weights), images, upstream)
    fast = gradients(net(threads, weights), images, upstream)
    for gradient, expected in zip(own, fast):
        assert np.array_equal(gradient, expected)


@pytest.mark.parametrize("count", [1, 7, 64, 100])
def test_gradients_are_paddles_to_rounding(count, real_images):
    images = real_images[:count]
    upstream = np.random.default_rng(1).standard_normal((count, 980)).astype("float32")
    own, fast = (
        gradients(net(0), images, upstream),
        gradients(net(2), images, upstream),
    )
    for gradient, expected in zip(own, fast):
        assert np.linalg.norm(gradient - expected) <= 2e-6 * np.linalg.norm(gradient)


@pytest.fixture(scope="module")
def real_images() -> np.ndarray:
    from paddle_mnist import MnistDataset

    dataset = MnistDataset("train", "digits")
    return np.stack([dataset[number][0] for number in range(128)])


def test_any_number_of_threads_gives_the_same_bits(real_images):
    upstream = np.random.default_rng(1).standard_normal((128, 980)).astype("float32")
    first = gradients(net(1), real_images, upstream)
    for threads in (2, 3):
        for gradient, expected in zip(first, gradients(net(threads), real_images, upstream)):
            assert np.array_equal(gradient, expected)


def test_the_width_of_vectors_does_not_change_the_bits(real_images, monkeypatch):
    """Another processor pads every row differently."""
    images, labels = real_images[:26], np.arange(26) % 10
    parameters = np.concatenate([p.numpy().ravel() for p in net(1).parameters()])
    outcomes, nets = [], []
    for width in (8, 16):
        monkeypatch.setattr(sparse_layout, "lanes", lambda width=width: width)
        nets.append(net_sizes())
        passes = CompiledNet(nets[-1])
        outcomes.append(passes.cross_entropy(images, labels, parameters, 0.1, 1))
    assert all(map(np.array_equal, *outcomes))
    narrow, wide = nets
    assert narrow.kept.size < wide.kept.size and narrow.weights.size < wide.weights.size


@pytest.mark.parametrize("frozen", [["conv1"], ["conv2"], ["conv1", "conv2"]])
def test_frozen_layers_stay_and_the_others_learn(real_images, frozen):
    labels = paddle.zeros([20, 1], "int64")
    results = []
    for threads in (0, 2):
        model = net(threads)
        for name in frozen:
            for parameter in getattr(model, name).parameters():
                parameter.stop_gradient = True
        F.cross_entropy(model(paddle.to_tensor(real_images[:20])), labels).backward()
        results.append([parameter.grad for parameter in model.parameters()])
    for own, fast in zip(*results):
        assert (own is None) == (fast is None)
        assert own is None or np.allclose(own.numpy(), fast.numpy(), atol=1e-6)


def test_nan_passes_through_and_stays_in_its_image(real_images):
    images = real_images[:60].copy()
    images[31, 0, 14, 14] = np.nan
    features = net(2).features(paddle.to_tensor(images)).numpy()
    assert np.isnan(features[31]).any()
    others = np.arange(60) != 31
    assert np.array_equal(
        features[others], net(2).features(paddle.to_tensor(real_images[:60])).numpy()[others]
    )
    broken = net(2)
    weights = broken.conv2.weight.numpy()
    weights[3, 4, 2, 2] = np.nan
    broken.conv2.weight.set_value(weights)
    loss = F.cross_entropy(broken(paddle.to_tensor(real_images[:5])), paddle.zeros([5, 1], "int64"))
    loss.backward()
    assert np.isnan(loss.item()) and np.isnan(broken.conv2.weight.grad.numpy()).any()


def test_passes_do_not_disturb_one_another(real_images):
    """Each pass keeps its own values until its gradients are taken, whatever comes between."""
    model, upstream = net(2), paddle.ones([30, 980])
    alone = gradients(net(2), real_images[:30], upstream.numpy())
    features = model.features(paddle.to_tensor(real_images[:30]))
    another = model.features(paddle.to_tensor(real_images[30:100]))
    with paddle.no_grad():
        model.features(paddle.to_tensor(real_images[100:]))
    (features * upstream).sum().backward()
    assert np.array_equal(model.conv2.weight.grad.numpy(), alone[3])
    model.clear_gradients()
    (another * paddle.ones([70, 980])).sum().backward()
    alone = gradients(net(1), real_images[30:100], np.ones((70, 980), "float32"))
    assert np.array_equal(model.conv2.weight.grad.numpy(), alone[3])


def test_hooks_see_paddles_layers_and_change_no_bit(real_images):
    images = paddle.to_tensor(real_images[:20])
    unseen, own, fast = net(2)(images).numpy(), net(0), net(2)
    with watch(own) as expected, watch(fast) as seen:
        own(images)
        assert np.array_equal(fast(images).numpy(), unseen)
    tags = [tag for tag in expected.values if "/fc" not in tag]
    assert len(tags) > 20
    assert all(seen.values[tag] == expected.values[tag] for tag in tags)


@pytest.mark.parametrize("options", [{}, {"watch": "3"}, {"threads": "3"}])
def test_training_has_the_same_bits_watched_or_not(tool, tiny, options, tmp_path):
    """With a batch that divides neither the images nor the threads."""
    usual = {"data": tiny, "epochs": 2, "batch_size": 37, "visualdl": False, "figures": False}
    weights = []
    for name, more in (("one", {"watch": "0", "threads": "1"}), ("other", options)):
        values = {**usual, **more, "output": tmp_path / name}
        tool("train", *(word for key, value in values.items() for word in (f"--{key}", value)))
        weights.append((tmp_path / name / "mnist.pdparams").read_bytes())
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("value", "threads"), [("off", 0), (False, 0), ("on", 3), (True, 3), ("auto", 3)]
)
def test_switch(value, threads):
    assert NetOptions(fast_conv=value, threads=3).conv_threads() == threads


def test_switch_binds_the_run(tool, tiny):
    short = [*QUIET, "--data", tiny, "--epochs", 2, "--output", "run"]
    tool("train", *short, "--fast_conv", "off")
    err = tool("train", *short, expect=2).stderr
    assert "fast_conv: 'off' in the run, 'auto' now" in err
    with pytest.raises(ConfigError, match="fast_conv is 'of'"):
        NetOptions(fast_conv="of")


# ------------------------------------------------------------------ the default of a user's own net


def is_fast(model: MNIST, images) -> bool:
    """Return whether its outputs are the fast blocks' bits; Paddle's differ in rounding."""
    outputs = {}
    for switch in (model.fast_conv, "off", 1):
        model.fast_conv, before = switch, model.fast_conv
        outputs[switch] = model.features(images).numpy()
        model.fast_conv = before
    assert not np.array_equal(outputs["off"], outputs[1])
    assert np.allclose(outputs["off"], outputs[1], atol=1e-5)
    return np.array_equal(outputs[model.fast_conv], outputs[1])


def test_a_new_net_is_fast_on_a_cpu_and_can_be_switched(real_images):
    images = paddle.to_tensor(real_images[:20])
    assert MNIST().fast_conv == "auto"
    assert is_fast(MNIST(), images) and is_fast(copy.deepcopy(MNIST()), images)
    assert not is_fast(MNIST(fast_conv="off"), images)
    assert not is_fast(MNIST(fast_conv=0), images)


@pytest.mark.parametrize("value", ["on", "of", -1, 1.5, None])
def test_unknown_switches_are_refused(value):
    with pytest.raises(ConfigError, match="expected 'auto', 'off', or a number of threads"):
        MNIST(fast_conv=value)


def test_a_users_hooks_act_as_on_paddles_layers(real_images):
    """One that changes what passes is not shown it only: the net must use what it returns."""
    images = paddle.to_tensor(real_images[:20])
    model = net("auto")
    model.relu1.register_forward_post_hook(lambda layer, inputs, output: output * 0)
    assert np.array_equal(
        model.features(images).numpy(), np.tile(model.features(images[:1]).numpy(), (20, 1))
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "relu1", paddle.nn.Sigmoid()),
        lambda model: setattr(model, "max_pool2", paddle.nn.AvgPool2D(2)),
        lambda model: setattr(model, "conv1", paddle.nn.Conv2D(1, 20, 7, padding=3)),
        lambda model: setattr(model, "conv2", paddle.nn.Conv2D(20, 20, 5, padding=2, groups=4)),
        lambda model: setattr(model, "conv2", paddle.nn.Conv2D(20, 20, 5, padding=2)),
    ],
)
def test_replaced_layers_are_used(real_images, change):
    images, fast, own = paddle.to_tensor(real_images[:5]), net("auto"), net("off")
    with paddle.utils.unique_name.guard():
        change(fast)
    for name in ("conv1", "relu1", "max_pool1", "conv2", "relu2", "max_pool2"):
        setattr(own, name, getattr(fast, name))
    assert np.allclose(fast(images).numpy(), own(images).numpy(), atol=1e-5)


def test_other_types_and_shapes_are_paddles():
    with pytest.raises(Exception, match="float64"):
        net("auto")(paddle.zeros([2, 1, 28, 28], "float64"))
    assert net("auto").to(dtype="float64")(paddle.zeros([2, 1, 28, 28], "float64")).shape == [2, 10]
    with pytest.raises(ValueError):
        net("auto")(paddle.zeros([2, 1, 32, 32]))


@pytest.mark.parametrize(
    "names", [["conv1.weight"], ["conv2.bias"], ["conv1.weight", "conv2.weight"], ["fc.weight"]]
)
def test_gradients_of_some_parameters_can_be_asked_for(real_images, names):
    results = []
    for switch in ("auto", "off"):
        model = net(switch)
        parameters = dict(model.named_parameters())
        loss = F.cross_entropy(
            model(paddle.to_tensor(real_images[:20])), paddle.zeros([20, 1], "int64")
        )
        results.append(paddle.grad(loss, [parameters[name] for name in names]))
    for fast, own in zip(*results):
        np.testing.assert_allclose(fast.numpy(), own.numpy(), rtol=1e-5, atol=1e-5)


def test_a_layer_with_a_forward_of_its_own_is_used(real_images):
    images, model = paddle.to_tensor(real_images[:5]), net("auto")
    model.conv2.forward = lambda inputs: paddle.zeros([5, 20, 14, 14])
    assert not model.features(images).numpy().any()


def test_inference_keeps_no_memory_of_the_whole_batch():
    """Of a forward pass alone, whatever its size; nor training, of batches that are very large."""
    images = paddle.zeros([3000, 1, 28, 28])
    model = net(2)
    tracemalloc.start()
    try:
        with paddle.no_grad():
            model(images)
        without = tracemalloc.get_traced_memory()[0]
        model(images).sum().backward()
        model.clear_gradients()
        assert max(without, tracemalloc.get_traced_memory()[0]) < 20e6
    finally:
        tracemalloc.stop()


PASSES = """
import paddle
from paddle_mnist import MNIST
model = MNIST(fast_conv=SWITCH)
loss = (model(paddle.ones([2, 1, 28, 28])) ** 2).mean()
try:
    PASS
except Exception as error:
    print("refused:", "fast convolution" in str(error) and "fast_conv to 'off'" in str(error))
print("alive", paddle.ones([2]).sum().item())
"""


TWICE = "loss.backward(retain_graph=True); loss.backward()"
BOTH = "paddle.grad(loss, model.parameters(), retain_graph=True); loss.backward()"
SECOND = "paddle.grad(loss, [model.conv1.weight], create_graph=True)[0].sum().backward()"


@pytest.mark.parametrize(
    ("passes", "switch", "refused"),
    [
        *[(TWICE, "auto", True), (BOTH, "auto", True), (SECOND, "auto", True)],
        *[(TWICE, "off", False), (BOTH, "off", False)],
    ],
)
def test_a_second_backward_pass_is_an_error_and_not_the_end_of_the_process(passes, switch, refused):
    program = PASSES.replace("PASS", passes).replace("SWITCH", repr(switch))
    done = forked.run([sys.executable, "-c", program])
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("refused: True\n" if refused else "") + "alive 2.0\n"


@pytest.mark.parametrize("full_graph", [True, False])
def test_static_graphs_are_paddles_layers(real_images, full_graph):
    images = paddle.to_tensor(real_images[:20])
    model = net("auto")
    expected = net("off", model.state_dict())(images).numpy()
    static = paddle.jit.to_static(model, full_graph=full_graph)
    assert np.allclose(static(images).numpy(), expected, atol=1e-5)
    another = net("auto", model.state_dict())  # which nobody has converted
    assert fast_net(another.layers_in_order(), images) is not None


# ------------------------------------------------------------------ which code made the steps


@pytest.mark.parametrize(
    ("manifest", "before"),
    [
        ({"convolution": "compiled loops, version 2"}, None),
        ({"convolution": "compiled loops, version 0"}, "compiled loops, version 0"),
        ({"convolution": "Paddle"}, "Paddle"),
        ({"config": {"fast_conv": "auto"}, "device": "cpu"}, "NumPy's products"),
        ({"config": {"fast_conv": "off"}, "device": "cpu"}, None),
        ({"config": {"fast_conv": "auto"}, "device": "gpu:0"}, None),
        ({"config": {"batch_size": 3}, "device": "cpu"}, None),
    ],
)
def test_a_run_that_other_code_began_says_that_its_bits_differ(manifest, before, caplog):
    manifest = {"config": {}, **manifest, "state": {"step": 60}}
    warn_of_other_implementations(manifest, {"convolution": "compiled loops, version 2"})
    expected = f"the convolution was computed by {before} up to step 60, and is by compiled loops"
    assert len(caplog.messages) == (before is not None)
    assert all(message.startswith(expected) for message in caplog.messages)


@pytest.mark.parametrize(
    ("switch", "name"), [("auto", f"compiled loops, version {VERSION}"), ("off", "Paddle")]
)
def test_manifests_bind_what_computes_the_convolutions(tool, tiny, tmp_path, switch, name):
    tool("train", *QUIET, "--data", tiny, "--epochs", 1, "--fast_conv", switch, "--output", "run")
    manifest = json.loads((tmp_path / "run/checkpoints/mnist_epoch0.json").read_text())
    assert manifest["computed_by"] == {"convolution": name}


def test_the_compiler_is_started_for_the_net_that_is_trained():
    """Before Paddle is there to ask for its sizes."""
    images = paddle.zeros([1, 1, 28, 28])
    model = MNIST()
    layers = list(model._feature_layers)
    assert net_sizes() == fast_net([*layers, model.fc], images)
    assert net_sizes(has_dropout=True) == fast_net(layers, images)
