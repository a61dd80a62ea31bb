"""The cross-entropy, and the one compiled pass for it and its gradients."""

import copy
import functools
import itertools

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F

from paddle_mnist import ConvBlocks
from paddle_mnist.nn.losses import CrossEntropy, label_weight, mean_options
from paddle_mnist.training.steps import SupervisedStep, num_correct, run_step

CLASSES = 3


def blocks(fast_conv=1):
    paddle.seed(0)
    layers = [nn.Conv2D(2, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2D(2, 2)]
    return ConvBlocks(*layers, nn.Flatten(), nn.Linear(80, CLASSES), fast_conv=fast_conv)


def batch(count=60, labels_shape=(-1, 1)):
    draw = np.random.default_rng(1)
    images = draw.standard_normal((count, 2, 8, 8)).astype("float32")
    labels = draw.integers(0, CLASSES, count)
    return paddle.to_tensor(images), paddle.to_tensor(labels).reshape(labels_shape)


def step(model, inputs, labels, loss, weight=1.0):
    """Return what the training's step computes: loss, hits, gradients."""
    model.clear_gradients()
    values = SupervisedStep(loss, {"acc": num_correct})(model, (inputs, labels))
    (values["loss"] * weight).backward()
    gradients = [p.grad if p.grad is None else p.grad.numpy() for p in model.parameters()]
    return values["loss"].numpy(), values["acc"].to_numpy(), gradients


def assert_same_as_paddle(model, inputs, labels, loss, **kwargs):
    own = copy.deepcopy(model)
    own.fast_conv = "off"
    expected_loss, expected_hits, expected = step(own, inputs, labels, loss, **kwargs)
    value, hits, gradients = step(model, inputs, labels, loss, **kwargs)
    assert value.shape == expected_loss.shape and value == pytest.approx(expected_loss, rel=1e-6)
    assert np.array_equal(hits, expected_hits)
    for gradient, other in zip(gradients, expected):
        assert (gradient is None) == (other is None)
        assert other is None or np.linalg.norm(gradient - other) <= 2e-6 * np.linalg.norm(other)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_any_smoothing_follows_its_formula(smoothing):
    paddle.seed(3)
    logits = paddle.randn([6, 10])
    labels = paddle.to_tensor([[0], [1], [2], [9], [9], [4]])
    shares = np.full((6, 10), smoothing / 10)
    shares[np.arange(6), labels.numpy().ravel()] += 1 - smoothing
    values = logits.numpy().astype(np.float64)
    log_p = values - np.log(np.exp(values).sum(1, keepdims=True))
    expected = -(shares * log_p).sum(1).mean()
    assert CrossEntropy(smoothing)(logits, labels).item() == pytest.approx(expected, rel=1e-5)


def test_label_weight_of_smoothed_labels_follows_its_formula():
    loss = nn.CrossEntropyLoss(paddle.to_tensor([1.0, 3.0, 8.0]), label_smoothing=0.1)
    expected = 0.9 * (3 + 8 + 8) + 0.1 * 3 * 4
    labels = paddle.to_tensor([1, 2, 2])
    for given in (labels.unsqueeze(1), F.one_hot(labels, 3)):
        assert label_weight(mean_options(loss), given) == pytest.approx(expected)


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(paddle.to_tensor([1.0, 3.0, 8.0]), label_smoothing=0.1),
        functools.partial(F.cross_entropy, label_smoothing=0.1),
    ],
    ids=["layer", "weights of classes", "function"],
)
@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_step_smoothed_labels_in_a_column_are_those_without_it(loss, shape):
    labels = paddle.to_tensor([0, 1, 2, 2, 1, 2]).reshape(shape)
    logits = paddle.randn([*shape, CLASSES])
    for given in (labels.unsqueeze(-1), F.one_hot(labels, CLASSES)):
        value = run_step(SupervisedStep(loss), nn.Identity(), (logits, given), len(logits)).loss
        assert value.item() == pytest.approx(loss(logits, labels).item(), rel=1e-6)


@pytest.mark.parametrize(
    ("loss", "count", "labels_shape"),
    [
        (CrossEntropy(), 1, (-1, 1)),
        (CrossEntropy(0.2), 7, (-1,)),
        (F.cross_entropy, 60, (-1, 1)),
        (F.cross_entropy, 7, (-1,)),
    ],
)
def test_compiled_loss_any_batch_computes_as_paddle(loss, count, labels_shape):
    model, (inputs, labels) = blocks(), batch(count, labels_shape)
    assert model.fused_loss(loss, labels, inputs)
    assert_same_as_paddle(model, inputs, labels, loss)
    assert_same_as_paddle(model, inputs, labels, loss, weight=0.25)


