"""`fit`: what it returns, what it refuses, and data, tasks and collaborators of every kind."""

import collections
import contextlib
import gc
import json
import multiprocessing
import random
import sys
import threading

import forked
import numpy as np
import paddle
import pytest
from fit_rows import (
    SAMPLES,
    Points,
    ProgramError,
    StopsAt,
    TextNet,
    Texts,
    arguments,
    bits,
    momentum,
    on_plateau,
    perceptron,
    stop,
    train,
)
from paddle import nn
from paddle.nn import functional as F
from paddle.optimizer import lr

from paddle_mnist import (
    Callback,
    Gathered,
    Loading,
    ResumableBatchSampler,
    Sums,
    Watch,
    fit,
    is_rehearsal,
)
from paddle_mnist.checkpoint.weights import load
from paddle_mnist.errors import CheckpointError, ConfigError, DataError, DeviceError
from paddle_mnist.plots.history import read_history, series

ROW = "SGD with clipping"
ARRAYS = Points().points, np.zeros(len(Points()), "int64")


def kept(folder):
    """Return the names of the checkpoints of a run."""
    return {path.stem for path in folder.glob("checkpoints/*.json")}


def history(folder, tag):
    return series(read_history(folder / "metrics.jsonl"), tag)


def test_fit_finished_run_returns_its_result_and_makes_again_what_is_lost(tmp_path, lines):
    first = train(ROW, tmp_path)
    assert (first.stopped, first.epochs, first.steps) == ("finished", 2, 10)
    assert set(first.metrics) == {"valid/loss", "valid/acc"}
    assert first.weights == tmp_path / "model.pdparams"
    modified = first.weights.stat().st_mtime_ns
    again = train(ROW, tmp_path)
    assert again.stopped == "already finished"
    assert {**vars(again), "stopped": "finished"} == vars(first)
    assert first.weights.stat().st_mtime_ns == modified
    (last,) = (line for line in lines() if line.startswith("this run is finished"))
    assert "override='epochs'" in last and "code is not compared" in last
    assert not any("is an instance" in line for line in lines())
    for damaged in ("{}", '{"steps": 10}', "{"):
        (tmp_path / "result.json").write_text(damaged)
        assert train(ROW, tmp_path).metrics == first.metrics
    first.weights.unlink()
    assert train(ROW, tmp_path).stopped == "finished"
    assert bits(train(ROW, tmp_path)) == bits(first)


def test_fit_refused_call_leaves_a_finished_run_where_it_is(tmp_path):
    train(ROW, tmp_path / "run")
    with pytest.raises(CheckpointError, match="typo"):
        train(ROW, tmp_path / "run", fresh=True, init_from="typo")
    assert train(ROW, tmp_path / "run").stopped == "already finished"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


class Iterable(paddle.io.IterableDataset):
    def __iter__(self):
        return iter([Points()[index] for index in range(len(Points()))])


def loader(**options):
    return paddle.io.DataLoader(Points(), **options)


def step_giving(**values):
    """Return the options of a step that gives a loss and other values."""

    def step(model, batch):
        return {"loss": F.cross_entropy(model(batch[0]), batch[1]), **values}

    return {"step": step, "loss": None, "metrics": None}


def step_returning(value):
    return {**step_giving(), "step": lambda model, batch: value}


def loss_failing(error):
    def loss(outputs, labels):
        raise error

    return {"loss": loss}


def metric(function):
    return {"metrics": {"own": function}}


class MedianError(paddle.metric.Metric):
    def update(self, *values):
        """Nothing to add up."""

    def accumulate(self):
        return 0.0

    def name(self):
        return "median"

    def reset(self):
        """Nothing to forget."""


def sparse_with_adamw():
    return {
        "model": TextNet,
        "train": Texts(),
        "optimizer": lambda parameters: paddle.optimizer.AdamW(0.1, parameters=parameters),
    }


