"""Looking into a net: figures against NumPy's, findings in words, and nothing left behind."""

import dataclasses

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F

from paddle_mnist import MNIST
from paddle_mnist.errors import ConfigError
from paddle_mnist.interfaces import View
from paddle_mnist.monitor.diagnosis import PATIENCE
from paddle_mnist.monitor.hooks import outputs_of
from paddle_mnist.monitor.watch import watch
from paddle_mnist.train_state import TrainState

LAYERS = ["conv1", "relu1", "max_pool1", "conv2", "relu2", "max_pool2", "fc"]


@pytest.fixture
def model():
    paddle.seed(3)
    return MNIST()


@pytest.fixture
def images():
    return paddle.to_tensor(np.random.RandomState(5).rand(6, 1, 28, 28).astype("float32"))


LABELS = paddle.to_tensor([[0], [1], [2], [3], [4], [5]])


def step(model, optimizer, images):
    loss = F.cross_entropy(model(images), LABELS)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()


def sgd(model, rate=0.1):
    return paddle.optimizer.SGD(rate, parameters=model.parameters())


def test_watch_outputs_measures_as_numpy(model, images):
    model.conv1.bias.set_value(paddle.to_tensor([-100.0] * 3 + [0.0] * 17))  # three dead channels
    outputs = outputs_of(model, images, LAYERS)
    with watch(model) as seen:
        model(images)
        values = seen.values
    assert list(seen.shapes) == LAYERS
    for name, output in outputs.items():
        axes = (0, *range(2, output.ndim))
        expected = {
            "mean": output.mean(dtype="float64"),
            "std": output.std(dtype="float64"),
            "min": output.min(),
            "max": output.max(),
            "zeros": (output == 0).mean(),
            "nonfinite": 0,
            "dead": np.count_nonzero(np.abs(output).max(axis=axes) == 0),
        }
        figures = {what: values[f"watch/{name}/{what}"] for what in expected}
        assert figures == pytest.approx(expected, rel=1e-4, abs=1e-6), name
        assert seen.shapes[name] == list(output.shape)
        assert seen.dtypes[name].endswith("float32")
    assert values["watch/relu1/dead"] == 3 == values["watch/max_pool1/dead"]


def test_watch_parameters_and_gradients_measures_as_numpy(model, images):
    before = {name: p.numpy() for name, p in model.named_parameters()}
    with watch(model) as seen:
        F.cross_entropy(model(images), LABELS).backward()
        gradients = {name: p.grad.numpy() for name, p in model.named_parameters()}
        optimizer = sgd(model)
        optimizer.step()
        optimizer.clear_grad()
        values = seen.values
    for name, old in before.items():
        norm, gradient_norm = np.linalg.norm(old), np.linalg.norm(gradients[name])
        assert values.get(f"watch/{name}/norm") == pytest.approx(norm, rel=1e-4, abs=1e-9)
        assert values[f"watch/{name}/gradient_norm"] == pytest.approx(gradient_norm, rel=1e-4)
        if norm:
            expected = pytest.approx(0.1 * gradient_norm / norm, rel=1e-3)
            assert values[f"watch/{name}/update_ratio"] == expected


def test_watch_of_a_training_keeps_its_bits(model, images):
    paddle.seed(3)
    other = MNIST()
    optimizers = {net: sgd(net) for net in (model, other)}
    with watch(model, every=2) as seen:
        for _ in range(5):
            for net, optimizer in optimizers.items():
                step(net, optimizer, images)
    for parameter, unwatched in zip(model.parameters(), other.parameters()):
        assert np.array_equal(parameter.numpy(), unwatched.numpy())
    before = seen.values
    step(model, optimizers[model], images)
    assert seen.values == before


@pytest.mark.parametrize(("every", "start", "steps"), [(3, 0, [1, 3, 6]), (4, 2, [4, 8])])
def test_watch_every_looks_at_the_first_pass_and_every_nth(model, images, every, start, steps):
    values, changes, optimizer = {}, [], sgd(model)
    with watch(model, every=every, start=start) as seen:
        for number in range(start + 1, start + 7):
            step(model, optimizer, images)
            if seen.values != values:
                values = seen.values
                changes.append(number)
    assert changes == steps


