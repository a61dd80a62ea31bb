"""The commands on runs of `fit`: nets of the caller's own, which only the caller can build."""

import json
import shutil
from pathlib import Path

import pytest

from paddle_mnist.checkpoint.store import CheckpointStore


@pytest.fixture
def run(run_of_fit, tmp_path):
    """It monitors the lowest loss on a split of its own name, and keeps the end of each epoch."""
    return Path(shutil.copytree(run_of_fit, tmp_path / "run"))


def listed(tool, *args):
    return json.loads(tool("checkpoints", "list", *args, "--json").stdout)["checkpoints"]


def test_list_shows_the_monitored_metric(tool, run):
    """By its own name and value, though the lowest is the best."""
    rows = listed(tool, "run")
    assert [row["name"] for row in rows] == ["model_epoch0", "model_epoch1", "model_epoch2"]
    states = [saved.state for saved in CheckpointStore(run / "checkpoints").all()]
    values = [state.metrics["near/loss"] for state in states]
    assert 0 < values[0] < min(values[1:])
    assert [row["value"] for row in rows] == values
    assert {(row["monitor"], row["valid_acc"]) for row in rows} == {("near/loss", None)}
    assert [row["best"] for row in rows] == [True, False, False]
    head, *lines = tool("checkpoints", "list", "run").stdout.splitlines()
    assert head.split() == "name step epoch bytes saved at near loss what".split()
    for line, value in zip(lines, values):
        assert f" {value:.4f}  epoch end" in line
    assert lines[0].endswith("[best]") and lines[2].endswith("[newest]")


def test_prune_keeps_what_the_call_of_fit_kept(tool, run):
    """Also of a run whose keep_best is a truth value, as in version 0.2."""
    config = (run / "config.yaml").read_text()
    assert "keep_best: 1\n" in config
    (run / "config.yaml").write_text(config.replace("keep_best: 1\n", "keep_best: true\n"))
    assert "0 of 3 checkpoints" in tool("checkpoints", "prune", "run").stdout
    newest = ("--keep_last", "1", "--keep_epochs", "false")
    done = tool("checkpoints", "prune", "run/checkpoints", *newest, "--yes")
    assert done.stdout.startswith("deleted model_epoch1, ")
    assert [row["name"] for row in listed(tool, "run")] == ["model_epoch0", "model_epoch2"]
    (run / "config.yaml").write_text("keep_last: [")
    error = tool("checkpoints", "prune", "run", expect=2).stderr
    assert error.startswith("error: run/config.yaml: not YAML (") and error.count("\n") == 1


def drawn(folder):
    return sorted(path.name for path in folder.iterdir())


def both(*names):
    return sorted(f"{name}.{kind}" for name in names for kind in ("png", "svg"))


def test_plot_of_a_run_of_fit_draws_what_fit_drew(tool, run, tmp_path):
    assert tool("plot", "run", "--output", "again").stdout == "again\n"
    assert drawn(run / "figures") == both("curves", "health", "learning_rate")
    assert drawn(tmp_path / "again") == drawn(run / "figures")
    text = (tmp_path / "again/curves.svg").read_text()
    for label in ("loss", "acc", "train", "near", "far"):
        assert f"<!-- {label} -->" in text
    for only, message in {
        "kernels.png": "unknown name 'kernels.png'",
        "compare.png": "compare.png compares runs; expected two or more",
        "curve.png": "unknown name 'curve.png'; did you mean 'curves.png'",
    }.items():
        error = tool("plot", "run", "--only", only, expect=2).stderr
        assert message in error and error.count("\n") == 1


NEED_THE_NET = [
    ("eval", "--checkpoint", "best", "--output", "run"),
    ("export_model", "-k", "run/model.pdparams"),
    ("infer", "-k", "run/checkpoints/model_epoch0", "one.png"),
    ("infer", "--model", "run", "one.png"),
    ("demo", "run"),
]


@pytest.mark.parametrize("arguments", NEED_THE_NET, ids=" ".join)
def test_command_that_needs_the_net_names_the_option_that_gives_it(tool, run, arguments):
    error = tool(*arguments, expect=4).stderr
    line = error.splitlines()[-1]
    assert line.startswith("error: ") and "run: trained by paddle_mnist.fit" in line
    assert "give --net FILE.py:CLASS" in line and "Traceback" not in error