INSIDE = {"train": Iterable()}  # data that can resume only from the ends of epochs
TYPES = "the batch is (float32 [8, 6], int64 [8, 1])"
DATASETS = [Points(), Points()]
# The changed arguments, and what the message must have; a row or more for each argument.
REFUSED = {
    "model: none": ({"model": lambda: 3}, "the model is a int"),
    "model: shape": ({"model": lambda: nn.Linear(7, 3)}, TYPES),
    "train: arrays": ({"train": ARRAYS}, "paddle.io.TensorDataset"),
    "train: datasets": ({"train": tuple(DATASETS)}, "paddle.io.ConcatDataset"),
    "train: an iterator": ({"train": iter([])}, "used up after one epoch"),
    "valid: datasets": ({"valid": DATASETS}, "valid is a list of 2 datasets; expected one dataset"),
    "valid: datasets of a split": ({"valid": {"far": DATASETS}}, "valid['far'] is a list of 2 dat"),
    "valid: a split called train": ({"valid": {"train": Points()}}, "valid is a dict of train"),
    "optimizer: a class": ({"optimizer": paddle.optimizer.Adam}, "optimizer is the class Adam"),
    "optimizer: a number": ({"optimizer": lambda _: 3}, "the optimizer is a int"),
    "optimizer: another net's": (
        {"optimizer": momentum(perceptron().parameters())},
        "parameters that are neither the model's nor the loss's",
    ),
    "optimizer: AdamW, sparse gradients": (sparse_with_adamw(), "sparse=False"),
    "optimizer: plateau of no metric": (
        {"valid": None, "optimizer": on_plateau},
        "the schedule is a ReduceOnPlateau",
    ),
    "loss and step": ({"step": step_giving()["step"]}, "one of loss and step is expected"),
    "loss: error": (loss_failing(KeyError("weight")), "fails with KeyError: 'weight'"),
    "loss: one a sample": ({"loss": lambda outputs, labels: outputs.sum(axis=1)}, "shape [8]"),
    "loss: a number": ({"loss": lambda outputs, labels: 0.5}, "the loss is a float"),
    "loss: no gradient": (
        {"loss": lambda outputs, labels: F.cross_entropy(outputs.detach(), labels)},
        "gradient",
    ),
    "step: no loss": (step_returning({"acc": 1.0}), "a dict of acc"),
    "step: a shape": (step_giving(x=paddle.zeros([8, 6])), "a Tensor of shape [8, 6] as 'x'"),
    "metrics: with a step": (
        {"step": step_giving()["step"], "loss": None},
        "metrics belong to loss",
    ),
    "metrics: no names": ({"metrics": [paddle.metric.Accuracy()]}, "metrics is a list"),
    "metrics: no sums": (metric(MedianError()), "the metric 'own' is a MedianError"),
    "metrics: fails": (
        metric(lambda outputs, labels: outputs.numpy()[:, 99].mean()),
        "the metric 'own' fails with IndexError: index 99 is out of bounds for axis 1 with size 3; "
        "it got (float32 [8, 3], int64 [8, 1])",
    ),
    "metrics: bool": (
        metric(lambda outputs, labels: (outputs == outputs).mean()),
        "the metric 'own' is a tensor of bool",
    ),
    "metrics: Auc of logits": (metric(paddle.metric.Auc()), "expected probabilities [N, 2]"),
    "epochs: 0": ({"epochs": 0}, "epochs is 0; expected a whole number >= 1"),
    "batch_size: true": ({"batch_size": True}, "batch_size is True"),
    "seed: large": ({"seed": 2**40}, "expected a whole number <= 4294967295"),
    "resume": ({"resume": True}, "resume is True; expected 'auto', 'off' or a path"),
    "override": ({"override": "batchsize"}, "did you mean 'batch_size'?"),
    "must_match: object": ({"must_match": {"crop": object()}}, "cannot be compared"),
    "must_match: list": ({"must_match": ["crop"]}, "must_match is a list"),
    "must_match: fit's own": ({"must_match": {"ema": 1}}, "must_match names ema"),
    "callbacks: Paddle's": ({"callbacks": [paddle.callbacks.EarlyStopping()]}, "a EarlyStopping"),
    "callbacks: a class": ({"callbacks": [Watch]}, "callbacks holds the class Watch"),
    "a group of another class": ({"saving": Loading()}, "expected a paddle_mnist.Saving"),
    "no group": ({"loading": None}, "loading is a NoneType"),
    "mode: no monitor": ({"mode": "max"}, "mode is 'max' without monitor"),
    "monitor: no mode": ({"monitor": "valid/f1"}, "expected mode='min' or mode='max'"),
    "monitor: unknown": ({"monitor": "valid/ac", "mode": "max"}, "did you mean 'valid/acc'?"),
    "steps_per_epoch": ({"steps_per_epoch": 6}, "an epoch of the data has 5 steps"),
    "drop_last": ({"drop_last": True, "train": lambda: iter([])}, "which makes the batches itself"),
    "eval_every_steps": ({**INSIDE, "eval_every_steps": 2}, "save inside epochs"),
    "max_steps": ({**INSIDE, "max_steps": 2}, "save inside epochs"),
    "save_every_steps": ({**INSIDE, "save_every_steps": 2}, "save inside epochs"),
    "save_every_epochs": ({**INSIDE, "save_every_epochs": 0}, "every_epochs is 0"),
    "grad_shards": ({**INSIDE, "grad_shards": 2}, "cannot be divided between 2 shards"),
    "early_stop_min_delta": ({"early_stop_min_delta": 0.1}, "min_delta is 0.1 without patience"),
    "keep_best": ({"early_stop_patience": 2, "keep_best": False}, "Saving has keep_best off"),
    "early_stop_patience": ({"early_stop_patience": 2, "valid": None}, "nothing is evaluated"),
    "nprocs: lambdas": ({"nprocs": 2, "model": lambda: 3}, "model cannot be sent"),
    "nprocs: objects": ({"nprocs": 2, "model": perceptron()}, "model is an object"),
}


