"""A resume compares the call of `fit` with that which began the run, and names what differs."""

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
from fit_rows import Points, ProgramError, StopsAt, perceptron, stop, train
from paddle import nn
from paddle.nn import functional as F
from paddle.optimizer import lr

from paddle_mnist import Callback, Gathered, Mean
from paddle_mnist.errors import ConfigError
from paddle_mnist.plots.history import read_history, series

optim = paddle.optimizer
ROW = "SGD with clipping"


class Shifted(Points):
    def __getitem__(self, index):
        point, label = super().__getitem__(index)
        return point + 1, label


class Permuted(Points):
    """Points whose classes are numbered as a set gives them in another process."""

    def __getitem__(self, index):
        point, label = super().__getitem__(index)
        return point, (label + 1) % 3


class Net(nn.Layer):
    """A net with settings, and with values that are none: a counter, a time, identifiers."""

    def __init__(self, scale=1.0, act=F.relu, p=0.1, layer=nn.ReLU):
        super().__init__()
        self.scale, self.act, self.calls, self.place = scale, act, 0, os.getcwd()
        self.made, self.number, self.key = time.time(), id(self), uuid.uuid4().hex
        self.body = nn.Sequential(nn.Linear(6, 3), layer(), nn.Dropout(p))
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


# What changes in the call, and the names that the refusal may have; the first it must have.
CHANGED = {
    "batch size": ({"batch_size": 4}, "batch_size"),
    "seed": ({"seed": 6}, "seed"),
    "epochs": ({"epochs": 3}, "epochs"),
    "shards": ({"grad_shards": 2}, "grad_shards"),
    "accumulation": ({"accumulate": 2}, "accumulate"),
    "EMA": ({"ema": 0.5}, "ema"),
    "monitor": ({"monitor": "valid/acc"}, "monitor mode"),
    "the caller's": ({"must_match": {"images": {"crop": 28}}}, "images.crop"),
    "width": (
        {"model": lambda: perceptron(width=8)},
        "parameters.0.weight parameters.0.bias parameters.2.weight layers.0 layers.2",
    ),
    "data": ({"train": Shifted()}, "data.samples"),
    "labels": ({"train": Permuted()}, "data.labels data.samples"),
    "length": ({"train": Points(40)}, "data.length data.samples data.labels"),
    "data of the evaluation": ({"valid": Shifted()}, "valid.valid.samples"),
    "loss": ({"loss": other}, "loss"),
    "collate_fn": ({"collate_fn": reverse}, "collate_fn"),
}


def names_in(refusal):
    """Return the names of the changed values, by the lines of a refusal."""
    lines = str(refusal.value).splitlines()
    return [line.split(":")[0].strip() for line in lines if " in the run, " in line]


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unfinished")
    with pytest.raises(ProgramError):
        train(ROW, folder, callbacks=[StopsAt(7, stop)])
    return folder


def modified(folder):
    files = (path for path in folder.rglob("*.*") if path.name != "train.log")
    return {path: path.stat().st_mtime_ns for path in files}


@pytest.mark.parametrize("change", CHANGED)
def test_fit_changed_call_raises_by_name_and_touches_nothing(change, unfinished):
    changed, names = CHANGED[change]
    before = modified(unfinished)
    with pytest.raises(ConfigError) as refusal:
        train(ROW, unfinished, **changed)
    assert set(names_in(refusal)) <= set(names.split()) and names.split()[0] in names_in(refusal)
    text = str(refusal.value)
    assert "fresh=True" in text and "another output" in text
    # With other labels for the same samples, or other steps, no override would make sense.
    assert ("override=" in text) == (change not in ("labels", "batch size"))
    is_of_samples = change in ("data", "labels", "data of the evaluation")
    assert ("seed them" in text and "sorted()" in text) == is_of_samples
    assert modified(unfinished) == before


def test_fit_resume_from_another_run_with_other_values_raises_without_fresh(unfinished, tmp_path):
    with pytest.raises(ConfigError, match="override='seed'") as refusal:
        train(ROW, tmp_path, resume=str(unfinished), seed=6)
    assert str(unfinished) in str(refusal.value) and "fresh" not in str(refusal.value)


def optimizer(kind, *arguments, **options):
    return {"optimizer": lambda parameters: kind(*arguments, parameters=parameters, **options)}


def groups(first=2, **options):
    def make(parameters):
        return optim.AdamW(
            0.1,
            parameters=[{"params": parameters[:first], **options}, {"params": parameters[first:]}],
        )

    return {"optimizer": make}


def scheduled(kind, *arguments):
    return {"optimizer": lambda parameters: optim.SGD(kind(*arguments), parameters)}


