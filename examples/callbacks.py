"""Callbacks that change a run as its epochs pass; kill it and run it again."""

import sys

from paddle_mnist import Callback, Saving, Unfreeze, fit

import numpy as np
import paddle
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier

EPOCHS = 8


class Digits(paddle.io.Dataset):
    """Small digits. noise: (attribute) the strength of the augmentation."""

    noise = 0.0

    def __init__(self, images, labels):
        self.images, self.labels = images.astype("float32") / 16, labels[:, None]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        noise = self.noise * np.random.randn(64).astype("float32")
        return self.images[index] + noise, self.labels[index]


class Net(paddle.nn.Layer):
    """Two layers. is_frozen: (attribute) whether the statistics of its BatchNorm are frozen."""

    is_frozen = False

    def __init__(self):
        super().__init__()
        self.body = paddle.nn.Linear(64, 64)
        self.norm = paddle.nn.BatchNorm1D(64)
        self.head = paddle.nn.Linear(64, 10)

    def train(self):  # which `fit` calls before each epoch, and which reaches every layer
        super().train()
        if self.is_frozen:
            self.norm.eval()

    def forward(self, images):
        return self.head(paddle.nn.functional.relu(self.norm(self.body(images))))


class SwitchOff(Callback):
    """Switches the augmentation off from an epoch on."""

    def __init__(self, data, epoch):
        self.data, self.epoch = data, epoch

    def on_epoch_start(self, view):
        self.data.noise = 0.1 if view.state.epoch < self.epoch else 0.0


class RisingDecay(Callback):
    """Raises the weight decay each epoch: a regularizer replaces that of the optimizer."""

    def before_training(self, training):
        self.net = training.model
        self.set(1e-5)  # in place before the first step, where fit looks at what to save

    def on_epoch_start(self, view):
        self.set(1e-5 * (view.state.epoch + 1))

    def set(self, decay):
        for name, parameter in self.net.named_parameters():
            if name.endswith("weight"):
                parameter.regularizer = paddle.regularizer.L2Decay(decay)


class FreezeStatistics(Callback):
    """Freezes the running statistics of the net's BatchNorm from an epoch on."""

    def __init__(self, epoch):
        self.epoch = epoch

    def before_training(self, training):
        self.net = training.model

    def on_epoch_start(self, view):
        self.net.is_frozen = view.state.epoch >= self.epoch
        self.net.train()


class Swa(Callback):
    """Averages the weights at the end of each epoch from `epoch` on, and writes the average."""

    def __init__(self, epoch):
        self.epoch, self.count, self.mean = epoch, 0, {}

    def after_epoch(self, view):
        if view.state.epoch > self.epoch:
            self.count += 1
            for name in view.parameters:
                mean = self.mean.get(name, 0.0)
                self.mean[name] = mean + (view.parameter(name) - mean) / self.count

    def after_training(self, training, result):
        if training.world.is_main_process:
            paddle.save(self.mean, str(training.run.path / "swa.pdparams"))

    def state_dict(self):
        return {"count": self.count, "mean": self.mean}

    def set_state_dict(self, state):
        self.count, self.mean = state["count"], state["mean"]


if __name__ == "__main__":
    images, labels = load_digits(return_X_y=True)
    train, valid = Digits(images[500:], labels[500:]), Digits(images[:500], labels[:500])
    result = fit(
        model=Net,
        train=train,
        valid=valid,
        loss=paddle.nn.CrossEntropyLoss(),
        optimizer=lambda parameters: paddle.optimizer.Momentum(0.02, parameters=parameters),
        metrics={"acc": paddle.metric.Accuracy()},
        monitor="valid/acc",
        epochs=EPOCHS,
        saving=Saving(every_steps=10),
        callbacks=[
            Unfreeze({"body": 1}),
            SwitchOff(train, epoch=EPOCHS - 1),
            RisingDecay(),
            FreezeStatistics(epoch=EPOCHS // 2),
            Swa(epoch=EPOCHS // 2),
        ],
        output=sys.argv[1] if len(sys.argv) > 1 else "work/output/callbacks",
    )
    linear = RidgeClassifier().fit(images[500:], labels[500:]).score(images[:500], labels[:500])
    print(f"linear model {linear:.3f}, net {result.metrics['valid/acc']:.3f}")
