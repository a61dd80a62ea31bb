"""Evaluation of images is exact, of data of any kind, and counts the predictions of each class."""

import re

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F

from paddle_mnist import MNIST, BatchLoader, MnistDataset, evaluate, load_data
from paddle_mnist.errors import DataError
from paddle_mnist.mnist.setup import DigitStep


@pytest.fixture(scope="module")
def dataset(tiny):
    return MnistDataset("eval", str(tiny))


@pytest.fixture(scope="module")
def model():
    paddle.seed(5)
    return MNIST()


def test_evaluate_batches_and_forms_of_data_do_not_change_the_result(model, tiny, dataset):
    """The tutorial's forms, too, whose mean of batch means is another number."""
    images, labels = dataset.batch(np.arange(len(dataset)))
    logits = model(paddle.to_tensor(images))
    loss = F.cross_entropy(logits.astype("float64"), paddle.to_tensor(labels)).item()
    accuracy = (logits.numpy().argmax(1) == labels[:, 0]).mean()
    generator = load_data("eval", batch_size=9, data=str(tiny))
    loader = paddle.io.DataLoader(dataset, batch_size=9)
    for data in (dataset, BatchLoader(dataset, 7), generator, loader, list(generator())):
        evaluation = evaluate(model, data)
        assert evaluation.count == len(dataset) == 70
        assert evaluation.loss == pytest.approx(loss, rel=1e-6)
        assert evaluation.accuracy == accuracy
    means = [model(images, labels)[1].item() for images, labels in BatchLoader(dataset, 64)]
    assert np.mean(means) != pytest.approx(accuracy, abs=1e-4)


class Own(paddle.io.Dataset):
    """A class as people write them: labels are plain numbers, images of NumPy's default type."""

    def __init__(self, items):
        self.items = [(image.astype(np.float64), int(label[0])) for image, label in items]

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


def test_evaluate_any_dataset_gives_the_same_to_the_last_bit(model, tiny, dataset):
    expected = evaluate(model, dataset)
    halves = [paddle.io.Subset(dataset, part) for part in (range(33), range(33, 70))]
    for other in (paddle.io.ConcatDataset(halves), Own(dataset), Stream(dataset)):
        evaluation = evaluate(model, other)
        assert (evaluation.loss, evaluation.count) == (expected.loss, 70)
        assert np.array_equal(evaluation.probabilities, expected.probabilities)
    images, labels = dataset.batch(np.arange(70))
    inverted = evaluate(model, Inverted("eval", str(tiny)))
    assert inverted.loss == evaluate(model, [(1 - images, labels)]).loss


IMAGE = np.zeros((1, 28, 28), np.float32)


def test_evaluate_item_that_is_not_an_image_with_a_label_raises(model):
    for item, message in (
        ((IMAGE,), "Own: a batch is (float32 [1, 1, 28, 28],); expected images"),
        (IMAGE, "Own: a batch is float32 [1, 1, 28, 28]; expected images"),
        ((IMAGE[0], 3), "it is (float32 [1, 28, 28], int64 [1])"),
        ((IMAGE.astype("uint8"), 3), "Own: a batch is (uint8 [1, 1, 28, 28], int64 [1]); expected"),
        ((IMAGE, 10), "the label of sample 0 of Own is 10; expected 0 to 9"),
        ((IMAGE, -100), "expected images, float32 [N, 1, 28, 28] in 0..1, and a label of each"),
        ((IMAGE, 0.5), "and a label of each, a whole number, 0 or more"),
        ((IMAGE, [0, 1]), "and a label of each, a whole number, 0 or more"),
    ):
        odd = Own([])
        odd.items = [item]
        with pytest.raises(DataError, match=re.escape(message)) as caught:
            evaluate(model, odd)
        assert "-100" not in str(caught.value)  # no label is ignored in an evaluation
    odd.items = [(IMAGE, np.uint8(3))]
    assert evaluate(model, odd).labels.tolist() == [3]
    with pytest.raises(DataError, match="the data, a list, have no batches in this epoch"):
        evaluate(model, [])


def test_evaluate_report_adds_up(model, dataset):
    evaluation = evaluate(model, dataset)
    report, shown = evaluation.report(), (evaluation.loss, evaluation.accuracy)
    assert str(evaluation) == "Evaluation(loss={!r}, accuracy={!r})".format(*shown)  # no arrays
    matrix = np.array(report["confusion_matrix"])
    assert matrix.sum() == report["count"] == 70
    assert np.trace(matrix) / 70 == report["accuracy"]
    for digit in range(10):
        row = report["per_class"][str(digit)]
        hits, taken, support = matrix[digit, digit], matrix[:, digit].sum(), matrix[digit].sum()
        assert row["support"] == support
        assert row["recall"] == pytest.approx(hits / support if support else 0)
        assert row["precision"] == pytest.approx(hits / taken if taken else 0)


def test_digit_step_trains_with_smoothed_labels_and_evaluates_without(model, dataset):
    images, labels = batch = next(iter(BatchLoader(dataset, 70)))
    smoothed = 0.9 * F.one_hot(labels.flatten(), 10) + 0.01
    model.train()
    loss = DigitStep(label_smoothing=0.1)(model, batch)["loss"]
    expected = F.cross_entropy(model(images), smoothed, soft_label=True)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    model.eval()
    loss = DigitStep(label_smoothing=0.1)(model, batch)["loss"]
    assert loss.compute() == pytest.approx(evaluate(model, dataset).loss, rel=1e-5)
