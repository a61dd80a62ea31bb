"""One grammar: what may stand for weights, or for a run, wherever one is read."""

import importlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import paddle
import pytest
from conftest import ROOT

from paddle_mnist import (
    MNIST,
    DigitPredictor,
    TrainConfig,
    checkpoint,
    evaluate_run,
    load_model,
    predict_run,
    train_and_evaluate,
)
from paddle_mnist.apps.dashboard import log_folders
from paddle_mnist.checkpoint.manifest import OPTIMIZER, PARAMS, TRAINING
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.errors import CheckpointError, ConfigError
from paddle_mnist.inference.predictor import Predictor
from paddle_mnist.mnist.pretrained import WEIGHTS

PICTURE = ROOT / "tests/pictures/7-07.jpg"
RUN, OTHER = "work/output/first", "work/output/second"
PATH = f"{RUN}/checkpoints/mnist_epoch0"

# What names weights, as (name, run), and the file of those weights; BEST and NEWEST are
# checkpoints of RUN, which ended by early stopping, with the best.
NAMES = {
    "a run": ((RUN, None), f"{RUN}/checkpoints/BEST.pdparams"),
    "a checkpoint": ((PATH, None), f"{PATH}.pdparams"),
    "a manifest": ((f"{PATH}.json", None), f"{PATH}.pdparams"),
    "a checkpoint's file": ((f"{PATH}.pdparams", None), f"{PATH}.pdparams"),
    "a file": ((f"{RUN}/mnist.pdparams", None), f"{RUN}/mnist.pdparams"),
    "the tutorial's file": (("lone.pdparams", None), "lone.pdparams"),
    "a name and a run": (("mnist_epoch0", RUN), f"{PATH}.pdparams"),
    "best and a run": (("best", RUN), f"{RUN}/checkpoints/BEST.pdparams"),
    "latest and a run": (("latest", RUN), f"{RUN}/checkpoints/NEWEST.pdparams"),
    "latest": (("latest", None), f"{OTHER}/checkpoints/mnist_epoch0.pdparams"),
    "pretrained": (("pretrained", None), str(WEIGHTS)),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny):
    """Two runs under work/output, the newest by Adam with an average; weights; an exported model.

    The first one ended by early stopping, two epochs after its best.
    """
    folder = tmp_path_factory.mktemp("runs")
    plain = {"data": str(tiny), "batch_size": 32, "visualdl": "", "figures": False, "watch": 0}
    for name, options in {
        RUN: {"epochs": 30, "early_stop_patience": 2, "seed": 1},
        OTHER: {"epochs": 1, "seed": 2, "ema": 0.9, "optimizer": "adam", "learning_rate": 0.01},
    }.items():
        train_and_evaluate(TrainConfig(output=str(folder / name), **plain, **options))
    paddle.save(MNIST().state_dict(), str(folder / "lone.pdparams"))
    paddle.save({"w": paddle.ones([2])}, str(folder / "other.pdparams"))
    Path(folder, "jit").mkdir()
    Path(folder, "jit/net.json").write_text("{}")
    Path(folder, "jit/net.pdiparams").write_bytes(b"")
    Path(folder, "out").mkdir()
    Path(folder, "out/model.onnx").write_bytes(b"")
    Path(folder, "out/about.json").write_text("{}")
    return folder


@pytest.fixture
def place(runs, tmp_path, monkeypatch):
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(capsys):
    """Call a command in this process; gives what it prints, or its error if it exits with 2 to 4.

    expect: its exit code.
    """

    def run(name, *args, expect=0):
        capsys.readouterr()
        code = importlib.import_module(f"paddle_mnist.commands.{name}").main(list(map(str, args)))
        printed, error = capsys.readouterr()
        assert code == expect, error
        return error if expect else printed

    return run


def names_of(run=RUN):
    """The names of the best and of the newest checkpoint."""
    store = CheckpointStore(f"{run}/checkpoints")
    return store.best().name, store.newest().name


def expected_file(row):
    best, newest = names_of()
    assert len({best, newest, "mnist_epoch0"}) == 3
    return NAMES[row][1].replace("BEST", best).replace("NEWEST", newest)


def same(values, path):
    """Return whether these are the weights in a file, the table of names aside."""
    return all(
        np.array_equal(np.asarray(values[name]), np.asarray(value))
        for name, value in paddle.load(str(path)).items()
        if not isinstance(value, dict)
    )


# ------------------------------------------------------------------ what names weights


def test_load_takes_whatever_names_weights(place):
    wrong = [
        row
        for row, ((name, run), _) in NAMES.items()
        if not same(checkpoint.load(name, run), expected_file(row))
    ]
    assert not wrong


def test_python_functions_take_a_name_and_a_run(place, lines):
    path = expected_file("best and a run")
    model = load_model("best", MNIST, RUN)
    assert same(model.state_dict(), path)
    images, labels = paddle.rand([2, 1, 28, 28]), paddle.zeros([2, 1], "int64")
    logits, samples = model(images).numpy(), list(zip(images, labels))
    assert np.array_equal(predict_run("best", MNIST, samples, run=RUN), logits)
    evaluate_run("best", MNIST, samples, loss=paddle.nn.CrossEntropyLoss(), run=RUN)
    DigitPredictor("best", run=Path(RUN))
    assert lines().count(f"weights: {path}") == 4


