"""The matrix: trainings of every kind, stopped inside an epoch, and divided between processes."""

import os
import signal

import numpy as np
import paddle
import pytest
from fit_rows import (
    DIVIDED,
    ONE_BY_ONE,
    REFUSED_DIVIDED,
    ROWS,
    SAMPLES,
    STOP_AT,
    ProgramError,
    StopsAt,
    arguments,
    bits,
    refuse_rows,
    stop,
    train,
    train_rows,
)
from paddle.optimizer import lr
from small_nets import Points
from stateful_rows import falling_rate

from paddle_mnist import Loading
from paddle_mnist.errors import ConfigError, StoppedError
from paddle_mnist.parallel.world import spawn
from paddle_mnist.plots.history import read_history, series

rows = pytest.mark.parametrize("row", ROWS)
# Before a release, all of them.
one_in_four = pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=pytest.mark.release if n % 4 else ()) for n, row in enumerate(ROWS)],
)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The bits of a row's training in one go, by row and number of shards."""
    folder, known = tmp_path_factory.mktemp("unbroken"), {}

    def train_once(row, shards=None):
        if (row, shards) not in known:
            known[row, shards] = bits(train(row, folder / f"{row} {shards}", grad_shards=shards))
        return known[row, shards]

    return train_once


@rows
def test_stopped_by_a_signal_inside_an_epoch(row, tmp_path, unbroken):
    def terminate():
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StoppedError) as stopped:
        train(row, tmp_path, callbacks=[StopsAt(STOP_AT, terminate)])
    assert stopped.value.code == 143
    assert (tmp_path / "checkpoints" / f"model_epoch1_step{STOP_AT}_breakpoint.json").exists()
    assert bits(train(row, tmp_path)) == unbroken(row)


@pytest.mark.slow
@one_in_four
def test_killed_some_steps_after_a_checkpoint(row, tmp_path, unbroken):
    options = {"save_every_steps": 3, "save_on_exception": False}
    with pytest.raises(ProgramError):
        train(row, tmp_path, callbacks=[StopsAt(STOP_AT + 1, stop)], **options)
    result = train(row, tmp_path, **options)
    assert (result.stopped, bits(result)) == ("finished", unbroken(row))


@pytest.mark.parametrize("row", ONE_BY_ONE)
def test_many_samples_at_once_are_those_read_one_by_one(row, tmp_path, unbroken):
    data = ONE_BY_ONE[row]
    result = train(row, tmp_path, train=data, valid=data, num_workers=0)
    assert bits(result) == unbroken(row)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    spawn(train_rows, (str(folder),), 2, device="cpu")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("row", DIVIDED)
def test_two_processes_stopped_inside_an_epoch(row, two_processes, unbroken):
    result = train(row, two_processes / row, grad_shards=2)
    assert result.stopped == "already finished"
    assert bits(result) == unbroken(row, shards=2)


@pytest.mark.slow
def test_state_that_differs_between_processes_is_refused(tmp_path):
    spawn(refuse_rows, (str(tmp_path),), 2, device="cpu")
    for row in REFUSED_DIVIDED:
        messages = {(tmp_path / f"{row} {rank}.txt").read_text() for rank in (0, 1)}
        assert messages != {""}, f"{row}: trained in two processes, each with a state of its own"
        assert len(messages) == 1, f"{row}: the processes say different things: {messages}"
        assert "process" in messages.pop()
        assert not list((tmp_path / row).rglob("*.pdparams"))


def test_the_schedule_of_an_inner_optimizer_is_stepped(tmp_path):
    """The rate that LookAhead's inner optimizer steps with is the schedule's, and is logged."""
    built, expected = [], falling_rate()
    build = arguments("LookAhead", tmp_path)["optimizer"]

    def remembered(parameters):
        built.append(build(parameters))
        return built[-1]

    result = train("LookAhead", tmp_path, optimizer=remembered, log_every=1)
    rates = []
    for _ in range(result.steps):
        rates.append(expected.get_lr())
        expected.step()
    assert built[-1].inner_optimizer.get_lr() == expected.get_lr() < rates[0]
    _, logged = series(read_history(tmp_path / "metrics.jsonl"), "train/lr")
    assert list(logged) == pytest.approx(rates)


OPTIMIZERS = {
    "Adadelta": {},
    "Adagrad": {"initial_accumulator_value": 0.1},
    "Adam": {"beta1": 0.8},
    "Adamax": {},
    "AdamW": {"weight_decay": 0.1},
    "ASGD": {"batch_num": 3},
    "Lamb": {"lamb_weight_decay": 0.1},
    "Momentum": {"use_nesterov": True, "weight_decay": 0.01},
    "NAdam": {},
    "RAdam": {},
    "RMSProp": {"centered": True, "momentum": 0.5},
    "Rprop": {},
    "SGD": {"weight_decay": paddle.regularizer.L1Decay(0.01)},
}


