"""A resume compares the net, the loss and the metrics, and the code that runs."""

import functools
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import paddle
import pytest
import yaml
from fit_rows import ProgramError, StopsAt, stop, train
from paddle import nn
from paddle.nn import functional as F

from paddle_mnist import Callback, Gathered, Mean
from paddle_mnist.errors import ConfigError

ROW = "SGD with clipping"
CHANGED = "the code of {}, or a value that it uses, has changed since the run began"


class Net(nn.Layer):
    """A net with settings, and with a counter that is none."""

    def __init__(self, scale=1.0, act=F.relu, p=0.1, layer=nn.ReLU, widths=(6, 3)):
        super().__init__()
        self.scale, self.act, self.calls, self.place = scale, act, 0, os.getcwd()
        self.made, self.number, self.key = time.time(), id(self), uuid.uuid4().hex
        self.body = nn.Sequential(nn.Linear(*widths), layer(), nn.Dropout(p))
        self.first = self.body[0].weight.name

    def forward(self, points):
        self.calls += 1
        return self.act(self.scale * self.body(points))


steps_done = 0  # a global that a callback changes


class Focal:
    def __init__(self, gamma=2.0):
        self.gamma = gamma

    def __call__(self, outputs, labels):
        return F.cross_entropy(outputs, labels) ** self.gamma if steps_done >= 0 else None

    def doubled(self, outputs, labels):
        return 2 * self(outputs, labels)


def scaled(outputs, labels, scale=1.0):
    return scale * F.cross_entropy(outputs, labels)


def other(outputs, labels):
    return F.cross_entropy(outputs, labels)


def hits(outputs, labels):
    return Mean((outputs.argmax(axis=1) == labels.flatten()).sum(), len(labels))


def error_rate(outputs, labels):
    return float(np.mean(outputs.argmax(axis=1) != labels[:, 0]))


def reverse(samples):
    return [np.stack(column) for column in zip(*reversed(samples))]


def loss_of(**options):
    return {"loss": nn.CrossEntropyLoss(**options)}


def metric_of(metric):
    return {"metrics": {"one": metric}}


