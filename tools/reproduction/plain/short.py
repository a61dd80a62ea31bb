"""A short training, for the scripts beside this module."""

import paddle
from paddle.nn.functional import cross_entropy

from paddle_mnist import MNIST, BatchLoader, MnistDataset, evaluate

IMAGES = 12_800


def new_net():
    return MNIST(fast_conv="off")


def train(model, data):
    """Train a net for some steps of Adam, and return it."""
    optimizer = paddle.optimizer.Adam(0.001, parameters=model.parameters())
    for images, labels in BatchLoader(MnistDataset("train", data, IMAGES), 64, shuffle=True):
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.clear_grad()
    return model


def accuracy(model, data):
    return evaluate(model, MnistDataset("eval", data)).accuracy