class Torn(Points):
    def __getitem__(self, index):
        raise DataError("image 3 is torn")


class Longer(Points):
    """Points of another shape."""

    def __getitem__(self, index):
        point, label = super().__getitem__(index)
        return np.append(point, point), label


NOT_FINITE = {"train": Points(noise=float("nan")), "model": lambda: nn.Linear(6, 3)}
REFUSED_WITH = {
    "data that are not finite": (NOT_FINITE, DataError, "numbers that are not finite"),
    "too few samples": ({"drop_last": True, "batch_size": 40}, DataError, "have no batches"),
    "no data": ({"train": list}, DataError, "have no batches"),
    "an error of the package": ({"train": Torn()}, DataError, "image 3 is torn"),
    "a shape to evaluate": ({"valid": Longer()}, ConfigError, "the first batch of valid fails"),
    "mixed precision on a CPU": ({"amp": "O1"}, DeviceError, "has no bfloat16"),
    "no GPU": ({"device": "gpu"}, DeviceError, "device is 'gpu'"),
}
REFUSED_WITH |= {name: (row[0], ConfigError, row[1]) for name, row in REFUSED.items()}


@pytest.mark.parametrize("wrong", REFUSED_WITH)
def test_fit_wrong_argument_raises_before_anything_is_written(wrong, tmp_path):
    changed, error, message = REFUSED_WITH[wrong]
    with pytest.raises(error) as refusal:
        train(ROW, tmp_path / "run", **changed)
    assert message in str(refusal.value)
    assert error is DeviceError or "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_fit_callback_without_a_list_and_empty_output_raise(tmp_path):
    for changed in ({"callbacks": Callback()}, {"output": ""}):
        with pytest.raises(ConfigError, match=next(iter(changed))):
            fit(**{**arguments(ROW, tmp_path / "run"), **changed})
    assert not (tmp_path / "run").exists()


def test_fit_metric_whose_total_fails_raises_by_name(tmp_path):
    metrics = {"top": lambda outputs, labels: Sums([1.0, 2.0], lambda totals: totals[7])}
    with pytest.raises(ConfigError, match="the metric 'top' fails with IndexError: index 7"):
        train(ROW, tmp_path, metrics=metrics)


def test_fit_one_training_at_a_time(tmp_path):
    refusals = []

    def train_another():
        try:
            train(ROW, tmp_path / "another")
        except ConfigError as error:
            refusals.append(str(error))

    def in_a_thread():
        thread = threading.Thread(target=train_another)
        thread.start()
        thread.join()

    train(ROW, tmp_path / "one", callbacks=[StopsAt(3, in_a_thread)])
    assert len(refusals) == 1 and "another fit is running in this process" in refusals[0]
    assert train(ROW, tmp_path / "another").stopped == "finished"


# When it saves, and when it ends


def test_fit_saving_by_steps_alone_keeps_the_last_steps(tmp_path, lines):
    options = {"save_every_epochs": 0, "save_every_steps": 3, "keep_best": False, "keep_last": 3}
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "run", epochs=3, callbacks=[StopsAt(14, stop)], **options)
    assert kept(tmp_path / "run") == {
        "model_epoch1_step9",
        "model_epoch2_step12",
        "model_epoch2_step14_breakpoint",
    }
    result = train(ROW, tmp_path / "run", epochs=3, **options)
    assert (result.stopped, result.checkpoint.name) == ("finished", "model_epoch2")
    assert bits(result) == bits(train(ROW, tmp_path / "whole", epochs=3))
    assert train(ROW, tmp_path / "run", epochs=3, **options).stopped == "already finished"
    assert not any("a run that is killed loses" in line for line in lines())