def warmup(rate):
    return lr.LinearWarmup(lr.StepDecay(rate, 2), 3, 0.0, 1.0)


# The arguments that begin a run, those that change, and the names that the refusal may have.
PAIRS = {
    "rate": (optimizer(optim.SGD, 0.1), optimizer(optim.SGD, 0.2), "optimizer.learning_rate"),
    "class": (
        optimizer(optim.Adam, 0.1),
        optimizer(optim.Adamax, 0.1),
        "optimizer.class optimizer.lazy_mode optimizer.amsgrad",
    ),
    "number": (
        optimizer(optim.Adam, 0.1),
        optimizer(optim.Adam, 0.1, beta1=0.8),
        "optimizer.beta1",
    ),
    "attribute": (
        optimizer(optim.Adam, 0.1),
        optimizer(optim.Adam, 0.1, multi_precision=True),
        "optimizer.multi_precision",
    ),
    "least of clipping": (
        optimizer(optim.SGD, 0.1, grad_clip=nn.ClipGradByValue(1.0, -1.0)),
        optimizer(optim.SGD, 0.1, grad_clip=nn.ClipGradByValue(1.0, -0.5)),
        "optimizer.grad_clip",
    ),
    "parameters of groups": (
        groups(),
        groups(1),
        "optimizer.group0.parameters optimizer.group1.parameters",
    ),
    "a schedule": (
        optimizer(optim.SGD, 0.1),
        scheduled(lr.StepDecay, 0.1, 2),
        "schedule.class optimizer.learning_rate schedule.base_lr schedule.gamma "
        "schedule.last_epoch schedule.last_lr schedule.step_size schedule.verbose",
    ),
    "boundaries of a schedule": (
        scheduled(lr.MultiStepDecay, 0.1, [2, 4]),
        scheduled(lr.MultiStepDecay, 0.1, [2, 5]),
        "schedule.milestones",
    ),
    "schedule after a warm-up": (
        scheduled(warmup, 0.1),
        scheduled(warmup, 0.2),
        "schedule.learning_rate.base_lr schedule.learning_rate.last_lr",
    ),
    "activation": ({"model": Net}, {"model": lambda: Net(layer=nn.GELU)}, "layers.body.1"),
    "net's number": ({"model": Net}, {"model": lambda: Net(2.0)}, "layers.class"),
    "Paddle's loss": (
        {"loss": nn.CrossEntropyLoss()},
        {"loss": nn.CrossEntropyLoss(ignore_index=1)},
        "loss",
    ),
    "loss object": ({"loss": Focal()}, {"loss": Focal(1.5)}, "loss"),
    "partial": (
        {"loss": functools.partial(scaled, scale=1.0)},
        {"loss": functools.partial(scaled, scale=2.0)},
        "loss",
    ),
    "metric": (
        {"metrics": {"one": paddle.metric.Accuracy()}},
        {"metrics": {"one": paddle.metric.Accuracy(topk=(2,))}},
        "metrics.one",
    ),
    "gathered metric": (
        {"metrics": {"one": Gathered(error_rate)}},
        {"metrics": {"one": hits}},
        "metrics.one",
    ),
}
if hasattr(optim, "Rprop"):  # Paddle 3
    PAIRS["etas of Rprop"] = (
        optimizer(optim.Rprop, 0.1),
        optimizer(optim.Rprop, 0.1, etas=(0.4, 1.2)),
        "optimizer.etas",
    )


@pytest.mark.parametrize("what", PAIRS)
def test_fit_changed_optimizer_net_or_loss_raises_unless_it_is_overridden(what, tmp_path):
    begun, changed, names = PAIRS[what]
    options = {"epochs": 1, "train": Points(9)}
    train(ROW, tmp_path, **options, **begun)
    with pytest.raises(ConfigError) as refusal:
        train(ROW, tmp_path, **options, **changed)
    found = names_in(refusal)
    assert set(found) <= set(names.split()) and names.split()[0] in found
    for call in (begun, {**changed, "override": found}):
        assert train(ROW, tmp_path, **options, **call).stopped == "already finished"


def test_fit_overridden_values_are_used_and_then_compared(tmp_path):
    def slower(parameters):
        clip = nn.ClipGradByGlobalNorm(0.5)
        return optim.SGD(0.05, parameters, grad_clip=clip)

    train(ROW, tmp_path)
    longer = {"epochs": 3, "optimizer": slower}
    result = train(ROW, tmp_path, override="epochs,optimizer", **longer)
    assert (result.stopped, result.epochs) == ("finished", 3)
    _, rates = series(read_history(tmp_path / "metrics.jsonl"), "train/lr")
    assert (rates[0], rates[-1]) == pytest.approx((0.1, 0.05))
    assert train(ROW, tmp_path, **longer).stopped == "already finished"
    with pytest.raises(ConfigError) as refusal:
        train(ROW, tmp_path, epochs=3)
    assert names_in(refusal) == ["optimizer.learning_rate"]


