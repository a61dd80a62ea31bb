"""A program that trains several runs and reads them by every door, for `prove`.

python programs.py [STATE [PROCESSES]]: with a STATE it trains one run, which may lose something.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from paddle_mnist import (
    Callback,
    Processes,
    Saving,
    StartFrom,
    evaluate_run,
    export_run,
    fit,
    is_rehearsal,
    load_model,
    predict_run,
)

STATE = sys.argv[1] if len(sys.argv) > 1 else ""
PROCESSES = int(sys.argv[2]) if len(sys.argv) > 2 else 1


class Points(paddle.io.Dataset):
    def __init__(self, count):
        self.x = np.random.RandomState(count).randn(count, 6).astype("float32")
        self.y = self.x[:, :3].argmax(1)[:, None]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def build():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1D(8), nn.ReLU(), nn.Linear(8, 3))


def optimizer(parameters):
    return paddle.optimizer.Momentum(0.05, parameters=parameters)


class AddsRegularizer(Callback):
    """Creates an object in the midst of the run, which no checkpoint has."""

    def before_training(self, training):
        self.net = training.model

    def after_epoch(self, view):
        if view.state.epoch == 1 and not is_rehearsal():
            self.net[0].weight.regularizer = paddle.regularizer.L2Decay(0.3)


def train(output, **options):
    return fit(
        build,
        Points(50),
        Points(23),
        loss=F.cross_entropy,
        optimizer=optimizer,
        epochs=4,
        batch_size=8,
        output=output,
        device="cpu",
        processes=Processes(PROCESSES, grad_shards=2),
        **options,
    )


def read_by_every_door(first):
    valid = Points(23)
    evaluated = evaluate_run("runs/first", build, valid, loss=F.cross_entropy)
    assert evaluated["loss"] == first.metrics["valid/loss"]
    predicted = predict_run("best", build, valid, run="runs/second")
    net = load_model(first.weights, build)
    assert [*predicted.shape] == net(paddle.to_tensor(valid.x)).shape
    export_run("runs/first", build, "exported", valid.x[:2])


if __name__ == "__main__":
    if STATE == "random":
        train("runs/random", seed=time.time_ns() % 2**32)
    elif STATE == "regularizer":
        train("runs/regularizer", callbacks=[AddsRegularizer()])
    elif STATE == "elsewhere":
        train(f"runs/{os.getpid()}")
    elif STATE in ("alone", "lock"):
        if STATE == "lock":  # which a killed program leaves
            os.close(os.open("lock", os.O_CREAT | os.O_EXCL))
        train("runs/alone")
        Path("lock").unlink(missing_ok=True)
    else:
        trained = train("runs/first", saving=Saving(mirror="mirror"))
        train("runs/second", start=StartFrom("runs/first", weights_only=True), fresh=True, seed=1)
        read_by_every_door(trained)
