"""Shared by the three scripts: the data, which can stop their process, and their report."""

import argparse
import hashlib
import json
import os
import resource
import signal
import tempfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

BATCH, EPOCHS, SAVE_EVERY, SEED = 50, 6, 10, 1
TRAIN_SAMPLES = 1500  # the other 297, not a whole number of batches, are for validation
HIDDEN = 256
DROPOUT = float(os.environ.get("PROMISES_DROPOUT", 0.2))
DISK_LIMIT = 2**15  # bytes a file, less than the weights' 2**16

# Holds a byte for each training sample that this process has read. `fit` would save a number with
# its checkpoints, and restore it.
READ = tempfile.TemporaryFile()  # noqa: SIM115

# "NAME:SAMPLES": a signal that the process sends itself, or DISK_FULL, after so many samples
EVENT = os.environ.get("PROMISES_EVENT", ":0")


class Samples:
    """Digits of 8 x 8 pixels: (float32 [64], int64 []); mixed into a framework's dataset.

    `EVENT` happens after so many samples of the training split.
    """

    def __init__(self, split: str):
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        part = slice(TRAIN_SAMPLES) if split == "train" else slice(TRAIN_SAMPLES, None)
        self.images, self.labels = images[part].astype("float32") / 16, labels[part]
        self.is_counted = split == "train"

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        if self.is_counted:
            READ.write(b".")
            name, _, count = EVENT.partition(":")
            if READ.tell() == int(count):
                happen(name)
        return self.images[index], self.labels[index]


def happen(name: str) -> None:
    if name == "DISK_FULL":  # a longer write fails, as it does on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (DISK_LIMIT, resource.RLIM_INFINITY))
    else:
        os.kill(os.getpid(), getattr(signal, name))


class Trained(NamedTuple):
    """The result of a run.

    loss, accuracy: of the last validation, as the framework gives them. weights: float32 [64,
    hidden], [hidden], [hidden, 10], [10].
    """

    loss: float
    accuracy: float
    weights: Sequence[np.ndarray]


def main(train: Callable[[str, int, int], Trained]) -> None:
    """Call train(output, batch_size, processes); print its metrics, and the exact ones."""
    from scipy.special import log_softmax

    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--batch_size", type=int, default=BATCH)
    parser.add_argument("--processes", type=int, default=1)
    trained = train(**vars(parser.parse_args()))
    weight, bias, out, out_bias = (value.astype("float64") for value in trained.weights)
    valid = Samples("valid")
    scores = log_softmax(np.maximum(valid.images @ weight + bias, 0) @ out + out_bias, axis=1)
    report = {
        "read": READ.tell(),
        "loss": float(trained.loss),
        "accuracy": float(trained.accuracy),
        "exact_loss": float(-scores[np.arange(len(valid)), valid.labels].mean()),
        "exact_accuracy": float((scores.argmax(axis=1) == valid.labels).mean()),
        "sha256": hashlib.sha256(b"".join(map(np.ndarray.tobytes, trained.weights))).hexdigest(),
    }
    print(f"\n{json.dumps(report)}", flush=True)
