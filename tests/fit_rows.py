"""Small trainings of every kind that `fit` must resume to the same bits."""

import functools
import hashlib
import itertools
from pathlib import Path

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
    ManyPoints,
    Points,
    Recurrent,
    SeededPoints,
    TextNet,
    Texts,
    TwoHeads,
    perceptron,
    tensors_of,
    with_batch_norm,
    with_dropout,
    with_frozen_layer,
)
from stateful_rows import REFUSED_DIVIDED, STATEFUL, UNDIVIDED

from paddle_mnist import Callback, Mean, fit, is_rehearsal
from paddle_mnist.checkpoint.contents import optimizer_state
from paddle_mnist.checkpoint.manifest import read_manifest
from paddle_mnist.checkpoint.weights import load
from paddle_mnist.errors import PaddleMnistError

__all__ = ["CLASSES", "SAMPLES", "WIDTH"]  # of `small_nets`, for the tests that import them here
EPOCHS, STOP_AT = 2, 7  # of 10 steps: inside the second epoch


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
    "TensorDataset": {"train": tensors_of(Points())},
    "many samples at once": {"train": ManyPoints()},
    "many samples at once, drawn": {"train": ManyPoints(noise=0.3)},
    "many samples at once, of seeds": {"train": SeededPoints()},
    "many samples at once in workers": {"train": SeededPoints(), "num_workers": 2},
    "short last batches left out": {"train": Points(noise=0.3), "drop_last": True},
    "part of each epoch": {"train": Points(noise=0.3), "steps_per_epoch": 4, "accumulate": 1},
    "evaluation by steps": {"eval_every_steps": 3, "max_steps": 9, "model": with_dropout},
    "endless batches": {"train": lambda: endless(), "valid": Points(), "steps_per_epoch": 5},
    **STATEFUL,
}
# The same samples as those of a row, read one by one.
ONE_BY_ONE = {
    "TensorDataset": Points(),
    "many samples at once": Points(),
    "many samples at once, drawn": Points(noise=0.3),
    "many samples at once in workers": SeededPoints(),
}
UNDIVIDED = (*UNDIVIDED, "endless batches")
REFUSED_DIVIDED = (*REFUSED_DIVIDED, "endless batches")
DIVIDED = [row for row in ROWS if row not in UNDIVIDED]


class ProgramError(Exception):
    """Ends a training as a failing program does."""


class StopsAt(Callback):
    """Calls `end` after a step of the training; give it as the last callback."""

    def __init__(self, step, end):
        self.step, self.end = step, end

    def after_step(self, view):
        if view.step == self.step and not is_rehearsal():
            self.end()


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


def train_rows(folder):
    """Train every row in one of two processes, stopped inside an epoch and gone on with."""
    for row in DIVIDED:
        output = f"{folder}/{row}"
        try:
            train(row, output, grad_shards=2, callbacks=[StopsAt(STOP_AT, stop)])
            raise AssertionError(f"{row} was not stopped")
        except ProgramError:
            pass
        train(row, output, grad_shards=2)


def refuse_rows(folder):
    """Write for each row that processes cannot share why that is, as one of two processes."""
    for row in REFUSED_DIVIDED:
        output = Path(folder, row)
        try:
            train(row, output, grad_shards=2)
            message = ""
        except PaddleMnistError as error:
            message = str(error)
        Path(folder, f"{row} {paddle.distributed.get_rank()}.txt").write_text(message)
