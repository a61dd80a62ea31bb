"""Train a ResNet of paddle.vision on drawn images of CIFAR's shape; kill it and run it again."""

import sys

from paddle_mnist import Saving, fit

import numpy as np
import paddle
from sklearn.linear_model import RidgeClassifier

SHAPES = ("disc", "square", "diamond", "ring")


class Shapes(paddle.io.Dataset):
    """Shapes of random colour, place and size on a noisy ground: (float32 [3, 32, 32], label)."""

    def __init__(self, length, seed):
        self.length, self.seed = length, seed

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        random = np.random.RandomState([self.seed, index])
        label, radius = random.randint(len(SHAPES)), random.uniform(5, 9)
        y, x = np.abs(np.mgrid[:32, :32] - random.uniform(10, 22, (2, 1, 1)))
        distance = (np.hypot(x, y), np.maximum(x, y), x + y, np.hypot(x, y))[label]
        inside = (distance < radius) & ((label != 3) | (distance > radius / 2))
        ground, colour = random.uniform(0, 0.4, 3), random.uniform(0.6, 1, 3)
        image = np.where(inside, colour[:, None, None], ground[:, None, None])
        return (image + random.normal(0, 0.05, image.shape)).astype("float32"), np.array([label])


def linear_accuracy(train, valid):
    (x, y), (x_valid, y_valid) = (
        map(np.stack, zip(*(data[i] for i in range(len(data))))) for data in (train, valid)
    )
    model = RidgeClassifier(alpha=100).fit(x.reshape(len(x), -1), y.ravel())
    return model.score(x_valid.reshape(len(x_valid), -1), y_valid.ravel())


if __name__ == "__main__":
    train, valid = Shapes(400, seed=0), Shapes(100, seed=1)
    result = fit(
        model=lambda: paddle.vision.models.resnet18(num_classes=len(SHAPES)),
        train=train,
        valid=valid,
        loss=paddle.nn.CrossEntropyLoss(),
        optimizer=lambda parameters: paddle.optimizer.Adam(5e-4, parameters=parameters),
        metrics={"acc": paddle.metric.Accuracy()},
        monitor="valid/acc",
        epochs=4,
        batch_size=20,
        saving=Saving(every_steps=10),
        output=sys.argv[1] if len(sys.argv) > 1 else "work/output/images",
    )
    print(
        f"linear model {linear_accuracy(train, valid):.3f}, net {result.metrics['valid/acc']:.3f}"
    )
