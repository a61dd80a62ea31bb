"""Starts and ends of trainings: from what another has learned, with old images, and early."""

import hashlib
import json
import shutil

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F

from paddle_mnist import BatchLoader, MnistDataset, TrainConfig, train_and_evaluate
from paddle_mnist.mnist.evaluation import METRICS, load_and_evaluate
from paddle_mnist.mnist.training_set import ReplayOrder, TrainingSet
from paddle_mnist.plots.history import read_history, series

SMALL = ["--recipe", "default", "--batch_size", "32", "--visualdl", "false", "--figures", "false"]


@pytest.fixture
def train(tool, tiny):
    def run(output, *args, **kwargs):
        data = () if "--data" in args else ("--data", tiny)
        return tool("train", *SMALL, "--output", output, *data, *args, **kwargs)

    return run


@pytest.fixture(scope="module")
def old(tmp_path_factory, tool_in, tiny):
    """A finished run on the digits 0 to 4, of two epochs."""
    folder = tmp_path_factory.mktemp("old")
    options = ("--data", f"{tiny}#0-4", "--epochs", 2, "--seed", 3, "--output", "run")
    tool_in(folder)("train", *SMALL, *options)
    return folder / "run"


def result(folder):
    return json.loads((folder / "result.json").read_text())


def test_init_partial_takes_the_weights_that_fit(train, tmp_path, old):
    """The net's first layers, from one of the same kind with 26 classes."""
    letters = paddle.load(str(old / "mnist.pdparams"))
    letters.update({"fc.weight": paddle.zeros([980, 26]), "fc.bias": paddle.zeros([26])})
    paddle.save(letters, str(tmp_path / "letters.pdparams"))
    refusal = train("strict", "--init_from", "letters.pdparams", expect=4).stderr
    assert "fc.bias" in refusal
    options = ("--init_partial", "--learning_rate", "1e-30", "--epochs", "1")
    output = train("part", "--init_from", "letters.pdparams", *options).stdout
    assert "fc.weight, fc.bias: of another shape or dtype in the file" in output
    trained = paddle.load(str(tmp_path / "part/mnist.pdparams"))
    assert (trained["conv2.weight"] == letters["conv2.weight"]).all()
    assert trained["fc.weight"].shape == [980, 10]


def test_incremental_run_resumes_without_its_origin(train, tmp_path, old):
    """Once it has a checkpoint of its own, it needs no other; and it is still the same run."""
    shutil.copytree(old, tmp_path / "origin")
    arguments = ("--incremental_from", "origin", "--seed", "4", "--epochs", "2")
    train("whole", *arguments)
    shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    for path in (tmp_path / "broken/checkpoints").glob("mnist_epoch1.*"):
        path.unlink()
    (tmp_path / "broken/result.json").unlink()
    shutil.rmtree(tmp_path / "origin")
    assert "resuming after step 10" in train("broken", *arguments).stdout
    whole, broken = (tmp_path / name / "mnist.pdparams" for name in ("whole", "broken"))
    assert whole.read_bytes() == broken.read_bytes()
    first, last = (run / "checkpoints/mnist_epoch1.json" for run in (old, tmp_path / "broken"))
    origin, state = json.loads(first.read_text()), json.loads(last.read_text())
    assert state["parent"] == origin["run_id"] != state["run_id"]
    assert (state["state"]["epoch"], state["state"]["step"]) == (2, 20)  # they start at 0 again


@pytest.mark.parametrize(
    ("args", "code", "part"),
    [
        ("--incremental_from OLD --optimizer adam", 4, "Momentum there, Adam"),
        ("--init_from OLD --incremental_from OLD", 2, "incremental_from"),
        ("--init_partial", 2, "init_partial"),
        ("--replay_data nope", 3, "nope"),
        ("--replay_data DATA --replay_fraction 0.0001", 2, "less than one image"),
        ("--augment rotat=3", 2, "rotate=N"),
    ],
)
def test_start_that_does_not_fit_exits_with_one_line(train, tmp_path, tiny, old, args, code, part):
    args = args.replace("OLD", str(old)).replace("DATA", str(tiny))
    error = train("new", *args.split(), expect=code).stderr
    assert error.startswith("error: ") and part in error and "Traceback" not in error
    assert not (tmp_path / "new/checkpoints").exists()


def test_replay_draws_its_share_again_for_every_epoch(tiny):
    new = MnistDataset("train", f"{tiny}#5-9")
    old = MnistDataset("train", f"{tiny}#0-4")
    loader = BatchLoader(TrainingSet(new, old), 32, order=ReplayOrder(len(new), len(old), 0.2, 1))
    epochs = []
    for epoch in range(2):
        order = loader.order(epoch)
        assert sorted(order[order < len(new)]) == list(range(len(new)))  # each new one once
        epochs.append({index for index in order if index >= len(new)})
        assert len(epochs[-1]) == (order >= len(new)).sum()  # no old one twice
        assert len(epochs[-1]) == pytest.approx(0.2 * len(order), abs=0.5)
        labels = np.concatenate([labels.numpy() for _, labels in loader.epoch(epoch)])
        expected = [new[i][1] if i < len(new) else old[i - len(new)][1] for i in order]
        assert np.array_equal(labels, expected)
    assert epochs[0] != epochs[1]


