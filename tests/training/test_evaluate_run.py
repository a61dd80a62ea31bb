"""Loading and evaluating what `fit` has trained."""

import json
import shutil

import paddle
import pytest
from fit_rows import CLASSIFICATION, ROWS, Points, arguments, momentum, perceptron, train
from stateful_rows import CenterLoss

from paddle_mnist import evaluate_run, load_model
from paddle_mnist.checkpoint.weights import load
from paddle_mnist.errors import CheckpointError, ConfigError, DataError

TASK = {"loss": CLASSIFICATION["loss"], "metrics": CLASSIFICATION["metrics"]}


def by_name(metrics):
    return {tag.partition("/")[2]: value for tag, value in metrics.items()}


def weights_of(model):
    return {name: value.numpy().tolist() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("row", ["dict batches", "num_workers"])
def test_evaluate_run_gives_the_numbers_of_its_fit(row, tmp_path):
    """They agree to the last bit: the batches, random samples and weights are the same."""
    call = arguments(row, tmp_path)
    result = train(row, tmp_path)
    task = {name: call[name] for name in ("loss", "metrics") if call.get(name)}
    task = {"step": call["step"]} if call.get("step") else task
    assert evaluate_run(tmp_path, call["model"], call["valid"], **task) == by_name(result.metrics)


def test_evaluate_run_loads_trained_parameters_into_the_loss(tmp_path, lines):
    result = train("SGD with clipping", tmp_path / "run", loss=CenterLoss(), optimizer=momentum)
    expected, task = by_name(result.metrics), {"metrics": TASK["metrics"]}
    values = evaluate_run(tmp_path / "run", perceptron, Points(), loss=CenterLoss(), **task)
    assert values == expected
    bare = shutil.copy(result.weights, tmp_path)
    values = evaluate_run(bare, perceptron, Points(), loss=CenterLoss(), batch_size=8, **task)
    assert values["acc"] == expected["acc"] and values["loss"] != expected["loss"]
    assert any(
        "no checkpoint with the parameters of the loss, a CenterLoss" in line for line in lines()
    )


def test_evaluate_run_and_load_model_take_checkpoints_by_name_and_path(run_of_fit):
    """The averages of the first epoch's weights are the best."""
    recorded = json.loads((run_of_fit / "result.json").read_text())["metrics"]
    paths = {"best": run_of_fit / "checkpoints/model_epoch0"}
    paths["latest"] = run_of_fit / "checkpoints/model_epoch2.pdparams"
    losses = {}
    for name, path in paths.items():
        losses[name] = evaluate_run(name, perceptron, Points(), run=run_of_fit, **TASK)["loss"]
        assert evaluate_run(path, perceptron, Points(), **TASK)["loss"] == losses[name]
    assert losses["best"] < losses["latest"] == recorded["near/loss"]
    expected = {k: v.tolist() for k, v in load(run_of_fit / "model.pdparams").items()}
    own = perceptron()
    assert load_model(run_of_fit, own) is own and weights_of(own) == expected
    assert not own.training
    assert weights_of(load_model("latest", perceptron, run_of_fit)) == expected
    assert weights_of(load_model("best", perceptron, run_of_fit)) != expected


WRONG = {
    "another net": ({"model": lambda: perceptron(width=8)}, CheckpointError, "does not fit"),
    "no net": ({"model": lambda: None}, ConfigError, "the model is a NoneType; expected a paddle"),
    "no such run": ({"weights": "nowhere"}, CheckpointError, "nowhere: No such file"),
    "no data": ({"data": []}, DataError, "have no batches; expected at least one"),
    "other data": ({"data": [paddle.rand([2, 5])]}, DataError, r"expected \(inputs, labels\)"),
    "other shapes": (
        {"data": [(paddle.rand([5]), paddle.zeros([1], "int64"))] * 2},
        ConfigError,
        r"the first batch of data fails with .*float32 \[2, 5\]",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_evaluate_run_wrong_argument_raises(name, run_of_fit):
    changed, kind, message = WRONG[name]
    usual = {"weights": run_of_fit, "model": perceptron, "data": Points(), **TASK}
    with pytest.raises(kind, match=message):
        evaluate_run(**{**usual, **changed})


def test_load_model_best_of_a_run_that_was_never_evaluated_raises(tmp_path):
    train("dropout", tmp_path / "run", valid=None, epochs=1)
    with pytest.raises(CheckpointError, match="no evaluation has chosen a best checkpoint"):
        load_model("best", ROWS["dropout"]["model"], tmp_path / "run")
