"""Train a net of two inputs, two outputs and two losses, with a step; kill it and run it again."""

import sys

from paddle_mnist import Mean, Saving, fit

import numpy as np
import paddle
import paddle.nn.functional as F


class Pairs(paddle.io.Dataset):
    """Pairs of points, and which of the two begins with the larger number."""

    def __init__(self, length, seed):
        self.length, self.seed = length, seed

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        random = np.random.RandomState([self.seed, index])
        left, right = random.randn(2, 3).astype("float32")
        return {"left": left, "right": right, "targets": (int(left[0] > right[0]), left.sum())}


class Net(paddle.nn.Layer):
    """Orders a pair, and sums up its left point."""

    def __init__(self):
        super().__init__()
        self.body = paddle.nn.Linear(6, 16)
        self.order, self.total = paddle.nn.Linear(16, 2), paddle.nn.Linear(16, 1)

    def forward(self, left, right):
        hidden = F.relu(self.body(paddle.concat([left, right], axis=1)))
        return self.order(hidden), self.total(hidden).squeeze(1)


def step(model, batch):
    labels, sums = batch["targets"]
    logits, estimates = model(batch["left"], batch["right"])
    hits = (logits.argmax(axis=1) == labels).sum()
    loss = F.cross_entropy(logits, labels) + 0.1 * F.mse_loss(estimates, sums)
    return {"loss": loss, "acc": Mean(hits, count=len(labels)), "error": F.l1_loss(estimates, sums)}


if __name__ == "__main__":
    valid = Pairs(200, seed=1)
    result = fit(
        model=Net,
        train=Pairs(800, seed=0),
        valid=valid,
        step=step,
        optimizer=lambda parameters: paddle.optimizer.AdamW(0.01, parameters=parameters),
        monitor="valid/acc",
        epochs=8,
        saving=Saving(every_steps=10),
        output=sys.argv[1] if len(sys.argv) > 1 else "work/output/two_inputs",
    )
    share = np.mean([valid[i]["targets"][0] for i in range(len(valid))])
    print(f"one answer {max(share, 1 - share):.3f}, net {result.metrics['valid/acc']:.3f}")