class Samples(paddle.io.Dataset):
    def __init__(self, samples):
        self.samples, self.read = samples, []

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        self.read.append(index)
        return self.samples[index]


class Marked(Samples):
    def fingerprint(self):
        return f"v{len(self.samples)}"


class Thing:
    """An object for a `collate_fn` to make something of."""


def floats(*values):
    return np.array(values, "float32")


FIVE = [floats(value, 2) for value in range(5)]


def with_one(index, sample):
    return Samples([*FIVE[:index], sample, *FIVE[index + 1 :]])


def objects():
    return Samples([(None, {1, "a"}, np.array([Thing(), "b", 2.5], object), Thing())] * 5)


SAME = {
    "a copy": Samples([sample.copy() for sample in FIVE]),
    "a list": FIVE,
    "tensors": Samples([paddle.to_tensor(sample) for sample in FIVE]),
    "a sample that is not read": with_one(1, floats(9, 9)),
    "not contiguous": Samples([np.stack([sample, sample], 1)[:, 0] for sample in FIVE]),
}
OTHERS = {
    "another first": with_one(0, floats(9, 2)),
    "another in the middle": with_one(2, floats(9, 2)),
    "another shape": with_one(0, FIVE[0][:, np.newaxis]),
    "a text": with_one(0, {"x": FIVE[0], "name": "a"}),
    "a fingerprint": Marked(FIVE),
    "a function": lambda: iter([FIVE]),
    "objects": objects(),
}


def blind_step(model, batch):
    """Compute the same of any batch."""
    return {"loss": model(paddle.ones([2, 6])).square().mean()}


def sizes(samples):
    return paddle.zeros([len(samples)])


def train_blindly(data, folder, **options):
    task = {"step": blind_step, "loss": None, "metrics": None, "valid": None, "epochs": 1}
    return train(ROW, folder, train=data, **{"collate_fn": sizes, **task, **options})


def test_fit_other_data_raise_and_the_same_in_another_form_do_not(tmp_path):
    train_blindly(Samples(FIVE), tmp_path)
    taken = []
    for name, data in OTHERS.items():
        try:
            options = {} if isinstance(data, (Samples, list)) else {"collate_fn": None}
            train_blindly(data, tmp_path, **options)
            taken.append(name)
        except ConfigError as refusal:
            assert "  data." in str(refusal), name
    assert not taken
    for name, data in SAME.items():
        assert train_blindly(data, tmp_path).stopped == "already finished", name


def test_fit_samples_that_hold_objects_are_the_same_wherever_they_lie(tmp_path):
    """Their bytes in an array are addresses."""
    train_blindly(objects(), tmp_path)
    assert train_blindly(objects(), tmp_path).stopped == "already finished"


def test_fit_values_that_the_caller_compares_replace_those_of_the_same_name(tmp_path):
    """A group of the same name: the contents of data that no sample shows, for example."""

    def train_on(version, size=(1, 2.0), **options):
        compared = {"data": version, "sizes": {"x": size}}
        return train(ROW, tmp_path, epochs=1, must_match=compared, **options)

    assert train_on("v1").stopped == "finished"
    assert train_on("v1", train=Shifted()).stopped == "already finished"
    for version, size, name in (("v2", (1, 2.0), "data"), ("v1", 2, "sizes.x")):
        with pytest.raises(ConfigError) as refusal:
            train_on(version, size)
        assert names_in(refusal) == [name]
    assert train_on("v2", override="data").stopped == "already finished"
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert config["data"] == "v1" and config["sizes"] == {"x": [1, 2.0]}


# The code of a task


def step_of(factor):
    """Return a step whose code is always the same; its value `factor` is not."""

    def step(model, batch):
        """Compute the loss."""
        points, labels = batch
        assert "b" in {"a", "b", "c"}
        return {"loss": factor * F.cross_entropy(model(points), labels)}

    return step


def other_step(model, batch):
    points, labels = batch
    return {"loss": 3 * F.cross_entropy(model(points), labels)}


class Halved(Net):
    def forward(self, points):
        return super().forward(points) / 2


# The code alone changes, not the names.
other_step.__qualname__ = "step_of.<locals>.step"
Halved.__name__ = "Net"

