"""Fluid's functions: round trips, and errors for variables that do not fit."""

import numpy as np
import paddle
import pytest

from paddle_mnist import MNIST
from paddle_mnist.errors import CheckpointError, ConfigError
from paddle_mnist.legacy import fluid


def a_model(seed):
    paddle.seed(seed)
    return MNIST()


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
    with pytest.raises(ConfigError, match=r"vars are fc\.b; expected some of"):
        fluid.load_vars(tmp_path, MNIST(), ["fc.b"], "params.pdparams")


def test_save_unknown_names_raises_and_writes_nothing(tmp_path):
    for names in (["fc.b"], []):
        with pytest.raises(ConfigError, match="expected"):
            fluid.save_vars(tmp_path, MNIST(), names)
    for feeds, targets in ((["label"], ["logits"]), (["images"], ["loss"])):
        with pytest.raises(ConfigError, match="expected"):
            fluid.save_inference_model(tmp_path, feeds, targets, MNIST())
    assert not list(tmp_path.iterdir())
