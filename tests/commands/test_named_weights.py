"""One grammar: what may stand for weights, or for a run, wherever one is read."""

import importlib
import json
import logging
import shutil
from pathlib import Path

import numpy as np
import paddle
import pytest
from conftest import ROOT
from digit_parts import build

from paddle_mnist import (
    MNIST,
    DigitPredictor,
    StartFrom,
    TrainConfig,
    checkpoint,
    evaluate_run,
    load_model,
    predict_run,
    train_and_evaluate,
)
from paddle_mnist.apps import demo
from paddle_mnist.apps.dashboard import log_folders
from paddle_mnist.checkpoint.saved_weights import find_checkpoint, find_run
from paddle_mnist.commands import Parser
from paddle_mnist.commands._weights import add_weights_arguments, named_weights
from paddle_mnist.errors import CheckpointError, ConfigError
from paddle_mnist.inference.predictor import Predictor
from paddle_mnist.mnist.pretrained import WEIGHTS
from paddle_mnist.parallel.world import ALONE
from paddle_mnist.training.initialize import initialize
from paddle_mnist.training.run_directory import RunDirectory

PICTURE = ROOT / "tests/pictures/7-07.jpg"
RUN, OTHER = "work/output/first", "work/output/second"
PATH = f"{RUN}/checkpoints/mnist_epoch0"

# What names weights, as (name, run), and the file of those weights; BEST and NEWEST are
# checkpoints of RUN, which ended by early stopping, with the best.
THINGS = {
    "a run": ((RUN, None), f"{RUN}/checkpoints/BEST.pdparams"),
    "a checkpoint": ((PATH, None), f"{PATH}.pdparams"),
    "a manifest": ((f"{PATH}.json", None), f"{PATH}.pdparams"),
    "a checkpoint's file": ((f"{PATH}.pdparams", None), f"{PATH}.pdparams"),
    "a file": ((f"{RUN}/mnist.pdparams", None), f"{RUN}/mnist.pdparams"),
    "the tutorial's file": (("lone.pdparams", None), "lone.pdparams"),
    "a name and a run": (("mnist_epoch0", RUN), f"{PATH}.pdparams"),
    "a checkpoint and its run": ((PATH, RUN), f"{PATH}.pdparams"),
    "best and a run": (("best", RUN), f"{RUN}/checkpoints/BEST.pdparams"),
    "latest and a run": (("latest", RUN), f"{RUN}/checkpoints/NEWEST.pdparams"),
    "latest": (("latest", None), f"{OTHER}/checkpoints/mnist_epoch0.pdparams"),
    "pretrained": (("pretrained", None), str(WEIGHTS)),
}
WEIGHTS_ALONE = ("a file", "the tutorial's file", "pretrained")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny):
    """A folder with two runs under work/output; a file of weights; an exported model."""
    folder = tmp_path_factory.mktemp("runs")
    plain = {"data": str(tiny), "batch_size": 32, "visualdl": "", "figures": False, "watch": 0}
    for name, options in {
        RUN: {"epochs": 30, "early_stop_patience": 2, "seed": 1},
        OTHER: {"epochs": 1, "seed": 2},
    }.items():
        train_and_evaluate(TrainConfig(output=str(folder / name), **plain, **options))
    paddle.save(MNIST().state_dict(), str(folder / "lone.pdparams"))
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
def logged(caplog, monkeypatch):
    """The messages logged so far."""
    log = logging.getLogger("paddle_mnist")
    monkeypatch.setattr(log, "propagate", True)
    caplog.set_level(logging.INFO, "paddle_mnist")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
def command(capsys):
    """Call a command in this process; gives its exit code, and what it prints to both streams."""

    def run(name, *args):
        capsys.readouterr()
        code = importlib.import_module(f"paddle_mnist.commands.{name}").main(list(map(str, args)))
        return (code, *capsys.readouterr())

    return run


def names_of(run=RUN):
    store = RunDirectory(run).checkpoints
    best, newest = store.best().name, store.newest().name
    assert len({best, newest, "mnist_epoch0"}) == 3
    return best, newest