class Shrinking(lr.LRScheduler):
    """A schedule of the caller's own, with NumPy's numbers, one of them in its `state_dict`."""

    def __init__(self):
        self.rate, self.factor = np.float32(0.1), np.float32(0.9)
        super().__init__(0.1)

    def get_lr(self):
        self.rate = self.rate * self.factor
        return float(self.rate)

    def state_keys(self):
        self.keys = ["last_epoch", "last_lr", "factor"]


SCHEDULES = {
    "CosineAnnealingDecay": lambda: lr.CosineAnnealingDecay(0.1, T_max=8),
    "CosineAnnealingWarmRestarts": lambda: lr.CosineAnnealingWarmRestarts(0.1, T_0=2, T_mult=2),
    "CyclicLR": lambda: lr.CyclicLR(0.01, 0.1, step_size_up=3, mode="triangular2"),
    "ExponentialDecay": lambda: lr.ExponentialDecay(0.1, 0.9),
    "InverseTimeDecay": lambda: lr.InverseTimeDecay(0.1, 0.5),
    "LambdaDecay": lambda: lr.LambdaDecay(0.1, lambda step: 0.95**step),
    "LinearWarmup": lambda: lr.LinearWarmup(lr.StepDecay(0.1, 2), 3, 0.0, 0.1),
    "MultiplicativeDecay": lambda: lr.MultiplicativeDecay(0.1, lambda step: 0.95),
    "MultiStepDecay": lambda: lr.MultiStepDecay(0.1, [2, 6, 8]),
    "NaturalExpDecay": lambda: lr.NaturalExpDecay(0.1, 0.1),
    "NoamDecay": lambda: lr.NoamDecay(8, 4),
    "OneCycleLR": lambda: lr.OneCycleLR(0.1, total_steps=10),
    "PiecewiseDecay": lambda: lr.PiecewiseDecay([3, 8], [0.1, 0.05, 0.01]),
    "PolynomialDecay": lambda: lr.PolynomialDecay(0.1, 9, 0.01),
    "StepDecay": lambda: lr.StepDecay(0.1, 3),
    "Shrinking": Shrinking,
}


def with_optimizer(name):
    def build(parameters):
        return getattr(paddle.optimizer, name)(
            learning_rate=0.01, parameters=parameters, **OPTIMIZERS[name]
        )

    return build


def with_schedule(name):
    def build(parameters):
        return paddle.optimizer.Momentum(SCHEDULES[name](), parameters=parameters)

    return build


KINDS = {
    **{name: with_optimizer(name) for name in OPTIMIZERS if hasattr(paddle.optimizer, name)},
    **{name: with_schedule(name) for name in SCHEDULES},
}


FEW = ("Adam", "Lamb", "LinearWarmup", "OneCycleLR", "Shrinking")


@pytest.mark.filterwarnings("error:There are some unused values")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in FEW else pytest.mark.release) for kind in KINDS]
)
def test_every_optimizer_and_schedule_goes_on(kind, tmp_path):
    options = {"optimizer": KINDS[kind]}
    unbroken = train("SGD with clipping", tmp_path / "unbroken", **options)
    for step in (3, 8):  # a resumed training is stopped and resumed again
        with pytest.raises(ProgramError):
            train(
                "SGD with clipping",
                tmp_path / "run",
                callbacks=[StopsAt(step, stop)],
                **options,
            )
    assert bits(train("SGD with clipping", tmp_path / "run", **options)) == bits(unbroken)


READS = []  # where no checkpoint looks for state


class LatePoints(Points):
    """Draws random numbers for some points, none of which is in the first batch."""

    def __getitem__(self, index):
        READS.append(index)
        point, target = super().__getitem__(index)
        return (point + np.float32(np.random.rand()) if index >= 16 else point), target


def test_samples_that_begin_to_draw_stop_a_training_that_goes_on_once_that_is_said(tmp_path):
    def train_late(name, **loading):
        options = {"train": LatePoints(), "valid": Points(), "loading": Loading(False, **loading)}
        return bits(train("dropout", tmp_path / name, **options))

    epoch = list(range(SAMPLES))
    unbroken = train_late("unbroken", random=True)
    assert READS[-2 * SAMPLES :] == 2 * epoch
    said = "LatePoints: reading samples 16, 17, 18, 19, ... draws random numbers, unlike the first"
    with pytest.raises(ConfigError, match=said):
        train_late("run")
    assert READS[-24:] == epoch[:24]
    assert (tmp_path / "run" / "checkpoints" / "model_epoch0_step2_breakpoint.json").exists()
    assert train_late("run", random=True) == unbroken
    assert READS[-2 * SAMPLES + 16 :] == [*epoch[16:], *epoch]  # none of them twice