def test_compiled_loss_any_number_of_threads_gives_the_same_bits():
    inputs, labels = batch(100)
    results = [
        step(blocks(threads), inputs, labels, CrossEntropy()) for threads in (1, *5 * [2], *5 * [5])
    ]
    for loss, _, gradients in results[1:]:
        assert loss == results[0][0]
        assert all(map(np.array_equal, gradients, results[0][2]))


def test_compiled_loss_gradients_add_up_and_pass_hooks_of_parameters():
    inputs, labels = batch()
    model = blocks()
    model[0].weight.register_hook(lambda gradient: gradient * 3)
    for _ in range(2):
        SupervisedStep(CrossEntropy())(model, (inputs, labels))["loss"].backward()
    once = step(blocks(), inputs, labels, CrossEntropy())[2]
    for parameter, gradient, factor in zip(model.parameters(), once, (6, 2, 2, 2)):
        assert np.allclose(parameter.grad.numpy(), factor * gradient, rtol=1e-5, atol=1e-7)


class Scaled(ConvBlocks):
    def forward(self, inputs):
        return super().forward(inputs) * 2


@pytest.mark.parametrize("is_subclass", [True, False])
def test_compiled_loss_model_with_more_than_its_layers_computes_itself(is_subclass):
    inputs, labels = batch()
    model = blocks()
    if is_subclass:
        model = Scaled(*model.children(), fast_conv=1)
    else:
        model[4].register_forward_post_hook(lambda layer, inputs, outputs: outputs * 2)
    assert model.fused_loss(CrossEntropy(), labels, inputs) is None
    expected = CrossEntropy()(blocks("off")(inputs) * 2, labels).item()
    assert step(model, inputs, labels, CrossEntropy())[0] == pytest.approx(expected, rel=1e-6)


class Doubled(CrossEntropy):
    def __call__(self, logits, labels):
        return 2 * super().__call__(logits, labels)


@pytest.mark.parametrize(
    ("labels", "loss"),
    [
        (lambda labels: paddle.where(labels == 1, labels * -100, labels), F.cross_entropy),
        (lambda labels: labels.astype("int32"), F.cross_entropy),
        (lambda labels: F.one_hot(labels.flatten(), CLASSES), lambda x, y: (x - y).square().mean()),
        (lambda labels: labels, nn.CrossEntropyLoss(weight=paddle.ones([CLASSES]) * 2)),
        (lambda labels: labels, Doubled()),
    ],
    ids=["ignored labels", "int32", "another loss", "weights of classes", "a subclass"],
)
def test_compiled_loss_leaves_other_losses_and_labels_to_paddle(labels, loss):
    model, (inputs, numbers) = blocks(), batch()
    assert model.fused_loss(loss, labels(numbers), inputs) is None
    value = run_step(SupervisedStep(loss), model, (inputs, labels(numbers)), len(inputs)).loss
    expected = loss(blocks("off")(inputs), labels(numbers))
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "value"), [("4.weight", np.inf), ("0.weight", np.nan), ("inputs", np.nan)]
)
def test_compiled_loss_value_that_is_not_finite_reaches_the_loss(name, value):
    model, (inputs, labels) = blocks(), batch()
    tensor = dict(model.named_parameters()).get(name, inputs)
    values = tensor.numpy().copy()
    values.flat[0] = value
    tensor.set_value(values)
    assert not np.isfinite(step(model, inputs, labels, CrossEntropy())[0])


def test_compiled_loss_logits_far_apart_are_exact():
    """Paddle's are 64 at most."""
    model, (inputs, labels) = blocks(), batch()
    model[4].weight.set_value(model[4].weight * 1e4)
    with paddle.no_grad():
        logits = model(inputs).numpy().astype("float64")
    losses = np.logaddexp.reduce(logits, axis=1) - logits[range(60), labels.numpy().ravel()]
    loss = step(model, inputs, labels, CrossEntropy())[0]
    assert loss == pytest.approx(losses.mean(), rel=1e-6) and losses.max() > 64


@pytest.mark.parametrize("value", [np.nan, np.inf, 3.0])  # 3.0 makes two logits equal
def test_num_correct_counts_as_paddle(value):
    rows = [[value, 3.0, 2.0], [3.0, value, 0.0], [0.0, 1.0, value]]
    for row, label in itertools.product(rows, range(3)):
        logits, labels = paddle.to_tensor([row]), paddle.to_tensor([[label]])
        hits = int(logits.argmax(axis=1)) == label
        assert list(num_correct(logits, labels).to_numpy()) == [hits, 1]
