"""Small trainings of every kind that `fit` must resume to the same bits."""

import functools
import hashlib
import random

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F
from paddle.optimizer import lr

from paddle_mnist import Callback, Mean, fit, is_rehearsal
from paddle_mnist.checkpoint.contents import optimizer_state
from paddle_mnist.checkpoint.manifest import read_manifest
from paddle_mnist.checkpoint.weights import load

WIDTH, CLASSES, VOCABULARY = 6, 3, 20
SAMPLES = 33  # with batches of 8, the last has one sample
EPOCHS, STOP_AT = 2, 7  # of 10 steps: inside the second epoch


class Points(paddle.io.Dataset):
    """Points of three classes, or a target for each; with noise, which is drawn anew each time."""

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


def with_frozen_layer():
    model = perceptron()
    for parameter in model[0].parameters():
        parameter.stop_gradient = True
    return model


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


def sgd(parameters):
    return paddle.optimizer.SGD(0.1, parameters, grad_clip=nn.ClipGradByGlobalNorm(0.5))


def momentum(parameters):
    return paddle.optimizer.Momentum(0.05, parameters=parameters)


def adam(parameters):
    schedule = lr.CosineAnnealingWarmRestarts(0.02, T_0=3)
    return paddle.optimizer.Adam(schedule, parameters=parameters, lazy_mode=True)


def adamw(parameters):
    groups = [
        {"params": parameters[:2], "learning_rate": 0.5},
        {"params": parameters[2:], "weight_decay": 0.2},
    ]
    return paddle.optimizer.AdamW(0.02, parameters=groups)


def lamb(parameters):
    return paddle.optimizer.Lamb(lr.NoamDecay(4, 5), parameters=parameters)


def on_plateau(parameters):
    schedule = lr.ReduceOnPlateau(0.5, factor=0.5, patience=0, threshold=0.9)
    return paddle.optimizer.Momentum(schedule, parameters=parameters)


def trainable(parameters):
    return momentum([parameter for parameter in parameters if not parameter.stop_gradient])


def two_losses(model, batch):
    labels, total = batch["targets"]
    logits, estimate = model(batch["point"])
    hits = (logits.argmax(axis=1) == labels).sum()
    return {
        "loss": F.cross_entropy(logits, labels) + 0.1 * F.mse_loss(estimate, total),
        "acc": Mean(hits, len(labels)),
        "mse": F.mse_loss(estimate, total),
    }


def counted_loss(outputs, labels):
    """The mean over weights of the classes."""
    weights = paddle.to_tensor([0.1, 1.0, 10.0])[labels.flatten()]
    losses = F.cross_entropy(outputs, labels, reduction="none").flatten()
    return Mean((losses * weights).sum(), weights.sum())


CLASSIFICATION = {
    "model": perceptron,
    "optimizer": momentum,
    "loss": F.cross_entropy,
    "metrics": {"acc": paddle.metric.Accuracy()},
    "train": Points(),
}
ROWS = {
    "SGD with clipping": {"optimizer": sgd},
    "Adam": {"optimizer": adam},
    "AdamW with groups": {"optimizer": adamw},
    "Lamb, schedule by epochs": {"optimizer": lamb, "schedule_every": "epoch"},
    "accumulation": {"accumulate": 2, "batch_size": 4},
    "frozen layers": {"model": with_frozen_layer, "optimizer": trainable},
    "BatchNorm": {"model": with_batch_norm, "batch_size": 7},
    "dropout": {"model": with_dropout},
    "LSTM": {"model": Recurrent},
    "sparse embedding": {"model": TextNet, "train": Texts(), "optimizer": adam},
    "ReduceOnPlateau": {"optimizer": on_plateau},
    "float64": {"model": Branches, "optimizer": sgd},
    "EMA": {"ema": 0.9},
    "ignored labels": {"loss": functools.partial(F.cross_entropy, ignore_index=2)},
    "loss with a count": {"loss": counted_loss},
    "dict batches": {
        "model": TwoHeads,
        "train": Points(target="dict"),
        "step": two_losses,
        "loss": None,
        "metrics": None,
    },
    "num_workers": {"train": Points(noise=0.3), "num_workers": 2},
    "random samples": {"train": Points(noise=0.3)},
}


class ProgramError(Exception):
    """Ends a training as a failing program does."""


class StopsAt(Callback):
    """Calls `end` after a step."""

    def __init__(self, step, end):
        self.step, self.end = step, end

    def after_step(self, view):
        if view.step == self.step and not is_rehearsal():
            self.end()


def arguments(row, output, **others):
    values = {**CLASSIFICATION, **ROWS[row]}
    defaults = {
        "valid": values["train"],
        "epochs": EPOCHS,
        "batch_size": 8,
        "seed": 5,
        "output": output,
        "log_every": 3,
        "visualdl": (),
        "figures": False,
        "device": "cpu",
    }
    return {**defaults, **values, **others}


def train(row, output, **others):
    return fit(**arguments(row, output, **others))


def bits(result):
    """Return what a training has computed, to the last bit: weights, optimizer, metrics, lines."""
    checkpoint = read_manifest(f"{result.checkpoint}.json")
    state = checkpoint.state.as_dict()
    state.pop("train_seconds")
    values = {**load(result.weights), **optimizer_state(checkpoint)}
    digest = hashlib.sha256()
    for name, value in sorted(values.items()):
        text = value.tobytes().hex() if isinstance(value, np.ndarray) else repr(value)
        digest.update(f"{name} {text}".encode())
    return {"weights": digest.hexdigest(), "metrics": dict(result.metrics), "state": state}


def stop():
    raise ProgramError


def train_rows(folder, resumed):
    """Train every row in one of two processes. resumed: stop each inside an epoch, and go on."""
    for row in ROWS:
        output = f"{folder}/{row}"
        if resumed:
            try:
                train(row, output, grad_shards=2, callbacks=[StopsAt(STOP_AT, stop)])
                raise AssertionError(f"{row} was not stopped")
            except ProgramError:
                pass
        train(row, output, grad_shards=2)
