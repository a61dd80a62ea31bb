"""The net: the tutorial's layers, names and signature."""

import numpy as np
import paddle
import pytest
from paddle import nn

from paddle_mnist import MNIST


class TutorialNet(nn.Layer):
    """The tutorial's layers, as its readers have them in their notebooks."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2D(1, 20, 5, stride=1, padding=2)
        self.max_pool1 = nn.MaxPool2D(2, 2)
        self.conv2 = nn.Conv2D(20, 20, 5, stride=1, padding=2)
        self.max_pool2 = nn.MaxPool2D(2, 2)
        self.fc = nn.Linear(980, 10)

    def forward(self, x):
        x = self.max_pool1(nn.functional.relu(self.conv1(x)))
        x = self.max_pool2(nn.functional.relu(self.conv2(x)))
        return self.fc(paddle.reshape(x, [x.shape[0], 980]))


@pytest.fixture
def images():
    paddle.seed(7)
    return paddle.rand([4, 1, 28, 28])


def test_parameters_are_the_tutorials(images):
    ours, theirs = MNIST(), TutorialNet()
    shapes = {name: tuple(p.shape) for name, p in ours.named_parameters()}
    assert shapes == {name: tuple(p.shape) for name, p in theirs.named_parameters()}
    assert sum(np.prod(shape) for shape in shapes.values()) == 20_350


def test_weights_go_back_and_forth_with_tutorial_code(tmp_path, images):
    ours, theirs = MNIST(), TutorialNet()
    path = str(tmp_path / "mnist.pdparams")
    paddle.save(theirs.state_dict(), path)
    assert ours.set_state_dict(paddle.load(path)) == ([], [])
    assert np.array_equal(ours(images).numpy(), theirs(images).numpy())
    again = TutorialNet()
    paddle.save(ours.state_dict(), path)
    assert again.set_state_dict(paddle.load(path)) == ([], [])
    assert np.array_equal(again(images).numpy(), theirs(images).numpy())


def test_forward_gives_logits_and_with_labels_the_accuracy(images):
    model = MNIST()
    logits = model(images)
    assert logits.shape == [4, 10]
    labels = logits.argmax(axis=1).numpy()
    labels[0] = (labels[0] + 1) % 10
    again, accuracy = model(images, paddle.to_tensor(labels[:, None]))
    assert np.array_equal(again.numpy(), logits.numpy())
    assert accuracy.item() == 0.75


def test_check_shape_prints_every_layer_once_and_leaves_no_hook(images, capsys):
    model = MNIST()
    plain = model(images).numpy()
    shown = model(images, check_shape=True).numpy()
    printed = capsys.readouterr().out
    assert np.array_equal(plain, shown)
    for line in (
        "input: [4, 1, 28, 28]",
        "conv1 output: [4, 20, 28, 28]",
        "relu1 output: [4, 20, 28, 28]",
        "max_pool1 output: [4, 20, 14, 14]",
        "conv2 output: [4, 20, 14, 14]",
        "relu2 output: [4, 20, 14, 14]",
        "max_pool2 output: [4, 20, 7, 7]",
        "fc output: [4, 10]",
    ):
        assert printed.count(line) == 1
    assert "'weight': [20, 1, 5, 5]" in printed and "kernel 0" not in printed
    model(images)
    assert capsys.readouterr().out == ""


def test_check_content_prints_kernels_channels_and_last_output(images, capsys):
    model = MNIST()
    logits, _ = model(images, paddle.zeros([4, 1], "int64"), check_content=True)
    printed = capsys.readouterr().out
    for title in ("conv1 kernel 0", "conv2 kernel 0", "conv1 output, image 0, channel"):
        assert printed.count(title) == 1
    assert str(logits[0].numpy()) in printed
    assert "input: [" not in printed


def test_instances_have_the_same_generated_names():
    first, second = ([p.name for p in MNIST().parameters()] for _ in range(2))
    assert first == second
    assert first[:2] == ["conv2d_0.w_0", "conv2d_0.b_0"]


def test_dropout_leaves_features_out_while_training_only(images):
    model = MNIST()
    model.eval()
    without = model(images).numpy()
    model.dropout_rate = 0.5
    assert (model(images).numpy() == without).all()
    model.train()
    paddle.seed(1)
    first = model(images).numpy()
    assert (first != model(images).numpy()).any()  # each time others
    paddle.seed(1)
    assert (model(images).numpy() == first).all()
    many = np.mean([model(images).numpy() for _ in range(400)], axis=0)
    np.testing.assert_allclose(many, without, atol=0.25)  # what is left is scaled up
