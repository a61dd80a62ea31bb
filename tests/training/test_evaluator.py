"""Evaluation is exact, of data of any kind, in batches of any size: every sample counts once."""

import pickle
import random
import re

import numpy as np
import paddle
import pytest
from fit_rows import CLASSES, SAMPLES, Points, TwoHeads, perceptron, two_losses
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import nn
from paddle.nn import functional as F

from paddle_mnist import MNIST, MnistDataset, evaluate, load_data
from paddle_mnist.data.external import ExternalLoader
from paddle_mnist.data.loader import BatchLoader
from paddle_mnist.errors import ConfigError, DataError, DivergedError
from paddle_mnist.metrics.paddle_metrics import Gathered, metric_functions
from paddle_mnist.metrics.sums import Mean, Sums
from paddle_mnist.mnist.step import DigitStep
from paddle_mnist.nn.cross_entropy import CrossEntropy
from paddle_mnist.progress import TrainState
from paddle_mnist.training.evaluator import EpochEvaluator, evaluate_step
from paddle_mnist.training.steps import SupervisedStep, num_correct


def model_of_seed(seed=3, make=perceptron):
    paddle.seed(seed)
    return make()


def all_samples():
    points, labels = zip(*(Points()[index] for index in range(SAMPLES)))
    return np.stack(points), np.stack(labels)


def range_of(outputs, labels):
    return outputs.max() - outputs.min() + len(labels)


def per_class(outputs, labels):
    """Sums of an array: the recall of each class, averaged."""
    hits = (outputs.argmax(axis=1) == labels.flatten()).numpy()
    labels = labels.numpy().ravel()
    counts = [np.bincount(labels, weight, CLASSES) for weight in (hits.astype(float), None)]
    return Sums(np.concatenate(counts), lambda totals: np.mean(totals[:CLASSES] / totals[CLASSES:]))


METRICS = {
    "acc": paddle.metric.Accuracy(topk=(1, 2)),
    "entropy": F.cross_entropy,
    "recall": per_class,
    "words": lambda outputs, labels: Mean(outputs.sum(), 5 * len(labels)),
    "range": Gathered(range_of),
    "gathered acc": Gathered(paddle.metric.Accuracy()),
}


@pytest.fixture(scope="module")
def expected():
    """Every metric in float64, over all samples at once."""
    points, labels = all_samples()
    logits = model_of_seed()(paddle.to_tensor(points)).numpy().astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    entropy = -log_p[np.arange(SAMPLES), labels[:, 0]].mean()
    ranks = (np.argsort(-logits, axis=1) == labels).argmax(axis=1)
    recalls = [(ranks[labels[:, 0] == one] == 0).mean() for one in range(CLASSES)]
    return {
        "loss": entropy,
        "acc_top1": (ranks == 0).mean(),
        "acc_top2": (ranks < 2).mean(),
        "entropy": entropy,
        "recall": np.mean(recalls),
        "words": logits.sum() / (5 * SAMPLES),
        "range": logits.max() - logits.min() + SAMPLES,
        "gathered acc": (ranks == 0).mean(),
    }


STEP = SupervisedStep(F.cross_entropy, metric_functions(METRICS))


@settings(max_examples=20)
@given(st.one_of(st.integers(1, SAMPLES + 3), st.sampled_from([8, 16, 32])), st.booleans())
def test_batches_do_not_change_the_result(expected, batch_size, shuffle):
    loader = BatchLoader(Points(), batch_size, shuffle=shuffle)
    metrics = evaluate_step(STEP, model_of_seed(), loader)
    assert metrics == pytest.approx(expected, rel=2e-6)
    for name in ("acc_top1", "acc_top2", "recall", "gathered acc"):  # of counts
        assert metrics[name] == pytest.approx(expected[name], rel=1e-15)


def test_mean_of_batch_means_is_another_number(expected):
    """The last batch has one sample."""
    model = model_of_seed()
    means = [STEP(model, batch)["loss"].item() for batch in BatchLoader(Points(), 8)]
    assert np.mean(means) != pytest.approx(expected["loss"], rel=1e-3)


DATA = {
    "a DataLoader": lambda: paddle.io.DataLoader(Points(), batch_size=8),
    "a ExternalLoader": lambda: ExternalLoader(paddle.io.DataLoader(Points(), batch_size=8)),
    "a function": lambda: lambda: iter(BatchLoader(Points(), 8)),
    "a list of arrays": lambda: [all_samples()],
    "workers": lambda: BatchLoader(Points(), 8, num_workers=2),
}


@pytest.mark.parametrize("kind", DATA)
def test_data_of_any_kind(kind, expected):
    assert evaluate_step(STEP, model_of_seed(), DATA[kind]()) == pytest.approx(expected, rel=2e-6)


