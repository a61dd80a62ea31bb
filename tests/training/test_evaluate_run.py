"""Loading and evaluating what `fit` has trained."""

import logging
import shutil
import sys

import forked
import paddle
import pytest
from fit_rows import CLASSIFICATION, ROWS, Points, arguments, momentum, perceptron, train
from stateful_rows import CenterLoss

from paddle_mnist import Gathered, evaluate_run, load_model
from paddle_mnist.checkpoint.weights import load
from paddle_mnist.errors import CheckpointError, ConfigError, DataError

TASK = {"loss": CLASSIFICATION["loss"], "metrics": CLASSIFICATION["metrics"]}


def by_name(metrics):
    return {tag.partition("/")[2]: value for tag, value in metrics.items()}


def weights_of(model):
    return {name: value.numpy().tolist() for name, value in model.state_dict().items()}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose first evaluation is the best, so that "best" and "latest" differ."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    steps = paddle.optimizer.lr.PiecewiseDecay([5], [0.1, 8.0])
    train("dropout", folder, optimizer=lambda p: paddle.optimizer.SGD(steps, p), keep_epochs=True)
    return folder


@pytest.mark.parametrize(
    "row", ["BatchNorm", "dropout", "EMA", "dict batches", "random samples", "num_workers"]
)
def test_evaluation_of_a_run_is_that_of_its_fit(row, tmp_path):
    """To the last bit: in the same batches, with the same random samples, of the same weights."""
    call = arguments(row, tmp_path)
    result = train(row, tmp_path)
    task = {name: call[name] for name in ("loss", "metrics") if call.get(name)}
    task = {"step": call["step"]} if call.get("step") else task
    assert evaluate_run(tmp_path, call["model"], call["valid"], **task) == by_name(result.metrics)


SCRIPT = """
import sys
from fit_rows import CLASSIFICATION, ROWS, Points
from paddle_mnist import evaluate_run

evaluate_run(sys.argv[1], ROWS["dropout"]["model"], Points(), loss=CLASSIFICATION["loss"])
"""


def test_evaluate_run_in_a_script_logs_lines_of_the_form_of_fit(run, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = forked.run([sys.executable, "script.py", run], cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stderr
    assert f"\nweights: {run}/checkpoints/" in f"\n{done.stdout}" and " - " not in done.stdout
    assert "weights" not in done.stderr


def test_a_loss_that_is_a_layer_gets_what_the_run_has_trained(tmp_path, caplog):
    result = train("SGD with clipping", tmp_path / "run", loss=CenterLoss(), optimizer=momentum)
    expected, task = by_name(result.metrics), {"metrics": TASK["metrics"]}
    values = evaluate_run(tmp_path / "run", perceptron, Points(), loss=CenterLoss(), **task)
    assert values == expected
    shutil.copy(result.weights, tmp_path)
    logging.getLogger("paddle_mnist").addHandler(caplog.handler)
    bare = tmp_path / result.weights.name
    values = evaluate_run(bare, perceptron, Points(), loss=CenterLoss(), batch_size=8, **task)
    assert values["acc"] == expected["acc"] and values["loss"] != expected["loss"]
    assert "no checkpoint with the parameters of the loss, a CenterLoss, is there" in caplog.text


def test_checkpoints_are_evaluated_by_name_and_path(run):
    model = ROWS["dropout"]["model"]
    losses = {
        name: evaluate_run(name, model, Points(), run=run, **TASK)["loss"]
        for name in ("best", "latest")
    }
    assert losses["best"] < losses["latest"]
    for name, path in (("best", "model_epoch0"), ("latest", "model_epoch1.pdparams")):
        path = run / "checkpoints" / path
        assert evaluate_run(path, model, Points(), **TASK)["loss"] == losses[name]


def test_other_data_and_metrics_than_the_runs(run):
    """Gathered ones too; in batches of another size to rounding."""
    highest = Gathered(lambda outputs, labels: outputs.max())
    task = {"loss": TASK["loss"], "metrics": {"highest": highest}}
    model = ROWS["dropout"]["model"]
    values = evaluate_run(run, model, Points(7), batch_size=3, **task)
    assert set(values) == {"loss", "highest"}
    whole = evaluate_run(run, model, paddle.io.DataLoader(Points(7), batch_size=7), **task)
    assert values == pytest.approx(whole, rel=1e-5)
    assert values["loss"] != pytest.approx(evaluate_run(run, model, Points(), **task)["loss"])


def test_evaluation_leaves_generators_and_modes_as_they_were(run):
    model = ROWS["dropout"]["model"]()
    paddle.seed(3)
    expected = paddle.rand([2]).tolist()
    paddle.seed(3)
    evaluate_run(run, model, Points(noise=0.3), **TASK)
    assert paddle.rand([2]).tolist() == expected and model.training


def test_model_is_loaded_whether_built_here_or_before(run):
    expected = {name: value.tolist() for name, value in load(run / "model.pdparams").items()}
    own = perceptron(paddle.nn.Dropout(0.5))
    assert load_model(run, own) is own and weights_of(own) == expected
    assert weights_of(load_model("latest", ROWS["dropout"]["model"], run)) == expected
    assert weights_of(load_model("best", ROWS["dropout"]["model"], run)) != expected


WRONG = {
    "another net": ({"model": lambda: perceptron(width=8)}, CheckpointError, "does not fit"),
    "no net": ({"model": lambda: None}, ConfigError, "the model is a NoneType; expected a paddle"),
    "not even a function": ({"model": 3}, ConfigError, "the model is a int; expected a paddle"),
    "no such run": ({"weights": "nowhere"}, CheckpointError, "nowhere: No such file"),
    "no task": ({"loss": None, "metrics": None}, ConfigError, "one of loss and step is expected"),
    "no data": ({"data": []}, DataError, "have no batches; expected at least one"),
    "other data": ({"data": [paddle.rand([2, 5])]}, DataError, r"expected \(inputs, labels\)"),
    "other shapes": (
        {"data": [(paddle.rand([5]), paddle.zeros([1], "int64"))] * 2},
        ConfigError,
        r"the first batch of data fails with .*float32 \[2, 5\]",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name, run):
    changed, kind, message = WRONG[name]
    usual = {"weights": run, "model": ROWS["dropout"]["model"], "data": Points(), **TASK}
    with pytest.raises(kind, match=message):
        evaluate_run(**{**usual, **changed})


def test_best_of_a_run_that_was_never_evaluated_is_said_to_be_none(tmp_path):
    train("dropout", tmp_path / "run", valid=None)
    with pytest.raises(CheckpointError, match="no evaluation has chosen a best checkpoint"):
        load_model("best", ROWS["dropout"]["model"], tmp_path / "run")
