"""Fit a function of ten variables, with the mean absolute error; kill it and run it again."""

import sys

from paddle_mnist import EarlyStopping, Mean, fit

import numpy as np
import paddle
from paddle import nn
from sklearn.linear_model import LinearRegression


def friedman(length, seed):
    """Return Friedman's function (1991), in which 5 of 10 variables do not matter, with noise."""
    random = np.random.RandomState(seed)
    x = random.uniform(size=(length, 10)).astype("float32")
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
    y += 10 * x[:, 3] + 5 * x[:, 4] + random.normal(size=length)
    return x, y.astype("float32")[:, np.newaxis]


def absolute_error(outputs, targets):
    return Mean((outputs - targets).abs().sum(), targets.size)


def build():
    layers = nn.Linear(10, 64), nn.Silu(), nn.Linear(64, 64), nn.Silu(), nn.Linear(64, 1)
    return nn.Sequential(*layers)


def optimizer(parameters):
    schedule = paddle.optimizer.lr.ReduceOnPlateau(0.01, factor=0.3, patience=2)
    return paddle.optimizer.AdamW(schedule, parameters=parameters)


if __name__ == "__main__":
    train, valid = friedman(2000, seed=0), friedman(500, seed=1)
    result = fit(
        model=build,
        train=paddle.io.TensorDataset([paddle.to_tensor(values) for values in train]),
        valid=paddle.io.TensorDataset([paddle.to_tensor(values) for values in valid]),
        loss=nn.functional.mse_loss,
        optimizer=optimizer,
        metrics={"mae": absolute_error},
        monitor="valid/mae",
        mode="min",
        epochs=40,
        batch_size=50,
        output=sys.argv[1] if len(sys.argv) > 1 else "work/output/regression",
        callbacks=[EarlyStopping(patience=6)],
    )
    error = np.abs(LinearRegression().fit(*train).predict(valid[0]) - valid[1]).mean()
    print(f"linear regression {error:.3f}, net {result.metrics['valid/mae']:.3f}")
