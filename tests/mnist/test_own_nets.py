"""A custom net, trained by `fit` on the digits: the commands read pictures with it."""

import json
import runpy
import shutil
from pathlib import Path

import paddle
import pytest
from conftest import ROOT
from paddle import nn
from paddle.static import InputSpec

from paddle_mnist import DigitPredictor, MnistDataset, export_run, fit, load_model
from paddle_mnist.errors import CheckpointError, ConfigError

DRAWN = ROOT / "tests/pictures"
NET = "my_net.py:MyNet"
MY_NET = """
import widths
from paddle import nn


class MyNet(nn.Layer):
    def __init__(self):
        super().__init__()
        width = widths.WIDTH
        norm, dropout = nn.BatchNorm1D(width), nn.Dropout(0.2)  # other than in training
        self.first = nn.Sequential(nn.Flatten(), nn.Linear(784, width), norm, dropout, nn.ReLU())
        self.second = nn.Linear(width, 10)

    def forward(self, images):
        return self.second(self.first(images))


class OfSevenClasses(MyNet):
    def forward(self, images):
        return super().forward(images)[:, :7]


if __name__ == "__main__":
    raise SystemExit("what trains stands here, and is not executed by --net")
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the net's file and its run."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "my_net.py").write_text(MY_NET)
    (folder / "widths.py").write_text("WIDTH = 32\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        build = runpy.run_path(str(folder / "my_net.py"))["MyNet"]
        fit(
            build,
            MnistDataset("train", "digits"),
            output=folder / "run",
            loss=nn.CrossEntropyLoss(),
            optimizer=lambda parameters: paddle.optimizer.Adam(3e-3, parameters=parameters),
            epochs=5,
            batch_size=64,
        )
    return folder


@pytest.fixture
def place(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands_with_a_custom_net_read_the_same_digits(tool, place):
    """Train, evaluate, read, export, and read with the export: each gives the same digits."""
    report = json.loads(tool("eval", "run", "--net", NET, "--data", "digits", "--json").stdout)
    assert report["accuracy"] > 0.8
    rows = json.loads(tool("infer", DRAWN, "--run", "run", "--net", NET, "--json").stdout)
    assert sum(str(row["digit"]) == Path(row["file"]).name[0] for row in rows) >= 8
    tool("export_model", "run", "out", "--net", NET)
    exported = json.loads(tool("infer", DRAWN, "--model", "out", "--json").stdout)
    assert [row["digit"] for row in exported] == [row["digit"] for row in rows]
    assert "second.weight" in tool("export_model", "run", "--net", NET, "--list").stdout


def test_predictor_of_another_form_of_export_raises(place):
    """`export_run` and Paddle write such models: floats in, and no probabilities out."""
    build, spec = runpy.run_path("my_net.py")["MyNet"], InputSpec([None, 1, 28, 28], "float32")
    export_run("run", build, "out", spec)
    with pytest.raises(CheckpointError, match=r"out: takes float32 .* the command export"):
        DigitPredictor("out")
    paddle.jit.save(load_model("run", build), "plain/my_net", input_spec=[spec])
    with pytest.raises(CheckpointError, match=r"plain/about.json: No such file .* export wrote"):
        DigitPredictor("plain")


def test_infer_wrong_net_exits_in_one_line(tool, place):
    for net, error, message in (
        (None, CheckpointError, "--net FILE"),
        ("my_net.py", ConfigError, "expected FILE.py:CLASS"),
        ("my_net.py:Net", ConfigError, "has no Net"),
        ("my_net.py:OfSevenClasses", ConfigError, "the net returns float32"),
    ):
        options = ["--net", net] if net else []
        done = tool("infer", "--example", "--run", "run", *options, expect=error.exit_code)
        assert message in done.stderr and "Traceback" not in done.stderr
        assert done.stderr.count("error: ") == 1
