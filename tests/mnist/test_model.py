"""The net: the tutorial's layers, names and signature."""

import numpy as np
import paddle
import pytest
from paddle import nn

from paddle_mnist import MNIST, MnistDataset, evaluate


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


def test_mnist_weights_load_in_tutorial_code_and_back(tmp_path, images):
    ours, theirs, again = MNIST(fast_conv="off"), TutorialNet(), TutorialNet()
    path = str(tmp_path / "mnist.pdparams")
    paddle.save(theirs.state_dict(), path)
    assert ours.set_state_dict(paddle.load(path)) == ([], [])
    assert np.array_equal(ours(images).numpy(), theirs(images).numpy())
    paddle.save(ours.state_dict(), path)
    assert again.set_state_dict(paddle.load(path)) == ([], [])
    assert np.array_equal(again(images).numpy(), theirs(images).numpy())


def test_forward_with_labels_gives_the_accuracy(images):
    model = MNIST()
    logits = model(images)
    assert logits.shape == [4, 10]
    labels = logits.argmax(axis=1).numpy()
    labels[0] = (labels[0] + 1) % 10
    again, accuracy = model(images, paddle.to_tensor(labels[:, None]))
    assert np.array_equal(again.numpy(), logits.numpy())
    assert accuracy.item() == 0.75


def test_paddle_model_trains_evaluates_and_predicts(tiny):
    """`paddle.Model` without specs, on a `MnistDataset` as it is."""
    paddle.seed(1)
    dataset, net = MnistDataset("eval", tiny), MNIST()
    model = paddle.Model(net)
    optimizer = paddle.optimizer.Adam(0.002, parameters=model.parameters())
    model.prepare(optimizer, nn.CrossEntropyLoss(), paddle.metric.Accuracy())
    model.fit(MnistDataset("train", tiny), epochs=2, batch_size=30, verbose=0)
    scores = model.evaluate(dataset, batch_size=32, verbose=0)
    assert scores["acc"] == evaluate(net, dataset).accuracy > 0.9
    (logits,) = model.predict(dataset, batch_size=32, stack_outputs=True, verbose=0)
    assert (logits.argmax(axis=1) == evaluate(net, dataset).predictions).all()


SHAPES = """
########## print network layer's superparams ##############
conv1-- kernel_size:[20, 1, 5, 5], padding:2, stride:[1, 1]
conv2-- kernel_size:[20, 20, 5, 5], padding:2, stride:[1, 1]
max_pool1-- kernel_size:2, padding:0, stride:2
max_pool2-- kernel_size:2, padding:0, stride:2
fc-- weight_size:[980, 10], bias_size_[10]

########## print shape of features of every layer ###############
inputs_shape: [4, 1, 28, 28]
outputs1_shape: [4, 20, 28, 28] (conv1)
outputs2_shape: [4, 20, 28, 28] (relu1)
outputs3_shape: [4, 20, 14, 14] (max_pool1)
outputs4_shape: [4, 20, 14, 14] (conv2)
outputs5_shape: [4, 20, 14, 14] (relu2)
outputs6_shape: [4, 980] (max_pool2: [4, 20, 7, 7])
outputs7_shape: [4, 10] (fc)
"""


def test_check_shape_prints_as_the_tutorial(images, capsys):
    model = MNIST()
    plain = model(images).numpy()
    assert capsys.readouterr().out == ""
    assert np.array_equal(plain, model(images, check_shape=True).numpy())
    assert capsys.readouterr().out == SHAPES


def test_check_content_prints_as_the_tutorial(images, capsys):
    """Two kernels of 5x5, two channels and the last output, in this order; with its draws."""
    model = MNIST(fast_conv="off")
    np.random.seed(5)
    logits, _ = model(images, paddle.zeros([4, 1], "int64"), check_content=True)
    printed = capsys.readouterr().out
    np.random.seed(5)
    first, second = np.random.randint(0, 20), np.random.randint(0, 20)
    outputs1 = model.conv1(images)
    outputs4 = model.conv2(model.max_pool1(model.relu1(outputs1)))
    assert printed == (
        "\n########## print convolution layer's kernel ###############\n"
        f"conv1 params -- kernel weights: {model.conv1.weight[0][0]}\n"
        f"conv2 params -- kernel weights: {model.conv2.weight[0][0]}\n"
        f"\nThe {first}th channel of conv1 layer:  {outputs1[0][first]}\n"
        f"The {second}th channel of conv2 layer:  {outputs4[0][second]}\n"
        f"The output of last layer: {logits[0]} \n\n"
    )
