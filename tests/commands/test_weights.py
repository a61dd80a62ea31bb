"""The weights that a name means: the same to every command, and what each says of them."""

import importlib
import json
import logging
import os
import re
import shutil
from pathlib import Path

import numpy as np
import paddle
import pytest
from conftest import ROOT
from digit_parts import build

from paddle_mnist import MNIST, TrainConfig, train_and_evaluate
from paddle_mnist.checkpoint.manifest import OPTIMIZER, PARAMS, TRAINING, read_manifest
from paddle_mnist.checkpoint.saved_weights import find_weights, newest_run
from paddle_mnist.errors import CheckpointError
from paddle_mnist.mnist.evaluate_checkpoint import evaluate_checkpoint
from paddle_mnist.mnist.export import variables
from paddle_mnist.parallel.world import ALONE
from paddle_mnist.training.initialize import initialize
from paddle_mnist.training.run_directory import RunDirectory

PICTURE = ROOT / "tests/pictures/7-07.jpg"


def trained(folder, tiny, **options):
    """A finished run; gives its folder."""
    plain = {"batch_size": 32, "seed": 1, "visualdl": False, "figures": False, "watch": 0}
    train_and_evaluate(TrainConfig(data=str(tiny), output=str(folder), **plain, **options))
    return Path(folder)


@pytest.fixture(scope="module")
def early(tmp_path_factory, tiny):
    """A run that ended by early stopping, two epochs after its best."""
    folder = tmp_path_factory.mktemp("early") / "run"
    return trained(folder, tiny, epochs=30, early_stop_patience=2)


@pytest.fixture(scope="module")
def averaged(tmp_path_factory, tiny):
    """A run with a moving average of its weights, trained by Adam."""
    folder = tmp_path_factory.mktemp("averaged") / "run"
    return trained(folder, tiny, epochs=1, ema=0.9, optimizer="adam", learning_rate=0.01)


@pytest.fixture
def copy(early, tmp_path):
    return Path(shutil.copytree(early, tmp_path / "run"))


