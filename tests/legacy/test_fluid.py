"""Fluid's functions: round trips, and errors for variables that do not fit."""

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.static import InputSpec

from paddle_mnist import MNIST
from paddle_mnist.errors import CheckpointError, ConfigError
from paddle_mnist.legacy import fluid


def a_model(seed):
    paddle.seed(seed)
    return MNIST()


class TwoInputs(nn.Layer):
    """Inputs that are added, a block, a shared layer, a layer that is not called, and an LSTM."""

    def __init__(self):
        super().__init__()
        self.points, self.words, self.body, self.out, self.shared, self.lstm, self.unused = (
            nn.Linear(6, 4),
            nn.Embedding(7, 4),
            nn.Sequential(nn.Linear(4, 5), nn.ReLU()),
            nn.Linear(5, 3),
            nn.Tanh(),
            nn.LSTM(3, 3),
            nn.Linear(1, 1),
        )

    def forward(self, x, ids):
        scores = self.out(self.body(self.points(x) + self.words(ids)))
        self.lstm(scores.unsqueeze(1))
        return {
            "scores": scores * 2,
            "shared": self.shared(self.shared(scores)) + x.sum(-1, keepdim=True),
        }


OF_TWO = [InputSpec([None, 6]), InputSpec([None], "int64")]


def pictures():
    return nn.Sequential(nn.Conv2D(3, 4, 3), nn.ReLU(), nn.Conv2D(4, 1, 3))


def values(model):
    return {name: value.numpy() for name, value in model.state_dict().items()}


def same(values, others):
    return {name for name in values if np.array_equal(values[name], others[name])}


def step(model, optimizer, seed):
    images = paddle.to_tensor(np.random.RandomState(seed).rand(8, 1, 28, 28).astype("float32"))
    labels = paddle.to_tensor(np.arange(8).reshape(8, 1))
    paddle.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    optimizer.clear_grad()
    optimizer._learning_rate.step()


def test_save_vars_chosen_names_load_and_leave_the_others(tmp_path):
    saved, loaded = a_model(1), a_model(2)
    before = values(loaded)
    fluid.save_vars(tmp_path, saved, ["conv1.weight", "fc.bias"])
    fluid.load_vars(tmp_path, loaded, ["conv1.weight"])
    assert same(values(loaded), values(saved)) >= {"conv1.weight"}
    assert same(values(loaded), before) >= set(before) - {"conv1.weight"}
    path = fluid.save_params(tmp_path, saved)
    assert set(paddle.load(str(path))) - {"StructuredToParameterName@@"} == set(values(saved))
    fluid.load_params(tmp_path, loaded)
    assert len(same(values(saved), values(loaded))) == 6


def test_save_persistables_continues_training(tmp_path):
    def parts(seed, start):
        model = a_model(seed)
        rate = paddle.optimizer.lr.ExponentialDecay(0.01, 0.5, last_epoch=start)
        return model, paddle.optimizer.Adam(rate, parameters=model.parameters())

    saved, resumed = parts(1, 3), parts(2, -1)
    step(*saved, 1)
    fluid.save_persistables(tmp_path, *saved)
    fluid.load_persistables(tmp_path, *resumed)
    for model, optimizer in (saved, resumed):
        step(model, optimizer, 2)
    assert len(same(values(saved[0]), values(resumed[0]))) == 6
    assert saved[1].get_lr() == resumed[1].get_lr() < 0.002


def test_load_persistables_into_an_optimizer_that_does_not_fit_raises(tmp_path):
    model = a_model(1)
    adam, used, sgd = (
        kind(paddle.optimizer.lr.StepDecay(0.01, 5), parameters=model.parameters())
        for kind in (paddle.optimizer.Adam, paddle.optimizer.Adam, paddle.optimizer.SGD)
    )
    fluid.save_persistables(tmp_path, model, adam)
    with pytest.raises(CheckpointError, match="Adam"):
        fluid.load_persistables(tmp_path, model, sgd)
    step(model, used, 1)  # the file was saved before the first step
    with pytest.raises(CheckpointError, match=r"missing +conv1.weight moment1"):
        fluid.load_persistables(tmp_path, model, used)


