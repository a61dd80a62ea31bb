"""A new run rehearses and then starts from the untouched beginning; a resumed run does not."""

import functools
import gc
import hashlib
import random

import numpy as np
import paddle
import pytest
from fit_rows import STOP_AT, ProgramError, StopsAt, adam, bits, momentum, on_plateau, stop, train
from paddle import nn
from paddle.nn import functional as F
from small_nets import CLASSES, WIDTH, Points, perceptron, with_batch_norm, with_dropout
from stateful_rows import Lion

from paddle_mnist import Callback, Figures, Trainer, VisualDL, fit, is_rehearsal
from paddle_mnist.checkpoint import snapshot
from paddle_mnist.checkpoint.contents import optimizer_state
from paddle_mnist.checkpoint.manifest import PARAMS, read_manifest
from paddle_mnist.checkpoint.weights import load
from paddle_mnist.data.loader import BatchLoader
from paddle_mnist.data.seeding import generators_restored, reseed
from paddle_mnist.errors import ConfigError
from paddle_mnist.training.beginning import Beginning
from paddle_mnist.training.steps import SupervisedStep

SEED = 5
ROW = "SGD with clipping"


class Asks(Callback):
    """Notes which of its methods were called in the rehearsal, and which afterwards."""

    def __init__(self, calls):
        self.calls, self.count = calls, 0  # the calls are a list outside: see `Witness`

    def before_training(self, training):
        self.calls.add("before_training", is_rehearsal())

    def after_step(self, view):
        self.count += 1
        self.calls.add("after_step", is_rehearsal(), self.count)

    def after_epoch(self, view):
        self.calls.add("after_epoch", is_rehearsal())


class Witness:
    """Remembers over a rehearsal, which puts back all that it can see: in a file."""

    def __init__(self, path):
        self.path = path

    def add(self, *values):
        with open(self.path, "a") as file:
            print(*values, file=file)

    def said(self, *words):
        """Return the lines that begin with some words, in order, without them."""
        rows = [line.split() for line in self.path.read_text().splitlines()]
        words = [str(word) for word in words]
        return [row[len(words) :] for row in rows if row[: len(words)] == words]


@pytest.fixture
def witness(tmp_path):
    return Witness(tmp_path / "witness.txt")


def asking_step(witness):
    def step(model, batch):
        witness.add("step", is_rehearsal(), model.training)
        return {"loss": F.cross_entropy(model(batch[0]), batch[1])}

    return step


def test_step_and_callbacks_can_tell_a_rehearsal(tmp_path, witness):
    assert not is_rehearsal()
    options = {"step": asking_step(witness), "loss": None, "metrics": None}
    train(ROW, tmp_path / "run", callbacks=[Asks(witness)], **options)
    assert not is_rehearsal()
    assert len(witness.said("step", True, True)) >= 2, "the rehearsal trains two steps"
    assert witness.said("step", True, False), "the rehearsal evaluates"
    assert len(witness.said("step", False, True)) == 10
    assert len(witness.said("step", False, False)) == 2 * 5
    assert witness.said("after_step", True) and witness.said("after_epoch", True)
    assert witness.said("before_training") == [["False"]]
    assert len(witness.said("after_epoch", False)) == 2


def test_a_callbacks_counter_starts_anew_after_the_rehearsal(tmp_path, witness):
    train(ROW, tmp_path / "run", callbacks=[Asks(witness)])
    counts = [int(count) for (count,) in witness.said("after_step", False)]
    assert counts == list(range(1, 11))


@pytest.mark.parametrize("killed_at", [1, 7])
def test_a_resumed_run_does_not_rehearse(killed_at, tmp_path, witness):
    """Not even one that resumes from step 0, the checkpoint before the first step."""
    options = {"save_on_exception": False} if killed_at == 1 else {}
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "run", callbacks=[StopsAt(killed_at, stop)], **options)
    options |= {"step": asking_step(witness), "loss": None, "metrics": None}
    options |= {"override": "loss,step"}
    result = train(ROW, tmp_path / "run", callbacks=[Asks(witness)], **options)
    assert result.stopped == "finished"
    assert not witness.said("after_step", True) and not witness.said("after_epoch", True)
    assert witness.said("after_step", False)


def test_the_rehearsal_ends_with_an_error_in_it(tmp_path):
    """After a refusal, whatever comes next in this process is no rehearsal."""

    def step(model, batch):
        if is_rehearsal() and model.training:
            raise ZeroDivisionError("by hand")
        return {"loss": F.cross_entropy(model(batch[0]), batch[1])}

    with pytest.raises((ConfigError, ZeroDivisionError), match="by hand"):
        train(ROW, tmp_path, step=step, loss=None, metrics=None)
    assert not is_rehearsal()


# ------------------------------------------------------------------ no trace


def sgd(parameters):
    return paddle.optimizer.SGD(0.1, parameters=parameters)