@pytest.fixture
def logged():
    """The messages logged so far."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    log = logging.getLogger("paddle_mnist")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield messages
    log.removeHandler(handler)
    log.setLevel(level)


def result(folder):
    return json.loads((folder / "result.json").read_text())


def checkpoint(folder, name=None):
    """A checkpoint of a run, by default the one that it ended with."""
    return read_manifest(folder / f"checkpoints/{name or result(folder)['checkpoint']}.json")


def started(tiny, **options):
    """The parts of a new training that starts from another."""
    config = TrainConfig(data=str(tiny), batch_size=32, epochs=3, seed=8, **options)
    parts = build(config)
    initialize(parts, ALONE, config.start)
    return parts


def same(values, expected):
    """Return whether two sets of the net's weights are equal, name tables aside."""
    names = [name for name, _ in MNIST().named_parameters()]
    return all(np.array_equal(np.asarray(values[name]), expected[name]) for name in names)


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Call a command in this process, in an empty folder; gives what it prints.

    expect: its exit code; gives what it prints to stderr if that is not 0.
    """

    def run(name, *args, expect=0):
        monkeypatch.chdir(tmp_path)
        main = importlib.import_module(f"paddle_mnist.commands.{name}").main
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        printed = capsys.readouterr()
        assert code == expect, printed.err
        return printed.err if expect else printed.out

    return run


# ------------------------------------------------------------------ a run means its result


def test_training_starts_from_the_weights_that_a_run_ended_with(early, tiny, logged):
    best = checkpoint(early)
    assert best.step < result(early)["steps"]
    parts = started(tiny, init_from=str(early))
    assert same(parts.model.state_dict(), paddle.load(str(early / "mnist.pdparams")))
    assert any(f"{best.name}.pdparams" in line for line in logged)


def test_training_goes_further_with_the_optimizer_of_the_checkpoint_a_run_ended_with(
    early, tiny, logged
):
    best = checkpoint(early)
    parts = started(tiny, incremental_from=str(early))
    assert same(parts.model.state_dict(), best.load(PARAMS))
    saved = best.load(OPTIMIZER)
    for key, value in parts.optimizer.state_dict().items():
        if "velocity" in key:
            assert np.array_equal(value.numpy(), saved[key])
    assert any(best.name in line for line in logged)


@pytest.mark.parametrize("form", ["path", "default", "latest"])
def test_evaluation_of_a_run_is_its_result(early, form):
    names = {"path": (str(early), None), "default": (None, str(early))}
    report = evaluate_checkpoint(*names.get(form, ("latest", str(early))))
    assert (report["loss"] == result(early)["eval_loss"]) == (form != "latest")


def test_a_run_without_its_checkpoints_is_evaluated_on_its_own_images(early, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(early, run, ignore=shutil.ignore_patterns("checkpoints"))
    report = evaluate_checkpoint(str(run))
    assert report["loss"] == result(early)["eval_loss"]


def test_average_is_what_a_run_ended_with_and_the_weights_in_training_go_further(averaged, tiny):
    ended_with = checkpoint(averaged)
    average, in_training = ended_with.load(PARAMS), ended_with.load(TRAINING)
    assert not same(average, in_training)
    assert same(average, paddle.load(str(averaged / "mnist.pdparams")))
    assert same(started(tiny, init_from=str(averaged)).model.state_dict(), average)
    further = started(tiny, incremental_from=str(averaged), optimizer="adam", learning_rate=0.01)
    assert same(further.model.state_dict(), in_training)


UNFINISHED = {
    "no result": lambda run: (run / "result.json").unlink(),
    "a torn result": lambda run: (run / "result.json").write_text('{"check'),
    "a result without a checkpoint": lambda run: (run / "result.json").write_text("{}"),
}


@pytest.mark.parametrize("kind", UNFINISHED)
def test_unfinished_run_means_its_newest_checkpoint_and_that_is_said(copy, kind, logged):
    newest = RunDirectory(copy).checkpoints.newest()
    assert newest.name != result(copy)["checkpoint"]
    UNFINISHED[kind](copy)
    weights = find_weights(str(copy))
    assert weights.checkpoint.name == newest.name
    assert same(weights.values, newest.load(PARAMS))
    assert any(f"is not finished; its newest checkpoint is {newest.name}" in x for x in logged)


LOST = {
    "the checkpoint is gone": lambda path: [
        other.unlink() for other in path.parent.glob(f"{path.stem}.*")
    ],
    "its weights are damaged": lambda path: path.with_suffix(PARAMS).write_bytes(b"hello"),
    "its manifest is damaged": lambda path: path.write_text("{"),
}


@pytest.mark.parametrize("kind", LOST)
def test_without_its_checkpoint_a_finished_run_still_has_its_weights(copy, tiny, kind):
    LOST[kind](checkpoint(copy).path)
    weights = find_weights(str(copy))
    assert weights.path == copy / "mnist.pdparams" and weights.manifest["run_id"]
    assert same(weights.values, paddle.load(str(weights.path)))
    with pytest.raises(
        CheckpointError, match=r"weights alone.*start=StartFrom\(.*, weights_only=True\)"
    ):
        started(tiny, incremental_from=str(copy))


def test_epoch_that_broke_off_at_its_end_is_found_by_its_other_name(copy):
    """As an observer's error after the last epoch leaves it."""
    best = checkpoint(copy)
    manifest = dict(best.manifest)
    store = RunDirectory(copy).checkpoints
    files = {suffix: best.read(suffix) for suffix in (PARAMS, OPTIMIZER)}
    for path in best.path.parent.glob(f"{best.name}.*"):
        path.unlink()
    more = {key: manifest[key] for key in ("names", "run_id", "config")}
    store.commit(f"{best.name}_breakpoint", files, best.state, more)
    assert find_weights(str(copy)).checkpoint.name == f"{best.name}_breakpoint"


