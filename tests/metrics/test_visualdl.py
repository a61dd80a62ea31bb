"""Data written for VisualDL's dashboard, read back with its own reader."""

import json
import re
import sys

import forked
import numpy as np
import paddle
import pytest
from paddle.nn import functional as F
from visualdl import LogReader

from paddle_mnist import MNIST
from paddle_mnist.interfaces import View
from paddle_mnist.metrics.visualdl import VisualDLWriter
from paddle_mnist.train_state import TrainState
from paddle_mnist.training.bundled import PAGES

VALUES = {"train/loss": 0.0412, "train/lr": 0.00731, "watch/fc/mean": 0.5, "speed/ips": 2277.4}
STATE = TrainState(epoch=0, position=20, step=20)
RANDOM = np.random.RandomState(1)
LABELS = np.arange(60) % 10
PROBABILITIES = RANDOM.dirichlet(np.ones(10), 60).astype("float32")


@pytest.fixture
def board(tmp_path):
    return VisualDLWriter(tmp_path / "001", PAGES)


def read(board):
    board.close()
    (file,) = (board.folder / "train").glob("vdlrecords*")
    return LogReader(file_path=str(file))


def test_write_training_and_validation_share_a_chart(board):
    board.write(TrainState(epoch=0, position=10, step=10), VALUES)
    board.write(STATE, VALUES)
    board.write(TrainState(epoch=1, step=20), {"valid/loss": 0.5, "valid/acc": 0.75})
    train = read(board)
    (file,) = (board.folder / "valid").glob("vdlrecords*")
    assert set(train.get_tags()["scalar"]) == {"loss", "lr", "watch/fc/mean", "speed/ips"}
    assert set(LogReader(file_path=str(file)).get_tags()["scalar"]) == {"loss", "acc"}
    records = train.get_data("scalar", "loss")
    assert [record.id for record in records] == [10, 20]
    assert records[0].value == pytest.approx(0.0412)


def test_every_page_is_read_back(board):
    board.text("configuration", "epochs: 3")
    board.images("inputs", RANDOM.randint(0, 255, (3, 28, 28)).astype("uint8"))
    board.figures({"curves": np.zeros((100, 200, 3), np.uint8)}, 20)
    board.curves(LABELS, PROBABILITIES, 20, "digit")
    board.embeddings(RANDOM.rand(60, 980), LABELS)
    board.hparams({"shuffle": True, "augment": [], "init_from": None}, {"eval_acc": 0.9}, 20)
    reader = read(board)
    tags = {kind: set(names) for kind, names in reader.get_tags().items()}
    assert tags["text"] >= {"configuration"}
    assert tags["image"] == {"inputs", "figures/curves"}
    assert tags["pr_curve"] == {f"precision and recall/digit {digit}" for digit in range(10)}
    assert tags["roc_curve"] == {f"roc/digit {digit}" for digit in range(10)}
    assert tags["embeddings"] == {"features"} and tags["hyper_parameters"] == {"hparam"}
    assert [r.value for r in reader.get_data("scalar", "eval_acc")] == [pytest.approx(0.9)]


def test_curves_hold_the_true_rates(board):
    """VisualDL divides by the wrong count, and has precision 0 where nothing is predicted."""
    board.curves(LABELS, PROBABILITIES, 20)
    reader = read(board)
    (roc,) = reader.get_data("roc_curve", "roc/class 3")
    (record,) = reader.get_data("pr_curve", "precision and recall/class 3")
    rates, curve, is_class = roc.roc_curve, record.pr_curve, LABELS == 3
    for at in (0, 5, 20):  # thresholds are 1/99 apart
        predicted = np.floor(PROBABILITIES[:, 3] * 99) >= at
        recall, others = predicted[is_class].mean(), predicted[~is_class].mean()
        assert (rates.tpr[at], rates.fpr[at]) == pytest.approx((recall, others), abs=1e-6)
        assert curve.precision[at] == pytest.approx(is_class[predicted].mean(), abs=1e-6)
        assert curve.recall[at] == pytest.approx(recall, abs=1e-6)
    assert (curve.recall[99], curve.precision[99]) == (0, 1)


def test_pages_that_are_not_wanted_are_not_written(tmp_path):
    board = VisualDLWriter(tmp_path / "001", ["scalars"])
    board.write(STATE, VALUES)
    board.text("configuration", "epochs: 3")
    board.curves(LABELS, PROBABILITIES, 20)
    board.graph(MNIST, [None, 1, 28, 28])
    assert set(read(board).get_tags()) == {"scalar", "meta_data"}
    assert [path.name for path in board.folder.iterdir()] == ["train"]


def exported(folder):
    """Return the kinds of files that Paddle writes of an exported net."""
    spec = paddle.static.InputSpec([None, 2])
    paddle.jit.save(paddle.nn.Linear(2, 2), str(folder / "net"), [spec])
    return {path.suffix for path in folder.iterdir()}


def test_graph_has_the_layers_and_leaves_paddle_as_it_was(board, tmp_path, lines, recwarn):
    kinds = exported(tmp_path / "before")
    recwarn.clear()
    board.graph(MNIST, [None, 1, 28, 28])
    assert not recwarn.list
    (file,) = board.folder.glob("graph/vdlgraph*")
    nodes = json.loads(file.read_text())["nodes"]
    # Paddle numbers the graphs of a process; this one may not be the first.
    names = {re.sub(r"\[model\]_\d+", "[model]", node["name"]) for node in nodes}
    assert names > {"/MNIST[model]/Conv2D[conv1]/conv2d_0", "/MNIST[model]/ReLU[relu2]/relu_1"}
    board.graph(lambda: 1 // 0, [None, 1, 28, 28])
    (line,) = lines()
    assert "could not draw the graph (ZeroDivisionError: integer division" in line
    assert exported(tmp_path / "after") == kinds


def test_after_step_writes_histograms_of_weights_and_gradients(board):
    model = MNIST()
    F.cross_entropy(model(paddle.rand([4, 1, 28, 28])), paddle.zeros([4, 1], "int64")).backward()
    for step in (1, 50, 100):
        board.after_step(View(TrainState(step=step), None, {}, model))
    reader = read(board)
    names = [name for name, _ in model.named_parameters()]
    kinds = ("weights", "gradients")
    assert set(reader.get_tags()["histogram"]) == {f"{k}/{n}" for k in kinds for n in names}
    assert [r.id for r in reader.get_data("histogram", "weights/fc.weight")] == [1, 100]


FULL = """
import logging, resource
from pathlib import Path
from paddle_mnist.metrics.visualdl import VisualDLWriter
from paddle_mnist.train_state import TrainState

logging.basicConfig()
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
board = VisualDLWriter(Path("001"), ["scalars"])
for step in range(500):
    board.write(TrainState(position=1, step=step), {"train/loss": 1.0})
board.close()
resource.setrlimit(resource.RLIMIT_FSIZE, limits)  # coverage writes its file at the exit
"""


def test_full_disk_is_one_warning(tmp_path):
    """VisualDL itself prints that, and leaves a torn file."""
    done = forked.run([sys.executable, "-c", FULL], cwd=tmp_path)
    assert done.returncode == 0 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert "VisualDL is off until the next start; training continues: 001: cannot write (" in line
    assert "File too large" in line