class Buffered(nn.Layer):
    """Has buffers of both kinds, which every pass changes."""

    def __init__(self):
        super().__init__()
        self.body = perceptron()
        self.register_buffer("seen", paddle.zeros([], "int64"))
        self.register_buffer("last", paddle.zeros([CLASSES]), persistable=True)

    def forward(self, points):
        outputs = self.body(points)
        if self.training:
            self.seen = self.seen + 1
            self.last.set_value(outputs.detach().mean(axis=0))
        return outputs


MODELS = {
    "perceptron": perceptron,
    "BatchNorm": with_batch_norm,
    "dropout": with_dropout,
    "buffers": Buffered,
    "spectral norm": lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(WIDTH, CLASSES))),
}


@pytest.mark.parametrize("make", [sgd, momentum, adam, on_plateau])
@pytest.mark.parametrize("model", MODELS)
def test_step_0_holds_what_was_built(model, make, tmp_path):
    """Weights, buffers, the schedule, and no accumulators: those that no step has changed."""
    fresh = []

    def build():
        built = MODELS[model]()
        fresh.append({name: one.numpy().copy() for name, one in built.state_dict().items()})
        return built

    with pytest.raises(ProgramError):
        train(
            ROW,
            tmp_path,
            model=build,
            optimizer=make,
            callbacks=[StopsAt(1, stop)],
            save_on_exception=False,
        )
    (path,) = tmp_path.glob("checkpoints/*.json")
    checkpoint = read_manifest(path)
    assert checkpoint.state.step == 0
    weights = checkpoint.load(PARAMS)
    for name, values in fresh[0].items():
        np.testing.assert_array_equal(weights[name], values, err_msg=name)
    untouched = {"LR_Scheduler": make(nn.Linear(2, 2).parameters()).state_dict()}
    schedule = untouched["LR_Scheduler"].get("LR_Scheduler", {})
    expected = {f"LR_Scheduler {name}": value for name, value in schedule.items()}
    assert optimizer_state(checkpoint) == expected


@pytest.mark.parametrize("make", [sgd, momentum, adam])
@pytest.mark.parametrize("model", MODELS)
def test_a_run_has_the_bits_of_a_trainer_that_does_not_rehearse(model, make, tmp_path):
    data = Points(noise=0.3)  # which draws from all global generators
    result = fit(
        MODELS[model],
        data,
        optimizer=make,
        loss=F.cross_entropy,
        epochs=2,
        batch_size=8,
        seed=SEED,
        output=tmp_path / "run",
        callbacks=[VisualDL(()), Figures(False)],
        device="cpu",
    )
    with generators_restored():
        paddle.seed(SEED)
        net = MODELS[model]()
        trainer = Trainer(
            tmp_path / "trainer.pdparams",
            net,
            make(net.parameters()),
            step=SupervisedStep(F.cross_entropy),
            reseed=functools.partial(reseed, SEED),
        )
        trainer.train(BatchLoader(data, 8, seed=SEED, shuffle=True), 0, 2, tmp_path / "trainer")
    expected = load(tmp_path / "trainer.pdparams")
    for name, values in load(result.weights).items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


@pytest.mark.parametrize("stopped", [False, True])
def test_the_first_step_finds_what_was_built(stopped, tmp_path, witness):
    """It trains and counts that: neither the first batch's trial nor the rehearsal has moved it.

    Neither have they in a run that resumes from step 0.
    """

    def built():
        with generators_restored():
            paddle.seed(7)
            other = nn.Linear(WIDTH, CLASSES)
        optimizer = paddle.optimizer.Momentum(0.1, parameters=other.parameters())
        count = 0

        def step(model, batch):
            nonlocal count
            points, labels = batch
            if model.training:
                has_gradient = other.weight.grad is not None and bool(other.weight.grad.any())
                weights = hashlib.sha256(other.weight.numpy().tobytes()).hexdigest()
                witness.add(is_rehearsal(), count, weights, has_gradient)
                count += 1
                F.cross_entropy(other(points), labels).backward()
                optimizer.step()
                optimizer.clear_grad()
            return {"loss": F.cross_entropy(model(points) + other(points).detach(), labels)}

        options = {"step": step, "loss": None, "metrics": None, "save_on_exception": False}
        return other, {**options, "state": {"other": other, "optimizer": optimizer}}

    if stopped:
        with pytest.raises(ProgramError):
            train(ROW, tmp_path / "run", callbacks=[StopsAt(1, stop)], **built()[1])
        witness.path.unlink()
    other, options = built()
    expected = hashlib.sha256(other.weight.numpy().tobytes()).hexdigest()
    train(ROW, tmp_path / "run", callbacks=[Asks(witness)], **options)
    lines = witness.path.read_text().splitlines()
    begun = lines.index("before_training False")  # the first batch was tried before
    first = next(line for line in lines[begun:] if line.startswith("False"))
    assert first == f"False 0 {expected} False"