@pytest.mark.parametrize("name", ["mnist.pdparams", "pretrained"])
def test_weights_alone_are_not_trained_further(early, tiny, name):
    name = str(early / name) if name.endswith(PARAMS) else name
    with pytest.raises(CheckpointError, match="holds weights alone"):
        started(tiny, incremental_from=name)


def test_file_of_weights_may_have_any_suffix(copy):
    weights = copy / "mnist.pdparams"
    other = Path(shutil.copy(weights, copy.parent / "weights.pkl"))
    assert find_weights(other).values.keys() == find_weights(weights).values.keys()


# ------------------------------------------------------------------ names that are none


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bset", "bset: No such file or directory; .*did you mean 'best'"),
        ("pretraind", "did you mean 'pretrained'"),
        ("nope.pdparams", r"^nope.pdparams: No such file or directory; expected latest, best, .*"),
        ("rnu", "did you mean 'run'"),
        ("run/mnist", "did you mean 'run/mnist.pdparams'"),
        ("run/checkpoints/mnist_epoch99", "did you mean 'run/checkpoints/mnist_epoch"),
        ("run/config.yaml", "run/config.yaml: not a checkpoint; expected"),
        ("run/lone.pdopt", "run/lone.pdopt: its manifest lone.json is missing"),
        ("run/checkpoints", "a folder of checkpoints, not a run; .* as run/checkpoints/mnist_"),
        ("exported", "exported: an exported model"),
        (".", "no checkpoint there"),
        ("x" * 300, "File name too long"),
    ],
)
def test_name_that_is_none_is_said_as_it_was_written(copy, monkeypatch, name, said):
    monkeypatch.chdir(copy.parent)
    (copy / "lone.pdopt").touch()
    Path("exported").mkdir()
    Path("exported/about.json").touch()
    with pytest.raises(CheckpointError, match=said) as refused:
        find_weights(name)
    message = str(refused.value)
    assert "\n" not in message and f"{name}.json" not in message
    assert name.removesuffix(PARAMS) + ".json" not in message


@pytest.mark.parametrize("name", ["eval", "export_model", "infer"])
def test_every_command_tells_the_nearest_name(command, name):
    arguments = [PICTURE] if name == "infer" else []
    error = command(name, *arguments, "--checkpoint", "bset", expect=4)
    assert re.search(r"^error: bset: No such file.* did you mean 'best'", error, re.MULTILINE)


# ------------------------------------------------------------------ the newest run


def test_newest_run_is_the_one_trained_last_wherever_it_is(early, averaged, tmp_path):
    assert newest_run(tmp_path) is None
    shutil.copytree(averaged, tmp_path / "b/deeper")
    shutil.copytree(early, tmp_path / "a")
    assert newest_run(tmp_path).path == tmp_path / ("b/deeper")  # trained later, copied earlier
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/config.yaml").touch()  # begun, and nothing saved yet
    assert newest_run(tmp_path).path == tmp_path / "b/deeper"
    shutil.rmtree(tmp_path / "a/checkpoints")
    os.utime(tmp_path / "a/mnist.pdparams")
    assert newest_run(tmp_path).path == tmp_path / "a"


@pytest.fixture
def place(early, averaged, tmp_path):
    """A folder with two runs under work/output; the newest has another optimizer."""
    for name, run in {"first": early, "second": averaged}.items():
        shutil.copytree(run, tmp_path / "work/output" / name)
    return tmp_path


def test_export_takes_the_newest_run_and_says_so(command, place, logged):
    command("export_model", "--output", "out")
    assert "newest run: work/output/second" in logged
    assert "weights: work/output/second/checkpoints/mnist_epoch0.pdparams" in logged
    about = json.loads((place / "out/about.json").read_text())
    assert about["data_hash"] == checkpoint(place / "work/output/second").manifest["data_hash"]
    command("export_model", "--output", "out", "--run", "work/output/first")
    best = checkpoint(place / "work/output/first").name
    assert f"weights: work/output/first/checkpoints/{best}.pdparams" in logged