def test_watch_wrong_options_raises(model):
    for options, message in (
        ({"what": ["output"]}, "'outputs'"),
        ({"layers": ["conv3"]}, "'conv3'"),
        ({"every": 0}, "every is 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            watch(model, **options)


def findings(model, images, passes=PATIENCE):
    """Return (step, place, kind, message) of each finding in some steps that change nothing."""
    reported = []
    with watch(model, on_finding=reported.append) as seen:
        optimizer = sgd(model, rate=0.0)
        for _ in range(passes):
            step(model, optimizer, images)
    assert reported == seen.findings
    return [dataclasses.astuple(finding) for finding in reported]


def with_biases(layer, biases):
    def prepare(model, images):
        getattr(model, layer).bias.set_value(paddle.to_tensor(biases))
        return images

    return prepare


def with_weights(layer, factor):
    def prepare(model, images):
        weight = getattr(model, layer).weight
        weight.set_value(weight * factor)
        return images

    return prepare


DEAD = with_biases("conv1", 19 * [0.0] + [-100.0])
SAME = with_biases("conv2", 20 * [-30.0])
FINDINGS = {  # what is done to a net, the looks, the first finding and a word of its message
    "dead channel": (DEAD, PATIENCE, "relu1", "dead channels", "channel 19"),
    "same answer": (SAME, 1, "the net", "same answer", "6 samples"),
    "images of 0 to 255": (lambda _, images: 255 * images, 1, "conv1", "exploding", "scaled to"),
    "large weights": (with_weights("fc", 1000), 1, "fc", "exploding", "weights are too large"),
    "not finite": (with_weights("conv2", np.nan), 1, "conv2", "not finite", ""),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_watch_sick_net_reports_its_first_layer(model, images, name):
    prepare, passes, place, kind, words = FINDINGS[name]
    first, *_ = findings(model, prepare(model, images), passes)
    assert first[:3] == (passes, place, kind) and words in first[3]


def test_watch_net_of_one_layer_is_named():
    net = paddle.nn.Linear(2, 2)
    with watch(net) as seen:
        net(paddle.full([3, 2], np.nan))
    assert str(seen.findings[0]).startswith("step 1, net: 6 of its outputs are NaN")
    assert seen.values["watch/net/nonfinite"] == 6


def test_watch_healthy_net_or_equal_images_reports_nothing(model, images):
    assert findings(model, images) == []
    assert findings(model, images[:1].expand([6, 1, 28, 28]), 1) == []


def test_watch_dead_layer_reports_the_gradients_that_it_stops(model, images):
    found = [finding[:3] for finding in findings(model, SAME(model, images))]
    assert found[:2] == [(1, "the net", "same answer"), (PATIENCE, "relu2", "dead layer")]
    stopped = "conv1.weight conv1.bias conv2.weight conv2.bias fc.weight"
    assert {place for _, place, kind in found if kind == "no gradient"} == set(stopped.split())


def test_watch_in_a_trainer_sees_the_first_shard_of_each_step_and_no_evaluation(model, images):
    """A step has three passes here, and an evaluation follows it."""
    means = []
    with watch(model, ["outputs"], every=2) as seen:
        for number in range(12):
            view = View(TrainState(step=number // 3), None, {}, model)
            if number == 0:
                seen.on_epoch_start(view)
            elif number % 3 == 0:
                seen.after_step(view)
                model.eval()
                model(images - number)
                model.train()
            model(images + number)
            if seen.values.get("watch/fc/mean") not in means:
                means.append(seen.values["watch/fc/mean"])
    assert len(means) == 3  # steps 1, 2 and 4


@pytest.mark.parametrize("shape", [[], [4]])
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_watch_of_layers_whose_output_is_one_number(shape, scale):
    class Total(paddle.nn.Layer):
        def forward(self, inputs):
            return (inputs * scale).sum()

    net = paddle.nn.Sequential(Total())
    with watch(net) as watched:
        net(paddle.ones(shape))
    assert watched.values["watch/0/zeros"] == (scale == 0)


def test_watch_of_a_net_whose_outputs_have_no_columns_reports_nothing():
    class Columns(paddle.nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs)[:, :0]

    net = paddle.nn.Sequential(paddle.nn.Linear(4, 3), Columns(3, 3))
    with watch(net) as watched:
        assert net(paddle.rand([2, 4])).shape == [2, 0]
    assert [*watched.shapes] == ["0"] and not watched.findings