def test_fit_without_checkpoints_on_the_way_keeps_the_best_and_the_end(tmp_path, lines):
    options = {"save_every_epochs": 0, "save_every_seconds": None, "epochs": 4, "keep_last": 1}
    options |= {"monitor": "valid/entropy", "mode": "min", "metrics": {"entropy": F.cross_entropy}}
    with pytest.raises(ProgramError):
        stopping = {"callbacks": [StopsAt(12, stop)], "save_on_exception": False}
        train(ROW, tmp_path, **options, **stopping)
    train(ROW, tmp_path, **options)
    assert any("loses all of its progress since its best epoch" in line for line in lines())
    steps, losses = history(tmp_path, "valid/entropy")
    best = steps[int(np.argmin(losses))] // 5 - 1
    assert kept(tmp_path) == {f"model_epoch{best}", "model_epoch3"}


def test_fit_min_delta_stops_where_improvements_are_small_and_returns_the_best(tmp_path):
    options = {"epochs": 9, "early_stop_patience": 2, "keep_last": 9}
    result = train(ROW, tmp_path, early_stop_min_delta=5.0, **options)
    assert (result.stopped, result.epochs) == ("early", 3)
    _, losses = history(tmp_path, "valid/loss")
    assert list(losses) == sorted(losses, reverse=True)  # each better than the one before
    assert result.metrics["valid/loss"] == losses[-1]


def test_fit_early_stopping_resumed_inside_an_epoch_waits_for_its_end(tmp_path):
    """As without the interruption, whatever an evaluation inside the epoch gave."""
    options = {"early_stop_patience": 2, "early_stop_min_delta": 0.5, "eval_every_steps": 3}
    options |= {"epochs": 6, "keep_last": 9}
    whole = train("dropout", tmp_path / "whole", **options)
    with pytest.raises(ProgramError):
        train("dropout", tmp_path / "run", callbacks=[StopsAt(6, stop)], **options)
    assert bits(train("dropout", tmp_path / "run", **options)) == bits(whole)


def test_fit_max_steps_ends_a_run_which_a_higher_number_continues(tmp_path):
    """Inside the second epoch; to the bits of a run that had the higher number at once."""
    options = {"epochs": 4, "save_every_steps": 3}

    def train_to(max_steps, folder="run", **more):
        return train("dropout", tmp_path / folder, max_steps=max_steps, **options, **more)

    first = train_to(7)
    assert (first.stopped, first.epochs, first.steps) == ("finished", 1, 7)
    assert first.checkpoint.name == "model_epoch1_step7" and first.metrics["valid/loss"]
    again = train_to(7)
    assert (again.stopped, again.metrics) == ("already finished", first.metrics)
    with pytest.raises(ConfigError, match="max_steps: 7 in the run, 13 now"):
        train_to(13)
    more = train_to(13, override="max_steps")
    assert bits(more)["weights"] == bits(train_to(13, "whole"))["weights"]
    less = train_to(4, override="max_steps")
    assert (less.stopped, less.steps) == ("already finished", 13)


def test_fit_checkpoints_have_metrics_of_their_own_weights_only(tmp_path):
    options = {"epochs": 4, "eval_every_epochs": 2, "save_every_steps": 3, "keep_last": 99}
    train(ROW, tmp_path, **options)
    manifests = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*/model*.json")}
    assert len(manifests) > 4
    evaluated = [name for name, one in manifests.items() if one["state"]["metrics"]]
    assert sorted(evaluated) == ["model_epoch1", "model_epoch3"]


class Interrupts(Callback):
    """Ends the run where an evaluation is written after a step."""

    def __init__(self, step):
        self.step = step

    def write(self, state, values):
        if state.step == self.step and "valid/loss" in values:
            raise ProgramError


@pytest.mark.parametrize("kill", [5, 6, "after a checkpoint"])
def test_fit_evaluations_by_steps_resume_to_those_of_the_unbroken_run(kill, tmp_path):
    options = {"eval_every_steps": 3, "early_stop_patience": 9, "ema": 0.9, "epochs": 3}
    whole = train("BatchNorm", tmp_path / "whole", **options)
    assert history(tmp_path / "whole", "valid/loss")[0] == [3, 5, 6, 9, 10, 12, 15]
    callbacks = [Interrupts(kill)]
    if kill == "after a checkpoint":  # by an error after that of step 3, which evaluates
        options |= {"save_on_exception": False, "save_every_steps": 3}
        callbacks = [StopsAt(4, stop)]
    with pytest.raises(ProgramError):
        train("BatchNorm", tmp_path / "run", callbacks=callbacks, **options)
    assert bits(train("BatchNorm", tmp_path / "run", **options)) == bits(whole)
    for tag in ("valid/loss", "train/loss"):
        assert history(tmp_path / "run", tag) == history(tmp_path / "whole", tag)


