"""End a run with a callback, once it is good enough; kill it and run it again."""

import sys

from paddle_mnist import Callback, Saving, fit

import paddle
from sklearn.datasets import load_digits


class Target(Callback):
    """Ends the training once the accuracy has reached a target for several epochs in a row."""

    def __init__(self, accuracy, epochs):
        self.accuracy, self.epochs, self.reached = accuracy, epochs, 0

    def after_epoch(self, view):
        has_reached = view.metrics["valid/acc"] >= self.accuracy
        self.reached = self.reached + 1 if has_reached else 0
        return {"target/reached": self.reached}

    def should_stop(self, view):
        return self.reached >= self.epochs

    def write(self, state, values):
        if "target/reached" in values:
            count = values["target/reached"]
            print(f"step {state.step}: epochs in a row that reached the target: {count}")

    def state_dict(self):
        return {"reached": self.reached}

    def set_state_dict(self, state):
        self.reached = state["reached"]


if __name__ == "__main__":
    images, labels = load_digits(return_X_y=True)
    tensors = paddle.to_tensor(images / 16, "float32"), paddle.to_tensor(labels[:, None])
    result = fit(
        model=lambda: paddle.nn.Linear(64, 10),
        train=paddle.io.TensorDataset([values[:1500] for values in tensors]),
        valid=paddle.io.TensorDataset([values[1500:] for values in tensors]),
        loss=paddle.nn.CrossEntropyLoss(),
        optimizer=lambda parameters: paddle.optimizer.Adam(0.01, parameters=parameters),
        metrics={"acc": paddle.metric.Accuracy()},
        epochs=30,
        saving=Saving(every_steps=10),
        callbacks=[Target(accuracy=0.85, epochs=2)],
        output=sys.argv[1] if len(sys.argv) > 1 else "work/output/stop_at_target",
    )
    print(f"chance 0.100, after {result.epochs} epochs {result.metrics['valid/acc']:.3f}")