class ReadyLion(Lion):
    """Has its averages from the beginning."""

    def __init__(self, parameters):
        super().__init__(0.02, parameters)
        self.averages = {parameter.name: paddle.zeros_like(parameter) for parameter in parameters}


@pytest.mark.parametrize(
    ("row", "options"),
    [
        ("Adam", {}),
        ("EMA teacher in the step", {}),
        ("own optimizer", {"optimizer": lambda parameters: ReadyLion(parameters)}),
    ],
)
def test_large_state_is_put_back_and_saved(row, options, tmp_path, monkeypatch):
    """Of optimizers and layers, however much is too large to be examined at elsewhere."""
    source = train(row, tmp_path / "source", **options)
    options = {**options, "incremental_from": source.weights.parent}
    expected = bits(train(row, tmp_path / "small", **options))
    monkeypatch.setattr(snapshot, "MOST_BYTES", 0)
    with pytest.raises(ProgramError):
        train(row, tmp_path / "large", callbacks=[StopsAt(STOP_AT, stop)], **options)
    assert bits(train(row, tmp_path / "large", **options)) == expected


def test_copies_of_the_beginning_are_gone_when_the_training_starts(tmp_path):
    """At once, and not when garbage is collected: they are as large as the net."""
    left = []

    def look():
        left.extend(one for one in gc.get_objects() if type(one) is Beginning)

    gc.collect()  # what the errors of earlier tests hold
    gc.disable()
    try:
        train("EMA teacher in state", tmp_path, callbacks=[StopsAt(1, look)])
    finally:
        gc.enable()
    assert not left


def test_what_is_too_large_to_be_examined_is_named_where_it_matters(tmp_path, monkeypatch):
    table = np.ones(CLASSES, "float32")

    def step(model, batch):
        table[:] *= np.float32(1.1)
        return {"loss": F.cross_entropy(model(batch[0]) * paddle.to_tensor(table), batch[1])}

    monkeypatch.setattr(snapshot, "MOST_BYTES", 8)
    with pytest.raises(
        ConfigError, match=r"such as step\.table \(0 MiB\), too large to be examined"
    ):
        train(ROW, tmp_path, step=step, loss=None, metrics=None)


def test_the_callers_generators_are_where_they_were(tmp_path):
    def state():
        return random.getstate(), np.random.get_state()[1].tolist(), paddle.rand([1]).item()

    random.seed(1), np.random.seed(1), paddle.seed(1)
    before = state()
    random.seed(1), np.random.seed(1), paddle.seed(1)
    train("random samples", tmp_path)
    assert state() == before


# ------------------------------------------------------------------ the log


class KeepsAttention(nn.Layer):
    """Keeps its attention for looking at: a cache without consequences."""

    def __init__(self):
        super().__init__()
        self.linear, self.attention = nn.Linear(WIDTH, CLASSES), None

    def forward(self, points):
        outputs = self.linear(points)
        self.attention = F.softmax(outputs.detach())
        return outputs


def test_what_has_no_consequence_is_named_in_the_log(tmp_path, lines):
    result = train(ROW, tmp_path, model=KeepsAttention)
    assert result.stopped == "finished"
    named = [line for line in lines() if "attention" in line]
    assert len(named) == 1 and "not saved" in named[0], named
    assert named[0] in (tmp_path / "train.log").read_text()
    assert not [line for line in lines() if "BatchNorm" in line]


def test_fit_logs_the_rehearsal_before_its_first_step(tmp_path, lines):
    train("Adam", tmp_path)
    first, *others = lines()
    assert first.startswith("rehearsing a resume before the first step (is_rehearsal() is True): 5")
    assert first in (tmp_path / "train.log").read_text().splitlines()[0]
    assert not [line for line in others if "not saved" in line or line.startswith("rehears")]


def test_fit_without_a_rehearsal_logs_no_line_and_keeps_the_bits(tmp_path, witness, lines):
    calls = {"callbacks": [Asks(witness)]}
    result = train(ROW, tmp_path / "run", rehearse=False, **calls)
    assert not witness.said("after_step", True) and witness.said("after_step", False)
    assert not [line for line in lines() if line.startswith("rehears")]
    assert bits(result) == bits(train(ROW, tmp_path / "rehearsed", **calls))


def test_data_that_can_be_read_once_are_all_trained_on(tmp_path, lines):
    """A stream that goes on where it was, each time it is asked for."""
    points, labels = Points().points, Points().classes.reshape([-1, 1])
    stream = iter([(points[at : at + 8], labels[at : at + 8]) for at in range(0, 32, 8)])
    result = train(ROW, tmp_path, train=lambda: stream, valid=None, epochs=1)
    assert result.steps == 4, "the rehearsal has used batches up"
    assert len([line for line in lines() if "read only once" in line]) == 1
