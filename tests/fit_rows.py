"""The table of programs that `fit` must resume to the same bits, however they are stopped.

`test_fit_resume` stops them, `program_bits.py` prints their digests, and other tests train them.
"""

import hashlib
import itertools
import signal

import numpy as np
import paddle
from flat_options import grouped
from paddle import nn
from paddle.nn import functional as F
from paddle.optimizer import lr
from small_nets import (
    CLASSES,
    SAMPLES,
    WIDTH,
    Branches,
    Points,
    PointsAtOnce,
    Recurrent,
    TextNet,
    Texts,
    TwoHeads,
    perceptron,
    with_batch_norm,
    with_dropout,
)
from stateful_rows import STATEFUL

from paddle_mnist import Callback, Mean, fit, is_rehearsal

__all__ = ["CLASSES", "WIDTH"]  # of `small_nets`, for the tests that import them here
EPOCHS = 2  # of five steps each


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


def ever_worse(parameters):
    """Steps that become too long, so that the first evaluation is the best."""
    schedule = lr.PiecewiseDecay([5], [0.1, 8.0])
    return paddle.optimizer.SGD(schedule, parameters)


def two_losses(model, batch):
    labels, total = batch["targets"]
    logits, estimate = model(batch["point"])
    hits = (logits.argmax(axis=1) == labels).sum()
    return {
        "loss": F.cross_entropy(logits, labels) + 0.1 * F.mse_loss(estimate, total),
        "acc": Mean(hits, len(labels)),
        "mse": F.mse_loss(estimate, total),
    }


def endless():
    """Batches without end; their noise is drawn from a global generator."""
    points = Points()
    for first in itertools.count(0, 8):
        samples = [points[index % SAMPLES] for index in range(first, first + 8)]
        inputs, labels = map(np.stack, zip(*samples))
        yield inputs + 0.1 * np.random.randn(*inputs.shape).astype("float32"), labels


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
    "ReduceOnPlateau": {"optimizer": on_plateau},
    "accumulation": {"accumulate": 2, "batch_size": 4},
    "EMA": {"ema": 0.9},
    "BatchNorm": {"model": with_batch_norm, "batch_size": 7},
    "dropout": {"model": with_dropout},
    "LSTM": {"model": Recurrent},
    "sparse embedding": {"model": TextNet, "train": Texts(), "optimizer": adam},
    "float64": {"model": Branches, "optimizer": sgd},
    "dict batches": {
        "model": TwoHeads,
        "train": Points(target="dict"),
        "step": two_losses,
        "loss": None,
        "metrics": None,
    },
    "random samples": {"train": Points(noise=0.3)},
    "num_workers": {"train": Points(noise=0.3), "num_workers": 2},
    "many samples at once": {"train": PointsAtOnce()},
    "part of each epoch": {"train": Points(noise=0.3), "steps_per_epoch": 4},
    "evaluation by steps": {"eval_every_steps": 3, "max_steps": 9, "model": with_dropout},
    "endless batches": {"train": lambda: endless(), "valid": Points(), "steps_per_epoch": 5},
    **STATEFUL,
}
# In two processes, each would have a state of its own, or the data cannot be divided.
REFUSED_DIVIDED = ("GAN", "queue of keys in the step", "endless batches")
# What its step keeps follows from each call, of which each of two processes makes fewer.
UNDIVIDED = (*REFUSED_DIVIDED, "EMA teacher in the step")


class ProgramError(Exception):
    """Ends a run as a failing program does."""


class StopsAt(Callback):
    """Calls `end` after a step of the training; one that stops it comes as the last callback."""

    def __init__(self, step, end):
        self.step, self.end = step, end

    def after_step(self, view):
        if view.step == self.step and not is_rehearsal():
            self.end()


class EndsAfterEpoch(Callback):
    """Ends a run after an evaluation, before the epoch's checkpoint."""

    def __init__(self, epoch):
        self.epoch = epoch

    def after_epoch(self, view):
        if view.state.epoch == self.epoch and not is_rehearsal():
            stop()


def arguments(row, output, callbacks=(), **others):
    """Return the arguments of a row's training. callbacks: called after those of the row."""
    values = {**CLASSIFICATION, **ROWS[row]}
    values.update(values.pop("build", dict)())
    if "callbacks" in values:
        callbacks = [*values.pop("callbacks"), *callbacks]
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
        "callbacks": callbacks,
    }
    return grouped(**{**defaults, **values, **others})


def train(row, output, **others):
    return fit(**arguments(row, output, **others))


def bits(result):
    """Return what a run has computed, to the last bit: weights, optimizer, metrics, lines."""
    # Here, since `program_bits.py` runs this module with other versions of the package.
    from paddle_mnist.checkpoint.contents import optimizer_state
    from paddle_mnist.checkpoint.manifest import read_manifest
    from paddle_mnist.checkpoint.weights import load

    checkpoint = read_manifest(f"{result.checkpoint}.json")
    state = checkpoint.state.as_dict()
    state.pop("train_seconds")
    values = {**load(result.weights), **optimizer_state(checkpoint)}
    digest = hashlib.sha256()
    for name, value in sorted(values.items()):
        text = value.tobytes().hex() if isinstance(value, np.ndarray) else repr(value)
        digest.update(f"{name} {text}".encode())
    return {"weights": digest.hexdigest(), "metrics": dict(result.metrics), "state": state}


def history(folder, tag):
    """Return the steps and the values of a run's history with a tag."""
    from paddle_mnist.plots.history import read_history, series

    return series(read_history(folder / "metrics.jsonl"), tag)


def stop():
    raise ProgramError  # inside the step: the one before is saved


def terminate():
    signal.raise_signal(signal.SIGTERM)  # which ends the training after the step
