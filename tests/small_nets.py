"""Small data, and small nets for them."""

import random

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

WIDTH, CLASSES, VOCABULARY = 6, 3, 20
SAMPLES = 33  # with batches of 8, the last has one sample


class Points(paddle.io.Dataset):
    """Points of three classes, or a target for each; with noise, which is drawn again each time."""

    def __init__(self, samples=SAMPLES, target="class", noise=0.0):
        random_state = np.random.RandomState(3)
        self.points = random_state.randn(samples, WIDTH).astype("float32")
        self.classes = self.points[:, :CLASSES].argmax(axis=1)
        self.target, self.noise = target, noise

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        point = self.points[index]
        if self.noise:
            noise = np.random.randn(WIDTH) + random.random() + paddle.rand([WIDTH]).numpy()
            point = point + self.noise * noise.astype("float32")
        if self.target == "dict":
            return {"point": point, "targets": (self.classes[index], float(point.sum()))}
        return point, np.array([self.classes[index]])


class PointsAtOnce(Points):
    """Reads many points at once, with noise."""

    def __getitems__(self, indices):
        points = self.points[indices] + np.random.randn(len(indices), WIDTH).astype("float32")
        return points, self.classes[indices][:, np.newaxis]


class Texts(paddle.io.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        words = np.random.RandomState(index).randint(0, VOCABULARY, size=5)
        return words, np.array([words.sum() % CLASSES])


def perceptron(*between, width=16):
    return nn.Sequential(nn.Linear(WIDTH, width), *between, nn.ReLU(), nn.Linear(width, CLASSES))


def with_batch_norm():
    return perceptron(nn.BatchNorm1D(16))


def with_dropout():
    return perceptron(nn.Dropout(0.5))


class Recurrent(nn.Layer):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(1, 8), nn.Linear(8, CLASSES)

    def forward(self, points):
        outputs, _ = self.lstm(points.unsqueeze(-1))
        return self.out(outputs[:, -1])


class TextNet(nn.Layer):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 4, sparse=True)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, words):
        return self.out(self.words(words).mean(axis=1))


class TwoHeads(nn.Layer):
    def __init__(self):
        super().__init__()
        self.body, self.classes, self.total = (
            nn.Linear(WIDTH, 8),
            nn.Linear(8, CLASSES),
            nn.Linear(8, 1),
        )

    def forward(self, points):
        hidden = F.relu(self.body(points))
        return self.classes(hidden), self.total(hidden).squeeze(-1)


class Branches(nn.Layer):
    """Computes in float64; a batch needs one of two layers."""

    def __init__(self):
        super().__init__()
        self.one, self.other = (nn.Linear(WIDTH, CLASSES).to(dtype="float64") for _ in range(2))

    def forward(self, points):
        branch = self.one if points.sum().item() > 0 else self.other
        return branch(points.astype("float64"))
