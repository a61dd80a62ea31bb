"""A resume compares the call of `fit` with that which began the run, and names what differs."""

import contextlib
import functools
import os
import time
import uuid

import numpy as np
import paddle
import pytest
import yaml
from fit_rows import Points, ProgramError, StopsAt, bits, history, perceptron, stop, train
from paddle import nn
from paddle.nn import functional as F
from paddle.optimizer import lr
from stateful_rows import Wavering
from test_former_checkpoints import rewrite

from paddle_mnist import Callback, Gathered, Mean
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.options import OptimizerOptions

optim = paddle.optimizer
ROW = "SGD with clipping"
TASK = {"loss": None, "metrics": None}


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
    """A net with settings, and with other values: a counter, a time, identifiers."""

    def __init__(self, scale=1.0, layer=nn.ReLU):
        super().__init__()
        self.scale, self.act, self.calls, self.place = scale, F.relu, 0, os.getcwd()
        self.made, self.number, self.key = time.time(), id(self), uuid.uuid4().hex
        self.body = nn.Sequential(nn.Linear(6, 3), layer())
        self.first = self.body[0].weight.name

    def forward(self, points):
        self.calls += 1
        return self.act(self.scale * self.body(points))


class Focal:
    def __init__(self, gamma=2.0):
        self.gamma = gamma

    def __call__(self, outputs, labels):
        return F.cross_entropy(outputs, labels) ** self.gamma


def scaled(outputs, labels, scale=1.0):
    return scale * F.cross_entropy(outputs, labels)


def hits(outputs, labels):
    return Mean((outputs.argmax(axis=1) == labels.flatten()).sum(), len(labels))


def error_rate(outputs, labels):
    return float(np.mean(outputs.argmax(axis=1) != labels[:, 0]))


def reverse(samples):
    return [np.stack(column) for column in zip(*reversed(samples))]


def names_in(refusal):
    """Return the names of the changed values, by the lines of a refusal."""
    lines = str(refusal.value).splitlines()
    return [line.split(":")[0].strip() for line in lines if " in the run, " in line]


def modified(folder):
    files = (path for path in folder.rglob("*.*") if path.name != "train.log")
    return {path: path.stat().st_mtime_ns for path in files}


CHANGED_CALL = {
    "epochs": 3,
    "seed": 6,
    "grad_shards": 2,
    "accumulate": 2,
    "ema": 0.5,
    "monitor": "valid/acc",
    "collate_fn": reverse,
    "must_match": {"images": {"crop": 28}},
    "model": lambda: perceptron(width=8),
    "train": Points(40),
    "valid": Shifted(),
}
NAMES = (
    "epochs seed grad_shards accumulate ema monitor mode collate_fn images.crop data.length "
    "data.samples data.labels valid.valid.samples parameters.0.weight parameters.0.bias "
    "parameters.2.weight layers.0 layers.2"
)


