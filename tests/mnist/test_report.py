"""A run that is looked into with everything on: figures, pages, prints, profile."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree
from errno import ENOSPC

import forked
import numpy as np
import pytest
import yaml
from conftest import ROOT
from faulty_disk import fail, from_on, takes_space, watched
from PIL import Image
from visualdl import LogReader

from paddle_mnist import TrainConfig, train_and_evaluate
from paddle_mnist.errors import OutputError
from paddle_mnist.mnist.figure_names import DIGIT_FIGURE_FILES
from paddle_mnist.plots.figure_files import COMPARED_FILES
from paddle_mnist.training.looking_inside import TUTORIAL_BATCHES
from paddle_mnist.training.run_directory import RunDirectory

FIGURES = (
    "curves learning_rate confusion_matrix per_class kernels feature_maps mistakes health".split()
)
OPTIONS = (
    "--recipe default --batch_size 32 --epochs 2 --log_every 5 --watch 5 --visualdl all "
    "--check_shape --check_content 3,12 --profile 4"
).split()


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny):
    """The run's folder, and what it printed, on a machine without a display and with a secret."""
    folder = tmp_path_factory.mktemp("looked") / "run"
    environment = {**os.environ, "MY_TOKEN": "sesame-open", "MPLBACKEND": "TkAgg"}
    environment.pop("DISPLAY", None)
    done = subprocess.run(
        [sys.executable, ROOT / "tools/train.py", *OPTIONS, "--data", tiny, "--output", folder],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return folder, done.stdout


def drawn(folder):
    """The names of the pictures in a folder, each seen to be a whole PNG and SVG."""
    for path in folder.iterdir():
        if path.suffix == ".png":
            with Image.open(path) as image:
                image.load()
                assert 1200 <= image.width <= 2000  # twice what a README shows
        else:
            assert xml.etree.ElementTree.parse(path).getroot().tag.endswith("svg")
    names = {path.stem for path in folder.iterdir()}
    assert {path.name for path in folder.iterdir()} == {
        f"{name}.{kind}" for name in names for kind in ("png", "svg")
    }
    return names


def test_run_draws_its_figures(run):
    assert drawn(run[0] / "figures") == set(FIGURES)


def test_figures_can_be_switched_off(tool, tiny, tmp_path):
    small = [*OPTIONS[:8], "--epochs", "1", "--visualdl", "figures", "--figures", "false"]
    tool("train", *small, "--data", tiny, "--output", tmp_path / "run")
    assert not (tmp_path / "run/figures").exists()


def test_hyperparameters_are_the_options_that_decide_the_result(run):
    (file,) = (run[0] / "vdl/001/train").glob("vdlrecords*")
    (record,) = LogReader(file_path=str(file)).get_data("hyper_parameters", "hparam")
    names = {info.name for info in record.hparam.hparamInfos}
    assert {"learning_rate", "augment", "label_smoothing", "epochs", "ema", "data"} <= names
    assert not any(name.startswith(("parameters", "valid")) for name in names)
    assert "name" not in names  # the page would show it in place of the run's folder
    scores = {info.name for info in record.hparam.metricInfos}
    assert scores == {"eval_acc", "eval_loss", "valid_acc", "valid_loss"}


def test_nothing_of_the_environment_is_written_down(run):
    for path in run[0].rglob("*"):
        assert path.is_dir() or b"sesame-open" not in path.read_bytes(), path


def test_prints_what_the_tutorial_prints_in_the_batches_asked_for(run):
    printed = run[1]
    assert re.findall(r"^batch (\d+):$", printed, re.M) == ["0", "3", "12"]
    assert printed.count("outputs7_shape: [32, 10] (fc)") == 1
    assert printed.count("conv1 params -- kernel weights") == 2
    assert "conv1 params -- kernel weights" in (run[0] / "train.log").read_text()


def test_profile_accounts_for_the_whole_step(run):
    folder = run[0] / "profile"
    rows = re.findall(
        r"\| ([a-z ]+) \| ([\d.]+) \| ([\d.]+)% \|", (folder / "steps.md").read_text()
    )
    times = {name: float(ms) for name, ms, _ in rows}
    whole = times.pop("a step")
    parts = "reader forward backward exchange optimizer logging saving".split()
    assert list(times) == [*parts, "between them"]
    assert sum(times.values()) == pytest.approx(whole, abs=0.01)
    # the compiled pass of the loss computes the gradients too
    assert times["forward"] + times["backward"] > times["optimizer"] > 0
    trace = json.loads((folder / "trace.json").read_text())["traceEvents"]
    named = " ".join(event.get("name", "") for event in trace)
    assert all(part in named for part in ("reader", "forward", "backward", "conv2d"))
    assert "conv2d" in (folder / "operators.txt").read_text()


def test_profile_of_a_training_that_is_too_short_is_said(tool, tiny, tmp_path):
    small = ["--recipe", "default", "--epochs", "1", "--batch_size", "32", "--visualdl", "false"]
    small += ["--figures", "false", "--data", tiny, "--output", tmp_path / "run"]
    done = tool("train", *small, "--profile")
    assert "ended before step 30 of this start, so there is no profile" in done.stdout


@pytest.mark.parametrize("option", ["--check_shape", "--check_content"])
def test_batch_that_does_not_come_is_refused(tool, tiny, option, tmp_path):
    small = ["--recipe", "default", "--epochs", "1", "--batch_size", "32", "--data", tiny]
    done = tool("train", *small, "--output", tmp_path / "run", option, "10", expect=2)
    assert "names batch 10, but this training has 10, counted from 0" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("total", "content", "expected"),
    [
        (
            190,
            189,
            ["PrintLayers: contents: no batch 401 in 190 batches; printing in the last, 189"],
        ),
        (
            401,
            400,
            ["PrintLayers: contents: no batch 401 in 401 batches; printing in the last, 400"],
        ),
        (402, 401, []),
    ],
)
def test_batches_to_print_without_numbers_are_the_tutorials_or_the_last(
    total, content, expected, lines
):
    config = TrainConfig(check_shape=True, check_content=True)
    assert TrainConfig.from_mapping(yaml.safe_load(config.as_yaml())) == config
    batches = [config.print_layers._batches(name, total, True) for name in TUTORIAL_BATCHES]
    assert batches == [(0,), (content,)]
    assert lines() == expected


