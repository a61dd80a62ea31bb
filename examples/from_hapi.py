"""The same training with paddle.Model and with `fit`, which resumes; kill it and run it again."""

import sys
import warnings

from paddle_mnist import Saving, fit

import numpy as np
import paddle
from paddle import nn
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
tensors = paddle.to_tensor(images / 16, "float32"), paddle.to_tensor(labels[:, np.newaxis])
train = paddle.io.TensorDataset([values[:1500] for values in tensors])
valid = paddle.io.TensorDataset([values[1500:] for values in tensors])


def build():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))


def optimizer(parameters):
    return paddle.optimizer.Adam(0.002, parameters=parameters)


def with_hapi(epochs=5):
    """Train as paddle.Model does; return its accuracy. A kill loses all of it."""
    warnings.filterwarnings("ignore", "To copy construct")  # paddle.Model copies its own labels
    paddle.seed(0)
    model = paddle.Model(build())
    model.prepare(optimizer(model.parameters()), nn.CrossEntropyLoss(), paddle.metric.Accuracy())
    model.fit(train, epochs=epochs, batch_size=50, verbose=0)
    return model.evaluate(valid, batch_size=50, verbose=0)["acc"]


def with_fit(output, epochs=5):
    """Train the same net; after a kill, the same call resumes to the same bits."""
    return fit(
        model=build,
        train=train,
        valid=valid,
        loss=nn.CrossEntropyLoss(),
        optimizer=optimizer,
        metrics={"acc": paddle.metric.Accuracy()},
        monitor="valid/acc",
        epochs=epochs,
        batch_size=50,
        saving=Saving(every_steps=20),
        output=output,
    ).metrics["valid/acc"]


if __name__ == "__main__":
    accuracy = with_fit(sys.argv[1] if len(sys.argv) > 1 else "work/output/from_hapi")
    print(f"paddle.Model {with_hapi():.3f}, fit {accuracy:.3f}, chance 0.100")
