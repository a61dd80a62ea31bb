"""A checkpoint holds whole steps only: what raises inside one is undone, and costs no bit."""

import functools
import os
import signal
import zlib
from collections import deque

import numpy as np
import paddle
import pytest
from fit_rows import ProgramError, StopsAt, bits, history, terminate, train
from paddle import nn
from paddle.nn import functional as F
from stopped_programs import some

from paddle_mnist import Callback, is_rehearsal
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.errors import PeerError, StoppedError
from paddle_mnist.parallel.world import World

PROGRAMS = [
    "BatchNorm",
    "GAN",
    "EMA teacher in the step",
    "queue of keys in the step",
    "ReduceOnPlateau",
    "EMA",
    "LookAhead",
    "loss with parameters",
]
# Where an error comes, and which step is the last whole one before it. An epoch has 5 steps.
PHASES = {
    "forward": 7,
    "observer": 7,
    "state_dict": 7,  # which is copied when a step is whole
    "writer": 8,  # of the line of step 9
    "evaluation": 5,
    "end of an epoch": 5,
}


class Counts(Callback):
    """Counts steps in its own state; it comes after a callback that raises."""

    def __init__(self):
        self.steps = 0

    def after_step(self, view):
        self.steps += 1

    def state_dict(self):
        return {"steps": self.steps}

    def set_state_dict(self, state):
        self.steps = state["steps"]

    def final_metrics(self, training):
        return {"counted": self.steps}


class Fails(Callback):
    """Calls `end`, if there is one, in a phase of the training."""

    def __init__(self, phase, end=None):
        self.phase, self.end, self.step = phase, end, 0

    def fail_in(self, phase):
        if phase == self.phase and self.end and not is_rehearsal():
            self.end()

    def before_first_step(self, training):
        self.model = training.model
        self.hook = self.model.register_forward_post_hook(self.after_forward)

    def after_forward(self, layer, inputs, outputs):
        if layer.training and self.step == PHASES["forward"]:
            self.fail_in("forward")
        elif not layer.training:
            self.fail_in("evaluation")

    def after_step(self, view):
        self.step = view.step
        if view.step == PHASES["observer"] + 1:
            self.fail_in("observer")

    def after_epoch(self, view):
        self.fail_in("end of an epoch")

    def write(self, state, values):
        if state.step == PHASES["writer"] + 1:
            self.fail_in("writer")

    def state_dict(self):
        if self.step == PHASES["state_dict"] + 1:
            self.fail_in("state_dict")
        return {"step": self.step}

    def set_state_dict(self, state):
        self.step = state["step"]

    def close(self):
        self.hook.remove()


def fail():
    raise ProgramError


def run(program, output, phase="", end=None, **options):
    return train(program, output, callbacks=[Fails(phase, end), Counts()], **options)


@pytest.fixture(scope="module")
def never_failing(tmp_path_factory):
    """Return a program's result without an error, by name and number of shards."""
    folder = tmp_path_factory.mktemp("unbroken")

    @functools.cache
    def train_once(program, shards):
        return run(program, folder / f"{program} {shards}", grad_shards=shards)

    return train_once


@pytest.mark.parametrize("shards", some([None, 2], 1))
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("program", some(PROGRAMS, 5))
def test_error_inside_a_step_or_an_evaluation_costs_no_bit(
    program, phase, shards, tmp_path, never_failing
):
    options, unbroken = {"grad_shards": shards}, never_failing(program, shards)
    with pytest.raises(ProgramError):
        run(program, tmp_path / "run", phase, fail, **options)
    newest = CheckpointStore(tmp_path / "run/checkpoints").newest()
    assert (newest.step, newest.is_breakpoint) == (PHASES[phase], True)
    resumed = run(program, tmp_path / "run", **options)
    assert bits(resumed) == bits(unbroken)
    assert resumed.metrics["counted"] == unbroken.metrics["counted"] == 10
    for tag in ("train/loss", "valid/loss"):  # no line twice, none lost
        assert history(tmp_path / "run", tag) == history(unbroken.weights.parent, tag)


