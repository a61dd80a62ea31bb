"""A custom net, trained by `fit` on the digits: the commands read pictures with it."""

import functools
import json
import os
import pickle
import runpy
import shutil
from pathlib import Path

import numpy as np
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
IMAGES = np.random.RandomState(0).randint(0, 256, (3, 28, 28)).astype(np.uint8)


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


def saved(build, shape=(1, 28, 28), prefix="out/my.net"):
    spec = InputSpec([None, *shape], "float32", "pictures")
    paddle.jit.save(load_model("run", build), prefix, input_spec=[spec])


def by_export_run(build):
    export_run("run", build, "out", InputSpec([None, 1, 28, 28], "float32"), outputs=["logits"])


EXPORTS = {  # how, and what names the model
    "its prefix": (saved, "out/my.net"),
    "no channels": (lambda build: saved(build, shape=(28, 28)), "out"),
    "export_run": (by_export_run, "out"),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_predictor_of_a_plain_paddle_export_gives_probabilities(place, name):
    export, model = EXPORTS[name]
    export(runpy.run_path("my_net.py")["MyNet"])
    net = load_model("run", runpy.run_path("my_net.py")["MyNet"])
    net.eval()
    expected = nn.functional.softmax(net(paddle.to_tensor(IMAGES[:, None] / np.float32(256))))
    found = DigitPredictor(model).run(IMAGES)["probabilities"]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


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


def test_predictor_of_a_hostile_pickle_executes_nothing(place):
    """Paddle 2 writes a pickle beside the parameters, and `paddle.jit.load` unpickles it.

    It takes a folder, too, of Paddle 1's format, and unpickles None.info in it.
    """
    saved(runpy.run_path("my_net.py")["MyNet"])
    hostile = pickle.dumps(functools.partial(os.mkdir, "executed"))[:-1] + b")R."  # and call it
    Path("out/my.net.pdiparams.info").write_bytes(hostile)
    with pytest.raises(CheckpointError, match=r"my.net.pdiparams.info: .* do not open it"):
        DigitPredictor("out")

    (program,) = (path for path in Path("out").iterdir() if path.suffix in (".json", ".pdmodel"))
    Path("out/my.net").mkdir()
    program.rename("out/my.net/__model__")
    Path("out/my.net/None.info").write_bytes(hostile)
    for name in ("out", "out/my.net", "out/my.net.pdiparams"):
        with pytest.raises(CheckpointError, match=r"my.net: a folder, and the prefix of a model"):
            DigitPredictor(name)
    assert not Path("executed").exists()
    pickle.loads(hostile)  # which does execute it
    assert Path("executed").exists()


def test_predictor_of_damaged_or_other_files_of_paddle_raises(place):
    saved(runpy.run_path("my_net.py")["OfSevenClasses"], prefix="seven/net")
    with pytest.raises(ConfigError, match=r"returns float32 \[1, 7\] for float32 \[1, 1, 28, 28\]"):
        DigitPredictor("seven")
    os.truncate("seven/net.pdiparams", 40)
    with pytest.raises(CheckpointError, match="seven/net: cannot be loaded"):
        DigitPredictor("seven")