TASK = {"loss": None, "metrics": None}
OTHER_CODE = {
    "step": ({**TASK, "step": step_of(1)}, {"step": other_step}, "step"),
    "value": ({**TASK, "step": step_of(1)}, {"step": step_of(2)}, "step"),
    "forward": ({"model": Net}, {"model": Halved}, "model"),
    "lambda": (
        {"loss": lambda outputs, labels: F.cross_entropy(outputs, labels)},
        {"loss": lambda outputs, labels: 2 * F.cross_entropy(outputs, labels)},
        "loss",
    ),
}


def changes_of_code(lines):
    return [line for line in lines() if "has changed since the run began" in line]


@pytest.mark.parametrize("what", OTHER_CODE)
def test_fit_other_code_warns_or_raises_where_must_match_names_code(what, tmp_path, lines):
    begun, changed, name = OTHER_CODE[what]
    common = {"epochs": 1, **begun}
    train(ROW, tmp_path, **common)
    assert train(ROW, tmp_path, **common).stopped == "already finished"
    assert not changes_of_code(lines)
    compared = lines()[-1].partition("code is not compared, except that of ")[2]
    assert name in compared.split(", ")
    with pytest.raises(ConfigError) as refusal:
        train(ROW, tmp_path, **{**common, **changed}, must_match={"code": True})
    assert names_in(refusal) == [f"code.{name}"]
    assert train(ROW, tmp_path, **{**common, **changed}).stopped == "already finished"
    (line,) = changes_of_code(lines)
    assert f"the code of {name}" in line and line in (tmp_path / "train.log").read_text()


class Anneals(Callback):
    def __init__(self, loss):
        self.loss = loss

    def after_step(self, view):
        global steps_done
        self.loss.gamma, steps_done = 2.0 + view.step, view.step


class Smoothed(Focal):
    mean = None

    def __call__(self, outputs, labels):
        self.mean = float(loss := super().__call__(outputs, labels))
        return loss


def loss_with(text):
    """Return a loss whose code has a further text."""
    scope = {"F": F, "__name__": __name__}
    exec(f"def loss(outputs, labels):\n{text}    return F.cross_entropy(outputs, labels)", scope)
    return scope["loss"]


def test_fit_objects_that_it_has_trained_and_other_texts_resume_silently(
    tmp_path, lines, monkeypatch
):
    """Paths, times, identifiers, comments and what training changes are not compared."""
    loss, model, bound = Focal(), Net(), Smoothed().__call__
    annealed = {"loss": loss, "callbacks": [Anneals(loss)]}
    calls = {
        "objects": [{"model": model, **annealed}, {"model": model, **annealed}],
        "objects made again": [{"model": Net(), **annealed}, {"model": Net(), **annealed}],
        "bound method": [{"loss": bound}, {"loss": bound}],
        "comment": [{"loss": loss_with("")}, {"loss": loss_with("    # a comment\n")}],
        "docstring": [{"loss": loss_with("")}, {"loss": loss_with("    'A docstring.'\n\n")}],
    }
    for name, (first, second) in calls.items():
        train(ROW, tmp_path / name, epochs=1, **first)
        monkeypatch.chdir(tmp_path / name)
        result = train(ROW, tmp_path / name, epochs=1, **second)
        assert result.stopped == "already finished", name
    assert model.calls and loss.gamma > 2
    assert not changes_of_code(lines)


def test_fit_further_metrics_of_a_finished_run_are_evaluated_silently(tmp_path, lines):
    for metrics in (None, {"hits": hits}, {"hits": hits, "errors": Gathered(error_rate)}):
        result = train(ROW, tmp_path, epochs=1, metrics=metrics)
        assert {*result.metrics} == {f"valid/{name}" for name in ("loss", *(metrics or ()))}
    assert result.stopped == "finished"
    assert train(ROW, tmp_path, epochs=1, metrics=metrics).stopped == "already finished"
    assert not changes_of_code(lines)


def test_config_of_a_run_has_who_trained_it_python_parameters_and_net(tmp_path):
    train(ROW, tmp_path, model=Net, epochs=1, must_match={"code": True})
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert config["trained_with"] == "paddle_mnist.fit" and config["keep_last"] == 3
    assert config["code"]["python"] == "{}.{}".format(*sys.version_info)
    assert config["parameters"] == {"body.0.weight": "[6, 3] float32", "body.0.bias": "[3] float32"}
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
def test_fit_same_code_in_processes_with_other_hash_seeds_resumes_silently(tmp_path):
    Path(tmp_path, "script.py").write_text(SCRIPT)
    outputs = []
    for seed in "12":
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "script.py", "run"],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "has changed since" not in done.stderr + done.stdout
        outputs.append(done.stdout.splitlines()[-1])
    assert outputs == ["finished", "already finished"]
