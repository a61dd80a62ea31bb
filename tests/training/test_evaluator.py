"""Evaluation is exact: every sample once, sums divided once."""

import re

import numpy as np
import paddle
import pytest

from paddle_mnist import MNIST, MnistDataset, evaluate, load_data
from paddle_mnist.data.loader import BatchLoader
from paddle_mnist.errors import DataError, DivergedError


@pytest.fixture(scope="module")
def dataset(tiny):
    return MnistDataset("eval", str(tiny))


@pytest.fixture(scope="module")
def model():
    paddle.seed(5)
    return MNIST()


@pytest.fixture(scope="module")
def expected(model, dataset):
    """Loss and accuracy in float64, over all samples at once."""
    images, labels = dataset.batch(np.arange(len(dataset)))
    logits = model(paddle.to_tensor(images)).numpy().astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    rows = np.arange(len(labels))
    return -log_p[rows, labels[:, 0]].mean(), (logits.argmax(1) == labels[:, 0]).mean()


@pytest.mark.parametrize("batch_size", [1, 7, 32, 69, 70, 500])
def test_batches_do_not_change_the_result(model, dataset, expected, batch_size):
    evaluation = evaluate(model, BatchLoader(dataset, batch_size))
    assert evaluation.count == len(dataset) == 70
    assert evaluation.loss == pytest.approx(expected[0], rel=1e-6)
    assert evaluation.accuracy == expected[1]


def test_mean_of_batch_means_is_another_number(model, dataset):
    """What the tutorial computes: the short batch weighs as much as the full ones."""
    means = []
    for images, labels in BatchLoader(dataset, 64):
        _, accuracy = model(images, labels)
        means.append(accuracy.item())
    assert np.mean(means) != pytest.approx(evaluate(model, dataset).accuracy, abs=1e-4)


def test_tutorials_ways_to_hand_over_data(model, tiny, dataset, expected):
    generator = load_data("eval", batch_size=9, data=str(tiny))
    loader = paddle.io.DataLoader(dataset, batch_size=9)
    for data in (generator, loader, list(generator()), dataset):
        assert evaluate(model, data).accuracy == expected[1]


class Own(paddle.io.Dataset):
    """A class as people write them: labels are plain numbers, images of NumPy's default type."""

    def __init__(self, dataset):
        super().__init__()
        self.items = [(image.astype(np.float64), int(label[0])) for image, label in dataset]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Stream(paddle.io.IterableDataset):
    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return (self.dataset[index] for index in range(len(self.dataset)))


class Inverted(MnistDataset):
    """Changes its items, and knows nothing of batches."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return 1 - image, label


DATASETS = {
    "Subset": lambda dataset: paddle.io.Subset(dataset, range(70)),
    "ConcatDataset": lambda dataset: paddle.io.ConcatDataset(
        [paddle.io.Subset(dataset, range(33)), paddle.io.Subset(dataset, range(33, 70))]
    ),
    "TensorDataset": lambda dataset: paddle.io.TensorDataset(
        [paddle.to_tensor(part) for part in dataset.batch(np.arange(70))]
    ),
    "its own class": Own,
    "IterableDataset": Stream,
}


@pytest.mark.parametrize("batch_size", [32, 500])
@pytest.mark.parametrize("kind", DATASETS)
def test_any_dataset_gives_the_same_to_the_last_bit(model, dataset, kind, batch_size, monkeypatch):
    monkeypatch.setattr("paddle_mnist.training.evaluator.BATCH_SIZE", batch_size)
    expected, evaluation = (evaluate(model, data) for data in (dataset, DATASETS[kind](dataset)))
    assert (evaluation.loss, evaluation.accuracy, evaluation.count) == (
        expected.loss,
        expected.accuracy,
        70,
    )
    assert np.array_equal(evaluation.probabilities, expected.probabilities)


def test_dataset_that_changes_its_items_is_evaluated_on_these(model, tiny, dataset):
    changed = evaluate(model, Inverted("eval", str(tiny)))
    images, labels = dataset.batch(np.arange(70))
    assert changed.loss == evaluate(model, [(1 - images, labels)]).loss


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ((np.zeros((1, 28, 28), np.float32),), "an item is 1 values; expected (image, label)"),
        (
            np.zeros((1, 28, 28), np.float32),
            "an item is float32 [1, 28, 28]; expected (image, label)",
        ),
        ((np.zeros((28, 28), np.float32), 3), "an image is float32 [28, 28]; expected float32 [1"),
        ((np.zeros((1, 28, 28), np.uint8), 3), "an image is uint8 [1, 28, 28]; expected float32"),
        ((np.zeros((1, 28, 28), np.float32), 10), "a label is 10; expected one whole number in 0"),
        ((np.zeros((1, 28, 28), np.float32), [0, 1]), "a label is [0, 1]; expected one whole"),
        ((np.zeros((1, 28, 28), np.float32), 1.5), "a label is 1.5; expected one whole number"),
    ],
)
def test_item_that_is_no_image_with_a_label_is_named(model, item, said):
    class Odd(Own):
        def __init__(self):
            self.items = [item]

    with pytest.raises(DataError, match=re.escape(f"Odd: {said}")):
        evaluate(model, Odd())


def test_dataset_without_items_is_said(model, dataset):
    with pytest.raises(DataError, match="nothing to evaluate"):
        evaluate(model, paddle.io.Subset(dataset, []))


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_given_back(dataset, training):
    model = MNIST()
    model.train() if training else model.eval()
    model.fc.eval()  # a frozen layer stays frozen
    evaluate(model, dataset)
    assert (model.training, model.conv1.training, model.fc.training) == (training, training, False)


def test_report_adds_up(model, dataset):
    evaluation = evaluate(model, dataset)
    report = evaluation.report()
    matrix = np.array(report["confusion_matrix"])
    assert matrix.sum() == report["count"] == 70
    assert np.trace(matrix) / 70 == report["accuracy"]
    for digit in range(10):
        row = report["per_class"][str(digit)]
        num_correct, taken, support = (
            matrix[digit, digit],
            matrix[:, digit].sum(),
            matrix[digit].sum(),
        )
        assert row["support"] == support
        assert row["recall"] == pytest.approx(num_correct / support if support else 0)
        assert row["precision"] == pytest.approx(num_correct / taken if taken else 0)


def test_a_model_whose_loss_is_not_finite_is_said(dataset):
    model = MNIST()
    model.fc.bias.set_value(paddle.full([10], float("nan")))
    with pytest.raises(DivergedError, match="loss is nan on these images"):
        evaluate(model, dataset)


def test_nothing_to_evaluate_is_said(model):
    with pytest.raises(DataError, match="nothing to evaluate"):
        evaluate(model, [])