def test_save_inference_model_gives_its_chosen_outputs(tmp_path):
    model = a_model(1)
    fluid.save_inference_model(tmp_path, ["images"], ["probabilities", "conv2"], model)
    predictor, feeds, targets = fluid.load_inference_model(tmp_path)
    assert (feeds, targets) == (["images"], ["probabilities", "conv2"])
    outputs = predictor.run(np.zeros([3, 28, 28], np.uint8))
    assert outputs["conv2"].shape == (3, 20, 14, 14)
    np.testing.assert_allclose(outputs["probabilities"].sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "inputs", "feeds", "targets", "left"),
    [
        (MNIST, None, ["images"], ["conv1", "logits"], "conv1 conv2 fc"),
        (MNIST, None, ["inputs"], ["relu1"], "conv1"),
        (MNIST, None, ["conv1"], ["logits"], "conv2 fc"),
        (MNIST, None, ["relu1"], ["conv2", "max_pool2", "probabilities"], "conv2 fc"),
        (MNIST, None, ["conv1"], ["relu1"], ""),
        (MNIST, InputSpec([None, 1, 28, 28]), ["max_pool2"], ["output"], "fc"),
        (TwoInputs, OF_TWO, ["x", "ids"], ["scores"], "points words body out"),
        (TwoInputs, OF_TWO, ["x"], ["points"], "points"),
        (TwoInputs, OF_TWO, ["ids", "points"], ["body", "out"], "words body out"),
        (TwoInputs, OF_TWO, ["words", "points"], ["body.0"], "body"),
        (TwoInputs, OF_TWO, ["body.1"], ["out"], "out"),
        (pictures, InputSpec([None, 3, None, None]), ["1"], ["output"], "2"),
    ],
)
def test_save_inference_model_computes_any_targets_from_any_feeds(
    tmp_path, make, inputs, feeds, targets, left
):
    """The values are those of the net's layers; parameters that no target needs are left out."""
    paddle.seed(1)
    model = make()
    about = fluid.save_inference_model(tmp_path, feeds, targets, model, inputs)
    assert model.training and not any(x._forward_post_hooks for x in model.sublayers())
    predictor, fed, given = fluid.load_inference_model(tmp_path)
    assert (fed, given) == (feeds, targets) == (fed, about["outputs"])
    random = np.random.RandomState(1)
    found = dict[str, np.ndarray]()
    for name, layer in model.named_sublayers():
        layer.register_forward_post_hook(lambda _, given, out, n=name: found.update({n: out}))
    if make is TwoInputs:
        found["x"], found["ids"] = random.randn(5, 6).astype("float32"), np.arange(5)
        found |= model(*map(paddle.to_tensor, (found["x"], found["ids"])))
    else:
        found["images"] = random.randint(0, 256, [5, 28, 28]).astype("uint8")
        found["inputs"] = found["images"][:, None].astype("float32") / 256
        if make is pictures:
            found["inputs"] = random.randn(2, 3, 9, 7).astype("float32")
        found["logits"] = found["output"] = model(paddle.to_tensor(found["inputs"]))
        found["probabilities"] = nn.functional.softmax(found["logits"])
    batch = [np.asarray(found[name]) for name in feeds]
    outputs = predictor.run(batch[0] if len(batch) == 1 else batch)
    for name in targets:
        np.testing.assert_allclose(outputs[name], found[name].numpy(), atol=1e-5, err_msg=name)
    sizes = [v.size for n, v in model.state_dict().items() if n.split(".")[0] in left.split()]
    file = tmp_path / "inference.pdiparams"
    assert file.exists() == bool(sizes)
    if sizes:
        header = file.stat().st_size - 4 * sum(sizes)  # of each, some bytes
        assert 0 <= header < 40 * len(sizes)


