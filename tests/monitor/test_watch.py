"""Looking into a net: figures against NumPy's, findings in words, and nothing left behind."""

import logging
from argparse import Namespace

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F
from reproduction import collapse

import paddle_mnist
from paddle_mnist import MNIST
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.cache import open_data
from paddle_mnist.mnist.export import export_model
from paddle_mnist.monitor.diagnosis import PATIENCE
from paddle_mnist.monitor.hooks import outputs_of
from paddle_mnist.monitor.print_layers import print_in_batches, print_layers
from paddle_mnist.monitor.watch import watch

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


def test_is_found_at_the_package_and_is_no_module():
    assert paddle_mnist.watch is watch


def test_figures_of_outputs_are_those_of_numpy(model, images):
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


def test_figures_of_parameters_and_gradients_are_those_of_numpy(model, images):
    before = {name: p.numpy() for name, p in model.named_parameters()}
    with watch(model) as seen:
        loss = F.cross_entropy(model(images), LABELS)
        loss.backward()
        gradients = {name: p.grad.numpy() for name, p in model.named_parameters()}
        optimizer = sgd(model)
        optimizer.step()
        optimizer.clear_grad()
        values = seen.values
    for name, old in before.items():
        norms = [np.linalg.norm(a) for a in (old, gradients[name], 0.1 * gradients[name])]
        assert values.get(f"watch/{name}/norm") == pytest.approx(norms[0], rel=1e-4, abs=1e-9)
        assert values[f"watch/{name}/gradient_norm"] == pytest.approx(norms[1], rel=1e-4)
        if norms[0]:
            expected = pytest.approx(norms[2] / norms[0], rel=1e-3)
            assert values[f"watch/{name}/update_ratio"] == expected


def test_figures_may_be_read_while_the_step_is_on_its_way(model, images):
    optimizer, known = sgd(model), []
    with watch(model, layers=["fc"]) as seen:
        loss = F.cross_entropy(model(images), LABELS)
        known.append({tag.rpartition("/")[2] for tag in seen.values})
        loss.backward()
        known.append({tag.rpartition("/")[2] for tag in seen.values})
        optimizer.step()
        known.append({tag.rpartition("/")[2] for tag in seen.values})
    assert known[0] >= {"mean", "norm"} and not known[0] & {"gradient_norm", "update_ratio"}
    assert known[1] - known[0] == {"gradient_norm"} and known[2] - known[1] == {"update_ratio"}


def test_looks_change_no_bit_of_a_training_and_leave_nothing(model, images):
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


@pytest.mark.parametrize(
    ("every", "start", "steps"),
    [
        (1, 0, [1, 2, 3, 4, 5, 6]),
        (3, 0, [1, 3, 6]),
        (4, 2, [4, 8]),
        (100, 0, [1]),
        (2, 1, [2, 4, 6]),
    ],
)
def test_looks_at_the_first_pass_and_every_nth(model, images, every, start, steps):
    looked, optimizer = [], sgd(model)
    with watch(model, every=every, start=start) as seen:
        for number in range(start + 1, start + 7):
            step(model, optimizer, images)
            if seen.values.get("watch/fc/mean") not in (looked[-1:] or [None]):
                looked.append(seen.values["watch/fc/mean"])
                assert steps.pop(0) == number
    assert not steps


def test_works_in_evaluation_and_on_a_loaded_model(model, images, tmp_path):
    paddle.save(model.state_dict(), str(tmp_path / "mnist.pdparams"))
    loaded = MNIST()
    loaded.set_state_dict(paddle.load(str(tmp_path / "mnist.pdparams")))
    loaded.eval()
    with watch(loaded, every=2) as seen, watch(loaded, train_only=True) as blind, paddle.no_grad():
        loaded(images)
        first = seen.values
        loaded(images + 1)
        second = seen.values
        assert not blind.values
    assert first["watch/relu2/mean"] == pytest.approx(
        outputs_of(model, images, ["relu2"])["relu2"].mean(), rel=1e-4
    )
    assert second["watch/relu2/mean"] != first["watch/relu2/mean"]
    assert not [tag for tag in first if "gradient" in tag or "update" in tag]


