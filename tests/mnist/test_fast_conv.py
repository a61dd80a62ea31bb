"""MNIST's net in compiled loops: its switch, its hooks, its layers, and the runs that it trains.

That its numbers are those of Paddle's layers is tested in nn/test_conv_blocks.py.
"""

import copy
import json
import sys
from typing import Union

import forked
import numpy as np
import paddle
import pytest

from paddle_mnist import MNIST, MnistDataset
from paddle_mnist.nn.layout import VERSION

QUIET = ["--figures", "false", "--visualdl", "false"]


def net(threads: Union[str, int]) -> MNIST:
    paddle.seed(3)
    return MNIST(fast_conv=threads)


@pytest.fixture(scope="module")
def real_images() -> np.ndarray:
    return MnistDataset("train", "digits").batch(np.arange(20))[0]


def test_train_watched_by_several_threads_keeps_the_bits(tool, tiny, tmp_path):
    # a batch that divides neither the images nor the threads
    usual = ["--data", tiny, "--epochs", 1, "--batch_size", 37, *QUIET, "--output"]
    tool("train", *usual, "plain", "--watch", 0, "--threads", 1)
    tool("train", *usual, "watched", "--watch", 3, "--threads", 3)
    plain, watched = (tmp_path / run / "mnist.pdparams" for run in ("plain", "watched"))
    assert plain.read_bytes() == watched.read_bytes()
    manifest = json.loads((tmp_path / "plain/checkpoints/mnist_epoch0.json").read_text())
    assert manifest["computed_by"] == {"convolution": f"compiled loops, version {VERSION}"}

    tool("train", *usual, "off", "--fast_conv", "off")
    manifest = json.loads((tmp_path / "off/checkpoints/mnist_epoch0.json").read_text())
    assert manifest["computed_by"] == {"convolution": "Paddle"}
    error = tool("train", *usual, "off", expect=2).stderr
    assert "fast_conv: 'off' in the run, 'auto' now" in error


def test_mnist_new_net_is_fast_on_a_cpu_unless_switched_off(real_images):
    """The bits show it: those of Paddle differ in rounding."""
    images = paddle.to_tensor(real_images)
    outputs = [net(switch).features(images).numpy() for switch in ("auto", 1, "off")]
    assert np.array_equal(outputs[0], outputs[1]) and not np.array_equal(outputs[1], outputs[2])
    assert np.array_equal(copy.deepcopy(net("auto")).features(images).numpy(), outputs[1])


def test_mnist_hook_or_forward_that_changes_outputs_is_used(real_images):
    images, hooked, replaced = paddle.to_tensor(real_images[:5]), net("auto"), net("auto")
    hooked.relu1.register_forward_post_hook(lambda layer, inputs, output: output * 0)
    features = hooked.features(images).numpy()
    assert np.array_equal(features, np.tile(features[:1], (5, 1)))
    replaced.conv2.forward = lambda inputs: paddle.zeros([5, 20, 14, 14])
    assert not replaced.features(images).numpy().any()


def test_mnist_replaced_layer_is_used(real_images):
    images = paddle.to_tensor(real_images[:5])
    for name, layer in {
        "relu1": paddle.nn.Sigmoid(),
        "conv1": paddle.nn.Conv2D(1, 20, 7, padding=3),
        "conv2": paddle.nn.Conv2D(20, 20, 5, padding=2, groups=4),
    }.items():
        fast, own = net("auto"), net("off")
        for model in (fast, own):
            setattr(model, name, layer)
        assert np.allclose(fast(images).numpy(), own(images).numpy(), atol=1e-5), name


PASSES = """
import paddle
from paddle_mnist import MNIST

def passes(switch, create_graph):
    model = MNIST(fast_conv=switch)
    loss = (model(paddle.ones([2, 1, 28, 28])) ** 2).mean()
    if create_graph:
        loss = paddle.grad(loss, [model.conv1.weight], create_graph=True)[0].sum()
    else:
        loss.backward(retain_graph=True)
    loss.backward()

passes("off", False)
for create_graph in (False, True):
    try:
        passes("auto", create_graph)
    except Exception as error:
        print("fast_conv to 'off'" in str(error))
print("alive", paddle.ones([2]).sum().item())
"""


def test_mnist_second_backward_pass_raises_and_keeps_the_process():
    done = forked.run([sys.executable, "-c", PASSES])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True\nTrue\nalive 2.0\n"
