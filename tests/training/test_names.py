"""Names with dots and other characters, of nets and of folders, are kept as they are."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from fit_rows import ProgramError, StopsAt, bits, perceptron, stop, train
from paddle import nn

from paddle_mnist import load_model
from paddle_mnist.checkpoint import load, load_into
from paddle_mnist.checkpoint.manifest import DATA_SUFFIXES
from paddle_mnist.errors import ConfigError

ROW = "SGD with clipping"
# Like an option, and like the files of a checkpoint; like a pattern, a path and a format.
NAMES = ["-net.v1.5_epoch3.pdopt", "a b[1]*?%{x}数字.json."]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return train(ROW, tmp_path_factory.mktemp("plain") / "run", keep_epochs=True)


@pytest.fixture(scope="module", params=NAMES)
def run(request, tmp_path_factory):
    """A run that was stopped inside an epoch and resumed, in a folder of the same name."""
    name = request.param
    output = tmp_path_factory.mktemp("runs") / name
    options = {"name": name, "keep_epochs": True, "visualdl": ("scalars", "text", "hparams")}
    with pytest.raises(ProgramError):
        train(ROW, output, callbacks=[StopsAt(7, stop)], **options)
    return name, train(ROW, output, **options)


def test_named_run_resumes_to_the_same_bits_and_is_loaded_by_every_path(run, plain):
    name, result = run
    assert bits(result) == bits(plain)
    checkpoint, output = str(result.checkpoint), result.weights.parent
    assert result.weights == output / f"{name}.pdparams"
    assert result.checkpoint.name == f"{name}_epoch1"
    again = train(ROW, output, name=name)
    assert again.stopped == "already finished"
    assert (again.weights, again.checkpoint) == (result.weights, result.checkpoint)
    expected = load(plain.weights)
    paths = [output, result.weights, checkpoint, f"{checkpoint}.json", f"{checkpoint}.pdparams"]
    for path in paths:
        assert load_into(net := perceptron(), path) == ([], [], [])
        weights = load_model(path, perceptron).state_dict()
        assert all((weights[key] == value).all() for key, value in net.state_dict().items())
        assert all(np.array_equal(value, expected[key]) for key, value in weights.items())
    assert load_model("best", perceptron, run=output)


def test_damaged_checkpoint_of_a_named_run_is_quarantined_whole(run, tmp_path):
    name, result = run
    output = Path(shutil.copytree(result.weights.parent, tmp_path / name))
    checkpoints, damaged = output / "checkpoints", f"{name}_epoch1"
    os.truncate(checkpoints / f"{damaged}.pdopt", 10)
    before = {path.name for path in checkpoints.glob("*")}
    part = output / f".{name}.pdparams.0123456789abcdef.part"
    part.touch()
    assert bits(train(ROW, output, name=name)) == bits(result)
    (quarantined,) = (checkpoints / "quarantine").iterdir()
    assert quarantined.name == f"{damaged}.1"
    files = {f"{damaged}{suffix}" for suffix in (".json", ".pdparams", ".pdopt")}
    assert {path.name for path in quarantined.iterdir()} == files
    others = before - {f"{damaged}{suffix}" for suffix in (".json", *DATA_SUFFIXES)}
    assert others <= {path.name for path in checkpoints.glob("*")}
    assert not part.exists()


def test_commands_read_a_named_run(run, tool, tmp_path):
    name, result = run
    output = result.weights.parent
    listed = json.loads(tool("checkpoints", "list", output, "--json").stdout)["checkpoints"]
    assert [row["name"] for row in listed][-1] == f"{name}_epoch1"
    assert f"{name}_epoch1.json: OK" in tool("checkpoints", "verify", output).stdout
    tool("plot", output, "--output", tmp_path / name)
    assert list((tmp_path / name).glob("*.svg"))


@pytest.mark.parametrize(
    "name", ["a/b", "..", ".hidden", "a\0b", "é" * 91, "\udcff", b"net"], ids=ascii
)
def test_name_that_no_file_can_have_raises(name, tmp_path):
    class Named(nn.Linear):
        checkpoint_name = name

    for options in ({"name": name}, {"model": lambda: Named(6, 3)}):
        with pytest.raises(ConfigError) as refusal:
            train(ROW, tmp_path / "run", **options)
        assert f"name is {name!r}" in str(refusal.value)
        assert not (tmp_path / "run").exists()