def test_fit_interrupted_evaluation_is_repeated_and_keeps_its_checkpoint_as_the_best(tmp_path):
    fails = tmp_path / "fails"

    def step(model, batch):
        if not model.training and fails.exists():
            raise ProgramError
        return {"loss": F.cross_entropy(model(batch[0]), batch[1])}

    def falling_apart(parameters):
        return paddle.optimizer.SGD(lr.PiecewiseDecay([3], [0.1, 8.0]), parameters)

    options = {"step": step, "loss": None, "metrics": None, "optimizer": falling_apart}
    options |= {"eval_every_steps": 3, "early_stop_patience": 9, "epochs": 2}
    whole = train(ROW, tmp_path / "whole", **options)
    assert whole.checkpoint.name == "model_epoch0_step3"
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "run", callbacks=[StopsAt(3, fails.touch)], **options)
    fails.unlink()
    resumed = train(ROW, tmp_path / "run", **options)
    assert resumed.checkpoint.name == "model_epoch0_step3"
    assert bits(resumed) == bits(whole)


# Data


class ToldEpoch(paddle.io.Sampler):
    """As PyTorch's: it is told the epoch, and draws from a generator of its own, too."""

    def __init__(self):
        super().__init__(Points())
        self.epoch, self.random = None, np.random.RandomState(1)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        first = self.random.permutation(SAMPLES)
        return iter(np.random.RandomState(self.epoch).permutation(first).tolist())

    def __len__(self):
        return SAMPLES


class CountsEpochs(paddle.io.BatchSampler):
    """Draws on from epoch to epoch, and counts them: nobody tells it anything.

    Its batches are sets, and it cannot be hashed.
    """

    __hash__ = None

    def __init__(self):
        self.batch_size, self.epoch, self.random = 8, 0, random.Random(2)

    def __iter__(self):
        order = [*range(SAMPLES)]
        self.random.shuffle(order)
        np.random.RandomState(self.epoch).shuffle(order)
        for start in range(0, SAMPLES, self.batch_size):
            yield {*order[start : start + self.batch_size]}
        self.epoch += 1

    def __len__(self):
        return -(-SAMPLES // self.batch_size)


def told():
    return loader(batch_sampler=paddle.io.BatchSampler(sampler=ToldEpoch(), batch_size=8))


def resumable():
    return loader(batch_sampler=ResumableBatchSampler(Points(), batch_size=8, seed=5))


READY = {
    "a sampler that is told the epoch": told,
    "a sampler that counts epochs": lambda: loader(batch_sampler=CountsEpochs(), num_workers=2),
    "random samples": lambda: paddle.io.DataLoader(Points(noise=0.3), batch_size=8, shuffle=True),
    "an IterableDataset": Iterable,
}


@pytest.mark.parametrize("kind", READY)
def test_fit_ready_data_resume_from_the_ends_of_epochs(kind, tmp_path, lines):
    def options():  # each training has objects of its own, as in a process of its own
        return {"train": READY[kind](), "valid": READY[kind](), "epochs": 3}

    whole = bits(train(ROW, tmp_path / "whole", **options()))
    np.random.rand(7)  # whatever else draws numbers
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "stopped", callbacks=[StopsAt(12, stop)], **options())
    assert any("can resume only from the end of an epoch" in line for line in lines())
    assert any("stopped inside an epoch, where this data cannot resume" in line for line in lines())
    assert not list(tmp_path.glob("stopped/checkpoints/*step12*"))
    assert bits(train(ROW, tmp_path / "stopped", **options())) == whole


RESUMABLE = {
    "a ResumableBatchSampler": (resumable, None),
    "a sampler that counts epochs": (READY["a sampler that counts epochs"], 4),
}