@pytest.mark.parametrize(
    ("options", "tags"),
    [
        ({"layers": ["conv1"], "what": ["gradients"]}, ["conv1.weight/gradient_norm"]),
        ({"layers": ["fc"], "what": ["parameters"]}, ["fc.bias/norm", "fc.weight/update_ratio"]),
        ({"layers": ["relu2"]}, ["relu2/zeros"]),
    ],
)
def test_some_layers_and_some_figures(model, images, options, tags):
    with watch(model, **options) as seen:
        step(model, sgd(model), images)
    tags_seen = {tag.removeprefix("watch/") for tag in seen.values}
    assert tags_seen >= set(tags)
    assert {tag.split("/")[0].split(".")[0] for tag in tags_seen} == set(options["layers"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"what": ["output"]}, "unknown name 'output'; did you mean 'outputs'"),
        ({"layers": ["conv3"]}, "unknown name 'conv3'; did you mean 'conv"),
        ({"every": 0}, "every 0 passes; expected at least 1"),
    ],
)
def test_wrong_names_are_reported(model, options, message):
    with pytest.raises(ConfigError, match=message):
        watch(model, **options)


def test_layers_inside_layers_and_several_outputs(images):
    class Pair(nn.Layer):
        def forward(self, x):
            return x, -x

    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.block = nn.Sequential(nn.Flatten(), nn.Linear(784, 4))
            self.pair = Pair()

        def forward(self, x):
            return self.pair(self.block(x))[0]

    net = Net()
    with watch(net, layers=["block", "pair"]) as seen:
        net(images)
    shapes = {"block.0": [6, 784], "block.1": [6, 4], "pair": [6, 4]}
    assert seen.shapes == {**shapes, "block": [6, 4]}
    with watch(net) as seen:
        net(images)
    assert seen.shapes == shapes


def test_parameters_of_layers_that_hold_others_are_watched_too(images):
    class Scaled(nn.Layer):
        def __init__(self):
            super().__init__()
            self.scale = self.create_parameter([1], default_initializer=nn.initializer.Constant(2))
            self.fc = nn.Linear(784, 10)

        def forward(self, x):
            return self.scale * self.fc(x.flatten(1))

    net = Scaled()
    with watch(net) as seen:
        step(net, sgd(net), images)
    assert seen.values["watch/scale/norm"] == 2
    assert {"watch/scale/gradient_norm", "watch/fc.bias/gradient_norm"} <= set(seen.values)


def test_norm_of_a_sparse_gradient_is_the_dense_ones():
    words, norms = paddle.to_tensor([[1, 1, 2], [0, 1, 2]]), []
    for sparse in (True, False):
        paddle.seed(0)
        net = nn.Sequential(nn.Embedding(7, 4, sparse=sparse), nn.Flatten(), nn.Linear(12, 2))
        with watch(net) as seen:
            (net(words) ** 2).sum().backward()
        norms.append(seen.values["watch/0.weight/gradient_norm"])
    assert norms[0] > 0 and norms[0] == pytest.approx(norms[1], rel=1e-6)


def test_layer_that_is_called_twice_has_two_outputs(images):
    class Shared(nn.Layer):
        def __init__(self):
            super().__init__()
            self.relu = nn.ReLU()

        def forward(self, x):
            return self.relu(self.relu(x) - 1)  # of 0..1: all zero

    net = Shared()
    with watch(net, patience=2, on_finding=lambda finding: None) as seen:
        for _ in range(2):
            net(images)
    assert seen.values["watch/relu/zeros"] < 1 == seen.values["watch/relu:2/zeros"]
    assert [(f.step, f.place, f.kind) for f in seen.findings] == [(2, "relu:2", "dead layer")]


# ------------------------------------------------------------------ what is found wrong


def findings(model, images, passes=PATIENCE, rate=0.0, **options):
    reported = []
    with watch(model, on_finding=reported.append, **options) as seen:
        optimizer = sgd(model, rate)
        for _ in range(passes):
            step(model, optimizer, images)
    assert reported == seen.findings
    return [(finding.step, finding.place, finding.kind) for finding in reported], reported


def test_healthy_net_is_not_complained_of(model, images):
    assert findings(model, images)[0] == []


def test_dead_channels_are_named_where_they_die_and_once(model, images):
    model.conv1.bias.set_value(paddle.to_tensor([0.0, -100.0, -100.0] + [0.0] * 17))
    places, reported = findings(model, images, 2 * PATIENCE)
    assert places == [(PATIENCE, "relu1", "dead channels")]  # not max_pool1, which hands them on
    assert "channels 1, 2 of 20" in reported[0].message


def test_patience_is_how_many_looks_it_takes(model, images):
    model.conv1.bias.set_value(paddle.to_tensor([-100.0] + [0.0] * 19))
    assert findings(model, images, 4, patience=2)[0] == [(2, "relu1", "dead channels")]
    assert findings(model, images, 4, patience=5)[0] == []