def test_commands_take_a_name_and_a_run(place, command, lines):
    path = expected_file("best and a run")
    named = ("best", "--run", RUN)
    for words in (named, (RUN, "--checkpoint", "best"), ("-k", "best", "--output", RUN)):
        assert json.loads(command("eval", *words, "--json"))["checkpoint"] == path
    command("export_model", *named, "--output", "exported")
    (read,) = json.loads(command("infer", PICTURE, "--checkpoint", *named, "--json"))
    assert sum(f"weights: {path}" in line for line in lines()) == 2  # of the last two
    exported = command("infer", PICTURE, "--model", "exported", "--json")
    probability = pytest.approx(read.pop("probability"), abs=1e-5)
    assert json.loads(exported) == [{**read, "probability": probability}]
    assert json.loads(Path("exported/about.json").read_text())["weights"] == Path(path).name


@pytest.mark.parametrize(
    ("option", "run", "suffix"),
    [
        ("--init_from", RUN, PARAMS),
        ("--incremental_from", RUN, PARAMS),
        ("--init_from", OTHER, PARAMS),
        ("--incremental_from", OTHER, TRAINING),  # not the average of them
    ],
)
def test_training_starts_from_what_a_run_ended_with(place, tiny, command, option, run, suffix):
    ended = json.loads(Path(run, "result.json").read_text())["checkpoint"]
    options = ["--data", tiny, "--batch_size", 32, "--output", "new", "--figures", "false"]
    if run == OTHER:
        options += ["--optimizer", "adam", "--learning_rate", 0.01]
    command("train", option, run, *options, "--epochs", 1, "--save_at_start", "true")
    first = CheckpointStore("new/checkpoints").all()[0]
    assert first.step == 0 and same(first.load(PARAMS), f"{run}/checkpoints/{ended}{suffix}")
    now, saved = first.load(OPTIMIZER), paddle.load(f"{run}/checkpoints/{ended}{OPTIMIZER}")
    moments = {name: value for name, value in saved.items() if hasattr(value, "numpy")}
    kept = {name in now and np.array_equal(now[name], moments[name]) for name in moments}
    assert kept == {option == "--incremental_from"}
    assert now["LR_Scheduler"]["last_epoch"] == 0 < saved["LR_Scheduler"]["last_epoch"]


# ------------------------------------------------------------------ a run means its result


def test_unfinished_run_means_its_newest_checkpoint(place, lines):
    _, newest = names_of()
    Path(RUN, "result.json").write_text('{"check')
    assert same(checkpoint.load(RUN), f"{RUN}/checkpoints/{newest}{PARAMS}")
    assert any(f"is not finished; its newest checkpoint is {newest}" in line for line in lines())


@pytest.mark.parametrize("lost", [PARAMS, ".json"])
def test_finished_run_without_its_checkpoint_has_its_weights(place, tiny, command, lost):
    best, _ = names_of()
    Path(RUN, "checkpoints", best + lost).write_text("hello")
    assert same(checkpoint.load(RUN), f"{RUN}/mnist.pdparams")
    error = command("train", "--incremental_from", RUN, "--data", tiny, "--output", "x", expect=4)
    assert "weights alone" in error and "init_from" in error


# ------------------------------------------------------------------ the newest run


def test_export_without_a_name_takes_the_newest_run(place, command, lines):
    command("export_model", "--list")
    assert f"newest run: {OTHER}" in lines()
    shutil.rmtree("work")
    command("export_model", "--list")
    assert "work/output: no run found" in lines()
    assert any("pretrained weights: " in line for line in lines())


def test_export_lists_what_a_checkpoint_keeps(place, command):
    listed = command("export_model", "--list", "--checkpoint", "latest", "--run", OTHER)
    for what in ("moment1", "moment2", "in training", "gradient"):
        assert re.search(rf"  fc\.weight {what} +\[980, 10\]", listed), listed
    assert "LR_Scheduler last_epoch" in listed
    listed = command("export_model", "--list", "--checkpoint", "lone.pdparams")
    assert "no optimizer state is saved with these weights" in listed


# ------------------------------------------------------------------ what is refused


def test_load_of_an_invalid_name_raises(place):
    Path("lone.pdopt").touch()
    for name, message in (
        ("bset", "bset: No such file or directory; .*did you mean 'best'"),
        ("nope.pdparams", r"^nope.pdparams: No such file or directory; expected latest, best, .*"),
        ("work/output/frist", "did you mean 'work/output/first'"),
        (f"{RUN}/checkpoints/mnist_epoch99", "did you mean '.*/checkpoints/mnist_epoch"),
        (f"{RUN}/config.yaml", "config.yaml: not a checkpoint; expected"),
        ("lone.pdopt", "lone.pdopt: its manifest lone.json is missing"),
        (f"{RUN}/checkpoints", "a folder of checkpoints, not a run; .*checkpoints/mnist_"),
        ("out", "out: an exported model"),
        ("x" * 300, "File name too long"),
        ("s3://bucket/run", "a URL; expected a path"),
    ):
        with pytest.raises(CheckpointError, match=message) as refused:
            checkpoint.load(name)
        assert "\n" not in str(refused.value)


