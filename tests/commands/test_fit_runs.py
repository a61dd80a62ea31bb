"""The commands on runs of `fit`: nets of the caller's own, which only the caller can build."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import paddle
import pytest
from conftest import ROOT
from fit_rows import Points, train

from paddle_mnist.checkpoint.store import CheckpointStore

ROW = "SGD with clipping"


def ever_worse(parameters):
    """Steps that become too long, so that the first evaluation is the best."""
    schedule = paddle.optimizer.lr.PiecewiseDecay([5], [0.1, 8.0])
    return paddle.optimizer.SGD(schedule, parameters)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of `fit` that monitors the lowest loss on a split of its own name."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    valid = {"near": Points(), "far": Points(12)}
    others = {"optimizer": ever_worse, "valid": valid, "epochs": 3, "keep_last": 2}
    train(ROW, folder, watch=3, visualdl=("scalars",), **others)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "run"))


def listed(tool, *args):
    return json.loads(tool("checkpoints", *args, "--json").stdout)["checkpoints"]


# ------------------------------------------------------------------ checkpoints


def test_checkpoints_are_listed_with_the_monitored_metric(tool, run):
    """By its own name and value, though the lowest is the best."""
    rows = listed(tool, "run")
    assert [row["name"] for row in rows] == ["model_epoch0", "model_epoch1", "model_epoch2"]
    states = [one.state for one in CheckpointStore(run / "checkpoints").all()]
    values = [state.metrics["near/loss"] for state in states]
    assert 0 < values[0] < min(values[1:])
    assert [row["value"] for row in rows] == values
    assert {row["monitor"] for row in rows} == {"near/loss"}
    assert {row["valid_acc"] for row in rows} == {None}
    assert [row["best"] for row in rows] == [True, False, False]
    head, *lines = tool("checkpoints", "run").stdout.splitlines()
    assert head.split() == "name step epoch bytes saved at near loss what".split()
    for line, value in zip(lines, values):
        assert f" {value:.4f}  epoch end" in line
    assert lines[0].endswith("[best]") and lines[2].endswith("[newest]")


def test_small_and_large_values_are_shown(tool, tmp_path):
    tiny = {"step": lambda model, batch: {"loss": (model(batch[0]) ** 2).mean() * 1e-6}}
    train(ROW, tmp_path / "run", loss=None, metrics=None, **tiny)
    value = listed(tool, "run")[-1]["value"]
    assert 0 < value < 1e-4 and f" {value:.4g}  epoch end" in tool("checkpoints", "run").stdout


def test_checkpoints_of_a_run_that_evaluates_nothing(tool, tmp_path):
    train(ROW, tmp_path / "run", valid=None)
    rows = listed(tool, "run")
    assert {row["value"] for row in rows} == {None} and not any(row["best"] for row in rows)
    assert len(tool("checkpoints", "run").stdout.splitlines()) == 1 + len(rows)


def test_prune_keeps_what_the_call_of_fit_kept(tool, run):
    """Two of the newest, and the best; not the end of every epoch, as runs on digits do."""
    assert "0 of 3 checkpoints" in tool("checkpoints", "run", "prune").stdout
    done = tool("checkpoints", "run/checkpoints", "prune", "--keep_last", "1", "--yes")
    assert done.stdout.startswith("deleted model_epoch1, ")
    assert [row["name"] for row in listed(tool, "run")] == ["model_epoch0", "model_epoch2"]
    tool("checkpoints", "run", "prune", "--keep_last", "1", "--keep_best", "false", "--yes")
    assert [row["name"] for row in listed(tool, "run")] == ["model_epoch2"]


def test_verify_names_the_damaged_checkpoint(tool, run):
    assert tool("checkpoints", "run", "verify").stdout.count(": OK\n") == 3
    (run / "checkpoints/model_epoch1.pdparams").write_bytes(b"half")
    done = tool("checkpoints", "run", "verify", expect=4)
    assert "model_epoch1.pdparams: 4 bytes" in done.stdout and done.stdout.count(": OK\n") == 2


def test_checkpoints_of_fit_need_no_paddle(run):
    """In a process of its own, in which importing Paddle fails."""
    (run.parent / "broken").mkdir()
    (run.parent / "broken/paddle.py").write_text("raise ImportError('must not be imported')")
    path = os.pathsep.join([str(run.parent / "broken"), str(ROOT)])
    program = "import sys; from paddle_mnist.commands.checkpoints import main; sys.exit(main())"
    for action in ("list", "verify", "prune"):
        done = subprocess.run(
            [sys.executable, "-c", program, "run", action],
            cwd=run.parent,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr


def test_damaged_configuration_is_one_line(tool, run):
    (run / "config.yaml").write_text("keep_last: [")
    error = tool("checkpoints", "run", "prune", expect=2).stderr
    assert error.startswith("error: run/config.yaml: not YAML (") and error.count("\n") == 1


# ------------------------------------------------------------------ plot


def drawn(folder):
    return sorted(path.name for path in folder.iterdir())


def both(*names):
    return sorted(f"{name}.{kind}" for name in names for kind in ("png", "svg"))


def test_plot_draws_a_run_of_fit(tool, run, tmp_path):
    done = tool("plot", "run")
    assert done.stdout == "run/figures\n"
    assert drawn(run / "figures") == both("curves", "health", "learning_rate")
    text = (run / "figures/curves.svg").read_text()
    for label in ("loss", "acc", "train", "near", "far"):
        assert f"<!-- {label} -->" in text
    tool("plot", "run", "--output", "some", "--only", "curves.svg")
    assert drawn(tmp_path / "some") == ["curves.svg"]


def test_plot_of_a_run_that_was_not_watched_has_no_health(tool, tmp_path):
    train(ROW, tmp_path / "run")
    tool("plot", "run")
    assert drawn(tmp_path / "run/figures") == both("curves", "learning_rate")


@pytest.mark.slow
def test_fit_draws_what_plot_draws(tool, tmp_path):
    train(ROW, tmp_path / "run", figures=True, watch=3)
    tool("plot", "run", "--output", "again")
    assert drawn(tmp_path / "again") == drawn(tmp_path / "run/figures")
    (tmp_path / "run/figures/health.svg").unlink()
    train(ROW, tmp_path / "run", figures=True, watch=3)  # finished: only draws what is missing
    assert drawn(tmp_path / "again") == drawn(tmp_path / "run/figures")


@pytest.mark.slow
def test_plot_compares_runs_of_fit_by_the_metric_they_monitor(tool, run, tmp_path):
    others = {"valid": {"near": Points()}, "monitor": "near/acc"}
    train(ROW, tmp_path / "other", **others)
    train(ROW, tmp_path / "same", **others, seed=6)
    tool("plot", "other", "same", "--output", "one", "--only", "compare.svg")
    assert "<!-- near/acc -->" in (tmp_path / "one/compare.svg").read_text()
    done = tool("plot", "run", "same", "--output", "two")  # which monitor other metrics
    assert "<!-- near/loss -->" in (tmp_path / "two/compare.svg").read_text()
    assert done.stdout.split() == [f"two/{name}" for name in ("run", "same", *both("compare"))]


@pytest.mark.slow
def test_plot_compares_a_run_on_digits_with_one_of_fit(tool, tmp_path):
    small = ["--recipe", "digits", "--epochs", "1", "--visualdl", "false", "--figures", "false"]
    tool("train", *small, "--output", "digits")
    train(ROW, tmp_path / "own")
    tool("plot", "digits", "own", "--output", "both", "--only", "compare.svg,curves.svg")
    assert "<!-- valid/loss -->" in (tmp_path / "both/compare.svg").read_text()
    assert "<!-- loss (nats) -->" in (tmp_path / "both/digits/curves.svg").read_text()
    assert "<!-- loss -->" in (tmp_path / "both/own/curves.svg").read_text()
    error = tool("plot", "digits", "own", "--only", "kernels.svg", expect=2).stderr
    assert "names kernels.svg, which runs like own do not have" in error
    assert not (tmp_path / "digits/figures").exists()


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ("kernels.png", "--only names kernels.png, which runs like run do not have; expected"),
        ("compare.png", "compare.png is of several runs; expected more than run"),
        ("curve.png", "unknown name 'curve.png'; did you mean 'curves.png'"),
    ],
)
def test_plot_of_what_a_run_of_fit_does_not_have(tool, run, only, message):
    error = tool("plot", "run", "--only", only, expect=2).stderr
    assert message in error and error.count("\n") == 1
    assert not (run / "figures").exists()


# ------------------------------------------------------------------ what needs the net


def test_configuration_of_a_run_of_fit_trains_no_digits(tool, run, tmp_path):
    error = tool("train", "-c", "run/config.yaml", expect=2).stderr
    assert "run/config.yaml: the arguments of a call of paddle_mnist.fit" in error
    assert error.count("\n") == 1 and not (tmp_path / "work").exists()


NEED_THE_NET = {
    "eval": ("eval", "--output", "run"),
    "eval of a checkpoint": ("eval", "--checkpoint", "best", "--output", "run"),
    "eval on digits": ("eval", "--output", "run", "--data", "digits"),
    "eval of the newest run": ("eval",),
    "export": ("export_model", "--run", "run"),
    "export of its files": ("export_model", "-k", "run/model.pdparams"),
    "list": ("export_model", "--run", "run", "--list"),
    "infer": ("infer", "--run", "run", "one.png"),
    "infer from a checkpoint": ("infer", "-k", "run/checkpoints/model_epoch0", "one.png"),
    "demo": ("demo", "run"),
    "infer with a run as the model": ("infer", "--model", "run", "one.png"),
}


@pytest.mark.parametrize("name", NEED_THE_NET)
def test_commands_that_need_the_net_name_the_option_that_gives_it(tool, run, name):
    arguments = NEED_THE_NET[name]
    if len(arguments) == 1:
        shutil.move(run, run.parent / "work/output/run")
    before = sorted(run.parent.rglob("*"))
    error = tool(*arguments, expect=4).stderr
    line = error.splitlines()[-1]
    assert line.startswith("error: ") and "run: trained by paddle_mnist.fit" in line
    assert "give --net FILE.py:CLASS" in line and "Traceback" not in error
    assert error.count("error: ") == 1 and sorted(run.parent.rglob("*")) == before
