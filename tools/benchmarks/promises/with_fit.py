"""Train with `paddle_mnist.fit`."""

import paddle
from digits import DROPOUT, EPOCHS, HIDDEN, SAVE_EVERY, SEED, Samples, Trained, main
from paddle import nn

from paddle_mnist import Processes, Saving, fit


class Digits(Samples, paddle.io.Dataset):
    pass


def build():
    return nn.Sequential(
        nn.Linear(64, HIDDEN), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(HIDDEN, 10)
    )


def optimizer(parameters):
    return paddle.optimizer.Adam(0.002, parameters=parameters)


def train(output, batch_size, processes):
    result = fit(
        model=build,
        train=Digits("train"),
        valid=Digits("valid"),
        loss=nn.CrossEntropyLoss(),
        optimizer=optimizer,
        metrics={"acc": paddle.metric.Accuracy()},
        epochs=EPOCHS,
        batch_size=batch_size,
        seed=SEED,
        output=output,
        saving=Saving(every_steps=SAVE_EVERY),
        processes=Processes(processes, grad_shards=2),
    )
    return result.metrics["valid/loss"], result.metrics["valid/acc"], result.weights


def trained(output, batch_size, processes):
    loss, accuracy, weights = train(output, batch_size, processes)
    return Trained(loss, accuracy, [value.numpy() for value in paddle.load(str(weights)).values()])


if __name__ == "__main__":
    main(trained)