def test_export_without_a_run_takes_the_pretrained_weights_and_says_so(command, logged):
    command("export_model", "--output", "out")
    assert "work/output: no run found" in logged
    assert any(line.startswith("pretrained weights: ") for line in logged)


# ------------------------------------------------------------------ the three kinds of variable


def test_variables_of_a_checkpoint_are_what_it_holds(early, averaged):
    best = checkpoint(early)
    kept = dict(variables(MNIST(), best)["persistables"])
    assert kept["conv1.weight"] == kept["conv1.weight velocity"] == [20, 1, 5, 5]
    assert kept["LR_Scheduler last_epoch"] == []
    assert len(kept) == 6 + len(best.load(OPTIMIZER)) - 2 + 2  # names no variable; a schedule two
    kept = dict(variables(MNIST(), checkpoint(averaged))["persistables"])
    for what in ("moment1", "moment2", "in training"):
        assert kept[f"fc.weight {what}"] == [980, 10]
    temporaries = dict(variables(MNIST(), best)["temporaries"])
    assert temporaries["conv2.bias gradient"] == [20] and temporaries["conv1"] == [1, 20, 28, 28]


def test_list_tells_what_is_kept_and_what_is_not(command, place):
    run = ("--run", "work/output/second")
    listed = command("export_model", "--list", "--checkpoint", "latest", *run)
    lines = listed.partition("persistables: ")[2].splitlines()
    assert lines[0] == "what work/output/second/checkpoints/mnist_epoch0 keeps"
    assert "  fc.weight moment1           [980, 10]" in lines
    assert "  fc.weight gradient          [980, 10]" in lines
    for name in ("pretrained", "work/output/second/mnist.pdparams"):
        listed = command("export_model", "--list", "--checkpoint", name)
        assert "no optimizer state is saved with these weights" in listed
        assert "moment" not in listed and "LR_Scheduler" not in listed


# ------------------------------------------------------------------ pictures


@pytest.mark.slow
def test_pictures_are_read_with_the_weights_that_are_named(command, place, logged):
    command("export_model", "--checkpoint", "work/output/first", "--output", "out")
    expected = command("infer", PICTURE, "--model", "out", "--json")
    best = checkpoint(place / "work/output/first").name
    for args in (
        ["--checkpoint", "work/output/first"],
        ["--run", "work/output/first"],
        ["--checkpoint", "best", "--run", "work/output/first"],
        ["--checkpoint", f"work/output/first/checkpoints/{best}"],
        ["--checkpoint", "work/output/first/mnist.pdparams"],
    ):
        logged.clear()
        assert command("infer", PICTURE, *args, "--json") == expected
        assert any("weights: work/output/first/" in line for line in logged)
    command("infer", PICTURE, "--checkpoint", "latest")
    assert "newest run: work/output/second" in logged
    assert command("infer", PICTURE, "--json") != expected
    assert any("pretrained weights" in line for line in logged)


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--model", "out"], 2, "out: gives logits; expected probabilities among them"),
        (["--model", "out", "--run", "work/output/first"], 2, "first are given; expected one"),
        (["--model", "out", "--checkpoint", "best"], 4, "out: an exported model, from which no w"),
        (
            ["--model", "no"],
            4,
            "no: No such file.* infer, demo and DigitPredictor also take the folder of an export",
        ),
        (["--checkpoint", "other.pdparams"], 4, "does not fit the model"),
    ],
)
def test_what_cannot_read_pictures_is_said(command, place, args, code, said):
    paddle.save({"w": paddle.ones([2])}, str(place / "other.pdparams"))
    command("export_model", "pretrained", "out", "--outputs", "logits")
    assert re.search(rf"(?m)^error: .*{said}", command("infer", PICTURE, *args, expect=code))
