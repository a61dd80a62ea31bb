"""`Watch` reports a net that memorizes its samples, and one that learns nothing."""

import numpy as np
import paddle
import pytest
from paddle import nn
from small_nets import CLASSES, SAMPLES, WIDTH, Points, perceptron

from paddle_mnist import Loading, StartFrom, Watch, fit
from paddle_mnist.monitor.diagnosis import MIN_STEPS, TRAIN, VALID, Diagnosis


class Random(paddle.io.Dataset):
    """Points whose labels say nothing about them."""

    def __init__(self, seed):
        random_state = np.random.RandomState(seed)
        self.points = random_state.randn(SAMPLES, WIDTH).astype("float32")
        self.labels = random_state.randint(0, CLASSES, SAMPLES)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.points[index], self.labels[index : index + 1]


def train(output, data, rate, epochs, **arguments):
    fit(
        lambda: perceptron(width=64),
        data[0],
        data[1],
        optimizer=lambda parameters: paddle.optimizer.Adam(rate, parameters=parameters),
        loss=nn.CrossEntropyLoss(),
        epochs=epochs,
        batch_size=8,
        output=output,
        callbacks=[Watch(every=50)],
        **arguments,
    )


ROWS = {
    "memorized": ((Random(1), Random(2)), 0.01, 25, {"overfitting"}),
    "rate too low": ((Points(), Points()), 1e-6, 21, {"underfitting"}),
    "well": ((Points(), Points()), 0.01, 21, set()),
    "short": ((Points(), Points()), 1e-6, 3, set()),
}


@pytest.mark.parametrize(("data", "rate", "epochs", "expected"), ROWS.values(), ids=ROWS)
def test_curves_that_are_apart_or_both_high_are_findings(
    data, rate, epochs, expected, tmp_path, capsys
):
    train(tmp_path, data, rate, epochs, loading=Loading())
    printed = capsys.readouterr().out
    found = {"overfitting": "memorizes", "underfitting": "learned little"}
    assert {kind for kind, word in found.items() if word in printed} == expected
    assert all(printed.count(found[kind]) == 1 for kind in expected)


def test_run_that_starts_from_trained_weights_does_not_underfit(tmp_path, capsys):
    train(tmp_path / "first", (Points(), Points()), 0.01, 21)
    start = StartFrom(tmp_path / "first", weights_only=True)
    train(tmp_path / "second", (Points(), Points()), 1e-6, 21, start=start)
    assert "learned little" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("train_loss", "valid_losses", "expected"),
    [
        (0.1, [1, 0.5, 0.6, 0.7], ["overfitting"]),
        (0.1, [1, 0.5, 0.6, 0.7, 0.8, 0.9], ["overfitting"]),  # reported once
        (0.1, [1, 0.5, 0.6, 0.5, 0.6], []),  # goes up and down
        (0.1, [0.50, 0.51, 0.52], []),  # hardly rises
        (0.4, [1, 0.5, 0.6, 0.7], []),  # the losses are not far apart
        (float("nan"), [1, 0.5, 0.6, 0.7], []),
    ],
)
def test_overfitting_needs_a_validation_loss_that_rises_away(train_loss, valid_losses, expected):
    diagnosis = Diagnosis(lambda finding: None)
    for number, loss in enumerate(valid_losses):
        diagnosis.check_losses(number, {TRAIN: train_loss})
        diagnosis.check_losses(number, {VALID: loss})
    diagnosis.check_end(MIN_STEPS)  # the first loss is not known
    assert [finding.kind for finding in diagnosis.findings] == expected