@pytest.mark.parametrize("kind", RESUMABLE)
def test_fit_ready_data_of_known_epochs_resume_inside_them(kind, tmp_path, lines):
    """By their sampler, or by steps_per_epoch: fewer than the data have, so they are read on."""
    make, steps_per_epoch = RESUMABLE[kind]

    def options():
        data = {"train": make(), "valid": Points(), "steps_per_epoch": steps_per_epoch}
        return {**data, "epochs": 3, "save_every_steps": 3}

    whole = train(ROW, tmp_path / "whole", **options())
    assert (whole.epochs, whole.steps) == (3, 3 * (steps_per_epoch or 5))
    assert not any("can resume only from the end of an epoch" in line for line in lines())
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "run", callbacks=[StopsAt(7, stop)], **options())
    assert bits(train(ROW, tmp_path / "run", **options())) == bits(whole)
    if make is resumable:  # the order is that of the same dataset, given to fit
        own = train(ROW, tmp_path / "own", epochs=3)
        assert load(own.weights)["0.weight"].tolist() == load(whole.weights)["0.weight"].tolist()


class Seen(Callback):
    """Keeps a number of each sample that its step is given, by epoch and batch."""

    def __init__(self):
        self.epochs, self.options = [], {"loss": None, "metrics": None, "step": self.step}

    def on_epoch_start(self, view):
        if not is_rehearsal():
            self.epochs.append([])

    def step(self, model, batch):
        if model.training and not is_rehearsal() and self.epochs:
            self.epochs[-1].append(batch[0][:, 0].tolist())
        return {"loss": F.cross_entropy(model(batch[0]), batch[1])}


@pytest.mark.parametrize("make", [told, resumable])
def test_fit_epochs_of_a_sampler_that_is_told_them_differ(make, tmp_path):
    seen = Seen()
    train(ROW, tmp_path, train=make(), valid=None, epochs=3, callbacks=[seen], **seen.options)
    first, second, third = seen.epochs
    assert first != second != third != first


def test_fit_steps_per_epoch_ends_the_workers_of_the_data_with_the_run(tmp_path):
    options = {"epochs": 2, "steps_per_epoch": 3, "valid": None}
    before = multiprocessing.active_children()
    gc.disable()  # which would end them some time later
    try:
        train(ROW, tmp_path, train=loader(batch_size=8, num_workers=1), **options)
        assert set(multiprocessing.active_children()) <= set(before)
    finally:
        gc.enable()


def test_fit_drop_last_leaves_out_other_samples_in_each_epoch(tmp_path):
    seen = Seen()
    options = {"drop_last": True, "epochs": 3, "accumulate": 2, **seen.options}
    result = train(ROW, tmp_path / "run", callbacks=[seen], **options)
    batches = [batch for batches in seen.epochs for batch in batches]
    assert (result.steps, [len(batch) for batch in batches]) == (6, 12 * [8])
    samples = collections.Counter(sample for batch in batches for sample in batch)
    assert sum(samples.values()) == 96 and len(samples) == SAMPLES
    # The sixth batch, of one sample, is left out by both options; the fifth stays.
    options |= {"train": Points(41), "steps_per_epoch": 3, "epochs": 1}
    result = train(ROW, tmp_path / "both", **options)
    manifest = json.loads(result.checkpoint.with_suffix(".json").read_text())
    assert manifest["state"]["samples"] == 40


def test_fit_logs_before_it_opens_the_run_are_in_train_log(tmp_path):
    def summed(outputs, labels):
        return F.cross_entropy(outputs, labels, reduction="sum")

    train(ROW, tmp_path, loss=summed, train=lambda: iter(loader(batch_size=8)), valid=Points())
    text = (tmp_path / "train.log").read_text()
    assert text.count("the data have no length; endless ones need Loading(steps_per_epoch=") == 1
    assert text.count("a run can resume only from the end of an epoch") == 1
    assert text.count("WARNING the loss of the first batch is") == 1


class Pool(Points):
    """Points to which some are added."""

    use = 20

    def __len__(self):
        return self.use


class Grows(Callback):
    def __init__(self, pool, epoch):
        self.pool, self.epoch = pool, epoch

    def after_epoch(self, view):
        if view.state.epoch == self.epoch:
            self.pool.use += 10


@pytest.mark.parametrize(
    ("split", "epoch", "is_ready"), [("train", 1, False), ("valid", 2, False), ("train", 2, True)]
)
def test_fit_data_that_grow_raise_by_name(split, epoch, is_ready, tmp_path):
    pool = Pool()
    sampler = ResumableBatchSampler(pool, batch_size=8)
    ready = paddle.io.DataLoader(pool, batch_sampler=sampler) if is_ready else pool
    data = {"train": Points(), "valid": Points(), split: ready}
    with pytest.raises(ConfigError, match="Pool had 20 samples at first, and has 30 now; expected"):
        train(ROW, tmp_path, callbacks=[Grows(pool, epoch)], epochs=3, **data)