def test_steps_of_ones_own_on_batches_of_any_structure():
    model, dataset = model_of_seed(make=TwoHeads), Points(target="dict")
    (whole,) = BatchLoader(dataset, SAMPLES)
    logits, estimates = (values.numpy() for values in model(whole["point"]))
    metrics = evaluate_step(two_losses, model, BatchLoader(dataset, 8))
    assert list(metrics) == ["loss", "acc", "mse"]
    assert metrics["acc"] == (logits.argmax(axis=1) == whole["targets"][0].numpy()).mean()
    squares = (estimates.astype(np.float64) - whole["targets"][1].numpy()) ** 2
    assert metrics["mse"] == pytest.approx(squares.mean(), rel=2e-6)


class Noisy(nn.Layer):
    """Draws numbers even where it is evaluated, as a diffusion net does."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1D(8), nn.Dropout(), nn.Linear(8, 3))

    def forward(self, points):
        noise = paddle.rand(points.shape) + random.random() + float(np.random.rand())
        return self.net(points + noise)


@pytest.mark.parametrize("is_training", [True, False])
def test_evaluating_changes_nothing_and_is_repeated(is_training):
    model = model_of_seed(make=Noisy)
    model.train() if is_training else model.eval()
    model.net[1].train()
    before = {name: one.numpy().tobytes() for name, one in model.state_dict().items()}
    modes = [layer.training for layer in model.sublayers(include_self=True)]
    loader = BatchLoader(Points(), 8)
    first = evaluate_step(STEP, model, loader)
    paddle.rand([3]), np.random.rand(), random.random()
    assert evaluate_step(STEP, model, loader) == first
    assert {name: one.numpy().tobytes() for name, one in model.state_dict().items()} == before
    assert [layer.training for layer in model.sublayers(include_self=True)] == modes
    assert all(parameter.grad is None for parameter in model.parameters())


def losses(*values):
    """A step with one loss after the other."""
    remaining = iter(values)
    return lambda model, batch: {"loss": paddle.to_tensor(float(next(remaining)))}


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("place", range(3))
def test_a_loss_that_is_not_finite_anywhere_ends_the_training(value, place):
    values = [1.0, 2.0, 3.0]
    values[place] = value
    loader = BatchLoader(Points(24), 8)
    with pytest.raises(DivergedError, match=rf"the loss is {value} on the data 'far'"):
        evaluate_step(losses(*values), nn.Linear(1, 1), loader, "far")


def test_a_metric_that_is_not_a_number_does_not_end_it():
    def step(model, batch):
        return {"loss": paddle.to_tensor(1.0), "m": float("nan"), "n": Mean(0, 0)}

    metrics = evaluate_step(step, nn.Linear(1, 1), BatchLoader(Points(), 8))
    assert metrics["loss"] == 1 and np.isnan(metrics["m"]) and np.isnan(metrics["n"])


def test_large_losses_are_added_in_float64():
    values = [2.0**24, 1.0, 1.0]
    metrics = evaluate_step(losses(*values), nn.Linear(1, 1), BatchLoader(Points(3), 1))
    assert metrics["loss"] == (2.0**24 + 2) / 3


def test_no_data_and_no_number_are_refused():
    with pytest.raises(DataError, match="the data 'far' have no batches"):
        evaluate_step(STEP, model_of_seed(), [], "far")
    step = SupervisedStep(F.cross_entropy, {"m": lambda outputs, labels: outputs})
    with pytest.raises(ConfigError, match=r"a Tensor of shape \[8, 3\] as 'm'"):
        evaluate_step(step, model_of_seed(), BatchLoader(Points(), 8))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (np.zeros((2, 6), "float32"), "a batch is a Tensor of 2 values; expected"),
        ([np.zeros((2, 6), "float32")], "a batch is a list of 1 values; expected"),
        ({"x": np.zeros(2)}, "a batch is a dict of 1 values; expected"),
    ],
)
def test_batches_without_labels_need_a_step_of_ones_own(batch, message):
    with pytest.raises(DataError, match=message):
        evaluate_step(STEP, model_of_seed(), [batch])


def test_nets_of_several_inputs_and_outputs():
    class Sum(nn.Layer):
        def forward(self, left, right):
            return left + right, left - right

    def loss(outputs, labels):
        total, difference = outputs
        return (total + 2 * difference - labels).mean()

    left, right, labels = (np.random.RandomState(n).randn(5, 2).astype("float32") for n in range(3))
    metrics = evaluate_step(SupervisedStep(loss), Sum(), [(left, right, labels)])
    assert metrics["loss"] == pytest.approx((3 * left - right - labels).mean(), rel=1e-5)


def test_evaluator_names_splits_and_says_when():
    loaders = {"near": BatchLoader(Points(), 8), "far": BatchLoader(Points(9), 4)}
    evaluator = EpochEvaluator(SupervisedStep(F.cross_entropy), loaders, every_epochs=2, epochs=3)
    model = model_of_seed()
    scores = [evaluator.after_epoch(TrainState(epoch=epoch), model) for epoch in range(3)]
    assert scores[0] == {}
    assert set(scores[1]) == {"near/loss", "far/loss"} and scores[2] == scores[1]
    assert scores[1]["far/loss"] != scores[1]["near/loss"]
    broken = EpochEvaluator(losses("nan"), {"far": BatchLoader(Points(8), 8)}, 1, 1)
    with pytest.raises(DivergedError, match=r"after epoch 1, step 5: the loss is nan on the data"):
        broken.after_epoch(TrainState(epoch=0, step=5), model)


# `evaluate`, of images


@pytest.fixture(scope="module")
def dataset(tiny):
    return MnistDataset("eval", str(tiny))


@pytest.fixture(scope="module")
def model():
    paddle.seed(5)
    return MNIST()


@pytest.fixture(scope="module")
def expected_of_images(model, dataset):
    """Loss and accuracy in float64, over all samples at once."""
    images, labels = dataset.batch(np.arange(len(dataset)))
    logits = model(paddle.to_tensor(images)).numpy().astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    rows = np.arange(len(labels))
    return -log_p[rows, labels[:, 0]].mean(), (logits.argmax(1) == labels[:, 0]).mean()


@pytest.mark.parametrize("batch_size", [1, 7, 32, 69, 70, 500])
def test_batches_do_not_change_the_result_of_images(model, dataset, expected_of_images, batch_size):
    evaluation = evaluate(model, BatchLoader(dataset, batch_size))
    assert evaluation.count == len(dataset) == 70
    assert evaluation.loss == pytest.approx(expected_of_images[0], rel=1e-6)
    assert evaluation.accuracy == expected_of_images[1]


def test_the_tutorials_mean_of_batch_means_is_another_number(model, dataset):
    """In the tutorial's, the short batch weighs as much as the full ones."""
    means = []
    for images, labels in BatchLoader(dataset, 64):
        _, accuracy = model(images, labels)
        means.append(accuracy.item())
    assert np.mean(means) != pytest.approx(evaluate(model, dataset).accuracy, abs=1e-4)


