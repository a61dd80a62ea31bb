"""Training steps by framework: this package, plain Paddle, PyTorch.

A maker of steps returns a function that trains on the batch of a number. Those of PyTorch raise
ModuleNotFoundError where it is missing.
"""

import shutil
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paddle_mnist.system.environment import usable_cpus

BATCH = 100  # as in the tutorial
RATE = 0.01
CORES = usable_cpus()

Step = Callable[[int], Any]


def arrays(source: str) -> tuple[np.ndarray, np.ndarray]:
    """Return some thousand images, float32 [N, 1, 28, 28], and their labels, int64 [N, 1]."""
    from paddle_mnist.mnist.dataset import MnistDataset
    from paddle_mnist.mnist.images import open_data

    dataset = MnistDataset("train", open_data(source), 6000)
    images, labels = zip(*(dataset[number] for number in range(len(dataset))))
    return np.stack(images), np.stack(labels)


def batch(number: int, count: int, size: int = BATCH) -> slice:
    start = number * size % max(1, count - size)
    return slice(start, start + size)


def paddle_step(source: str, threads: int = 0, own_step: bool = False, size: int = BATCH) -> Step:
    """Return a step of `MNIST`. threads: of the compiled net, 0 for Paddle's layers."""
    import paddle

    from paddle_mnist import MNIST

    paddle.seed(1)
    return step_of_paddle(MNIST(fast_conv=threads), *arrays(source), size, own_step)


def step_of_paddle(
    model: Any, images: np.ndarray, labels: np.ndarray, size: int = BATCH, own_step: bool = False
) -> Step:
    """Return a step of a bare loop with Momentum on arrays.

    own_step: compute the loss as `Trainer` does, not as the tutorial.
    """
    import paddle
    from paddle.nn import functional as F

    from paddle_mnist.nn.losses import CrossEntropy
    from paddle_mnist.training.steps import SupervisedStep

    compute = SupervisedStep(CrossEntropy())
    optimizer = paddle.optimizer.Momentum(RATE, parameters=model.parameters())

    def step(number: int) -> None:
        chosen = batch(number, len(images), size)
        inputs, targets = paddle.to_tensor(images[chosen]), paddle.to_tensor(labels[chosen])
        if own_step:
            loss = compute(model, (inputs, targets))["loss"]
        else:
            loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()

    return step


# Input and output channels, kernel and padding of each block of the tutorial's net.
BLOCKS = ((1, 20, 5, 2), (20, 20, 5, 2))


def torch_net(blocks: Sequence[tuple[int, ...]] = BLOCKS, features: int = 980) -> Any:
    """Return a net in PyTorch, with ReLU after the pooling, where it is faster and as exact.

    features: the inputs of the last layer.
    """
    from torch import nn

    layers: list[nn.Module] = []
    for channels, outputs, kernel, padding in blocks:
        conv = nn.Conv2d(channels, outputs, kernel, padding=padding)
        layers += [conv, nn.MaxPool2d(2), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 10))


def torch_step(source: str, threads: int, is_compiled: bool = False) -> Step:
    """Return a step of the tutorial's net on MNIST."""
    import torch

    model = torch_net()
    if is_compiled:
        if not shutil.which("g++"):
            raise ModuleNotFoundError("torch.compile compiles with g++")
        model = torch.compile(model)
    images, labels = arrays(source)
    return step_of_torch(model, images, labels[:, 0], BATCH, threads)


def step_of_torch(
    model: Any, images: np.ndarray, labels: np.ndarray, size: int, threads: int
) -> Step:
    """Return a step of a bare loop with Momentum on arrays, whose channels are last."""
    import torch
    from torch.nn import functional as F

    torch.set_num_threads(threads)
    model = model.to(memory_format=torch.channels_last)
    inputs = torch.from_numpy(images).to(memory_format=torch.channels_last)
    targets = torch.from_numpy(labels)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)

    def step(number: int) -> None:
        chosen = batch(number, len(inputs), size)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[chosen]), targets[chosen]).backward()
        optimizer.step()

    return step
