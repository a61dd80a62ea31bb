"""Compute F1, areas under curves and other metrics of sums; kill it and run it again."""

import sys

from paddle_mnist import Gathered, Mean, Saving, Sums, fit

import paddle
from paddle.nn import functional as F
from sklearn.metrics import roc_auc_score


class AucOfLogits(paddle.metric.Auc):
    """Paddle's approximate AUC, which takes probabilities, from logits."""

    def compute(self, logits, labels):
        return F.softmax(logits), labels


def error_rate(logits, labels):
    misses = (logits.argmax(axis=1, keepdim=True) != labels).sum()
    return Mean(misses, len(labels))


def f1(logits, labels):
    found = logits.argmax(axis=1, keepdim=True)
    hits = ((found == 1) & (labels == 1)).sum()
    return Sums(
        [hits, found.sum() + labels.sum()], lambda sums: float(2 * sums[0] / max(1, sums[1]))
    )


def roc_auc(logits, labels):
    return roc_auc_score(labels.ravel(), logits[:, 1] - logits[:, 0])


if __name__ == "__main__":
    paddle.seed(0)
    points = paddle.randn([600, 4])
    labels = (points.sum(axis=1, keepdim=True) + paddle.randn([600, 1]) > 0).astype("int64")
    result = fit(
        lambda: paddle.nn.Linear(4, 2),
        paddle.io.TensorDataset([points[:400], labels[:400]]),
        paddle.io.TensorDataset([points[400:], labels[400:]]),
        loss=F.cross_entropy,
        metrics={"auc": AucOfLogits(), "error": error_rate, "f1": f1, "roc_auc": Gathered(roc_auc)},
        optimizer=lambda parameters: paddle.optimizer.Adam(0.1, parameters=parameters),
        monitor="valid/f1",
        mode="max",
        epochs=12,
        saving=Saving(every_steps=10),
        output=sys.argv[1] if len(sys.argv) > 1 else "work/output/metrics",
    )
    positive = labels[400:].astype("float32").mean().item()
    always = 2 * positive / (1 + positive)
    print(f"F1: always yes {always:.3f}, net {result.metrics['valid/f1']:.3f}")
