"""A new run rehearses and then starts from the untouched beginning; a resumed run does not."""

import logging

import numpy as np
import paddle
import pytest
from fit_rows import ProgramError, StopsAt, adam, bits, momentum, stop, train
from paddle import nn
from paddle.nn import functional as F
from small_nets import CLASSES, WIDTH, Points, perceptron

from paddle_mnist import Callback, Numerics, fit, is_rehearsal
from paddle_mnist.checkpoint.contents import optimizer_state
from paddle_mnist.checkpoint.manifest import PARAMS, read_manifest
from paddle_mnist.errors import ConfigError, DataError

ROW = "SGD with clipping"
log = logging.getLogger("paddle_mnist")


def note(*values):
    """Log what is to be remembered: a rehearsal restores all that it can see."""
    log.info("note %s", " ".join(map(str, values)))


class Asks(Callback):
    """Notes which of its methods were called in the rehearsal, and which afterwards."""

    def __init__(self):
        self.count = 0

    def before_training(self, training):
        note("before_training", is_rehearsal())

    def after_step(self, view):
        self.count += 1
        note("after_step", is_rehearsal(), self.count)

    def after_epoch(self, view):
        note("after_epoch", is_rehearsal())


@pytest.fixture
def noted(lines):
    """`noted(WORD, ...)` gives what was noted after these words, line by line."""

    def find(*words):
        start = " ".join(["note", *map(str, words)])
        return [line[len(start) :].strip() for line in lines() if line.startswith(start)]

    return find


def with_step(step):
    return {"step": step, "loss": None, "metrics": None}


def asking_step(model, batch):
    note("step", is_rehearsal(), model.training)
    return {"loss": F.cross_entropy(model(batch[0]), batch[1])}


def test_step_and_callbacks_can_tell_a_rehearsal_which_is_logged_first(tmp_path, noted, lines):
    train(ROW, tmp_path, callbacks=[Asks()], **with_step(asking_step))
    assert not is_rehearsal()
    assert len(noted("step", True, True)) == 1 + 9  # the trial of the first batch, the rehearsal
    assert noted("step", True, False), "the rehearsal evaluates"
    assert len(noted("step", False, True)) == 10
    assert len(noted("step", False, False)) == 2 * 5
    assert noted("after_step", True) and noted("after_epoch", True)
    assert noted("before_training") == ["False"]
    assert len(noted("after_epoch", False)) == 2
    counts = [int(count) for count in noted("after_step", False)]
    assert counts == list(range(1, 11))  # though the rehearsal has counted, too
    first, *others = (line for line in lines() if not line.startswith("note"))
    assert first.startswith("rehearsing a resume before the first step (is_rehearsal() is True): 3")
    assert first in (tmp_path / "train.log").read_text()
    assert not [line for line in others if "not saved" in line or line.startswith("rehears")]
    saved = "callbacks['Asks'].count"
    assert f"saved with checkpoints, besides weights and optimizer: {saved}" in others


def test_rehearsal_of_a_net_without_other_state_takes_three_steps(tmp_path, noted):
    train(ROW, tmp_path, **with_step(asking_step))
    assert len(noted("step", True, True)) == 1 + 3


def test_rehearsal_that_fails_is_over(tmp_path):
    """After a refusal, whatever comes next in this process is not a rehearsal."""

    def step(model, batch):
        if is_rehearsal() and model.training:
            raise ZeroDivisionError("by hand")
        return {"loss": F.cross_entropy(model(batch[0]), batch[1])}

    with pytest.raises((ConfigError, ZeroDivisionError), match="by hand"):
        train(ROW, tmp_path, **with_step(step))
    assert not is_rehearsal()