# The arguments that begin a run, those of the next call, and the refusal.
REFUSED = {
    "activation": ({}, {"model": lambda: Net(layer=nn.GELU)}, "layers.body.1: 'ReLU()' in the run"),
    "number": ({}, {"model": lambda: Net(p=0.2)}, "layers.body.2: 'Dropout(p=0.1, axis=None"),
    "attribute": ({}, {"model": lambda: Net(2.0)}, "layers.class: 'Net(act=relu, scale=1.0)' in"),
    "function": ({}, {"model": lambda: Net(act=F.silu)}, "'Net(act=silu, scale=1.0)' now"),
    "loss": ({}, {"loss": other}, "loss: 'cross_entropy' in the run, 'other' now"),
    "Paddle's loss": (loss_of(), loss_of(ignore_index=1), "ignore_index=1, "),
    "object": ({"loss": Focal()}, {"loss": Focal(1.5)}, "'Focal(gamma=2.0)' in the run, 'Focal(ga"),
    "method": ({"loss": Focal()}, {"loss": Focal().doubled}, "now"),
    "partial": (
        {"loss": functools.partial(scaled, scale=1.0)},
        {"loss": functools.partial(scaled, scale=2.0)},
        "loss: 'partial(scaled, scale=1.0)' in the run, 'partial(scaled, scale=2.0)' now",
    ),
    "metric": (
        metric_of(paddle.metric.Accuracy()),
        metric_of(paddle.metric.Accuracy(topk=(2,))),
        "metrics.one: 'Accuracy(maxk=1, topk=(1,))' in the run, ",
    ),
    "gathered": (metric_of(Gathered(error_rate)), metric_of(hits), "'Gathered(error_rate)' in the"),
    "collate_fn": ({}, {"collate_fn": reverse}, "collate_fn: None in the run, 'reverse' now"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_fit_with_another_net_or_loss_raises(what, tmp_path):
    begun, changed, message = REFUSED[what]
    common = {"model": Net, "epochs": 1, **begun}
    train(ROW, tmp_path, **common)
    with pytest.raises(ConfigError) as refusal:
        train(ROW, tmp_path, **{**common, **changed})
    assert message in str(refusal.value)
    assert "choose another output, or change the run on purpose with override=" in str(
        refusal.value
    )
    name = str(refusal.value).splitlines()[1].split(":")[0].strip()
    assert (
        train(ROW, tmp_path, **{**common, **changed}, override=name).stopped == "already finished"
    )


def step_of(factor, constants=frozenset(["a", "b", "c"])):
    """A step whose code is the same however often it is made; its value `factor` is not."""

    def step(model, batch):
        """Compute the loss."""
        points, labels = batch
        assert "b" in {"a", "b", "c"}
        return {"loss": factor * F.cross_entropy(model(points), labels)}

    return step


def other_step(model, batch):
    points, labels = batch
    return {"loss": 3 * F.cross_entropy(model(points), labels)}


other_step.__qualname__ = "step_of.<locals>.step"  # a change of the code alone
TASK = {"loss": None, "metrics": None}


class Halved(Net):
    def forward(self, points):
        return super().forward(points) / 2


Halved.__name__ = "Net"


def other_scaled(outputs, labels, scale=1.0):
    return scale * F.cross_entropy(outputs, labels) + 0.0


other_scaled.__qualname__ = "scaled"
WARNED = {
    "step": ({**TASK, "step": step_of(1)}, {"step": other_step}, "step"),
    "value": ({**TASK, "step": step_of(1)}, {"step": step_of(2)}, "step"),
    "forward": ({"model": Net}, {"model": Halved}, "model"),
    "loss": ({"loss": scaled}, {"loss": other_scaled}, "loss"),
    "lambda": (
        {"loss": lambda outputs, labels: F.cross_entropy(outputs, labels)},
        {"loss": lambda outputs, labels: 2 * F.cross_entropy(outputs, labels)},
        "loss",
    ),
    "partial": (
        {"loss": functools.partial(scaled, scale=1.0)},
        {"loss": functools.partial(other_scaled, scale=1.0)},
        "loss",
    ),
}


@pytest.mark.parametrize("what", WARNED)
def test_fit_with_other_code_warns_or_raises_where_must_match_names_code(what, tmp_path, lines):
    begun, changed, name = WARNED[what]
    common = {"epochs": 1, **begun}
    train(ROW, tmp_path, **common)
    assert train(ROW, tmp_path, **common).stopped == "already finished"
    assert not [line for line in lines() if "has changed since" in line]
    compared = lines()[-1].partition("; code is not compared, except that of ")[2]
    assert name in compared.split(", ")
    with pytest.raises(ConfigError, match=rf"code\.{name}: '\w+' in the run, '\w+' now"):
        train(ROW, tmp_path, **{**common, **changed}, must_match={"code": True})
    assert train(ROW, tmp_path, **{**common, **changed}).stopped == "already finished"
    assert CHANGED.format(name) in lines()
    assert CHANGED.format(name) in (tmp_path / "train.log").read_text()


def test_fit_with_another_loss_raises_before_it_resumes(tmp_path):
    with pytest.raises(ProgramError):
        train(ROW, tmp_path, callbacks=[StopsAt(3, stop)])
    with pytest.raises(ConfigError, match="loss: 'cross_entropy' in the run, 'other' now"):
        train(ROW, tmp_path, loss=other)


class Anneals(Callback):
    def __init__(self, loss):
        self.loss = loss

    def after_step(self, view):
        global steps_done
        self.loss.gamma, steps_done = 2.0 + view.step, view.step


def test_fit_with_objects_that_it_has_trained_resumes(tmp_path, lines, monkeypatch):
    """Paths, times, identifiers, the code's lines and what training changes are not compared."""
    loss = Focal()
    common = {"loss": loss, "epochs": 1, "callbacks": [Anneals(loss)]}
    model = Net()
    train(ROW, tmp_path / "run", model=model, **common)
    assert model.calls and loss.gamma > 2
    monkeypatch.chdir(tmp_path)
    for held in (model, Net()):
        assert train(ROW, tmp_path / "run", model=held, **common).stopped == "already finished"
    assert not [line for line in lines() if "has changed since" in line]


def test_fit_with_a_further_metric_does_not_warn(tmp_path, lines):
    for metrics in ({}, {"hits": hits}, {"hits": hits, "errors": Gathered(error_rate)}):
        result = train(ROW, tmp_path, epochs=1, metrics=metrics)
        assert {f"valid/{name}" for name in metrics} <= set(result.metrics)
    assert not [line for line in lines() if "has changed since" in line]


def test_fit_with_a_bound_method_that_it_has_called_resumes(tmp_path, lines):
    class Smoothed(Focal):
        mean = None

        def __call__(self, outputs, labels):
            self.mean = float(loss := super().__call__(outputs, labels))
            return loss

    bound = Smoothed().__call__
    for _ in range(2):
        result = train(ROW, tmp_path, loss=bound, epochs=1)
    assert result.stopped == "already finished"
    assert not [line for line in lines() if "has changed since" in line]


def test_fit_with_another_docstring_does_not_warn(tmp_path, lines):
    def make(text):
        scope = {"F": F, "__name__": __name__}
        exec(
            f"def loss(outputs, labels):\n{text}    return F.cross_entropy(outputs, labels)", scope
        )
        return scope["loss"]

    for text in ("", "    # a comment\n", "    'A docstring.'\n\n"):
        result = train(ROW, tmp_path, loss=make(text), epochs=1)
    assert result.stopped == "already finished"
    assert not [line for line in lines() if "has changed since" in line]


def test_runs_record_the_version_of_python_and_the_net(tmp_path):
    train(ROW, tmp_path, model=Net, epochs=1, must_match={"code": True})
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert config["code"]["python"] == "{}.{}".format(*sys.version_info)
    assert config["layers"] == {
        "class": "Net(act=relu, scale=1.0)",
        "body": "Sequential()",
        "body.0": "Linear(in_features=6, out_features=3, dtype=float32)",
        "body.1": "ReLU()",
        "body.2": config["layers"]["body.2"],
    }


SCRIPT = """
import sys
import paddle
from fit_rows import train

NAMES = {"a", "b", "c"}


def loss(outputs, labels):
    assert "a" in {"x", "a", "y"}
    return paddle.nn.functional.cross_entropy(outputs, labels)


print(train("SGD with clipping", sys.argv[1], loss=loss, epochs=1).stopped)
"""


@pytest.mark.slow
def test_processes_hash_the_same_code_alike(tmp_path):
    Path(tmp_path, "script.py").write_text(SCRIPT)
    outputs = []
    for seed in "123":
        done = subprocess.run(
            [sys.executable, "script.py", "run"],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "has changed since" not in done.stderr + done.stdout
        outputs.append(done.stdout.split()[-1])
    assert outputs[0] == "finished" and "finished" in outputs[2]