def test_dead_layer_and_the_gradients_it_stops(model, images):
    model.conv2.bias.set_value(paddle.full([20], -30.0))
    places, reported = findings(model, images)
    assert places[:2] == [(1, "the net", "same answer"), (PATIENCE, "relu2", "dead layer")]
    stopped = "conv1.weight conv1.bias conv2.weight conv2.bias fc.weight"
    assert {place for _, place, kind in places if kind == "no gradient"} == set(stopped.split())
    assert "can only guess" in reported[1].message


def test_more_and_more_dead_channels_are_told_again(model, images):
    reported, optimizer = [], sgd(model, 0.0)
    with watch(model, patience=1, on_finding=reported.append):
        for dead in (1, 1, 2, 3, 4, 19):
            model.conv1.bias.set_value(paddle.to_tensor([-20.0] * dead + [0.0] * (20 - dead)))
            step(model, optimizer, images)
    assert [(f.step, f.kind) for f in reported] == [
        (number, "dead channels") for number in (1, 3, 5, 6)
    ]


def test_evaluations_and_training_are_judged_apart(model, images):
    """A channel that is dead in four looks of each has not been so in five of either."""
    model.conv1.bias.set_value(paddle.to_tensor([-100.0] + [0.0] * 19))
    with watch(model, on_finding=lambda finding: None) as seen:
        for mode in (model.train, model.eval):
            mode()
            for _ in range(PATIENCE - 1):
                model(images)
        assert not seen.findings
        model(images)
    assert [finding.place for finding in seen.findings] == ["relu1"]


def test_net_that_gives_one_answer_to_all_images(model, images):
    model.conv2.bias.set_value(paddle.full([20], -30.0))
    places, reported = findings(model, images, 1)
    assert places == [(1, "the net", "same answer")]
    assert "the 6 samples of this batch differ" in reported[0].message
    alike = images[:1].expand([6, 1, 28, 28])
    assert findings(model, alike, 1)[0] == []  # that they get the same answer is right


def test_images_that_are_not_scaled_are_told(model, images):
    places, reported = findings(model, 255 * images, 1)
    assert places[0] == (1, "conv1", "exploding")
    assert "The root mean square of its inputs is 1" in reported[0].message
    assert "whether the images are scaled to 0..1" in reported[0].message


def test_exploding_layer_is_told_its_weights_are_too_large(model, images):
    model.fc.weight.set_value(1000 * model.fc.weight)
    places, reported = findings(model, images, 1)
    assert places == [(1, "fc", "exploding")]
    assert "Its weights are too large" in reported[0].message and "0.045" in reported[0].message


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_what_is_not_finite_is_named_at_its_first_layer(model, images, kind):
    model.conv2.weight.set_value(model.conv2.weight * float(kind))
    places, _ = findings(model, images, 1)
    assert places[0] == (1, "conv2", "not finite")
    with watch(model) as seen:
        model(images)
    assert seen.values["watch/conv2/nonfinite"] == 6 * 20 * 14 * 14
    assert "watch/conv2/mean" not in seen.values


def test_without_another_wish_findings_are_logged(model, images, caplog):
    model.fc.weight.set_value(1000 * model.fc.weight)
    with caplog.at_level(logging.WARNING, "paddle_mnist"), watch(model):
        model(images)
    assert "step 1, fc: the root mean square of its outputs is" in caplog.text


@pytest.mark.parametrize("source", ["digits", "mnist"])
def test_collapse_of_the_tutorials_part_three_is_diagnosed_in_twenty_steps(source, request):
    """Weights drawn from U(-1, 1), as the tutorial sets, Momentum 0.01, batches of 32."""
    data = "digits" if source == "digits" else str(request.getfixturevalue("real_data"))
    report = collapse.measure(open_data(data), Namespace(seed=1))
    assert len(report["losses"]) == 20 and report["losses"][0] > 10
    findings_by_place = {
        (f["step"], f["place"], f["kind"]): f["message"] for f in report["findings"]
    }
    assert [
        kind for _, place, kind in findings_by_place if place == "relu1" and kind.startswith("dead")
    ]
    message = findings_by_place[1, "fc", "exploding"]
    assert "too large from the first step, use Paddle's default initialization" in message


def test_what_is_no_channel_is_not_called_dead(caplog):
    """Pixels at the border of images are always zero; one dead channel is not 49 features."""

    class Net(nn.Layer):
        def __init__(self, *layers):
            super().__init__()
            self.layers = nn.Sequential(*layers)

        def forward(self, x):
            return self.layers(x)

    border = paddle.zeros([6, 1, 28, 28])
    border[:, :, 8:20, 8:20] = 1.0
    convolution = nn.Conv2D(1, 4, 3)
    convolution.bias.set_value(paddle.to_tensor([-50.0, 0.0, 0.0, 0.0]))
    nets = (
        Net(nn.Flatten(), nn.Dropout(0.5), nn.Linear(784, 10)),
        Net(convolution, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 26 * 26, 10)),
    )
    places = []
    for net in nets:
        with watch(net) as seen:
            for _ in range(PATIENCE):
                net(border)
        places.append([(finding.place, finding.kind) for finding in seen.findings])
    assert places == [[], [("layers.1", "dead channels")]]