def test_tutorials_ways_to_hand_over_data(model, tiny, dataset, expected_of_images):
    generator = load_data("eval", batch_size=9, data=str(tiny))
    loader = paddle.io.DataLoader(dataset, batch_size=9)
    for data in (generator, loader, list(generator()), dataset):
        assert evaluate(model, data).accuracy == expected_of_images[1]


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
    with pytest.raises(DataError, match="the data have no batches; expected at least one"):
        evaluate(model, paddle.io.Subset(dataset, []))


class Guessing(MNIST):
    """Draws numbers even where it is evaluated."""

    def forward(self, images):
        return super().forward(images) + paddle.rand([1]) + random.random() + np.random.rand()


def test_generators_are_given_back(dataset):
    def drawn():
        return paddle.rand([1]).item(), random.random(), np.random.rand()

    model = Guessing()
    paddle.seed(3), random.seed(3), np.random.seed(3)
    expected = drawn()
    paddle.seed(3), random.seed(3), np.random.seed(3)
    first = evaluate(model, dataset)
    assert drawn() == expected
    assert evaluate(model, dataset).loss == first.loss


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
    with pytest.raises(DivergedError, match="the loss is nan on the data; expected"):
        evaluate(model, dataset)


def test_nothing_to_evaluate_is_said(model):
    with pytest.raises(DataError, match="the data have no batches; expected at least one"):
        evaluate(model, [])


# the step of digits


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_step_of_digits_trains_as_a_smoothed_cross_entropy(dataset, smoothing):
    (batch,) = BatchLoader(dataset, 70)
    step = pickle.loads(pickle.dumps(DigitStep(smoothing)))
    assert step == DigitStep(smoothing)
    outcomes = []
    for one in (step, SupervisedStep(CrossEntropy(smoothing), {"acc": num_correct})):
        paddle.seed(5)
        model = MNIST()
        values = one(model, batch)
        values["loss"].backward()
        gradients = [parameter.grad.numpy().tobytes() for parameter in model.parameters()]
        outcomes.append((values["loss"].item(), values["acc"].compute(), gradients))
    assert outcomes[0] == outcomes[1]


def test_the_step_of_digits_evaluates_as_evaluate_does(model, dataset):
    """With the labels as they are."""
    loader = BatchLoader(dataset, 32)
    metrics = EpochEvaluator(DigitStep(label_smoothing=0.1), {"valid": loader}).metrics(model)
    evaluation = evaluate(model, loader)
    assert metrics == {"valid/loss": evaluation.loss, "valid/acc": evaluation.accuracy}