JIT_FILES = ("", ".json", ".pdiparams")  # as Paddle 3 writes them
OF_EXPORTED = "a file of an exported model, from which no weights are read; expected latest"
NO_CHECKPOINT = ": No such file or directory; expected latest, best, or the path of a run or a"
NOT_OF_IT = f"{RUN} does not belong to the run {OTHER}"
REFUSED = [  # words, exit code, what the error says
    (["eval", RUN, "--run", OTHER], 2, NOT_OF_IT),
    (["eval", RUN, "-k", "best", "--run", OTHER], 2, "expected a run and one of its checkpoints"),
    (["eval", "--run", RUN, "--output", OTHER], 2, f"run is {RUN} and {OTHER}; expected one"),
    (["infer", PICTURE, "-k", RUN, "--model", OTHER], 2, f"{RUN} and {OTHER}; expected one"),
    (["infer", PICTURE, "--run", OTHER, "--model", RUN], 2, NOT_OF_IT),
    (["eval", PATH, "--run", OTHER], 2, f"{PATH} does not belong to the run {OTHER}"),
    (["eval", "pretrained", "--run", RUN], 2, f"pretrained and the run {RUN} are"),
    (["eval", "mnist_epoch99", "--run", RUN], 4, f"{RUN}/checkpoints/mnist_epoch"),
    (["eval", "pretrained", "--data", "nope"], 3, "nope"),
    (["export_model", "out"], 4, "out: an exported model, from which no"),
    (["eval", "out/model.onnx"], 4, "out/model.onnx: not a checkpoint"),
    (["dashboard", "out"], 3, "out: no VisualDL files there"),
    (["plot", "pretrained"], 4, "pretrained: holds only weights"),
    (["export_model", "best", RUN], 2, f"{RUN}: a run's directory; expected another folder"),
    (["export_model", RUN, "a", "--output", "b"], 2, "b are given; expected one"),
    (["train", "--resume", "pretrained"], 4, "pretrained: holds only weights"),
    (["train", "--incremental_from", "lone.pdparams"], 4, "holds only weights"),
    (["train", "--resume", "no"], 4, NO_CHECKPOINT),
    (["train", "--resume", "pretraine"], 4, "the path of a run or a checkpoint\n"),
    (["train", "--incremental_from", "no"], 4, f"error: no{NO_CHECKPOINT}"),
    (["train", "--init_from", "no"], 4, "a run, a checkpoint or a .pdparams\n"),
    (["plot", "s3://bucket/run"], 4, "a URL; expected a path"),
    (["infer", PICTURE, "--model", "no"], 4, "or the folder of an exported model\n"),
    (["checkpoints", "list", "file:///mirror"], 4, "give its folder, or download it first"),
    *((["infer", PICTURE, "--model", f"jit/net{end}"], 4, OF_EXPORTED) for end in JIT_FILES),
    (["eval", "jit/net"], 4, OF_EXPORTED),
    (["infer", PICTURE, "-k", "other.pdparams"], 4, "does not fit the model"),
]


def test_command_given_contradictory_or_invalid_names_exits_with_one_line(place, command, tiny):
    for words, code, message in REFUSED:
        more = ["--data", tiny, "--output", "new"] if words[0] == "train" else []
        error = command(*words, *more, expect=code)
        assert message in error, words
        assert error.count("error: ") == 1 and "Traceback" not in error, words


# ------------------------------------------------------------------ what shows runs


def test_commands_that_show_runs_take_whatever_is_of_a_run(place, command):
    for name in (RUN, PATH, f"{PATH}.pdopt", f"{RUN}/checkpoints", f"{RUN}/mnist.pdparams"):
        listed = command("checkpoints", "list", name, "--json")
        assert json.loads(listed)["folder"] == f"{RUN}/checkpoints"
    for words in (["latest"], ["best"], [], [OTHER]):
        listed = command("checkpoints", "list", *words, "--json")
        assert json.loads(listed)["folder"] == f"{OTHER}/checkpoints", words
    assert command("plot", f"{PATH}.json", "--only", "curves.png") == f"{RUN}/figures\n"
    Path(RUN, "vdl/001").mkdir(parents=True)
    Path(RUN, "vdl/001/vdlrecords.1.log").touch()
    assert log_folders([Path(RUN)])[1] == ["first/vdl"]


# ------------------------------------------------------------------ predictors


def test_predictor_without_an_exported_model_raises(place):
    with pytest.raises(CheckpointError, match=r"not an exported model.*\.DigitPredictor"):
        Predictor(RUN)
    with pytest.raises(ConfigError, match=r"out, an exported model, and the run .* are given"):
        DigitPredictor("out", run=RUN)