def test_fit_data_that_grow_are_read_by_a_function_of_each_epoch(tmp_path):
    pool = Pool()

    def batches():
        yield from paddle.io.DataLoader(pool, batch_size=10)

    result = train(ROW, tmp_path, train=batches, callbacks=[Grows(pool, 1)], valid=None)
    assert result.steps == 2 + 3


class Indexed:
    """As PyTorch's datasets are: no class of Paddle's."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return Points()[index]

    def __iter__(self):
        return map(self.__getitem__, range(SAMPLES))


def test_fit_whatever_has_a_length_and_indices_is_a_dataset(tmp_path):
    samples = [Points()[index] for index in range(SAMPLES)]
    whole = train(ROW, tmp_path / "dataset", grad_shards=2)
    listed = train(ROW, tmp_path / "list", train=samples, valid=Indexed(), grad_shards=2)
    assert bits(listed) == bits(whole)
    again = train(ROW, tmp_path / "dataset", train=Indexed(), grad_shards=2)
    assert again.stopped == "already finished"


IN_A_THREAD = """
import sys, threading
from fit_rows import train

options = {"num_workers": 2}
thread = threading.Thread(target=train, args=["random samples", sys.argv[1]], kwargs=options)
thread.start()
thread.join()
"""


def test_fit_with_workers_in_a_thread_keeps_the_bits_of_one_without(tmp_path):
    """In a process whose main thread has had no workers, for whose end Paddle sets a handler."""
    done = forked.run([sys.executable, "-c", IN_A_THREAD, tmp_path / "thread"])
    assert done.returncode == 0, done.stderr
    whole = train("random samples", tmp_path / "whole", num_workers=0)
    of_thread = train("random samples", tmp_path / "thread", num_workers=0)
    assert of_thread.stopped == "already finished"
    assert bits(of_thread) == bits(whole)


def test_fit_leaves_the_callers_generators_alone(tmp_path):
    def draw():
        return random.random(), np.random.rand(), paddle.rand([1]).item()

    random.seed(1), np.random.seed(1), paddle.seed(1)
    before = draw()
    random.seed(1), np.random.seed(1), paddle.seed(1)
    train("random samples", tmp_path)
    assert draw() == before


# The task


def highest(outputs, labels):
    return outputs.max()


def test_fit_several_splits_are_evaluated_with_each_metric(tmp_path):
    result = train(
        ROW,
        tmp_path,
        valid={"near": Points(), "far": Points(9), "ready": loader(batch_size=5)},
        metrics={"acc": paddle.metric.Accuracy(topk=(1, 2)), "highest": Gathered(highest)},
        eval_batch_size=7,
    )
    names = ("loss", "acc_top1", "acc_top2", "highest")
    splits = ("near", "far", "ready")
    assert set(result.metrics) == {f"{split}/{name}" for split in splits for name in names}
    assert result.metrics["near/acc_top2"] > result.metrics["near/acc_top1"]
    for name in names:
        ready = result.metrics[f"ready/{name}"]
        assert ready == pytest.approx(result.metrics[f"near/{name}"], rel=1e-6)
    assert result.metrics["far/loss"] != result.metrics["near/loss"]


def test_fit_objects_train_from_their_own_weights_and_have_the_final_ones(tmp_path, lines):
    def train_objects(*callbacks):
        model = perceptron()
        optimizer = momentum(model.parameters())
        options = {"model": model, "optimizer": optimizer, "keep_last": 9, "callbacks": callbacks}
        initial = model[0].weight.numpy().tolist()
        result = None
        with contextlib.suppress(ProgramError):
            result = train(ROW, tmp_path, **options)
        return initial, result, {name: value.numpy() for name, value in model.state_dict().items()}

    initial, _, _ = train_objects(StopsAt(3, stop))
    for ending in ("finished", "already finished"):  # with other weights, which are replaced
        _, result, values = train_objects()
        assert result.stopped == ending
        saved = load(result.weights)
        assert all((saved[name] == value).all() for name, value in values.items())
    first = load(tmp_path / "checkpoints/model_epoch0_step0")
    assert first["0.weight"].tolist() == initial
    line = "the model is an instance: its initial weights were drawn before fit seeded"
    assert len([text for text in lines() if text.startswith(line)]) == 1


def test_fit_weights_that_fit_in_part_are_loaded_with_init_partial(tmp_path, lines):
    source = train(ROW, tmp_path / "source")

    def wider():
        return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5), nn.Linear(5, 3))

    options = {"model": wider, "init_from": str(source.weights), "epochs": 1}
    with pytest.raises(CheckpointError, match=r"missing     3\.bias"):
        train(ROW, tmp_path / "strict", **options)
    train(ROW, tmp_path / "partial", init_partial=True, **options)
    log = "\n".join(lines())
    assert "3.weight, 3.bias: not in the file, so the model keeps its own" in log
    assert "2.weight, 2.bias: of another shape or dtype there" in log
    first = load(tmp_path / "partial/checkpoints/model_epoch0_step0.pdparams")
    assert first["0.weight"].tolist() == load(source.weights)["0.weight"].tolist()


class Renamed(Points):
    """The same points, with each class under the next one's name."""

    def __getitem__(self, index):
        point, label = super().__getitem__(index)
        return point, (label + 1) % 3