def expected_file(thing):
    best, newest = names_of()
    return THINGS[thing][1].replace("BEST", best).replace("NEWEST", newest)


def arguments(name, run):
    return [name] if run is None else [name, "--run", run]


@pytest.mark.parametrize("thing", THINGS)
def test_python_functions_take_whatever_names_weights(place, logged, thing):
    (name, run), path = THINGS[thing][0], expected_file(thing)
    expected = {key: np.asarray(value) for key, value in paddle.load(path).items()}
    model = MNIST()
    checkpoint.load_into(model, checkpoint.load(name, run))
    for net in (model, load_model(name, MNIST, run)):
        values = {key: value.numpy() for key, value in net.state_dict().items()}
        assert all(np.array_equal(values[key], expected[key]) for key in values)
    images, labels = paddle.rand([2, 1, 28, 28]), paddle.zeros([2, 1], "int64")
    logits = model(images).numpy()
    samples = list(zip(images, labels))
    outputs = predict_run(name, MNIST, samples, run=run)
    assert np.array_equal(outputs, logits)
    loss = paddle.nn.CrossEntropyLoss()
    scores = evaluate_run(name, MNIST, samples, loss=loss, run=run)
    assert scores["loss"] == pytest.approx(loss(model(images), labels).item())
    images = np.rint(256 * images.numpy()).clip(0, 255).astype("uint8")[:, 0]
    logits = model(paddle.to_tensor(images[:, None] / np.float32(256))).numpy()
    predictor = DigitPredictor(Path(name), run=run and Path(run))
    np.testing.assert_allclose(predictor.run(images)["logits"], logits, rtol=1e-5, atol=1e-5)
    assert logged().count(f"weights: {path}") == 4


@pytest.mark.parametrize("thing", THINGS)
def test_commands_take_whatever_names_weights(place, command, logged, thing):
    (name, run), path = THINGS[thing][0], expected_file(thing)
    named = [name] if run is None else [name, "--run", run]
    code, printed, error = command("eval", *named, "--json")
    assert code == 0 and json.loads(printed)["checkpoint"] == path, error
    code, _, error = command("export_model", *named, "--list")
    assert code == 0 and any(line.endswith(f"weights: {path}") for line in logged()), error
    code, _, error = command("infer", PICTURE, "--model", *named)
    assert code == 0, error
    message = "pretrained weights; for those" if name == "pretrained" else f"weights: {path}"
    assert any(line.startswith(message) for line in logged()[-2:])


@pytest.mark.parametrize("thing", [thing for thing in THINGS if not THINGS[thing][0][1]])
def test_trainings_start_from_whatever_names_weights(place, tiny, thing):
    (name, _), path = THINGS[thing][0], expected_file(thing)
    parts = build(TrainConfig(data=str(tiny), batch_size=32, epochs=3, seed=8))
    for weights_only in (True, False):
        start = StartFrom(name, weights_only)
        if not weights_only and thing in WEIGHTS_ALONE:
            with pytest.raises(CheckpointError, match="holds weights alone"):
                initialize(parts, ALONE, start)
        else:
            initialize(parts, ALONE, start)
            assert np.array_equal(parts.model.fc.weight.numpy(), paddle.load(path)["fc.weight"])


@pytest.mark.parametrize("thing", THINGS)
def test_training_resumes_from_whatever_names_a_checkpoint(place, thing):
    """`latest` and `best` are those of the run that resumes, and a run means its newest."""
    (name, _), path = THINGS[thing][0], expected_file(thing)
    if thing in WEIGHTS_ALONE:
        with pytest.raises(CheckpointError, match=r"weights alone|its manifest"):
            find_checkpoint(name, RunDirectory(RUN))
        return
    if name in (RUN, "latest"):
        path = f"{RUN}/checkpoints/{names_of()[1]}.json"
    found = find_checkpoint(name, RunDirectory(RUN))
    assert found.path.with_suffix("") == Path(path).with_suffix("")


