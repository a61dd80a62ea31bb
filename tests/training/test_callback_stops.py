"""Callbacks in trainings that stop and resume: they act as if there had been no stop."""

import paddle
import pytest
from fit_rows import Points, ProgramError, StopsAt, bits, stop, train

from paddle_mnist import Callback, EarlyStopping, Saving, is_rehearsal
from paddle_mnist.errors import ConfigError
from paddle_mnist.plots.history import read_history, series

ROW = "SGD with clipping"  # five steps an epoch


class StopsAfter(Callback):
    """Asks to stop when it has seen so many epochs, which it counts itself."""

    ends_with_best = True

    def __init__(self, epochs):
        self.epochs, self.seen = epochs, 0

    def after_epoch(self, view):
        self.seen += 1
        return {"own/seen": self.seen}

    def should_stop(self, view):
        return self.seen >= self.epochs

    def state_dict(self):
        return {"seen": self.seen}

    def set_state_dict(self, state):
        self.seen = state["seen"]


def ever_worse(parameters):
    """Steps that become too long, so that the first evaluation is the best."""
    schedule = paddle.optimizer.lr.PiecewiseDecay([5], [0.1, 8.0])
    return paddle.optimizer.SGD(schedule, parameters)


OWN = {"epochs": 9, "optimizer": ever_worse}


@pytest.mark.parametrize("stop_at", [7, 15])
def test_callback_ends_a_resumed_training_where_it_ends_an_unbroken_one(stop_at, tmp_path):
    """By its state, which checkpoints hold; the result is the best checkpoint's."""
    whole = train(ROW, tmp_path / "whole", callbacks=[StopsAfter(3)], **OWN)
    assert (whole.stopped, whole.epochs, whole.steps) == ("early", 3, 15)
    assert whole.checkpoint.name == "model_epoch0"
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "run", callbacks=[StopsAfter(3), StopsAt(stop_at, stop)], **OWN)
    resumed = train(ROW, tmp_path / "run", callbacks=[StopsAfter(3)], **OWN)
    assert resumed.stopped == "early" and bits(resumed) == bits(whole)
    seen = series(read_history(tmp_path / "run/metrics.jsonl"), "own/seen")
    assert seen == ([5, 10, 15], [1, 2, 3])
    again = train(ROW, tmp_path / "run", callbacks=[StopsAfter(3)], **OWN)
    assert again.stopped == "already finished"


@pytest.mark.parametrize("make", [lambda: StopsAfter(3), lambda: EarlyStopping(2)])
def test_training_killed_before_its_result_ends_at_the_last_checkpoint(make, tmp_path):
    first = train(ROW, tmp_path, callbacks=[make()], **OWN)
    (tmp_path / "result.json").unlink()
    (tmp_path / "model.pdparams").unlink()
    again = train(ROW, tmp_path, callbacks=[make()], **OWN)
    assert (again.stopped, again.steps) == ("early", first.steps) and bits(again) == bits(first)


def train_patiently(patience, output, **options):
    return train(ROW, output, callbacks=[EarlyStopping(patience)], **OWN, **options)


def test_more_patience_continues_a_training_that_ended_early(tmp_path):
    run = tmp_path / "run"
    assert train_patiently(1, run).epochs == 2
    longer = train_patiently(3, run, override="early_stop_patience")
    assert (longer.stopped, longer.epochs) == ("early", 4)
    whole = train_patiently(3, tmp_path / "whole")
    assert bits(longer)["weights"] == bits(whole)["weights"]
    assert train_patiently(3, run).stopped == "already finished"


def test_less_patience_than_a_run_has_shown_ends_it_where_it_stands(tmp_path):
    """And the override lasts, although no step is left to be trained with it."""
    first = train_patiently(3, tmp_path)
    again = train_patiently(2, tmp_path, override="early_stop_patience")
    assert (again.stopped, again.steps) == ("early", first.steps) and bits(again) == bits(first)
    assert train_patiently(2, tmp_path).stopped == "already finished"
    with pytest.raises(ConfigError, match="early_stop_patience: 2 in the run, 3 now"):
        train_patiently(3, tmp_path)


BEGUN = []  # epochs


class Plan(Callback):
    """Sets what an epoch has: a frozen layer, the noise of the data, the decay of the weights."""

    def __init__(self, data):
        self.data = data

    def before_training(self, training):
        self.net, self.optimizer = training.model, training.optimizer

    def on_epoch_start(self, view):
        epoch = view.state.epoch
        for parameter in self.net[0].parameters():
            parameter.stop_gradient = epoch < 2
        self.data.noise = 0.3 if epoch < 3 else 0.0
        self.optimizer._weight_decay = 0.1 * (epoch + 1)
        if not is_rehearsal():
            BEGUN.append(epoch)


def adamw(parameters):
    return paddle.optimizer.AdamW(0.02, parameters=parameters, weight_decay=0.1)


@pytest.mark.parametrize(
    ("stop_at", "num_workers"), [(12, 0), (15, 0), pytest.param(18, 2, marks=pytest.mark.slow)]
)
def test_on_epoch_start_sets_what_an_epoch_has_also_where_a_run_resumes_in_it(
    stop_at, num_workers, tmp_path
):
    def plan(folder, *more):
        data = Points(noise=0.3)
        options = {"train": data, "valid": Points(), "optimizer": adamw, "epochs": 4}
        options |= {"callbacks": [Plan(data), *more], "num_workers": num_workers}
        BEGUN.clear()
        try:
            result = train(ROW, tmp_path / folder, **options)
        except ProgramError:
            result = None
        return [*BEGUN], result

    epochs, whole = plan("whole")
    assert epochs == [0, 1, 2, 3]
    epochs, _ = plan("run", StopsAt(stop_at, stop))
    inside = (stop_at - 1) // 5
    assert epochs == [*range(inside + 1)]
    epochs, resumed = plan("run")
    # Those before come from the checkpoint; the epoch that is resumed is begun again.
    assert epochs == [*range(inside + 1), *range(inside, 4)]
    assert bits(resumed) == bits(whole)


def test_two_callbacks_of_one_class_resume_with_a_state_each(tmp_path):
    with pytest.raises(ProgramError):
        callbacks = [StopsAfter(7), StopsAfter(3), StopsAt(7, stop)]
        train(ROW, tmp_path, callbacks=callbacks, saving=Saving(keep_last=9), **OWN)
    callbacks = [StopsAfter(7), StopsAfter(3)]
    callbacks[0].seen = callbacks[1].seen = 99
    result = train(ROW, tmp_path, callbacks=callbacks, saving=Saving(keep_last=9), **OWN)
    assert result.epochs == 3 and [one.seen for one in callbacks] == [3, 3]