class Augments:
    """A step with a generator of its own, which evaluations use, too."""

    def __init__(self):
        self.random = np.random.RandomState(3)

    def __call__(self, model, batch):
        inputs, labels = batch
        noise = self.random.rand(*inputs.shape).astype("float32")
        return {"loss": F.cross_entropy(model(inputs + paddle.to_tensor(noise)), labels)}


@pytest.mark.parametrize("every_steps", [None, 3])
def test_signal_in_an_evaluation_saves_the_state_before_it(every_steps, tmp_path):
    def train_augmented(output, *arguments):
        options = {"step": Augments(), "loss": None, "metrics": None}
        return run("Adam", output, *arguments, **options, eval_every_steps=every_steps)

    unbroken = train_augmented(tmp_path / "unbroken")
    with pytest.raises(StoppedError):
        train_augmented(
            tmp_path / "run", "evaluation", lambda: os.kill(os.getpid(), signal.SIGTERM)
        )
    newest = CheckpointStore(tmp_path / "run/checkpoints").newest()
    assert (newest.step, newest.state.metrics) == (every_steps or 5, {})
    assert bits(train_augmented(tmp_path / "run")) == bits(unbroken)


def test_evaluation_that_was_saved_is_not_repeated(tmp_path):
    def train_augmented(output, *arguments, **options):
        options.update(step=Augments(), loss=None, metrics=None, eval_every_steps=4)
        return run("Adam", output, *arguments, **options)

    unbroken = train_augmented(tmp_path / "unbroken")
    with pytest.raises(ProgramError):  # at step 8; nothing is saved after step 4
        train_augmented(
            tmp_path / "run", "observer", fail, save_every_steps=4, save_on_exception=False
        )
    assert CheckpointStore(tmp_path / "run/checkpoints").newest().step == 5
    assert bits(train_augmented(tmp_path / "run", save_every_steps=4)) == bits(unbroken)


def test_peer_that_dies_in_the_exchange_leaves_the_statistics_of_whole_steps(tmp_path, monkeypatch):
    unbroken = bits(run("BatchNorm", tmp_path / "unbroken", grad_shards=2))
    gather, calls = World.all_gather, []

    def die_at_the_seventh(world, tensor):
        calls.append(is_rehearsal())
        if calls.count(False) == 7:
            raise PeerError("another process is gone")
        return gather(world, tensor)

    with monkeypatch.context() as patched:
        patched.setattr(World, "all_gather", die_at_the_seventh)
        with pytest.raises(PeerError):
            run("BatchNorm", tmp_path / "run", grad_shards=2)
    assert CheckpointStore(tmp_path / "run/checkpoints").newest().step == 6
    assert bits(run("BatchNorm", tmp_path / "run", grad_shards=2)) == unbroken


@pytest.mark.parametrize("trains", [False, True])
def test_evaluation_of_large_weights_is_undone_unless_it_may_train(trains, tmp_path, lines):
    """Weights of more than 1 MiB are not copied; a frozen layer may be a moving average."""

    def build():
        net = nn.Sequential(nn.Linear(6, 60_000), nn.Linear(60_000, 3))
        net[0].weight.stop_gradient = trains
        return net

    def train_large(output, *arguments):
        return run("Adam", output, *arguments, model=build, epochs=1)

    unbroken = train_large(tmp_path / "unbroken")
    with pytest.raises(StoppedError):
        train_large(tmp_path / "run", "evaluation", lambda: os.kill(os.getpid(), signal.SIGTERM))
    newest = CheckpointStore(tmp_path / "run/checkpoints").newest()
    assert newest.step == (0 if trains else 5)
    said = [line for line in lines() if "cannot be undone" in line]
    assert len(said) == trains and all("resumes after step 0" in line for line in said)
    assert bits(train_large(tmp_path / "run")) == bits(unbroken)


class Unusual(nn.Layer):
    """Changes what a pass should not: trained weights, or the shape of a buffer."""

    def __init__(self, width, what):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, width), nn.Linear(width, 3))
        self.what = what
        self.register_buffer("seen", paddle.zeros([4, 1]))

    def forward(self, inputs):
        if self.training and not is_rehearsal():
            with paddle.no_grad():
                if self.what == "weights":
                    self.layers[1].weight.set_value(self.layers[1].weight * 0.9)
                elif self.what == "shape":
                    grown = paddle.concat([self.seen, self.seen])
                    self.seen.get_tensor().set(grown.numpy(), paddle.CPUPlace())
        return self.layers(inputs)