def test_fit_softens_a_net_that_is_wrong_about_new_data(tmp_path, lines):
    """Its predictions stay; what it could before is stored beside what it can now."""
    source = train(ROW, tmp_path / "source", epochs=40)
    trained = load(source.weights)
    options = {"incremental_from": str(source.weights.parent), "epochs": 1}
    for folder, data, factor in (("same", Points(), 1), ("renamed", Renamed(), 10)):
        splits = {"train": data, "valid": {"new": data, "old": Points()}, "monitor": "new/loss"}
        result = train(ROW, tmp_path / folder, soften="2", **splits, **options)
        first = load(tmp_path / folder / "checkpoints/model_epoch0_step0.pdparams")
        assert first["0.weight"].tolist() == trained["0.weight"].tolist()
        for name in ("2.weight", "2.bias"):
            np.testing.assert_allclose(trained[name], first[name] * factor, 1e-6)
        values = json.loads((tmp_path / folder / "result.json").read_text())
        before = source.metrics["valid/acc"]
        assert values["metrics_before"]["old/acc"] == before
        lost = max(0, before - result.metrics["old/acc"])
        assert values["lost"].get("old/acc", 0) == pytest.approx(lost)
    assert len([line for line in lines() if "divided by 10" in line]) == 1
    with pytest.raises(ConfigError, match=r"soften: unknown name '3'"):
        train(ROW, tmp_path / "new", soften="3", **options)
    with pytest.raises(ConfigError, match=r"soften reads the first training batches twice"):
        train(ROW, tmp_path / "new", soften="2", train=loader(batch_size=8), **options)


# Layers in evaluation mode


def frozen_norm(build):
    """Return a net with a BatchNorm in evaluation mode, and the BatchNorm."""
    model = build()
    (norm,) = [layer for layer in model.sublayers() if isinstance(layer, nn.BatchNorm1D)]
    norm.eval()
    return model, norm


def evaluating(lines):
    return [line for line in lines() if "in evaluation mode" in line]


def test_fit_layer_in_evaluation_mode_warns_once_by_name(tmp_path, lines):
    model, norm = frozen_norm(lambda: nn.Sequential(perceptron(nn.BatchNorm1D(16))))
    train(ROW, tmp_path, model=lambda: model)
    (line,) = evaluating(lines)
    assert line.startswith("0.1: in evaluation mode, but each epoch begins with model.train()")
    assert norm._mean.abs().max() > 0  # as it says


def test_fit_layer_in_evaluation_mode_by_a_callback_warns_at_the_next_epoch(tmp_path, lines):
    model, norm = frozen_norm(lambda: perceptron(nn.BatchNorm1D(16)))
    model.train()
    train(ROW, tmp_path, model=lambda: model, epochs=3, callbacks=[StopsAt(2, norm.eval)])
    (line,) = evaluating(lines)
    ends = [number for number, line in enumerate(lines()) if "epoch 1/3" in line]
    assert lines().index(line) > ends[0]


@pytest.mark.parametrize("kind", ["all of it", "each epoch"])
def test_fit_model_that_trains_as_it_says_logs_nothing(kind, tmp_path, lines):
    callback = Callback()
    model, norm = frozen_norm(lambda: perceptron(nn.BatchNorm1D(16)))
    if kind == "all of it":
        model.eval()
    else:
        model.train()
        callback.on_epoch_start = lambda view: norm.eval()
    train(ROW, tmp_path, model=lambda: model, callbacks=[callback])
    assert not evaluating(lines)
    assert (norm._mean.abs().max() == 0) == (kind == "each epoch")
