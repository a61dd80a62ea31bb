"""Trainings of six steps that stop where they are told, for `test_resume`; run as a program.

    resume_worker.py DATA < JOBS > OUTCOMES

A job is {"folder", "optimizer", "schedule", "stop"}; it goes on from the newest checkpoint in its
folder. Two epochs of three steps, the last one short; shuffled, augmented, averaged, with dropout.
An outcome is what a metric writer wrote (but for speeds), and the samples of each step.
"""

import functools
import json
import signal
import sys
from pathlib import Path

import paddle

from paddle_mnist import MNIST, BatchLoader, MnistDataset, Trainer
from paddle_mnist.checkpoint.checkpointer import StoreCheckpointer
from paddle_mnist.checkpoint.contents import load_checkpoint
from paddle_mnist.checkpoint.policy import KEEP_EPOCHS
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.data.seeding import reseed
from paddle_mnist.errors import StoppedError
from paddle_mnist.mnist.augment import Distortion
from paddle_mnist.mnist.config import TrainConfig
from paddle_mnist.mnist.optim import build_optimizer, build_schedule
from paddle_mnist.mnist.step import DigitStep
from paddle_mnist.mnist.training_set import TrainingSet
from paddle_mnist.nn.ema import ExponentialMovingAverage
from paddle_mnist.progress import TrainState
from paddle_mnist.training.evaluator import EpochEvaluator


class Dropped(MNIST):
    """The net of a user who added dropout."""

    def __init__(self):
        super().__init__()
        self.dropout = paddle.nn.Dropout(0.5)

    def forward(self, images):
        return self.dropout(super().forward(images))


class Recording(TrainingSet):
    """Records the samples of each batch."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.samples = []

    def __getitems__(self, indices):
        self.samples.append(indices)
        return super().__getitems__(indices)


class Stops(StoreCheckpointer):
    """Is asked to end after step N ("3"), or after the end of epoch N ("epoch 1")."""

    stop = None

    def after_step(self, state, model, optimizer):
        super().after_step(state, model, optimizer)
        if self.stop == str(state.step):
            raise StoppedError(signal.SIGTERM)

    def after_epoch(self, state, model, optimizer):
        super().after_epoch(state, model, optimizer)
        if self.stop == f"epoch {state.epoch}":
            raise StoppedError(signal.SIGTERM)


class StoppingWriter:
    """Is asked to end before it writes the evaluation of epoch N ("writing 1")."""

    def __init__(self, stop):
        self.stop = stop
        self.lines = []

    def write(self, state, values):
        if "valid/acc" in values and self.stop == f"writing {state.epoch + 1}":
            raise StoppedError(signal.SIGTERM)
        values = {tag: v for tag, v in values.items() if not tag.startswith("speed/")}
        self.lines.append([state.step, values])


def train(data, folder, optimizer, schedule, stop=None):
    config = TrainConfig(
        optimizer=optimizer, lr_schedule=schedule, learning_rate=0.01, end_lr=0.001, epochs=2
    )
    paddle.seed(11)
    model = Dropped()
    changed = Distortion({"rotate": 10, "shear": 5, "shift": 2, "scale": 0.1}, seed=5)
    dataset = Recording(MnistDataset("train", data, 70), distortion=changed)
    loader = BatchLoader(dataset, 32, seed=5, shuffle=True)
    options, parameters = config.optimizer, dict(model.named_parameters())
    built = build_optimizer(options, parameters, build_schedule(options, 6))
    average = ExponentialMovingAverage(model, 0.9)
    store = CheckpointStore(folder)
    newest, state = store.newest(), TrainState()
    if newest:
        load_checkpoint(newest, model, built, average)
        state = newest.state
    writer = StoppingWriter(stop)
    checkpointer = Stops(store, KEEP_EPOCHS, average, newest and state)
    checkpointer.stop = stop
    trainer = Trainer(
        Path(folder) / "mnist.pdparams",
        model,
        built,
        average=average,
        evaluator=EpochEvaluator(
            DigitStep(), {"valid": BatchLoader(MnistDataset("valid", data), 500)}
        ),
        writer=writer,
        checkpointer=checkpointer,
        state=state,
        log_every=2,
        reseed=functools.partial(reseed, 5),
    )
    try:
        trainer.train(loader, state.epoch, 2)
    except StoppedError:
        assert stop
    return {"written": writer.lines, "samples": dataset.samples, "scores": trainer.state.scores}


if __name__ == "__main__":
    json.dump([train(sys.argv[1], **job) for job in json.load(sys.stdin)], sys.stdout)
