"""Both blocks as matrix products: Paddle's own layers are what they are compared with."""

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle.nn import functional as F
from threadpoolctl import threadpool_limits

from paddle_mnist import MNIST, TrainConfig, watch
from paddle_mnist.errors import ConfigError
from paddle_mnist.processes import fast_conv_threads


def net(threads: int, weights=None) -> MNIST:
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


def gradients(model: MNIST, images: np.ndarray, wanted: np.ndarray) -> list[np.ndarray]:
    """The features and all gradients, for a loss that weighs features by what is wanted."""
    features = model.features(paddle.to_tensor(images))
    (features * paddle.to_tensor(wanted)).sum().backward()
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
    wanted = draw.integers(-1, 2, (count, 980)).astype("float32")
    weights = whole(MNIST(), draw)
    own = gradients(net(0, weights), images, wanted)
    fast = gradients(net(threads, weights), images, wanted)
    for one, other in zip(own, fast):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("count", [1, 7, 64, 100])
def test_gradients_are_paddles_to_rounding(count, real_images):
    images = real_images[:count]
    wanted = np.random.default_rng(1).standard_normal((count, 980)).astype("float32")
    own, fast = gradients(net(0), images, wanted), gradients(net(2), images, wanted)
    for one, other in zip(own, fast):
        assert np.linalg.norm(one - other) <= 2e-6 * np.linalg.norm(one)


@pytest.fixture(scope="module")
def real_images() -> np.ndarray:
    from paddle_mnist import MnistDataset

    dataset = MnistDataset("train", "digits")
    return np.stack([dataset[number][0] for number in range(128)])


def test_any_number_of_threads_gives_the_same_bits(real_images):
    """NumPy's own too, whose number the user may have set."""
    wanted = np.random.default_rng(1).standard_normal((128, 980)).astype("float32")
    first = gradients(net(1), real_images, wanted)
    for threads, blas in ((2, 1), (3, 2), (1, 2)):
        with threadpool_limits(blas, user_api="blas"):
            for one, other in zip(first, gradients(net(threads), real_images, wanted)):
                assert np.array_equal(one, other)


@pytest.mark.parametrize("frozen", [["conv1"], ["conv2"], ["conv1", "conv2"]])
def test_frozen_layers_stay_and_the_others_learn(real_images, frozen):
    labels = paddle.zeros([20, 1], "int64")
    found = []
    for threads in (0, 2):
        model = net(threads)
        for name in frozen:
            for parameter in getattr(model, name).parameters():
                parameter.stop_gradient = True
        F.cross_entropy(model(paddle.to_tensor(real_images[:20])), labels).backward()
        found.append([parameter.grad for parameter in model.parameters()])
    for own, fast in zip(*found):
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
    """What one pass keeps is its own until its gradients are taken, whatever comes between."""
    model, wanted = net(2), paddle.ones([30, 980])
    alone = gradients(net(2), real_images[:30], wanted.numpy())
    features = model.features(paddle.to_tensor(real_images[:30]))
    another = model.features(paddle.to_tensor(real_images[30:100]))
    with paddle.no_grad():
        model.features(paddle.to_tensor(real_images[100:]))
    (features * wanted).sum().backward()
    assert np.array_equal(model.conv2.weight.grad.numpy(), alone[3])
    model.clear_gradients()
    (another * paddle.ones([70, 980])).sum().backward()
    alone = gradients(net(1), real_images[30:100], np.ones((70, 980), "float32"))
    assert np.array_equal(model.conv2.weight.grad.numpy(), alone[3])


def test_gradient_of_the_images_is_paddles(real_images):
    images = paddle.to_tensor(real_images[:3], stop_gradient=False)
    net(2)(images).sum().backward()
    again = paddle.to_tensor(real_images[:3], stop_gradient=False)
    net(0)(again).sum().backward()
    assert np.array_equal(images.grad.numpy(), again.grad.numpy())


def test_hooks_see_paddles_layers_and_change_no_bit(real_images):
    images = paddle.to_tensor(real_images[:20])
    unseen, own, fast = net(2)(images).numpy(), net(0), net(2)
    with watch(own) as wanted, watch(fast) as seen:
        own(images)
        assert np.array_equal(fast(images).numpy(), unseen)
    tags = [tag for tag in wanted.values if "/fc" not in tag]
    assert len(tags) > 20
    assert all(seen.values[tag] == wanted.values[tag] for tag in tags)


@pytest.mark.parametrize("options", [{}, {"watch": "3"}, {"threads": "3"}])
def test_training_has_the_same_bits_watched_or_not(tool, tiny, options, tmp_path):
    """With a batch that divides neither the images nor the threads."""
    usual = {"data": tiny, "epochs": 2, "batch_size": 37, "visualdl": False, "figures": False}
    weights = []
    for name, more in (("one", {"watch": "0", "threads": "1"}), ("other", options)):
        given = {**usual, **more, "output": tmp_path / name}
        tool("train", *(word for key, value in given.items() for word in (f"--{key}", value)))
        weights.append((tmp_path / name / "mnist.pdparams").read_bytes())
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("value", "threads"), [("off", 0), (False, 0), ("on", 3), (True, 3), ("auto", 3)]
)
def test_switch(value, threads):
    assert fast_conv_threads(TrainConfig(fast_conv=value, threads=3)) == threads


def test_switch_binds_the_run(tool, tiny):
    tool("train", "--data", tiny, "--epochs", 2, "--fast_conv", "off", "--output", "run")
    err = tool("train", "--data", tiny, "--epochs", 2, "--output", "run", expect=2).stderr
    assert "fast_conv: 'off' in the run, 'auto' now" in err
    with pytest.raises(ConfigError, match="fast_conv is 'of'"):
        TrainConfig(fast_conv="of")