class Everything(nn.Layer):
    """A net whose pass changes state in each of the ways to change it; in evaluation, too."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1D(4), nn.Dropout(0.5))
        self.spectral = nn.utils.spectral_norm(nn.Linear(4, CLASSES))
        self.register_buffer("in_place", paddle.zeros([4]))
        self.register_buffer("replaced", paddle.zeros([], "int64"))
        self.register_buffer("later", None, persistable=False)

    def forward(self, points):
        hidden = self.body(points)
        self.in_place.set_value(self.in_place + hidden.detach().mean(axis=0))
        self.replaced = self.replaced + 1
        self.later = self.seen = hidden.detach()
        return self.spectral(hidden)


@pytest.mark.parametrize(("model", "make"), [(perceptron, adam), (Everything, momentum)])
def test_rehearsal_changes_neither_the_beginning_nor_the_bits(model, make, tmp_path, noted, lines):
    """Step 0 has the weights, buffers and schedule that were built, and no accumulators."""
    initial = []

    def build():
        built = model()
        initial.append({name: value.numpy().copy() for name, value in built.state_dict().items()})
        return built

    data = Points(noise=0.3)  # which draws from all global generators
    options = {"model": build, "optimizer": make, "train": data, "keep_last": 9}
    options["callbacks"] = [Asks()]
    result = train(ROW, tmp_path / "run", **options)
    checkpoint = read_manifest(tmp_path / "run/checkpoints/model_epoch0_step0.json")
    weights = checkpoint.load(PARAMS)
    np.testing.assert_equal({name: weights[name] for name in initial[0]}, initial[0])
    untouched = make(nn.Linear(2, 2).parameters()).state_dict().get("LR_Scheduler", {})
    expected = {f"LR_Scheduler {name}": value for name, value in untouched.items()}
    assert optimizer_state(checkpoint) == expected
    rehearsed = noted("after_step", True)
    plain = train(ROW, tmp_path / "plain", rehearse=False, **options)
    assert rehearsed and noted("after_step", True) == rehearsed
    assert len([line for line in lines() if line.startswith("rehears")]) == 1
    assert bits(plain) == bits(result)


def test_resumed_run_does_not_rehearse(tmp_path, noted):
    """Not even one that resumes from step 0, the checkpoint before the first step."""

    def run(*more):
        callbacks = [Asks(), *more]
        return train(ROW, tmp_path / "run", callbacks=callbacks, save_on_exception=False)

    with pytest.raises(ProgramError):
        run(StopsAt(1, stop))
    rehearsed = noted("after_step", True)
    assert run().stopped == "finished"
    assert noted("after_step", True) == rehearsed


def test_rehearsal_raises_with_the_names_of_values_too_large_to_examine(tmp_path):
    table = np.ones(70 * 2**20, "float32")

    def step(model, batch):
        table[:CLASSES] *= np.float32(1.1)
        scale = paddle.to_tensor(table[:CLASSES])
        return {"loss": F.cross_entropy(model(batch[0]) * scale, batch[1])}

    with pytest.raises(ConfigError, match=r"step\.table \(280 MiB\), too large to be examined"):
        train(ROW, tmp_path, **with_step(step))


class KeepsAttention(nn.Layer):
    """Keeps its attention for looking at: a cache without consequences."""

    def __init__(self, width):
        super().__init__()
        self.linear, self.width, self.attention = nn.Linear(WIDTH, CLASSES), width, None

    def forward(self, points):
        outputs = self.linear(points)
        self.attention = outputs.detach().mean().expand([self.width, self.width])
        return outputs


@pytest.mark.parametrize(("width", "words"), [(8, "saved with"), (2100, "not saved, since")])
def test_rehearsal_leaves_out_a_large_value_without_consequence(width, words, tmp_path, lines):
    result = train(ROW, tmp_path, model=lambda: KeepsAttention(width))
    assert result.stopped == "finished"
    (named,) = (line for line in lines() if "attention" in line)
    assert named.startswith(words)
    assert named in (tmp_path / "train.log").read_text()
    # Of a value that is left out, the file has the name, so that a resumed run does not warn of it.
    sizes = [path.stat().st_size for path in tmp_path.glob("checkpoints/*.pdstate")]
    assert sizes and max(sizes) < 2**12


def test_rehearsal_saves_a_large_value_on_which_steps_depend(tmp_path, lines):
    table = np.ones(5 * 2**20, "float32")

    def step(model, batch):
        if model.training:
            table[:CLASSES] *= np.float32(1.1)
        scale = paddle.to_tensor(table[:CLASSES])
        return {"loss": F.cross_entropy(model(batch[0]) * scale, batch[1])}

    assert train(ROW, tmp_path, **with_step(step)).stopped == "finished"
    assert [line for line in lines() if line.startswith("saved with") and "step.table" in line]


def test_rehearsal_leaves_no_parameter_frozen(tmp_path):
    frozen = []

    def step(model, batch):
        first = next(iter(model.parameters()))
        if is_rehearsal():
            first.stop_gradient = True
        else:
            frozen.append(first.stop_gradient)
        return {"loss": F.cross_entropy(model(batch[0]), batch[1])}

    train(ROW, tmp_path, **with_step(step))
    assert frozen and not any(frozen)


def test_fit_function_that_returns_one_iterator_twice_raises(tmp_path):
    """The batches that are read before the training would be lost."""
    points, labels = Points().points, Points().classes.reshape([-1, 1])
    stream = iter([(points[at : at + 8], labels[at : at + 8]) for at in range(0, 32, 8)])
    with pytest.raises(DataError, match=r"the same .*iterator twice; expected a new iterator"):
        train(ROW, tmp_path, train=lambda: stream, valid=None, epochs=1)


class Counts(Callback):
    """State that steps change, for which the rehearsal takes more steps."""

    count = 0

    def after_step(self, view):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def set_state_dict(self, state):
        self.count = state["count"]


@pytest.mark.parametrize("every", ["step", "epoch"])
@pytest.mark.parametrize("steps, callbacks", [(1, []), (2, []), (5, [Counts()])])
def test_rehearsal_stays_within_a_schedule_that_has_an_end(steps, callbacks, every, tmp_path):
    total_steps = steps if every == "step" else 1
    rate = paddle.optimizer.lr.OneCycleLR(0.1, total_steps=total_steps)
    model = perceptron()

    result = fit(
        model,
        Points(8 * steps),
        epochs=1,
        optimizer=paddle.optimizer.SGD(rate, parameters=model.parameters()),
        loss=F.cross_entropy,
        output=tmp_path / "run",
        callbacks=callbacks,
        batch_size=8,
        numerics=Numerics(schedule_every=every),
    )

    assert result.steps == steps


class GivesLater:
    """A step that uses a closure of the second batch; `is_reset`: of the last one."""

    def __init__(self, is_reset):
        self.number, self.scaled, self.is_reset = 0, None, is_reset

    def __call__(self, model, batch):
        inputs, labels = batch
        used = self.scaled(inputs) if self.scaled and model.training else inputs
        if model.training:
            self.number += 1
            if self.number == 2 or self.is_reset:
                factor = 1 + float(inputs.mean())
                self.scaled = lambda values: values * factor
        return {"loss": F.cross_entropy(model(used), labels)}


class Resets(Callback):
    def __init__(self, step):
        self.step = step

    def after_epoch(self, view):
        if self.step.is_reset:
            self.step.scaled = None


@pytest.mark.parametrize("is_reset", [False, True])
def test_state_that_comes_in_the_second_step_or_goes_at_the_end_of_an_epoch(is_reset, tmp_path):
    step = GivesLater(is_reset)
    with pytest.raises(ConfigError, match="scaled"):
        train(ROW, tmp_path, callbacks=[Resets(step)], **with_step(step))


def test_number_that_becomes_an_object_of_the_model_is_not_saved(tmp_path, lines):
    """The attributes of the object lead back to the model, without an end."""

    class Owned:
        def __init__(self, owner):
            self.owner = owner

    def remembering_step(model, batch):
        model.last = Owned(model) if hasattr(model, "last") else 1
        return {"loss": F.cross_entropy(model(batch[0]), batch[1])}

    assert train(ROW, tmp_path, **with_step(remembering_step)).stopped == "finished"
    assert any(line.startswith("not saved") and "model.last" in line for line in lines())