def test_layers_that_give_no_tensor_or_one_number_are_no_crash(images):
    class Odd(nn.Layer):
        def __init__(self, give):
            super().__init__()
            self.give = give

        def forward(self, x):
            return self.give(x)

    gives = {
        "nothing": lambda x: None,
        "empty": lambda x: x[:0],
        "number": lambda x: 1000 * x.sum(),
        "mapping": lambda x: {"a": [(x, x)]},
        "text": lambda x: "text",
    }

    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            for name, give in gives.items():
                self.add_sublayer(name, Odd(give))

        def forward(self, x):
            return [layer(x) for layer in self.children()]

    with watch(Net()) as seen:
        seen._model(images)
    assert set(seen.shapes) == {"number", "mapping"} and seen.shapes["number"] == []
    assert [(finding.place, finding.kind) for finding in seen.findings] == [("number", "exploding")]


# ------------------------------------------------------------------ printing


def test_prints_in_the_batches_that_are_named(model, images):
    printed = []
    handle = print_in_batches(model, shape=[0], content=[0, 3], start=0, print_fn=printed.append)
    for _ in range(5):
        model(images)
    handle.remove()
    model(images)
    assert [text for text in printed if text.startswith("batch")] == ["batch 0:", "batch 3:"]
    assert sum("outputs7_shape: [6, 10] (fc)" in text for text in printed) == 1
    assert sum("conv1 params -- kernel weights" in text for text in printed) == 2


def test_shapes_are_those_that_the_next_layer_takes(images):
    """Of an output that is reshaped on the way, and not of one that only has as many values."""

    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(28, 6), nn.Linear(168, 168)
            self.third = nn.Identity()

        def forward(self, x):
            x = self.second(self.first(x).reshape([6, -1]))
            return self.third(input=self.third(x.reshape([6, 6, 28]) + 1))

    printed = []
    net = Net()
    with print_layers(net, shape=True, print_fn=printed.append):
        net(images)
    assert [text for text in printed if "puts" in text] == [
        "inputs_shape: [6, 1, 28, 28]",
        "outputs1_shape: [6, 168] (first: [6, 1, 28, 6])",
        "outputs2_shape: [6, 168] (second)",
        "outputs3_shape: [6, 6, 28] (third)",
        "outputs4_shape: [6, 6, 28] (third)",
    ]


def test_prints_count_on_in_a_training_that_goes_on(model, images):
    printed = []
    print_in_batches(model, shape=[401], content=[], start=400, print_fn=printed.append)
    model.eval()
    model(images)  # an evaluation does not count
    model.train()
    for _ in range(3):
        model(images)
    assert [text for text in printed if text.startswith("batch")] == ["batch 401:"]


def test_broken_pass_leaves_no_hook(model, images):
    printed = []
    handle = print_in_batches(model, shape=[0, 1], content=[], print_fn=printed.append)
    with pytest.raises(Exception, match=r"."):
        model(images[:, :, :3, :3])
    printed.clear()
    model(images)
    assert printed.count("outputs7_shape: [6, 10] (fc)") == 1
    handle.remove()


def test_shards_of_a_batch_are_one_step(model, images):
    """The first of a step's three passes stands for it."""
    printed, means = [], []
    handle = print_in_batches(
        model, shape=[1], content=[], print_fn=printed.append, passes_per_step=3
    )
    with watch(model, ["outputs"], every=2, passes_per_step=3) as seen:
        for number in range(12):
            model(images + number)
            if seen.values.get("watch/fc/mean") not in means:
                means.append(seen.values["watch/fc/mean"])
    handle.remove()
    assert len(means) == 3  # steps 1, 2 and 4
    assert printed.count("batch 1:") == 1 and printed.count("outputs7_shape: [6, 10] (fc)") == 1


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "look",
    [
        lambda model, folder: outputs_of(model, paddle.ones([1, 1, 28, 28]), ["conv1"]),
        lambda model, folder: export_model(model, folder),
    ],
    ids=["outputs_of", "export_model"],
)
def test_every_layer_gets_its_own_mode_back(tmp_path, look, training):
    model = MNIST()
    model.train() if training else model.eval()
    model.fc.training = not training  # as a frozen layer, or a dropout that is left on
    look(model, tmp_path)
    modes = (model.training, model.conv1.training, model.fc.training)
    assert modes == (training, training, not training)
