"""Train with `paddle.Model`, which loads its newest checkpoint by hand."""

from pathlib import Path

import numpy as np
import paddle
from digits import DROPOUT, EPOCHS, HIDDEN, SEED, Samples, Trained, main
from paddle import nn


class Digits(Samples, paddle.io.Dataset):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image, label.reshape(1)  # as paddle.metric wants it


def build():
    return nn.Sequential(
        nn.Linear(64, HIDDEN), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(HIDDEN, 10)
    )


def optimizer(parameters):
    return paddle.optimizer.Adam(0.002, parameters=parameters)


def train(output, batch_size, processes):
    paddle.seed(SEED)
    np.random.seed(SEED)
    model = paddle.Model(build())
    model.prepare(optimizer(model.parameters()), nn.CrossEntropyLoss(), paddle.metric.Accuracy())
    saved = [int(path.stem) for path in Path(output).glob("[0-9]*.pdparams")]
    epochs_done = max(saved, default=-1) + 1
    if saved:
        model.load(f"{output}/{max(saved)}")

    class SaveEpoch(paddle.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if paddle.distributed.get_rank() == 0:
                self.model.save(f"{output}/{epochs_done + epoch}")

    if epochs_done < EPOCHS:  # fit(epochs=0) fails
        model.fit(
            Digits("train"),
            batch_size=batch_size // processes,
            epochs=EPOCHS - epochs_done,
            callbacks=[SaveEpoch()],
            verbose=0,
        )
    metrics = model.evaluate(Digits("valid"), batch_size=batch_size // processes, verbose=0)
    return metrics["loss"][0], metrics["acc"], model


def trained(output, batch_size, processes):
    loss, accuracy, model = train(output, batch_size, processes)
    weights = model.network.state_dict().values()
    return Trained(loss, accuracy, [value.numpy() for value in weights])


if __name__ == "__main__":
    main(trained)