def test_fit_changed_call_raises_by_name_and_touches_nothing(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(ProgramError):
        train(ROW, run, callbacks=[StopsAt(7, stop)])
    before = modified(run)
    for options, names, advice in (
        (CHANGED_CALL, NAMES, []),
        ({"train": Shifted()}, "data.samples", ["override", "seed the", "sorted()"]),
        # With other labels for the same samples, or other steps, no override would make sense.
        ({"train": Permuted()}, "data.samples data.labels", ["seed the", "sorted()"]),
        ({"batch_size": 4}, "batch_size", []),
    ):
        with pytest.raises(ConfigError) as refusal:
            train(ROW, run, **options)
        assert {*names_in(refusal)} == {*names.split()}
        text = str(refusal.value)
        assert "Use fresh=True to start over" in text and "another output" in text
        assert [word for word in ("override", "seed the", "sorted()") if word in text] == advice
    assert modified(run) == before
    with pytest.raises(ConfigError, match="use override='seed'") as refusal:
        train(ROW, tmp_path / "other", resume=str(run), seed=6)
    assert str(run) in str(refusal.value) and "fresh" not in str(refusal.value)


def warmup(rate):
    return lr.LinearWarmup(lr.StepDecay(rate, 2), 3, 0.0, 1.0)


def adamw(rate, beta1, least, order):
    """Return a function that makes an optimizer with a group for each parameter, in an order."""
    clip = nn.ClipGradByValue(1.0, least)

    def make(parameters):
        groups = [{"params": [parameter]} for parameter in parameters[::order]]
        return optim.AdamW(warmup(rate), beta1=beta1, parameters=groups, grad_clip=clip)

    return make


def test_fit_changed_optimizer_net_or_loss_raises_unless_it_is_overridden(tmp_path):
    begun = {
        "optimizer": adamw(0.1, 0.9, -1.0, order=1),
        "model": Net,
        "loss": functools.partial(scaled, scale=1.0),
        "metrics": {"one": Gathered(error_rate)},
    }
    changed = {
        "optimizer": adamw(0.2, 0.8, -0.5, order=-1),
        "model": lambda: Net(2.0, layer=nn.GELU),
        "loss": functools.partial(scaled, scale=2.0),
        "metrics": {"one": hits},
    }
    names = (
        "optimizer.beta1 optimizer.grad_clip optimizer.group0.beta1 optimizer.group1.beta1 "
        "optimizer.group0.parameters optimizer.group1.parameters schedule.learning_rate.base_lr "
        "schedule.learning_rate.last_lr layers.class layers.body.1 loss metrics.one"
    )
    options = {"epochs": 1, "train": Points(9)}
    train(ROW, tmp_path, **options, **begun)
    with pytest.raises(ConfigError) as refusal:
        train(ROW, tmp_path, **options, **changed)
    assert {*names_in(refusal)} == {*names.split()}
    for call in (begun, {**changed, "override": names.split()}):
        assert train(ROW, tmp_path, **options, **call).stopped == "already finished"
    other = {**begun, "optimizer": lambda parameters: optim.SGD(0.1, parameters), "loss": Focal()}
    with pytest.raises(ConfigError) as refusal:
        train(ROW, tmp_path, **options, **other)
    assert {"optimizer.class", "schedule.class", "loss"} <= {*names_in(refusal)}


def test_fit_overridden_values_are_used_and_then_compared(tmp_path):
    def slower(parameters):
        clip = nn.ClipGradByGlobalNorm(0.5)
        return optim.SGD(0.05, parameters, grad_clip=clip)

    train(ROW, tmp_path)
    longer = {"epochs": 3, "optimizer": slower}
    result = train(ROW, tmp_path, override="epochs,optimizer", **longer)
    assert (result.stopped, result.epochs) == ("finished", 3)
    _, rates = history(tmp_path, "train/lr")
    assert (rates[0], rates[-1]) == pytest.approx((0.1, 0.05))
    assert train(ROW, tmp_path, **longer).stopped == "already finished"
    with pytest.raises(
        ConfigError, match=r"on purpose, use override='optimizer\.learning_rate'"
    ) as refusal:
        train(ROW, tmp_path, epochs=3)
    assert names_in(refusal) == ["optimizer.learning_rate"]
    with pytest.raises(ConfigError, match="an epoch now has 9 steps"):
        train(ROW, tmp_path, **{**longer, "epochs": 4}, batch_size=4, override="batch_size,epochs")


def falling(steps):
    return lr.LambdaDecay(0.1, lambda step: 1 - step / steps)


def warmed_up(steps):
    return lr.LinearWarmup(falling(steps), 3, 0.0, 0.1)


def cosine(steps):
    """Return a schedule whose rates depend, in their last bits, on how it came to a step."""
    return lr.CosineAnnealingDecay(0.1, steps)


def cosine_of_options(steps):
    return OptimizerOptions("sgd", lr_schedule="cosine", total_steps=steps)


def following(schedule):
    is_optimizer = isinstance(schedule, OptimizerOptions)
    return schedule if is_optimizer else lambda parameters: optim.SGD(schedule, parameters)


@pytest.mark.parametrize(
    ("build", "begun_epochs"),
    [(lambda: Wavering(0.1), 1), (lambda: cosine(20), 1), (lambda: cosine_of_options(21), 2)],
    ids=["state of its own", "a fixed length", "options"],
)
def test_fit_override_leaves_a_schedule_that_it_does_not_change(tmp_path, build, begun_epochs):
    def train_to(epochs, name, callbacks=(), **options):
        optimizer = following(build())
        options = {"optimizer": optimizer, "epochs": epochs, "callbacks": callbacks, **options}
        return train(ROW, tmp_path / name, **options)

    unbroken = train_to(2, "unbroken")
    with contextlib.suppress(ProgramError):
        train_to(begun_epochs, "run", [StopsAt(8, stop)])
    assert bits(train_to(2, "run", override="epochs")) == bits(unbroken)


@pytest.mark.parametrize(
    ("build", "override", "options"),
    [
        (falling, "epochs", {}),
        (warmed_up, "epochs", {}),
        (cosine, "epochs,schedule", {}),
        (cosine_of_options, "epochs", {}),
        (lambda steps: lr.StepDecay(0.1, 2), "epochs,schedule_every", {"schedule_every": "epoch"}),
    ],
)
def test_fit_override_moves_a_schedule_that_it_changes(tmp_path, build, override, options):
    """To where it is in a run that began with it."""

    def rates(name, epochs, **options):
        optimizer = following(build(5 * epochs))
        train(ROW, tmp_path / name, optimizer=optimizer, epochs=epochs, log_every=1, **options)
        return history(tmp_path / name, "train/lr")[1]

    expected = rates("unbroken", 2)
    assert rates("run", 1, **options) != pytest.approx(expected[:5])
    assert rates("run", 2, override=override)[5:] == pytest.approx(expected[5:])


KEPT_OPTIMIZER = "optimizer, whose state is saved; .* takes the weights alone"


@pytest.mark.parametrize("what", ["number of samples", "batch size", "parameters", KEPT_OPTIMIZER])
def test_fit_offers_only_what_a_resume_accepts(tmp_path, what):
    class Fewer(Points):
        def __len__(self):
            return super().__len__() // 2

    changed = {
        "number of samples": {"train": Fewer()},
        "batch size": {"batch_size": 4},
        "parameters": {"model": lambda: nn.Linear(6, 3)},
        KEPT_OPTIMIZER: {"optimizer": adamw(0.1, 0.9, -1.0, order=1)},
    }
    train(ROW, tmp_path)
    with pytest.raises(ConfigError, match=f"a run keeps its {what}$") as refusal:
        train(ROW, tmp_path, epochs=3, **changed[what])
    assert "override" not in str(refusal.value)


def test_fit_offers_an_override_to_freeze_parameters(tmp_path):
    def frozen():
        model = perceptron()
        model[0].weight.stop_gradient = True
        return model

    train(ROW, tmp_path)
    override = "parameters.0.weight,epochs"
    with pytest.raises(ConfigError, match=f"use override='{override}'$"):
        train(ROW, tmp_path, epochs=3, model=frozen)
    resumed = train(ROW, tmp_path, epochs=3, model=frozen, override=override)
    assert resumed.stopped == "finished"


class Marked(list):
    fingerprint = "v2"


FIVE = [np.array([value, 2], "float32") for value in range(5)]


def with_one(index, sample):
    return [*FIVE[:index], sample, *FIVE[index + 1 :]]


SAME = {
    "tensors": paddle.io.TensorDataset([paddle.to_tensor(np.stack(FIVE))]),
    "a sample that is not read": with_one(1, 9 * FIVE[1]),
    "not contiguous": [np.stack([sample, sample], 1)[:, 0] for sample in FIVE],
}
OTHERS = {
    "another in the middle": with_one(2, 9 * FIVE[2]),
    "another shape": with_one(0, FIVE[0][:, np.newaxis]),
    "a text": with_one(0, {"x": FIVE[0], "name": "a"}),
    "a fingerprint": Marked(FIVE),
    "a function": lambda: iter([FIVE]),
}


def train_blindly(data, folder):
    """Train with a step that computes the same of any batch."""
    options = {
        "step": lambda model, batch: {"loss": model(paddle.ones([2, 6])).square().mean()},
        "collate_fn": None if callable(data) else lambda samples: paddle.zeros([len(samples)]),
        **TASK,
    }
    return train(ROW, folder, train=data, valid=None, epochs=1, **options)


def test_fit_other_data_raise_and_the_same_in_another_form_do_not(tmp_path):
    train_blindly(FIVE, tmp_path)
    for data in OTHERS.values():
        with pytest.raises(ConfigError, match=r"\n  data\."):
            train_blindly(data, tmp_path)
    for name, data in SAME.items():
        assert train_blindly(data, tmp_path).stopped == "already finished", name


def test_fit_values_that_the_caller_compares_replace_those_of_the_same_name(tmp_path):
    """The contents of data that no sample shows, for example."""

    def train_on(version, **options):
        return train(ROW, tmp_path, epochs=1, must_match={"data": version}, **options)

    assert train_on("v1").stopped == "finished"
    assert train_on("v1", train=Shifted()).stopped == "already finished"
    with pytest.raises(ConfigError) as refusal:
        train_on("v2")
    assert names_in(refusal) == ["data"]
    assert train_on("v2", override="data").stopped == "already finished"
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["data"] == "v1"


# The code of a task


def step_of(factor):
    """Return a step whose code is always the same; its value `factor` is not."""
    return lambda model, batch: {"loss": factor * F.cross_entropy(model(batch[0]), batch[1])}


class Halved(Net):
    def forward(self, points):
        return super().forward(points) / 2


Halved.__name__ = "Net"  # the code alone changes, not the name

OTHER_CODE = {
    "value": ({**TASK, "step": step_of(1)}, {"step": step_of(2)}, "step"),
    "forward": ({"model": Net}, {"model": Halved}, "model"),
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
    compared = lines()[-1].partition("only the code of ")[2].partition(" was compared")[0]
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
        self.loss.gamma = 2.0 + view.step


def test_fit_state_and_identifiers_are_not_compared(tmp_path, lines, monkeypatch):
    """Objects that it has trained, too, resume silently, in another folder."""
    loss, model = Focal(), Net()
    annealed = {"loss": loss, "callbacks": [Anneals(loss)]}
    calls = [
        [{"model": model, **annealed}, {"model": model, **annealed}],
        [{"model": Net(), **annealed}, {"model": Net(), **annealed}],
    ]
    for number, (first, second) in enumerate(calls):
        folder = tmp_path / str(number)
        train(ROW, folder, epochs=1, **first)
        monkeypatch.chdir(folder)
        assert train(ROW, folder, epochs=1, **second).stopped == "already finished"
    assert model.calls and loss.gamma > 2
    assert not changes_of_code(lines)


def test_fit_further_metrics_of_a_finished_run_are_evaluated_silently(tmp_path, lines):
    for metrics in (None, {"hits": hits}, {"hits": hits, "errors": Gathered(error_rate)}):
        result = train(ROW, tmp_path, epochs=1, metrics=metrics)
        assert {*result.metrics} == {f"valid/{name}" for name in ("loss", *(metrics or ()))}
    assert result.stopped == "finished"
    assert train(ROW, tmp_path, epochs=1, metrics=metrics).stopped == "already finished"
    assert not changes_of_code(lines)


# Arrays that code names, and the first batch


def features(seed, folder, **options):
    """Train on random features of the points, whose matrix is drawn from a seed."""
    matrix = paddle.to_tensor(np.random.RandomState(seed).randn(6, 6).astype("float32"))

    def step(model, batch):
        return {"loss": F.cross_entropy(model(batch[0] @ matrix), batch[1])}

    return train(ROW, folder, step=step, epochs=1, **TASK, **options)


def test_fit_other_arrays_that_step_names_raise_with_the_remedy(tmp_path, lines):
    assert features(1, tmp_path).stopped == "finished"
    assert features(1, tmp_path).stopped == "already finished"
    with pytest.raises(ConfigError, match="seed the generators") as refusal:
        features(2, tmp_path)
    assert names_in(refusal) == ["arrays.step.matrix"]
    assert "so the run may end with other bits" in str(refusal.value)
    assert features(2, tmp_path, override="arrays").stopped == "already finished"


@pytest.mark.parametrize("entry", ["x", 3, ["x"], [[1]], [["step.matrix"], 2]])
def test_fit_edited_list_of_arrays_raises_by_name(entry, tmp_path):
    with pytest.raises(ProgramError):
        features(1, tmp_path, callbacks=[StopsAt(4, stop)])
    rewrite(tmp_path, lambda config: {**config, "arrays": entry})
    with pytest.raises(ConfigError) as refusal:
        features(1, tmp_path)
    assert "arrays" in names_in(refusal)


def test_fit_other_tensors_of_the_loss_raise(tmp_path):
    def weighted(*weights, **options):
        tensor = paddle.to_tensor(weights) if weights else None
        loss = nn.CrossEntropyLoss(weight=tensor)
        return train(ROW, tmp_path, loss=loss, epochs=1, **options)

    weighted()
    with pytest.raises(ConfigError) as refusal:
        weighted(1.0, 2.0, 1.0)
    assert names_in(refusal) == ["arrays.loss.weight"]
    weighted(1.0, 2.0, 1.0, override="arrays")
    with pytest.raises(ConfigError) as refusal:
        weighted(1.0, 3.0, 1.0)
    assert names_in(refusal) == ["arrays.loss.weight"]


def test_fit_arrays_that_steps_change_are_not_compared(tmp_path):
    """A second call in the same process finds them as the first has left them."""
    sums = np.zeros(3)

    def step(model, batch):
        sums[:] += 1
        return {"loss": F.cross_entropy(model(batch[0]), batch[1])}

    for stopped in ("finished", "already finished"):
        assert train(ROW, tmp_path, step=step, epochs=1, **TASK).stopped == stopped


def test_fit_run_that_recorded_no_arrays_and_no_batch_continues(tmp_path):
    assert features(1, tmp_path).stopped == "finished"
    newer = ("arrays", "data.first_batch")

    def as_in_version_1_0(config):
        assert {*newer} <= {*config}
        return {name: value for name, value in config.items() if name not in newer}

    rewrite(tmp_path, as_in_version_1_0)
    assert features(2, tmp_path).stopped == "already finished"


def test_fit_other_first_batch_raises_with_the_remedy(tmp_path):
    """As of words that are numbered in the order of a set: the samples themselves are the same."""

    def numbered(order, **options):
        def collate(samples):
            points, labels = (np.stack(column) for column in zip(*samples))
            return points[:, order], labels

        return train(ROW, tmp_path, collate_fn=collate, epochs=1, **options)

    order = [0, 1, 2, 3, 4, 5]
    assert numbered(order).stopped == "finished"
    assert numbered(order).stopped == "already finished"
    with pytest.raises(ConfigError, match=r"sorted\(\)") as refusal:
        numbered(order[::-1])
    assert names_in(refusal) == ["data.first_batch"]