def test_bare_check_content_prints_in_a_training_without_the_tutorials_batch(tool, tiny):
    small = ["--recipe", "default", "--epochs", "1", "--batch_size", "32", "--data", tiny]
    done = tool("train", *small, "--visualdl", "false", "--figures", "false", "--check_content")
    assert "check_content: no batch 401 in 10 batches; printing in the last, 9" in done.stdout
    assert re.findall(r"^batch (\d+):$", done.stdout, re.M) == ["9"]


# ------------------------------------------------------------------ a result outlives its pictures

PLAIN = ["--recipe", "default", "--epochs", "1", "--batch_size", "32", "--visualdl", "false"]


def test_pictures_that_cannot_be_written_cost_no_result(tool, tiny, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/figures").write_text("in the way")
    done = tool("train", *PLAIN, "--data", tiny, "--output", "run", expect=7)
    assert "eval accuracy" in done.stdout and done.stderr.count("\n") == 1
    assert json.loads((tmp_path / "run/result.json").read_text())["steps"] == 10


def test_profile_that_cannot_be_written_costs_no_training(tool, tiny, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/profile").write_text("in the way")
    small = [*PLAIN, "--data", tiny, "--output", "run", "--figures", "false"]
    done = tool("train", *small, "--epochs", "4", "--profile", "4", expect=7)
    assert "where the time of 4 steps went" in done.stdout
    assert "no profile; training continues: run/profile" in done.stdout
    assert "epoch 4/4 step 40/40 valid" in done.stdout and done.stderr.count("\n") == 1
    done = tool("train", *small, "--epochs", "4")
    assert "epoch 4/4 step 40/40 lr" not in done.stdout and "eval accuracy" in done.stdout


@pytest.mark.slow
def test_signal_while_drawing_costs_no_result(tool, tiny, tmp_path):
    process = forked.Popen(
        [sys.executable, "-u", ROOT / "tools/train.py", *PLAIN, "--data", tiny, "--output", "run"],
        cwd=tmp_path,
    )
    for line in process.stdout:
        if line.startswith("eval accuracy"):
            process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    again = tool("train", *PLAIN, "--data", tiny, "--output", "run").stdout
    assert "this run is finished" in again
    assert drawn(tmp_path / "run/figures") == set(FIGURES)


# The disk is full from its first operation on, or from one in the fifth file. Of a net that was not
# watched there is no health to draw.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "watch"), [pytest.param(0, 0, marks=pytest.mark.release), (27, 100)]
)
def test_figures_that_a_full_disk_cost_are_drawn_by_the_same_command(tiny, tmp_path, number, watch):
    run = RunDirectory(tmp_path / "run")
    config = TrainConfig(
        data=str(tiny), epochs=1, batch_size=32, watch=watch, visualdl=False, output=str(run.path)
    )
    full = from_on(number, lambda operation: takes_space(operation) and fail(ENOSPC)(operation))
    with watched(run.figures, full), pytest.raises(OutputError, match="No space left on device"):
        train_and_evaluate(config)
    before = {path.name: path.stat().st_ino for path in run.figures.glob("*")}
    assert len(before) == (4 if number else 0)
    run.figures.mkdir(exist_ok=True)
    (run.figures / ".curves.png.0123.part").touch()  # as a training that is killed here leaves it

    train_and_evaluate(config)
    after = {path.name: path.stat().st_ino for path in run.figures.iterdir()}
    assert drawn(run.figures) == set(FIGURES) - ({"health"} if not watch else set())
    assert before.items() <= after.items()  # what was there is left alone
    missing = ", ".join(name for name in DIGIT_FIGURE_FILES if name in after and name not in before)
    assert f"drawing what is missing in {run.figures}: {missing}\n" in run.log.read_text()

    train_and_evaluate(config)
    assert run.log.read_text().count("drawing what is missing") == 1


# ------------------------------------------------------------------ drawn again, and compared


@pytest.mark.release
def test_plot_draws_the_same_again(run, tool, tmp_path):
    done = tool("plot", run[0], "--output", tmp_path / "again")
    assert done.stdout.split() == [str(tmp_path / "again")]
    assert drawn(tmp_path / "again") == set(FIGURES)
    for name in FIGURES:
        one, other = (
            np.asarray(Image.open(folder / f"{name}.png"), float)
            for folder in (run[0] / "figures", tmp_path / "again")
        )
        assert np.abs(one - other).mean() < 0.05, name


@pytest.mark.slow
def test_plot_of_a_resumed_run_over_the_unbroken_one(tool, tiny, tmp_path):
    small = ["--recipe", "default", "--batch_size", "32", "--visualdl", "false", "--data", tiny]
    small += ["--figures", "false", "--log_every", "5"]
    tool("train", *small, "--epochs", "2", "--output", "unbroken")
    for epochs in ("1", "2"):
        options = ["--epochs", epochs, "--output", "resumed", "--lr_schedule", "constant"]
        more = ["--override", "epochs"] if epochs == "2" else []
        tool("train", *small, *options, *more)
    tool("train", *small, "--epochs", "2", "--output", "straight", "--lr_schedule", "constant")
    tool("plot", "straight", "resumed", "--output", "both")
    folders = {path.name for path in (tmp_path / "both").iterdir() if path.is_dir()}
    assert folders == {"straight", "resumed"}
    svg = (tmp_path / "both/compare.svg").read_text()
    assert svg.count("largest difference: 0 ") == svg.count("largest difference") == 2
    done = tool("plot", "unbroken", "resumed", "--output", "two", "--only", "compare.svg")
    assert done.stdout == "two/compare.svg\n"
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["compare.svg"]
    assert "largest difference: 0 " not in (tmp_path / "two/compare.svg").read_text()
    done = tool("plot", "unbroken", "--only", "compare.svg", expect=2)
    assert "compare.svg is of several runs; expected more than unbroken" in done.stderr
    done = tool("plot", "unbroken", "resumed", "--output", "each", "--only", "curves.svg")
    assert done.stdout == "each/unbroken\neach/resumed\n"
    assert "to compare them in one chart: --only compare.png" in done.stderr


@pytest.mark.parametrize("name", ["default", "digits"])
def test_command_of_the_page_draws_after_a_plain_training(run, tool, tmp_path, name):
    """Into the run's own folder, whichever data the training fell back to."""
    command = re.search(
        r"`paddle-mnist plot (.+?)`", (ROOT / "docs/en/looking-inside.md").read_text()
    )[1]
    folder = tmp_path / "work/output" / name
    shutil.copytree(run[0], folder, ignore=shutil.ignore_patterns("figures", "vdl", "profile"))
    done = tool("plot", *shlex.split(command))
    assert done.stdout == f"work/output/{name}/figures\n"
    drawn = {path.name for path in (folder / "figures").iterdir()}
    assert drawn == {"curves.png", "feature_maps.png", "mistakes.png"}
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


def test_help_of_plot_lists_every_file(run, tool):
    done = tool("plot", "--help")
    files = {path.name for path in (run[0] / "figures").iterdir()}
    assert files == set(DIGIT_FIGURE_FILES)
    assert set(re.findall(r"\w+\.(?:png|svg)", done.stdout)) == {
        *DIGIT_FIGURE_FILES,
        *COMPARED_FILES,
    }


@pytest.mark.release
def test_plot_of_a_longer_training_that_is_not_finished_takes_its_newest_weights(
    tool, tiny, tmp_path
):
    """Not those that the shorter training of the same run had ended with."""
    small = [*PLAIN, "--data", tiny, "--figures", "false", "--output", "run"]
    small += ["--lr_schedule", "constant"]
    tool("train", *small)
    tool("plot", "run", "--output", "short", "--only", "kernels.svg")
    longer = ["--epochs", "3", "--override", "epochs", "--save_every_steps", "1"]
    command = [sys.executable, "-u", ROOT / "tools/train.py", *small, *longer, "--log_every", "1"]
    process = forked.Popen(command, cwd=tmp_path)
    for line in process.stdout:
        if re.search(r"step 15/30 lr", line):
            process.kill()
    assert process.wait() == -signal.SIGKILL
    tool("plot", "run", "--output", "long", "--only", "kernels.svg")
    short, long = ((tmp_path / name / "kernels.svg").read_bytes() for name in ("short", "long"))
    assert short != long


def test_plot_draws_only_what_is_asked_for(run, tool, tmp_path):
    tool("plot", run[0], "--output", tmp_path / "some", "--only", "curves.png,kernels.svg")
    assert {path.name for path in (tmp_path / "some").iterdir()} == {"curves.png", "kernels.svg"}
    done = tool("plot", run[0], "--only", "curve.png", expect=2)
    assert "unknown name 'curve.png'; did you mean 'curves.png'" in done.stderr


def test_plot_of_a_folder_that_is_no_run(tool, tmp_path):
    done = tool("plot", tmp_path, expect=3)
    assert (
        "no metrics.jsonl with lines; expected a run, or a checkpoint or file of one" in done.stderr
    )