@pytest.mark.parametrize(
    ("make", "inputs", "feeds", "targets", "message"),
    [
        (
            MNIST,
            None,
            ["conv1"],
            ["conv7"],
            r"target_vars: unknown name .conv7.; did you mean .conv2.",
        ),
        (
            MNIST,
            None,
            ["label"],
            ["logits"],
            r"feeded_var_names: unknown name .label.; expected conv1",
        ),
        (MNIST, None, [], ["logits"], r"feeded_var_names are empty"),
        (MNIST, None, ["images"], [], r"target_vars are empty"),
        (MNIST, None, ["images"], ["fc", "fc"], r"without repeats"),
        (MNIST, None, ["images"], ["fc", "logits"], r"fc and logits are one variable"),
        (MNIST, None, ["conv1"], ["conv1"], r"conv1 and conv1 are one variable"),
        (MNIST, None, ["fc"], ["conv1"], r"needs more than fc to compute conv1; .*export_run"),
        (MNIST, None, ["images", "conv1"], ["fc"], r"no target needs images; leave it out"),
        (TwoInputs, None, ["x"], ["points"], r"missing 1 required .*; for a net on other data"),
        (TwoInputs, OF_TWO, ["x", "ids"], ["points"], r"no target needs ids"),
        (TwoInputs, OF_TWO, ["points"], ["out"], r"needs more than points to .*export_run"),
        (TwoInputs, OF_TWO, ["out"], ["scores"], r"needs more than out to compute scores"),
        (TwoInputs, OF_TWO, ["out"], ["scores", "shared"], r"needs more than out to .*export_run"),
        (TwoInputs, OF_TWO, ["x", "ids"], ["lstm"], r"lstm: is not one tensor .*export_run"),
        (TwoInputs, OF_TWO, ["shared"], ["shared"], r"shared: is not one tensor"),
        (TwoInputs, OF_TWO, ["x", "ids"], ["unused"], r"unused: is not one tensor"),
        (int, None, ["x"], ["y"], r"the model is a int"),
    ],
)
def test_save_inference_model_that_cannot_be_cut_raises_and_writes_nothing(
    tmp_path, make, inputs, feeds, targets, message
):
    with pytest.raises(ConfigError, match=message) as caught:
        fluid.save_inference_model(tmp_path / "new", feeds, targets, make(), inputs)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_save_persistables_without_an_optimizer_saves_the_buffers_too(tmp_path):
    saved, loaded = (nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1D(3)) for _ in range(2))
    saved(paddle.rand([8, 2]))  # moves the running mean
    fluid.save_persistables(tmp_path, saved)
    fluid.load_persistables(tmp_path, loaded)
    assert len(same(values(saved), values(loaded))) == 6
    adam = paddle.optimizer.Adam(parameters=loaded.parameters())
    with pytest.raises(CheckpointError, match="the optimizer none; expected Adam"):
        fluid.load_persistables(tmp_path, loaded, adam)
    fluid.save_persistables(tmp_path, loaded, adam)
    with pytest.raises(CheckpointError, match="the optimizer Adam; expected none"):
        fluid.load_persistables(tmp_path, loaded)


def test_load_of_another_model_raises(tmp_path):
    """Fluid silently loaded what happened to fit."""
    other = paddle.nn.Layer()
    other.fc = paddle.nn.Linear(980, 11)
    fluid.save_params(tmp_path, MNIST())
    fluid.save_vars(tmp_path, MNIST(), ["fc.weight"], "few.pdparams")
    with pytest.raises(CheckpointError, match=r"unexpected  conv1.weight"):
        fluid.load_params(tmp_path, other)
    with pytest.raises(CheckpointError, match="No such file"):
        fluid.load_persistables(tmp_path, MNIST(), None)
    for model, name, file, message in (
        (other, "fc.bias", "params.pdparams", r"\[11\]"),
        (MNIST(), "fc.bias", "none.pdparams", "No such file"),
        (MNIST(), "fc.bias", "few.pdparams", "no fc.bias"),
    ):
        with pytest.raises(CheckpointError, match=message):
            fluid.load_vars(tmp_path, model, [name], file)
    with pytest.raises(ConfigError, match=r"did you mean .fc.bias."):
        fluid.load_vars(tmp_path, MNIST(), ["fc.b"], "params.pdparams")


def test_save_unknown_names_raises_and_writes_nothing(tmp_path):
    for names in (["fc.b"], []):
        with pytest.raises(ConfigError, match=r"did you mean|expected"):
            fluid.save_vars(tmp_path, MNIST(), names)
    for feeds, targets in ((["label"], ["logits"]), (["images"], ["loss"])):
        with pytest.raises(ConfigError, match=r"did you mean|expected"):
            fluid.save_inference_model(tmp_path, feeds, targets, MNIST())
    assert not list(tmp_path.iterdir())