def test_demo_shows_the_layers_of_a_run(place):
    model = demo._load("mnist_epoch0", RUN)
    assert set(demo.OUTPUTS) <= set(model.outputs) and model.about["weights"] == Path(PATH).name + (
        ".pdparams"
    )


# ------------------------------------------------------------------ on the command line


@pytest.mark.parametrize("option", ["--run", "--checkpoint", "-k", "--model", "--output"])
def test_all_options_mean_the_same(place, option):
    parser = Parser(prog="x")
    add_weights_arguments(parser, "newest", more_options=("--output",))
    for args, named in {
        (RUN,): (RUN, None),
        (option, PATH): (PATH, None),
        (RUN, option, f"{RUN}/"): (f"{RUN}/", None),
        ("best", option, RUN): ("best", RUN),
        (option, "best", RUN): ("best", RUN),
        (option, RUN, "--model", "mnist_epoch0"): ("mnist_epoch0", RUN),
        ("latest", option, "nope"): ("latest", "nope"),
        (): (None, None),
    }.items():
        assert named_weights(parser.parse_args(args)) == named


ONE_RUN = f"{RUN} and {OTHER} are given; expected one of them, or a run and the name of one of"
MIRROR = "s3://bucket/run: is a URL; expected a path on this machine; to bring a run back from its"
REFUSED = {
    "two runs": (["eval", RUN, "--run", OTHER], 2, ONE_RUN),
    "two runs to export": (["export_model", "--run", RUN, "-k", OTHER], 2, ONE_RUN),
    "two runs to read with": (["infer", PICTURE, "--run", RUN, "--model", OTHER], 2, ONE_RUN),
    "two runs to draw with": (["demo", RUN, "--run", OTHER], 2, ONE_RUN),
    "two runs to list": (["checkpoints", RUN, "--run", OTHER], 2, f"{RUN} and {OTHER} are given"),
    "two words": (["eval", "best", "--checkpoint", "latest"], 2, "best and latest are given"),
    "three": (["eval", "best", "--run", RUN, "--model", OTHER], 2, "are given; expected one"),
    "of another run": (["eval", PATH, "--run", OTHER], 2, f"{PATH} is not of the run {OTHER}"),
    "of no run": (["eval", "pretrained", "--run", RUN], 2, f"pretrained and the run {RUN} are"),
    "a name that is not": (
        ["eval", "mnist_epoch99", "--run", RUN],
        4,
        f"{RUN}/checkpoints/mnist_epoch99: No such file or directory; expected latest, best, "
        "pretrained, or a path: of a run, a checkpoint or a .pdparams",
    ),
    "an exported model": (["eval", "out"], 4, "out: an exported model, from which no weights"),
    "a file of an exported model": (
        ["eval", "out/model.onnx"],
        4,
        "out/model.onnx: not a checkpoint; expected latest, best, pretrained, or a path: of a run, "
        "a checkpoint or a .pdparams; infer, demo and DigitPredictor also take the folder of an "
        "exported model",
    ),
    "exported again": (["export_model", "out"], 4, "out: an exported model, from which no weigh"),
    "resumed": (["train", "--resume", "out"], 4, "out: an exported model, from which no weights"),
    "its curves": (["plot", "out"], 3, "out: no metrics.jsonl with lines; expected a run, or a"),
    "its checkpoints": (["checkpoints", "out"], 4, "out: no checkpoint there; expected a run, its"),
    "its dashboard": (["dashboard", "out"], 3, "out: nothing of VisualDL there; expected a run"),
    "curves of no run": (
        ["plot", "pretrained"],
        4,
        "pretrained: weights of no run; expected",
    ),
    "a run as the target": (["export_model", "best", RUN], 2, f"{RUN}: a run, into which nothing"),
    "two targets": (["export_model", RUN, "a", "--output", "b"], 2, "b are given; expected one fo"),
    "resume of weights": (
        ["train", "--resume", "pretrained"],
        4,
        "pretrained: holds weights alon",
    ),
    "a mirror to evaluate": (["eval", "s3://bucket/run"], 4, MIRROR),
    "a mirror to evaluate a checkpoint of": (
        ["eval", "best", "--run", "s3://bucket/run"],
        4,
        MIRROR,
    ),
    "a mirror to read with": (["infer", PICTURE, "--run", "s3://bucket/run"], 4, MIRROR),
    "a mirror to export": (["export_model", "s3://bucket/run"], 4, MIRROR),
    "a mirror to plot": (["plot", "s3://bucket/run"], 4, MIRROR),
    "a mirror to show": (["dashboard", "s3://bucket/run"], 4, MIRROR),
    "a mirror to resume": (["train", "--resume", "s3://bucket/run"], 4, MIRROR),
    "a mirror to start from": (["train", "--init_from", "s3://bucket/run"], 4, MIRROR),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_contradicts_itself_or_is_something_else_is_one_line(place, command, tiny, name):
    args, expected_code, message = REFUSED[name]
    more = ["--data", tiny, "--output", "new"] if args[0] == "train" else []
    code, _, error = command(*args, *more)
    assert code == expected_code and message in error.splitlines()[-1], error
    assert error.count("error: ") == 1 and "Traceback" not in error


def test_export_takes_its_folder_after_the_run(place, command):
    for args in ((RUN, "a"), (RUN, "--output", "a"), (RUN, "a", "--output", "./a")):
        shutil.rmtree("a", ignore_errors=True)
        code, printed, error = command(
            "export_model", *args, "--outputs", " logits, probabilities "
        )
        assert code == 0 and "a/about.json" in printed, error
    about = json.loads(Path("a/about.json").read_text())
    code, _, error = command("infer", "--model", "a/inference.pdiparams", PICTURE)
    assert code == 0, error
    assert about["weights"] == f"{names_of()[0]}.pdparams" and about["outputs"] == [
        "logits",
        "probabilities",
    ]


# ------------------------------------------------------------------ what shows runs

INSIDE = {
    "the run": RUN,
    "a checkpoint": PATH,
    "a manifest": f"{PATH}.json",
    "a file of a checkpoint": f"{PATH}.pdopt",
    "its checkpoints": f"{RUN}/checkpoints",
    "its weights": f"{RUN}/mnist.pdparams",
}


@pytest.mark.parametrize("thing", INSIDE)
def test_what_shows_runs_takes_whatever_is_of_a_run(place, command, thing):
    name = INSIDE[thing]
    Path(RUN, "vdl/001").mkdir(parents=True)
    Path(RUN, "vdl/001/vdlrecords.1.log").touch()
    code, printed, error = command("checkpoints", "--checkpoint", name, "--json")
    assert code == 0, error
    assert json.loads(printed)["folder"] == f"{RUN}/checkpoints"
    code, printed, error = command("plot", name, "--only", "learning_rate.png")
    assert code == 0 and printed == f"{RUN}/figures\n", error
    assert log_folders([find_run(name).path])[1] == ["first/vdl"]


def test_words_mean_the_newest_run_to_what_shows_runs(place, command):
    for args in (["latest"], ["best", "list"], ["list"], [], ["--run", OTHER]):
        code, printed, error = command("checkpoints", *args, "--json")
        assert code == 0 and json.loads(printed)["folder"] == f"{OTHER}/checkpoints", error


# ------------------------------------------------------------------ predictors


def test_predictor_of_any_net_says_who_takes_weights(place):
    for name in (RUN, PATH, "lone.pdparams"):
        with pytest.raises(CheckpointError, match=r"not an exported model.*\.DigitPredictor"):
            Predictor(name)
    for name in ("nope", "best"):
        with pytest.raises(CheckpointError, match=r"No such file.* that the command export wrote"):
            Predictor(name)
    Path(RUN, "config.yaml").write_text("trained_with: paddle_mnist.fit")
    with pytest.raises(CheckpointError, match=r"paddle_mnist\.predict_run .*\.export_run"):
        Predictor(PATH)


def test_predictor_of_an_exported_model_takes_no_run(place):
    with pytest.raises(ConfigError, match=r"out, an exported model, and the run .* are given"):
        DigitPredictor("out", run=RUN)