@pytest.mark.parametrize(
    ("width", "what", "why"),
    [(60_000, "weights", "more than 1 MiB"), (8, "weights", None), (8, "shape", "not match")],
)
def test_pass_that_changes_what_it_should_not_is_undone_or_not_saved(
    width, what, why, tmp_path, lines
):
    def train_unusual(output, *arguments):
        return run("Adam", output, *arguments, model=lambda: Unusual(width, what))

    with pytest.raises(ProgramError):  # whatever undoing the step raises
        train_unusual(tmp_path / "run", "forward", fail)
    newest = CheckpointStore(tmp_path / "run/checkpoints").newest()
    assert newest.step == (5 if why else PHASES["forward"])
    said = [line for line in lines() if "cannot be undone" in line]
    assert len(said) == bool(why) and all(why in line for line in said)
    if what == "weights":
        unbroken = train_unusual(tmp_path / "unbroken")
        assert bits(train_unusual(tmp_path / "run")) == bits(unbroken)


REMEMBERED = {
    "losses": (list, lambda kept, step: kept.append(step / 3)),
    "rows": (list, lambda kept, step: kept.append((step, 0.5))),
    "newest": (lambda: deque(maxlen=4), lambda kept, step: kept.append(step)),
    "series": (
        lambda: {"loss": [], "step": []},
        lambda kept, step: [kept["loss"].append(0.5), kept["step"].append(step)],
    ),
    "nested": (list, lambda kept, step: kept.append({"step": [step]})),
    "array": (lambda: np.zeros(3), lambda kept, step: np.add(kept, step, out=kept)),
    "generator": (lambda: np.random.RandomState(1), lambda kept, step: kept.rand()),
    "many": (list, lambda kept, step: kept.extend({"step": step} for _ in range(99))),
}


class Remembers(Callback):
    """Changes its own value in each step, before another callback raises."""

    def __init__(self, kind):
        make, self.change = REMEMBERED[kind]
        self.kept = make()

    def after_step(self, view):
        self.change(self.kept, view.step)

    def final_metrics(self, training):
        if isinstance(self.kept, np.random.RandomState):
            return {"remembered": self.kept.rand()}
        value = repr(self.kept).encode()
        return {"remembered": float(zlib.crc32(value))}


@pytest.mark.parametrize("kind", REMEMBERED)
def test_value_of_a_callback_is_put_back_or_named(kind, tmp_path, lines):
    def train_remembering(output, end=None):
        return train("Adam", output, callbacks=[Remembers(kind), Fails("observer", end)])

    unbroken = train_remembering(tmp_path / "unbroken")
    with pytest.raises(ProgramError):
        train_remembering(tmp_path / "run", fail)
    is_large = kind == "many"  # more than are copied in each step
    newest = CheckpointStore(tmp_path / "run/checkpoints").newest_step()
    assert newest == (5 if is_large else PHASES["observer"])
    assert any("no copy of callbacks['Remembers'].kept" in line for line in lines()) == is_large
    resumed = train_remembering(tmp_path / "run")
    assert resumed.metrics["remembered"] == unbroken.metrics["remembered"]
    assert bits(resumed) == bits(unbroken)


class Buffer:
    """State that is too large to be copied in each step."""

    def __init__(self):
        self.values = np.zeros(20 * 2**20, "uint8")

    def state_dict(self):
        return {"values": self.values}

    def set_state_dict(self, state):
        self.values = state["values"]


def test_signal_between_steps_saves_state_of_any_size(tmp_path):
    """Nothing has to be undone."""
    with pytest.raises(StoppedError):
        train(
            "Adam",
            tmp_path,
            state={"buffer": Buffer()},
            callbacks=[StopsAt(3, terminate)],
        )
    assert CheckpointStore(tmp_path / "checkpoints").newest_step() == 3