def test_replayed_order_is_the_same_on_every_version_of_numpy():
    order = ReplayOrder(100, 60, 0.2, seed=1, shuffle=True)
    digest = hashlib.sha256(order(3).astype("<i8").tobytes()).hexdigest()
    assert digest.startswith("9a7a68a4ae015e52")


def test_loss_of_accuracy_is_logged_and_stored(train, tool, tmp_path, tiny):
    """The old images are evaluated beside the new ones, also after a resume."""
    old_data, new_data = f"{tiny}#0-4", f"{tiny}#5-9"
    train("old", "--data", old_data, "--epochs", "10", "--keep_epochs", "false", "--watch", "0")
    start = ("--incremental_from", "old", "--replay_data", old_data, "--replay_fraction", "0.01")
    arguments = ("--data", new_data, *start, "--epochs", "2", "--watch", "0")
    output = train("new", *arguments).stdout
    values = result(tmp_path / "new")
    before, after = values["metrics_before"], values["metrics"]
    assert set(before) == {"valid/acc", "valid/loss", "replay/acc", "replay/loss"}
    assert before["replay/acc"] == 1 and before["valid/acc"] == 0
    assert values["lost"] == {"replay/acc": before["replay/acc"] - after["replay/acc"]}
    assert values["lost"]["replay/acc"] > 0.01
    line = f"replay/acc has fallen from 1.0000 before this training to {after['replay/acc']:.4f}"
    assert line in output and line in (tmp_path / "new/train.log").read_text()
    report = tool("eval", "--output", "new", "--data", old_data, "--json").stdout
    assert json.loads(report)["accuracy"] == values["replay_eval_acc"]

    (tmp_path / "new/result.json").unlink()
    for path in (tmp_path / "new/checkpoints").glob("mnist_epoch1.*"):
        path.unlink()
    assert line in train("new", *arguments).stdout
    assert result(tmp_path / "new")["metrics_before"] == before
    other = [f"{tiny}#0-3" if argument == old_data else argument for argument in arguments]
    assert "  replay_data: " in train("new", *other, expect=2).stderr


def test_early_stopping_ends_with_the_best(train, tmp_path):
    folder = tmp_path / "early"
    patience = ("--epochs", "30", "--early_stop_patience", "2", "--save_every_epochs", "50")
    output = train("early", *patience).stdout
    values = result(folder)
    scores = series(read_history(folder / "metrics.jsonl"), "valid/acc")[1]
    best = scores.index(max(scores))
    assert values["epochs"] == len(scores) == best + 3 < 30
    assert values["checkpoint"] == f"mnist_epoch{best}" and values["valid_acc"] == max(scores)
    of_the_best = f"is that of epoch {best + 1} (mnist_epoch{best})"
    assert f"the best of {len(scores)} evaluations {of_the_best}" in output
    final = (folder / "mnist.pdparams").read_bytes()
    assert final == (folder / f"checkpoints/mnist_epoch{best}.pdparams").read_bytes()
    assert "this run is finished" in train("early", *patience).stdout

    # broken off after the last checkpoint but one, it stops at the same epoch
    (folder / "result.json").unlink()
    for path in (folder / "checkpoints").glob(f"mnist_epoch{values['epochs'] - 1}.*"):
        path.unlink()
    train("early", *patience)
    assert result(folder)["epochs"] == values["epochs"]
    assert (folder / "mnist.pdparams").read_bytes() == final


def test_metric_of_digits_is_measured_on_every_split(tmp_path, tiny, monkeypatch):
    """One entry of `METRICS` is all that it needs, up to `result.json` and a report."""

    def confidence(logits, labels):
        return F.softmax(logits).max(axis=1).mean()

    monkeypatch.setitem(METRICS, "confidence", confidence)
    config = TrainConfig(data=str(tiny), output=str(tmp_path / "run"), epochs=1, visualdl="off")
    trained = train_and_evaluate(config)
    assert {"valid/confidence", "eval/confidence"} <= {*trained.metrics}
    entries = result(tmp_path / "run")
    assert 0.1 < entries["eval_confidence"] == trained.metrics["eval/confidence"] <= 1
    report = load_and_evaluate(str(tmp_path / "run")).report()
    assert report["metrics"]["confidence"] == entries["eval_confidence"]
    assert report["metrics"]["acc"] == report["accuracy"] == entries["eval_acc"]
