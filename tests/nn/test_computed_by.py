"""Nets of any kind may compute their own loss, and name the code that computes them."""

import functools
import json

import numpy as np
import paddle
import pytest
from fit_rows import CLASSES, WIDTH, train
from paddle import nn
from paddle.nn import functional as F

from paddle_mnist import ConvBlocks
from paddle_mnist.nn.layers import computed_by
from paddle_mnist.training.steps import SupervisedStep


class Scaled(nn.Linear):
    """A layer of code of its own, whose version it gives."""

    not_compared = ("version",)

    def __init__(self, version="kernel 1"):
        super().__init__(WIDTH, CLASSES)
        self.version = version

    def computed_by(self):
        return {"scaling": self.version}


class Fused(nn.Sequential):
    """A net that computes the cross-entropy itself; of other losses it gives the outputs."""

    def fused_loss(self, loss, labels, *inputs):
        if loss is not F.cross_entropy:
            return None
        outputs = self(*inputs)
        return loss(outputs, labels) * 2, outputs.detach()


@pytest.mark.parametrize(("loss", "factor"), [(F.cross_entropy, 2), (nn.CrossEntropyLoss(), 1)])
def test_fused_loss_of_a_net_is_used_for_losses_it_knows(loss, factor):
    paddle.seed(0)
    net, images, labels = Fused(nn.Linear(8, 3)), paddle.rand([5, 8]), paddle.zeros([5, 1], "int64")
    metric = {"largest": lambda outputs, labels: outputs.max()}
    values = SupervisedStep(loss, metric)(net, (images, labels))
    expected = F.cross_entropy(net(images), labels) * factor
    assert values["loss"].item() == pytest.approx(expected.item(), rel=1e-6)
    assert values["largest"].item() == net(images).max().item()
    values["loss"].backward()
    assert np.abs(net[0].weight.grad.numpy()).max() > 0


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([nn.Linear(8, 3)], {}),
        ([Scaled(), nn.ReLU(), Scaled()], {"scaling": "kernel 1"}),
        ([Scaled("kernel 2"), Scaled("kernel 1")], {"scaling": "kernel 1 and kernel 2"}),
        ([Scaled("Paddle"), ConvBlocks(fast_conv="off")], {"scaling": "Paddle"}),
    ],
)
def test_computed_by_names_the_code_of_the_layers(layers, expected):
    assert computed_by(nn.Sequential(*layers)) == {"convolution": "Paddle", **expected}


def test_resume_with_other_code_logs_both(tmp_path, lines):
    def train_with(version, epochs):
        model = functools.partial(Scaled, version)
        train("SGD with clipping", tmp_path, model=model, epochs=epochs, override=["epochs"])

    train_with("kernel 1", 1)
    manifest = json.loads((tmp_path / "checkpoints/model_epoch0.json").read_text())
    assert manifest["computed_by"] == {"scaling": "kernel 1", "convolution": "Paddle"}
    train_with("kernel 2", 2)
    (line,) = [line for line in lines() if "computed by" in line]
    assert "the scaling was computed by kernel 1 up to step 5, and is by kernel 2" in line
