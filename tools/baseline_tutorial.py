#!/usr/bin/env python
"""The tutorial's part two as its readers type it: our own writing of its loop, for comparison.

Plain Paddle and nothing of this package, with the tutorial's ways: the JSON file parsed into lists,
every image made an array by itself, Adam at 0.01, five epochs in batches of 100, the accuracy as a
mean of batch means. `tools/benchmark.py` and `tools/reproduce.py` measure against it.
"""

import argparse
import gzip
import json
import random

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

BATCH_SIZE = 100


def load_data(splits: list, mode: str):
    """A function that yields the batches of a split: float32 [B, 1, 28, 28], int64 [B, 1]."""
    images, labels = splits[("train", "valid", "eval").index(mode)]
    order = list(range(len(images)))

    def batches():
        if mode == "train":
            random.shuffle(order)
        some_images, some_labels = [], []
        for number in order:
            some_images.append(np.reshape(images[number], [1, 28, 28]).astype("float32"))
            some_labels.append(np.reshape(labels[number], [1]).astype("int64"))
            if len(some_images) == BATCH_SIZE:
                yield np.array(some_images), np.array(some_labels)
                some_images, some_labels = [], []
        if some_images:
            yield np.array(some_images), np.array(some_labels)

    return batches


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2D(1, 20, 5, padding=2)
        self.max_pool1 = nn.MaxPool2D(2, 2)
        self.conv2 = nn.Conv2D(20, 20, 5, padding=2)
        self.max_pool2 = nn.MaxPool2D(2, 2)
        self.fc = nn.Linear(980, 10)

    def forward(self, images, labels=None):
        x = self.max_pool1(F.relu(self.conv1(images)))
        x = self.max_pool2(F.relu(self.conv2(x)))
        logits = self.fc(paddle.reshape(x, [x.shape[0], 980]))
        if labels is None:
            return logits
        return logits, paddle.metric.accuracy(input=logits, label=labels)


def train(model: Net, batches, epochs: int) -> None:
    model.train()
    optimizer = paddle.optimizer.Adam(0.01, parameters=model.parameters())
    for epoch in range(epochs):
        for number, (images, labels) in enumerate(batches()):
            logits, accuracy = model(paddle.to_tensor(images), paddle.to_tensor(labels))
            loss = paddle.mean(F.cross_entropy(logits, paddle.to_tensor(labels)))
            if number % 200 == 0:
                print(f"epoch {epoch} batch {number} loss {loss.item()} acc {accuracy.item()}")
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()


def evaluate(model: Net, batches) -> float:
    """The mean of the batches' accuracies, as the tutorial has it."""
    model.eval()
    accuracies = []
    for images, labels in batches():
        _, accuracy = model(paddle.to_tensor(images), paddle.to_tensor(labels))
        accuracies.append(accuracy.item())
    return float(np.mean(accuracies))


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/baseline_tutorial.py", description=__doc__)
    parser.add_argument(
        "--data", default="work/mnist.json.gz", metavar="FILE", help="[%(default)s]"
    )
    parser.add_argument("--epochs", type=int, default=5, metavar="N", help="[5]")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="[1]")
    args = parser.parse_args()
    random.seed(args.seed)
    paddle.seed(args.seed)
    with gzip.open(args.data) as file:
        splits = json.load(file)
    model = Net()
    train(model, load_data(splits, "train"), args.epochs)
    print(f"eval accuracy {evaluate(model, load_data(splits, 'eval')):.4f}")


if __name__ == "__main__":
    main()
