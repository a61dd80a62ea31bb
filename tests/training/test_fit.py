"""`fit`: what it returns, what it refuses, and data, tasks and collaborators of every kind."""

import collections
import gc
import itertools
import json
import multiprocessing
import random
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import paddle
import pytest
import yaml
from fit_rows import (
    ROWS,
    SAMPLES,
    Points,
    ProgramError,
    StopsAt,
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
from paddle_mnist.data import forking
from paddle_mnist.data.loader import epoch_batches
from paddle_mnist.errors import CheckpointError, ConfigError, DataError, DeviceError
from paddle_mnist.plots.history import read_history, series

ROW = "SGD with clipping"
ARRAYS = Points().points, np.zeros(len(Points()), "int64")


def test_a_finished_run_returns_its_result(tmp_path, lines):
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
    assert last.endswith(
        "to train on: more epochs, with override='epochs'; to train anew: fresh=True, or another "
        "output; code is not compared, except that of model, data"
    )


def test_a_lost_or_damaged_result_is_made_again(tmp_path):
    first = train(ROW, tmp_path)
    for damaged in ("{}", '{"steps": 10}', "{"):
        (tmp_path / "result.json").write_text(damaged)
        assert train(ROW, tmp_path).metrics == first.metrics
    first.weights.unlink()
    assert train(ROW, tmp_path).stopped == "finished"
    assert bits(train(ROW, tmp_path)) == bits(first)


class Permuted(Points):
    """Points whose classes are numbered as a set gives them in another process."""

    def __getitem__(self, index):
        point, label = super().__getitem__(index)
        return point, (label + 1) % 3


class Shifted(Points):
    def __getitem__(self, index):
        point, label = super().__getitem__(index)
        return point + 1, label


def clipped(parameters):
    return paddle.optimizer.SGD(0.1, parameters, grad_clip=nn.ClipGradByGlobalNorm(0.25))


def slower(parameters):
    return paddle.optimizer.SGD(0.05, parameters, grad_clip=nn.ClipGradByGlobalNorm(0.5))


CHANGES = {
    "batch_size": ({"batch_size": 4}, "batch_size: 8 in the run, 4 now"),
    "seed": ({"seed": 6}, "seed: 5 in the run, 6 now"),
    "epochs": ({"epochs": 3}, "epochs: 2 in the run, 3 now"),
    "shards": ({"grad_shards": 2}, "grad_shards: None in the run, 2 now"),
    "accumulation": ({"accumulate": 2}, "accumulate: 1 in the run, 2 now"),
    "order": ({"shuffle": False}, "shuffle: True in the run, False now"),
    "ema": ({"ema": 0.5}, "ema: 0.0 in the run, 0.5 now"),
    "optimizer": ({"optimizer": momentum}, "optimizer.class: 'SGD' in the run, 'Momentum' now"),
    "learning rate": ({"optimizer": slower}, "optimizer.learning_rate: 0.1 in the run, 0.05 now"),
    "clipping": ({"optimizer": clipped}, "clip_norm=0.5"),
    "net": ({"model": lambda: perceptron(width=8)}, "parameters.0.weight: '[6, 16] float32' in"),
    "net, less": ({"model": lambda: nn.Linear(6, 3)}, "parameters.2.weight"),
    "data": ({"train": Shifted()}, "data.samples: "),
    "labels": ({"train": Permuted()}, "data.labels: "),
    "length": ({"train": Points(40)}, "data.length: 33 in the run, 40 now"),
    "evaluation": ({"valid": Shifted()}, "valid.valid.samples: "),
    "name": ({"name": "other"}, "name: 'model' in the run, 'other' now"),
    "monitor": ({"monitor": "valid/acc"}, "monitor: 'valid/loss' in the run, 'valid/acc' now"),
    "of the caller": ({"must_match": {"images": {"crop": 28}}}, "images.crop: None in the run, 28"),
}


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unfinished")
    with pytest.raises(ProgramError):
        train(ROW, folder, callbacks=[StopsAt(7, stop)])
    return folder


def test_a_named_checkpoint_with_other_values_is_not_to_be_moved_aside(unfinished, tmp_path):
    with pytest.raises(ConfigError) as refusal:
        train(ROW, tmp_path, resume=str(unfinished), seed=6)
    first, *_, last = str(refusal.value).splitlines()
    assert str(unfinished) in first and str(tmp_path / "x").removesuffix("x") not in first
    assert last == "Keep its values, or change the run on purpose with override='seed'"


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_call_is_refused(change, unfinished):
    changed, message = CHANGES[change]
    before = sorted((path, path.stat().st_mtime_ns) for path in unfinished.rglob("*.*"))
    with pytest.raises(ConfigError) as refusal:
        train(ROW, unfinished, **changed)
    assert message in str(refusal.value)
    ways = "or choose another output: a run keeps its batch size"
    if change == "labels":
        ways = "or choose another output"
        assert "sort what these return with sorted()" in str(refusal.value)
        assert "override" not in str(refusal.value)
    elif change != "batch_size":
        ways = "choose another output, or change the run on purpose with override="
    assert f"Start over with fresh=True (moves it aside), {ways}" in str(refusal.value)
    random_data = "probably drawn at random: seed them" in str(refusal.value)
    assert random_data == (change in ("data", "labels", "evaluation"))
    after = sorted((path, path.stat().st_mtime_ns) for path in unfinished.rglob("*.*"))
    assert [row for row in after if row[0].name != "train.log"] == [
        row for row in before if row[0].name != "train.log"
    ]


def test_overridden_changes_are_taken(tmp_path):
    train(ROW, tmp_path)
    longer = train(ROW, tmp_path, epochs=3, optimizer=slower, override="epochs,optimizer")
    assert (longer.stopped, longer.epochs) == ("finished", 3)
    steps, rates = series(read_history(tmp_path / "metrics.jsonl"), "train/lr")
    assert dict(zip(steps, rates)) == {
        step: pytest.approx(0.1 if step <= 10 else 0.05) for step in steps
    }


@pytest.mark.parametrize("off", [0, None])
def test_without_the_ends_of_epochs_the_last_steps_are_kept(off, tmp_path, lines):
    options = {"save_every_epochs": off, "save_every_steps": 3, "keep_best": False, "keep_last": 3}
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "run", epochs=3, callbacks=[StopsAt(14, stop)], **options)
    kept = {path.stem for path in tmp_path.glob("run/checkpoints/*.json")}
    assert kept == {"model_epoch1_step9", "model_epoch2_step12", "model_epoch2_step14_breakpoint"}
    result = train(ROW, tmp_path / "run", epochs=3, **options)
    assert (result.stopped, result.checkpoint.name) == ("finished", "model_epoch2")
    assert Path(f"{result.checkpoint}.json").exists()
    assert bits(result) == bits(train(ROW, tmp_path / "whole", epochs=3))
    assert train(ROW, tmp_path / "run", epochs=3, **options).stopped == "already finished"
    assert not any("a run that is killed loses" in line for line in lines())


@pytest.mark.parametrize("kill", [None, 12])
def test_with_no_checkpoint_on_the_way_the_end_and_the_best_are_saved(kill, tmp_path, lines):
    options = {"save_every_epochs": 0, "save_every_seconds": None, "epochs": 4, "keep_last": 1}
    if kill:
        with pytest.raises(ProgramError):
            stopping = {"callbacks": [StopsAt(kill, stop)], "save_on_exception": False}
            train(ROW, tmp_path / "run", **options, **stopping)
    result = train(ROW, tmp_path / "run", **options)
    assert bits(result) == bits(train(ROW, tmp_path / "whole", epochs=4, keep_last=1))
    assert any("loses all of its progress since its best epoch" in line for line in lines())
    steps, losses = series(read_history(tmp_path / "run/metrics.jsonl"), "valid/loss")
    best = steps[int(np.argmin(losses))] // 5 - 1
    assert {path.stem for path in tmp_path.glob("run/checkpoints/*.json")} == {
        f"model_epoch{best}",
        "model_epoch3",
    }


@pytest.mark.parametrize("stopped_at", [None, 12])
def test_early_end_needs_no_ends_of_epochs(stopped_at, tmp_path):
    early = {"epochs": 9, "early_stop_patience": 2, "optimizer": ever_worse}
    options = {"save_every_epochs": 0, "save_every_steps": 4, **early}
    if stopped_at:
        with pytest.raises(ProgramError):
            train(ROW, tmp_path / "run", callbacks=[StopsAt(stopped_at, stop)], **options)
    result = train(ROW, tmp_path / "run", **options)
    whole = train(ROW, tmp_path / "whole", **early)
    assert (result.stopped, result.checkpoint.name) == ("early", "model_epoch0")
    assert bits(result) == bits(whole)
    assert train(ROW, tmp_path / "run", **options).stopped == "already finished"


class Iterable(paddle.io.IterableDataset):
    def __iter__(self):
        return iter([Points()[index] for index in range(len(Points()))])


def ever_worse(parameters):
    """Steps that become too long, so that the first evaluation is the best."""
    schedule = paddle.optimizer.lr.PiecewiseDecay([5], [0.1, 8.0])
    return paddle.optimizer.SGD(schedule, parameters)


def two_outputs(model, batch):
    return {"loss": F.mse_loss(model(batch[0]), paddle.zeros([len(batch[0]), 3])), "x": batch[0]}


class MedianError(paddle.metric.Metric):
    def update(self, *values):
        """Nothing to add up."""

    def accumulate(self):
        return 0.0

    def name(self):
        return "median"

    def reset(self):
        """Nothing to forget."""


REFUSED = {
    "loss and step": ({"step": two_outputs}, ConfigError, "one of loss and step is expected"),
    "metrics and step": (
        {"step": two_outputs, "loss": None},
        ConfigError,
        "metrics belong to loss",
    ),
    "a metric of a shape": (
        {"step": two_outputs, "loss": None, "metrics": None},
        ConfigError,
        "the step gave a Tensor of shape [8, 6] as 'x'",
    ),
    "no number": ({"epochs": None}, ConfigError, "epochs is None; expected a whole number"),
    "a large seed": ({"seed": 2**40}, ConfigError, "expected a whole number <= 4294967295"),
    "a class for an optimizer": (
        {"optimizer": paddle.optimizer.Adam},
        ConfigError,
        "optimizer is the class Adam; expected a paddle.optimizer, or a function",
    ),
    "no optimizer": ({"optimizer": None}, ConfigError, "optimizer is a NoneType"),
    "metrics without names": (
        {"metrics": [paddle.metric.Accuracy()]},
        ConfigError,
        "metrics is a list; expected a dict keyed by name",
    ),
    "another library's callback": (
        {"callbacks": [paddle.callbacks.EarlyStopping()]},
        ConfigError,
        "callbacks holds a EarlyStopping; expected instances of paddle_mnist.Callback",
    ),
    "resume": ({"resume": True}, ConfigError, "resume is True; expected 'auto', 'off' or a path"),
    "override of nothing": (
        {"override": "batchsize"},
        ConfigError,
        "override: unknown name 'batchsize'; did you mean 'batch_size'?",
    ),
    "what cannot be compared": (
        {"must_match": {"crop": object()}},
        ConfigError,
        "(a object), which cannot be compared; expected numbers",
    ),
    "NaN to compare": ({"must_match": {"x": float("nan")}}, ConfigError, "cannot be compared"),
    "names to compare": (
        {"must_match": ["crop"]},
        ConfigError,
        "must_match is a list; expected a dict keyed by name",
    ),
    **{
        f"{name}, compared twice": (
            {"must_match": {name: 1}},
            ConfigError,
            f"must_match names {name}, which fit compares by itself where it decides the result",
        )
        for name in ("ema", "num_workers", "early_stop_patience", "init_from", "name", "monitor")
    },
    "a group of another class": (
        {"saving": Loading()},
        ConfigError,
        "saving is a Loading; expected a paddle_mnist.Saving",
    ),
    "a number for a group": (
        {"processes": 2},
        ConfigError,
        "processes is a int; expected a paddle_mnist.Processes",
    ),
    "a path for a group": (
        {"start": "run"},
        ConfigError,
        "start is a str; expected a paddle_mnist.StartFrom",
    ),
    "no group": ({"loading": None}, ConfigError, "loading is a NoneType; expected a paddle_mnist."),
    "a split called train": (
        {"valid": {"train": Points()}},
        ConfigError,
        "valid is a dict of train",
    ),
    "no split": ({"valid": {}}, ConfigError, "valid is a dict of nothing"),
    "data that are not finite": (
        {"train": Points(noise=float("nan")), "model": lambda: nn.Linear(6, 3)},
        DataError,
        "the batch has numbers that are not finite",
    ),
    "no epochs": ({"epochs": 0}, ConfigError, "epochs is 0; expected a whole number >= 1"),
    "true for a number": ({"batch_size": True}, ConfigError, "batch_size is True"),
    "mode of nothing": (
        {"mode": "max"},
        ConfigError,
        "mode is 'max' without monitor; expected monitor too, the metric to maximize",
    ),
    "arrays": ({"train": ARRAYS}, ConfigError, "tuple; expected a paddle.io.Dataset, which for"),
    "arrays to evaluate": ({"valid": ARRAYS}, ConfigError, "which for arrays is paddle.io.Tensor"),
    "arrays by name": ({"train": dict(zip("xy", ARRAYS))}, ConfigError, "the data are a dict"),
    "inputs alone": ({"train": ARRAYS[0]}, ConfigError, "the data are a ndarray; expected a"),
    "mode": ({"mode": "least"}, ConfigError, "mode is 'least'; expected 'max' or 'min'"),
    "an unknown best": ({"monitor": "valid/f1"}, ConfigError, "expected mode='min' or mode='max'"),
    "an unknown monitor": (
        {"monitor": "valid/ac", "mode": "max"},
        ConfigError,
        "monitor: unknown name 'valid/ac'; did you mean 'valid/acc'?",
    ),
    "monitor, nothing to evaluate": (
        {"valid": None, "monitor": "valid/acc"},
        ConfigError,
        "nothing is evaluated",
    ),
    "plateau, nothing to evaluate": (
        {"valid": None, "optimizer": on_plateau},
        ConfigError,
        "the schedule is a ReduceOnPlateau, which follows a metric",
    ),
    "a shape": (
        {"model": lambda: nn.Linear(7, 3)},
        ConfigError,
        "the batch is (float32 [8, 6], int64 [8, 1])",
    ),
    "a metric that does not add up": (
        {"metrics": {"median": MedianError()}},
        ConfigError,
        "the metric 'median' is a MedianError, whose values of batches do not add up",
    ),
    "a metric that fails": (
        {"metrics": {"top": lambda outputs, labels: outputs.numpy()[:, 99].mean()}},
        ConfigError,
        "the metric 'top' fails with IndexError: index 99 is out of bounds for axis 1 with size 3; "
        "it got (float32 [8, 3], int64 [8, 1])",
    ),
    "a mean of comparisons": (
        {"metrics": {"hits": lambda outputs, labels: (outputs == outputs).mean()}},
        ConfigError,
        "the metric 'hits' is a tensor of bool, as Paddle's mean of comparisons is; expected a n",
    ),
    "an Auc of logits": (
        {"metrics": {"auc": paddle.metric.Auc()}},
        ConfigError,
        "the metric 'auc' fails with ValueError: expected probabilities [N, 2] of two classes, not",
    ),
    "a Precision of logits": (
        {"metrics": {"precision": paddle.metric.Precision()}},
        ConfigError,
        "the metric 'precision' fails with ValueError: expected probabilities [N, 1] of the",
    ),
    "a list of datasets to evaluate": (
        {"valid": [Points(), Points()]},
        ConfigError,
        "valid is a list of 2 datasets; expected one dataset, a list of samples, or, for several "
        "datasets, a dict of them by split name",
    ),
    "a list of datasets to evaluate by name": (
        {"valid": {"far": [Points(), Points()]}},
        ConfigError,
        "valid['far'] is a list of 2 datasets; expected one dataset, a list of samples, or, for "
        "several datasets, paddle.io.ConcatDataset",
    ),
    "a list of functions to train on": (
        {"train": [Points, Points]},
        ConfigError,
        "train is a list of 2 datasets; expected one dataset, a list of samples",
    ),
    "a list of datasets to train on": (
        {"train": (Points(), Points())},
        ConfigError,
        "train is a tuple of 2 datasets; expected one dataset, a list of samples, or, for several "
        "datasets, paddle.io.ConcatDataset",
    ),
    "not a model": ({"model": lambda: 3}, ConfigError, "the model is a int"),
    "not an optimizer": ({"optimizer": lambda _: 3}, ConfigError, "the optimizer is a int"),
    "LBFGS": (
        {"optimizer": lambda p: paddle.optimizer.LBFGS(parameters=p)},
        ConfigError,
        "the optimizer is LBFGS",
    ),
    "another's optimizer": (
        {"optimizer": momentum(perceptron().parameters())},
        ConfigError,
        "parameters that are neither the model's nor the loss's",
    ),
    "mixed precision on a CPU": ({"amp": "O1"}, DeviceError, "has no bfloat16"),
    "no GPU": ({"device": "gpu"}, DeviceError, "device is 'gpu'"),
    "an iterator": ({"train": iter([])}, ConfigError, "used up after one epoch"),
    "too many steps an epoch": (
        {"steps_per_epoch": 6},
        ConfigError,
        "steps_per_epoch is 6, but an epoch of the data has 5 steps; expected at most as many",
    ),
    "too few samples for a batch": (
        {"drop_last": True, "batch_size": 40},
        DataError,
        "the training data have no batches",
    ),
    "batches of others without the last": (
        {"drop_last": True, "train": lambda: iter([])},
        ConfigError,
        "the data are a function, which makes the batches itself",
    ),
    "evaluation inside epochs": (
        {"train": Iterable(), "eval_every_steps": 2},
        ConfigError,
        "Evaluating: every_steps and Loading: max_steps save inside epochs, where this data cannot",
    ),
    "an end inside an epoch": (
        {"train": Iterable(), "max_steps": 2},
        ConfigError,
        "Evaluating: every_steps and Loading: max_steps save inside epochs, where this data cannot",
    ),
    "an improvement without patience": (
        {"early_stop_min_delta": 0.1},
        ConfigError,
        "EarlyStopping: min_delta is 0.1 without patience; expected both",
    ),
    "no data": ({"train": list}, DataError, "have no batches in this epoch"),
    "saving inside epochs": (
        {"train": Iterable(), "save_every_steps": 2},
        ConfigError,
        "Saving: every_steps and every_seconds save inside epochs, where this data cannot resume",
    ),
    "saving by the clock": (
        {"train": Iterable(), "save_every_seconds": 60},
        ConfigError,
        "Saving: every_steps and every_seconds save inside epochs, where this data cannot resume",
    ),
    "saving at no end of an epoch": (
        {"train": Iterable(), "save_every_epochs": 0},
        ConfigError,
        "Saving: every_epochs is 0, but with this data a run can resume only from the end of an",
    ),
    "a best that is not kept": (
        {"early_stop_patience": 2, "keep_best": False},
        ConfigError,
        "EarlyStopping ends the training with its best checkpoint, but Saving has keep_best off",
    ),
    "a best of nothing": (
        {"early_stop_patience": 2, "valid": None},
        ConfigError,
        "EarlyStopping ends the training with its best checkpoint, but nothing is evaluated",
    ),
    "a class for a callback": (
        {"callbacks": [Watch]},
        ConfigError,
        "callbacks holds the class Watch; expected instances of paddle_mnist.Callback",
    ),
    "shards of what cannot be divided": (
        {"train": Iterable(), "grad_shards": 2},
        ConfigError,
        "cannot be divided between 2 shards",
    ),
    "lambdas for processes": (
        {"nprocs": 2, "model": lambda: 3},
        ConfigError,
        "model cannot be sent",
    ),
    "objects for processes": (
        {"nprocs": 2, "model": perceptron()},
        ConfigError,
        "Processes: number is 2, but model is an object",
    ),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_is_wrong_is_refused_before_anything_is_written(wrong, tmp_path):
    changed, error, message = REFUSED[wrong]
    with pytest.raises(error) as refusal:
        train(ROW, tmp_path / "run", **changed)
    assert message in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_fit_metric_whose_total_fails_raises_by_name(tmp_path):
    metrics = {"top": lambda outputs, labels: Sums([1.0, 2.0], lambda totals: totals[7])}
    with pytest.raises(ConfigError, match="the metric 'top' fails with IndexError: index 7"):
        train(ROW, tmp_path, metrics=metrics)


def test_one_callback_is_no_list_of_them(tmp_path):
    values = {**arguments(ROW, tmp_path / "run"), "callbacks": Callback()}
    with pytest.raises(ConfigError, match=r"callbacks is .*; expected a list"):
        fit(**values)
    assert not (tmp_path / "run").exists()


def test_best_is_the_lowest_where_mode_says_so(tmp_path):
    options = {"keep_last": 1, "epochs": 4, "metrics": {"entropy": F.cross_entropy}}
    train("dropout", tmp_path, monitor="valid/entropy", mode="min", **options)
    steps, values = series(read_history(tmp_path / "metrics.jsonl"), "valid/entropy")
    best = steps[int(np.argmin(values))] // 5 - 1
    kept = {path.stem for path in tmp_path.glob("checkpoints/*.json")}
    assert kept == {f"model_epoch{best}", "model_epoch3"}


def test_early_end_gives_the_best(tmp_path):
    result = train(ROW, tmp_path, epochs=9, early_stop_patience=2, monitor="valid/acc")
    scores = json.loads((result.checkpoint.with_suffix(".json")).read_text())["state"]["scores"]
    assert result.stopped in ("early", "finished")
    assert result.metrics["valid/acc"] == max(score for _, score in scores)


def loader(**options):
    return paddle.io.DataLoader(Points(), **options)


def distributed():
    sampler = paddle.io.DistributedBatchSampler(
        Points(), batch_size=8, num_replicas=1, rank=0, shuffle=True
    )
    return loader(batch_sampler=sampler)


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
    """Draws on from epoch to epoch, and counts them: nobody tells it anything."""

    def __init__(self):
        self.batch_size, self.epoch, self.random = 8, 0, random.Random(2)

    def __iter__(self):
        order = [*range(SAMPLES)]
        self.random.shuffle(order)
        np.random.RandomState(self.epoch).shuffle(order)
        for start in range(0, SAMPLES, self.batch_size):
            yield order[start : start + self.batch_size]
        self.epoch += 1

    def __len__(self):
        return -(-SAMPLES // self.batch_size)


@dataclass
class Unhashable(paddle.io.BatchSampler):
    """As a dataclass it has no hash; its batches are sets."""

    batch_size: int = 8
    epoch: int = 0

    def __iter__(self):
        order = np.random.RandomState(self.epoch).permutation(SAMPLES).tolist()
        for start in range(0, SAMPLES, self.batch_size):
            yield {*order[start : start + self.batch_size]}
        self.epoch += 1

    def __len__(self):
        return -(-SAMPLES // self.batch_size)


READY = {
    "a DistributedBatchSampler": distributed,
    "a function of a DistributedBatchSampler": lambda: distributed,
    "a sampler that is told the epoch": lambda: loader(
        batch_sampler=paddle.io.BatchSampler(sampler=ToldEpoch(), batch_size=8)
    ),
    "a sampler that counts epochs": lambda: loader(batch_sampler=CountsEpochs()),
    "the same with workers": lambda: loader(batch_sampler=CountsEpochs(), num_workers=2),
    "a sampler without a hash": lambda: loader(batch_sampler=Unhashable()),
    "a shuffling DataLoader": lambda: loader(batch_size=8, shuffle=True),
    "random samples": lambda: paddle.io.DataLoader(Points(noise=0.3), batch_size=8, shuffle=True),
    "a function": lambda: lambda: iter(loader(batch_size=8)),
    "an IterableDataset": Iterable,
}


@pytest.mark.parametrize("kind", READY)
def test_ready_data_resume_from_the_ends_of_epochs(kind, tmp_path, lines):

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


@pytest.mark.parametrize("kind", ["a DataLoader with a ResumableBatchSampler", *READY])
def test_ready_data_with_steps_per_epoch_resume_inside_epochs(kind, tmp_path, lines):
    """Epochs of four steps of data with five batches, which are read on and on."""
    make = READY.get(kind, lambda: resumable())

    def options():
        data = {"train": make(), "valid": Points()}
        return {**data, "epochs": 3, "steps_per_epoch": 4, "save_every_steps": 3}

    whole = train(ROW, tmp_path / "whole", **options())
    assert (whole.epochs, whole.steps) == (3, 12)
    assert not any("can resume only from the end of an epoch" in line for line in lines())
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "run", callbacks=[StopsAt(7, stop)], **options())
    assert bits(train(ROW, tmp_path / "run", **options())) == bits(whole)


def test_steps_per_epoch_ends_the_workers_of_the_data_with_the_run(tmp_path):
    options = {"epochs": 2, "steps_per_epoch": 3, "valid": None}
    before = multiprocessing.active_children()
    gc.disable()  # which would end them some time later
    try:
        train(ROW, tmp_path, train=loader(batch_size=8, num_workers=1), **options)
        assert set(multiprocessing.active_children()) <= set(before)
    finally:
        gc.enable()


def test_steps_per_epoch_and_drop_last_leave_out_what_both_do(tmp_path):
    """The sixth batch, of one sample, by each of them; of two batches a step, the fifth stays."""
    options = {"epochs": 1, "accumulate": 2, "drop_last": True}
    samples = json.loads(
        train(ROW, tmp_path, train=Points(41), steps_per_epoch=3, **options)
        .checkpoint.with_suffix(".json")
        .read_text()
    )["state"]["samples"]
    assert samples == 40


def numbered():
    """Endless batches whose inputs are their number."""
    for number in itertools.count():
        yield np.full([8, 6], number, "float32"), np.zeros([8, 1], "int64")


def test_endless_batches_go_on_in_the_next_epoch(tmp_path, lines):
    seen = []

    def step(model, batch):
        if not is_rehearsal():
            seen.append(int(batch[0][0, 0]))
        return {"loss": F.cross_entropy(model(batch[0]), batch[1])}

    task = {"step": step, "loss": None, "metrics": None, "train": numbered, "valid": None}
    with pytest.raises(ProgramError):
        train(ROW, tmp_path, callbacks=[StopsAt(5, stop)], steps_per_epoch=3, **task)
    assert seen == [0, 1, 2, 3, 4]
    result = train(ROW, tmp_path, steps_per_epoch=3, **task)
    assert (seen, result.steps) == ([0, 1, 2, 3, 4, 5], 6)
    assert "reading the batches of the 5 steps before once more" in lines()
    with pytest.raises(ConfigError, match="steps_per_epoch: 3 in the run, 4 now"):
        train(ROW, tmp_path, steps_per_epoch=4, **task)


def test_data_without_a_length_log_how_to_end_an_epoch(tmp_path, lines):
    train(ROW, tmp_path, train=lambda: iter(loader(batch_size=8)), valid=None, epochs=1)
    assert "the data have no length; endless ones need Loading(steps_per_epoch=...)" in lines()


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}], ids=["", "accumulated"])
def test_drop_last_leaves_out_other_samples_in_each_epoch(options, tmp_path):
    seen = collections.Counter()

    def step(model, batch):
        if model.training and not is_rehearsal():
            seen.update(map(bytes, batch[0].numpy()))
            assert len(batch[0]) == 8
        return {"loss": F.cross_entropy(model(batch[0]), batch[1])}

    task = {"step": step, "loss": None, "metrics": None, "drop_last": True, "epochs": 3}
    result = train(ROW, tmp_path, **task, **options)
    assert (result.steps, sum(seen.values())) == (6 if options else 12, 96)
    assert len(seen) == SAMPLES


def test_max_steps_ends_a_run_which_a_higher_number_continues(tmp_path):
    """Inside the second epoch; to the bits of a run that had the higher number at once."""
    options = {"epochs": 4, "save_every_steps": 3}
    whole = train("dropout", tmp_path / "whole", max_steps=13, **options)
    first = train("dropout", tmp_path / "run", max_steps=7, **options)
    assert (first.stopped, first.epochs, first.steps) == ("finished", 1, 7)
    assert first.checkpoint.name == "model_epoch1_step7" and first.metrics["valid/loss"]
    again = train("dropout", tmp_path / "run", max_steps=7, **options)
    assert (again.stopped, again.metrics) == ("already finished", first.metrics)
    with pytest.raises(ConfigError, match="max_steps: 7 in the run, 13 now"):
        train("dropout", tmp_path / "run", max_steps=13, **options)
    more = train("dropout", tmp_path / "run", max_steps=13, override="max_steps", **options)
    assert bits(more)["weights"] == bits(whole)["weights"]
    less = train("dropout", tmp_path / "run", max_steps=4, override="max_steps", **options)
    assert (less.stopped, less.steps) == ("already finished", 13)
    assert train("dropout", tmp_path / "epochs", max_steps=99).steps == 10


class Interrupts(Callback):
    """Ends the run where an evaluation is written after a step."""

    def __init__(self, step):
        self.step = step

    def write(self, state, values):
        if state.step == self.step and "valid/loss" in values:
            raise ProgramError


def evaluations(folder):
    return {
        tag: series(read_history(folder / "metrics.jsonl"), tag)
        for tag in ("valid/loss", "train/loss")
    }


@pytest.mark.parametrize("kill", [3, 5, 6, "saved 3", "saved 5", 7])
def test_evaluations_by_steps_of_a_resumed_run_are_those_of_the_unbroken_one(kill, tmp_path):
    options = {"eval_every_steps": 3, "early_stop_patience": 9, "ema": 0.9, "epochs": 3}
    whole = train("BatchNorm", tmp_path / "whole", **options)
    steps, _ = evaluations(tmp_path / "whole")["valid/loss"]
    assert steps == [3, 5, 6, 9, 10, 12, 15]  # once where an epoch ends there
    if str(kill).startswith("saved"):  # ended by an error after the checkpoint of this step
        at = int(kill[-1])
        options |= {"save_on_exception": False, "save_every_steps": at}
        callbacks = [StopsAt(at + 1, stop)]
    else:  # while the evaluation of a step is written, or after the step
        callbacks = [Interrupts(kill), StopsAt(7, stop)]
    with pytest.raises(ProgramError):
        train("BatchNorm", tmp_path / "run", callbacks=callbacks, **options)
    resumed = train("BatchNorm", tmp_path / "run", **options)
    assert bits(resumed) == bits(whole)
    assert evaluations(tmp_path / "run") == evaluations(tmp_path / "whole")


def test_an_evaluation_that_was_interrupted_is_repeated_and_its_checkpoint_is_the_best(tmp_path):
    fails = tmp_path / "fails"

    def step(model, batch):
        if not model.training and fails.exists():
            raise ProgramError
        return {"loss": F.cross_entropy(model(batch[0]), batch[1])}

    def falling_apart(parameters):
        return paddle.optimizer.SGD(lr.PiecewiseDecay([3], [0.1, 8.0]), parameters)

    task = {"step": step, "loss": None, "metrics": None, "optimizer": falling_apart}
    options = {"eval_every_steps": 3, "early_stop_patience": 9, "epochs": 2}
    whole = train(ROW, tmp_path / "whole", **task, **options)
    assert whole.checkpoint.name == "model_epoch0_step3"
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "run", callbacks=[StopsAt(3, fails.touch)], **task, **options)
    fails.unlink()
    resumed = train(ROW, tmp_path / "run", **task, **options)
    assert resumed.checkpoint.name == "model_epoch0_step3"
    assert bits(resumed) == bits(whole)


def test_early_stopping_with_min_delta_stops_where_improvements_are_small(tmp_path):
    """The result is still that of the best checkpoint."""
    options = {"epochs": 9, "early_stop_patience": 2, "keep_last": 9}
    result = train(ROW, tmp_path, early_stop_min_delta=5.0, **options)
    assert (result.stopped, result.epochs) == ("early", 3)
    _, losses = series(read_history(tmp_path / "metrics.jsonl"), "valid/loss")
    assert list(losses) == sorted(losses, reverse=True)  # each better than the one before
    assert result.metrics["valid/loss"] == losses[-1]


def test_early_stopping_of_a_run_that_resumes_inside_an_epoch_waits_for_its_end(tmp_path):
    """As that of a run that was not interrupted, whatever an evaluation inside it gave."""
    options = {"early_stop_patience": 2, "early_stop_min_delta": 0.5, "eval_every_steps": 3}
    options |= {"epochs": 6, "keep_last": 9}
    whole = train("dropout", tmp_path / "whole", **options)
    with pytest.raises(ProgramError):
        train("dropout", tmp_path / "run", callbacks=[StopsAt(6, stop)], **options)
    assert bits(train("dropout", tmp_path / "run", **options)) == bits(whole)


class Pool(Points):
    """Points to which some are added."""

    use = 20

    def __len__(self):
        return self.use


class Labels(Callback):
    def __init__(self, pool, epoch):
        self.pool, self.epoch = pool, epoch

    def after_epoch(self, view):
        if view.state.epoch == self.epoch:
            self.pool.use += 10


def grown(pool):
    sampler = ResumableBatchSampler(pool, batch_size=8)
    return paddle.io.DataLoader(pool, batch_sampler=sampler)


@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("kind", [lambda pool: pool, grown], ids=["", "ready"])
def test_data_that_grow_are_refused_by_name(split, epoch, kind, tmp_path):
    pool = Pool()
    data = {"train": Points(), "valid": Points(), split: kind(pool)}
    with pytest.raises(
        ConfigError, match=r"Pool had 20 samples at first, and has 30 now; expected"
    ):
        train(ROW, tmp_path, callbacks=[Labels(pool, epoch)], epochs=3, **data)


def test_data_that_grow_are_read_by_a_function_of_each_epoch(tmp_path):
    pool = Pool()

    def batches():
        yield from paddle.io.DataLoader(pool, batch_size=10)

    result = train(ROW, tmp_path, train=batches, callbacks=[Labels(pool, 1)], valid=None)
    assert result.steps == 2 + 3


def test_epochs_of_a_sampler_that_is_told_them_differ():
    """And an evaluation, which is always of epoch 0, has the same order every time."""
    for make in (distributed, READY["a sampler that is told the epoch"], resumable):
        ready = make()
        orders = [
            [batch[1].flatten().tolist() for batch in epoch_batches(ready, epoch)]
            for epoch in (0, 1, 0, 2)
        ]
        assert orders[0] == orders[2]
        assert len({str(order) for order in orders}) == 3


def test_what_the_caller_changes_in_a_sampler_between_epochs_stays():
    sampler = CountsEpochs()
    ready = loader(batch_sampler=sampler)
    next(epoch_batches(ready, 0))  # as the rehearsal does
    sizes = [[len(batch[1]) for batch in epoch_batches(ready, 0)]]
    sampler.batch_size = 5
    sizes.append([len(batch[1]) for batch in epoch_batches(ready, 1)])
    assert [of_epoch[0] for of_epoch in sizes] == [8, 5]


def resumable():
    return loader(batch_sampler=ResumableBatchSampler(Points(), batch_size=8, seed=5))


def test_a_resumable_batch_sampler_resumes_inside_an_epoch(tmp_path, lines):
    def options():
        return {"train": resumable(), "valid": Points()}

    whole = train(ROW, tmp_path / "whole", **options())
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "stopped", callbacks=[StopsAt(7, stop)], **options())
    assert list(tmp_path.glob("stopped/checkpoints/*step7_breakpoint.json"))
    assert bits(train(ROW, tmp_path / "stopped", **options())) == bits(whole)
    # the order is that of the same dataset, given to fit
    assert load(train(ROW, tmp_path / "own").weights)["0.weight"].tolist() == (
        load(whole.weights)["0.weight"].tolist()
    )


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"grad_shards": 2}])
def test_a_list_of_samples_is_a_dataset(options, tmp_path):
    samples = [Points()[index] for index in range(SAMPLES)]
    whole = train(ROW, tmp_path / "dataset", **options)
    listed = train(ROW, tmp_path / "list", train=samples, valid={"valid": samples}, **options)
    assert bits(listed) == bits(whole)
    assert train(ROW, tmp_path / "dataset", train=samples, **options).stopped == "already finished"


def test_whatever_has_a_length_and_indices_is_a_dataset(tmp_path):
    class Indexed:
        """As PyTorch's datasets are: no class of Paddle's."""

        def __len__(self):
            return SAMPLES

        def __getitem__(self, index):
            return Points()[index]

        def __iter__(self):
            return map(self.__getitem__, range(SAMPLES))

    assert bits(train(ROW, tmp_path / "x", train=Indexed())) == bits(train(ROW, tmp_path / "y"))


def test_a_training_in_a_thread_has_workers(tmp_path, monkeypatch):
    results = []
    whole = train(ROW, tmp_path / "whole", num_workers=2)
    # as in a process whose main thread has had no workers
    paddles = sys.modules[forking._set_handler.__module__]
    monkeypatch.setattr(paddles, "_SIGCHLD_handler_set", False)
    thread = threading.Thread(
        target=lambda: results.append(train(ROW, tmp_path / "thread", num_workers=2))
    )
    thread.start()
    thread.join()
    assert [*map(bits, results)] == [bits(whole)]


@pytest.mark.parametrize("row", ["random samples", "BatchNorm"])
def test_bits_do_not_depend_on_workers(row, tmp_path):
    few, many = (train(row, tmp_path / f"{n}", num_workers=n) for n in (0, 2))
    assert bits(few) == bits(many)


@pytest.mark.parametrize("data", [Points(32), loader(batch_size=4)])
def test_accumulated_batches_equal_one_large_one(data, tmp_path):
    """But for rounding; 33 samples leave a last step of one batch with one sample."""
    options = {"shuffle": False, "valid": Points(), "epochs": 1}
    whole = Points(32) if isinstance(data, Points) else Points()
    large = train(ROW, tmp_path / "large", train=whole, batch_size=8, **options)
    small = train(ROW, tmp_path / "small", train=data, batch_size=4, accumulate=2, **options)
    assert small.steps == large.steps
    for name, values in load(large.weights).items():
        np.testing.assert_allclose(load(small.weights)[name], values, rtol=1e-5, atol=1e-6)


def test_several_splits_and_metrics_of_everything(tmp_path):
    def span(outputs, labels):
        return outputs.max() - outputs.min() + len(labels)

    result = train(
        ROW,
        tmp_path,
        valid={"near": Points(), "far": Shifted(), "ready": loader(batch_size=5)},
        metrics={"acc": paddle.metric.Accuracy(topk=(1, 2)), "span": Gathered(span)},
        eval_batch_size=7,
    )
    names = ("loss", "acc_top1", "acc_top2", "span")
    splits = ("near", "far", "ready")
    assert set(result.metrics) == {f"{split}/{name}" for split in splits for name in names}
    model = perceptron()
    model.set_state_dict({k: paddle.to_tensor(v) for k, v in load(result.weights).items()})
    points, labels = zip(*(Points()[index] for index in range(33)))
    logits, labels = model(paddle.to_tensor(np.stack(points))).numpy(), np.stack(labels)
    assert result.metrics["near/span"] == pytest.approx(logits.max() - logits.min() + 33, rel=1e-6)
    hits = (np.argsort(-logits)[:, :2] == labels).any(axis=1)
    assert result.metrics["near/acc_top2"] == hits.mean()
    assert result.metrics["ready/loss"] == pytest.approx(result.metrics["near/loss"], rel=1e-6)


@pytest.mark.parametrize("start", ["incremental_from", "resume", "override"])
def test_state_of_another_optimizer_is_refused_in_one_line(start, tmp_path):
    with pytest.raises(ProgramError):
        train("Adam", tmp_path / "run", train=Points(), model=perceptron, **stopping())
    output = tmp_path / ("run" if start == "override" else "new")
    options = {} if start == "override" else {start: tmp_path / "run"}
    options |= {} if start == "incremental_from" else {"override": "optimizer,schedule"}
    with pytest.raises(CheckpointError, match="optimizers differ: Adam there, SGD now") as refusal:
        train(ROW, output, **options)
    assert "\n" not in str(refusal.value)
    train(ROW, tmp_path / "new", init_from=tmp_path / "run", fresh=True)


def stopping():
    return {"callbacks": [StopsAt(7, stop)]}


def test_weights_that_fit_in_part(tmp_path, lines):
    source = train(ROW, tmp_path / "source")

    def wider():
        return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5), nn.Linear(5, 3))

    options = {"model": wider, "init_from": str(source.weights), "epochs": 1}
    with pytest.raises(Exception, match=r"missing     3\.bias"):
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


@pytest.mark.parametrize(("data", "is_softened"), [(Points(), False), (Renamed(), True)])
def test_a_net_that_is_wrong_about_new_data_is_softened(tmp_path, lines, data, is_softened):
    """Its predictions stay; what it could before is stored beside what it can now."""
    source = train(ROW, tmp_path / "source", epochs=40)
    new = {"train": data, "valid": {"new": data, "old": Points()}, "monitor": "new/loss"}
    options = {**new, "incremental_from": str(source.weights.parent), "epochs": 1}
    result = train(ROW, tmp_path / "further", soften="2", **options)
    first = load(tmp_path / "further/checkpoints/model_epoch0_step0.pdparams")
    trained = load(source.weights)
    assert first["0.weight"].tolist() == trained["0.weight"].tolist()
    for name in ("2.weight", "2.bias"):
        np.testing.assert_allclose(trained[name], first[name] * (10 if is_softened else 1), 1e-6)
    assert any("divided by 10, which changes no prediction" in line for line in lines()) is (
        is_softened
    )
    values = json.loads((tmp_path / "further/result.json").read_text())
    assert values["metrics_before"]["old/acc"] == source.metrics["valid/acc"]
    assert values["lost"].get("old/acc", 0) == pytest.approx(
        max(0, source.metrics["valid/acc"] - result.metrics["old/acc"])
    )


def test_what_cannot_be_softened_is_refused(tmp_path):
    source = train(ROW, tmp_path / "source").weights.parent
    options = {"incremental_from": str(source), "epochs": 1}
    with pytest.raises(ConfigError, match=r"soften: unknown name '3'"):
        train(ROW, tmp_path / "new", soften="3", **options)
    loader = paddle.io.DataLoader(Points(), batch_size=8)
    with pytest.raises(ConfigError, match=r"soften reads the first training batches twice"):
        train(ROW, tmp_path / "new", soften="2", train=loader, **options)


class Diary(Callback):
    def __init__(self):
        self.calls = []

    def run_opened(self, training):
        self.calls.append("run_opened")

    def before_training(self, training):
        self.calls.append("before_training")

    def after_epoch(self, view):
        self.calls.append(f"after epoch {view.state.epoch}")
        return {"mine/step": view.step}

    def final_metrics(self, training):
        return {"test/double": 2 * training.state.metrics["valid/loss"]}

    def result_entries(self, training, result):
        return {"note": "mine"}

    def after_training(self, training, result):
        self.calls.append("after_training")

    def already_finished(self, training, result):
        self.calls.append("already_finished")


def test_callbacks(tmp_path):
    diary = Diary()
    result = train(ROW, tmp_path, callbacks=[diary], figures=True)
    epochs = ["after epoch 1", "after epoch 2"]
    assert diary.calls == ["run_opened", "before_training", *epochs, "after_training"]
    assert result.metrics["test/double"] == 2 * result.metrics["valid/loss"]
    assert json.loads((tmp_path / "result.json").read_text())["note"] == "mine"
    assert series(read_history(tmp_path / "metrics.jsonl"), "mine/step") == ([5, 10], [5, 10])
    assert {p.name for p in (tmp_path / "figures").iterdir()} >= {"curves.png", "learning_rate.svg"}
    (tmp_path / "figures" / "curves.png").unlink()
    train(ROW, tmp_path, callbacks=[diary], figures=True)
    assert diary.calls[-2:] == ["run_opened", "already_finished"]
    assert (tmp_path / "figures" / "curves.png").exists()


def test_objects_train_as_functions_do_from_weights_of_their_own(tmp_path):
    def objects():
        model = perceptron()
        return {"model": model, "optimizer": momentum(model.parameters()), "keep_last": 9}

    whole = train(ROW, tmp_path / "whole", **objects())
    initial = load(Path(tmp_path, "whole/checkpoints/model_epoch0_step0"))
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "stopped", callbacks=[StopsAt(1, stop)], fresh=True, **objects())
    other = load(Path(tmp_path, "stopped/checkpoints/model_epoch0_step0"))
    assert initial["0.weight"].tolist() != other["0.weight"].tolist()
    resumed = train(ROW, tmp_path / "stopped", **objects())  # with other weights, which go
    assert resumed.stopped == "finished" and whole.steps == resumed.steps
    assert load(tmp_path / "stopped/checkpoints/model_epoch0_step0")["0.weight"].tolist() == (
        other["0.weight"].tolist()
    )


def test_the_callers_generators_are_left_alone(tmp_path):
    random.seed(1), np.random.seed(1), paddle.seed(1)
    before = random.random(), np.random.rand(), paddle.rand([1]).item()
    random.seed(1), np.random.seed(1), paddle.seed(1)
    train("num_workers", tmp_path / "a", num_workers=0)
    assert (random.random(), np.random.rand(), paddle.rand([1]).item()) == before


def test_a_run_says_who_trained_it(tmp_path):
    train(ROW, tmp_path)
    config = (tmp_path / "config.yaml").read_text()
    assert config.startswith("trained_with: paddle_mnist.fit\n")
    assert "keep_last: 3" in config and "0.weight: '[6, 16] float32'" in config


def test_every_row_has_a_name_for_a_folder():
    assert not any("/" in row for row in ROWS)


def test_a_tuple_to_compare_is_the_same_later(tmp_path):
    values = {"crop": (1, np.float32(2))}
    train(ROW, tmp_path, must_match=values)
    assert train(ROW, tmp_path, must_match=values).stopped == "already finished"


def test_what_the_caller_compares_replaces_what_fit_would(tmp_path):
    """A group of the same name: the contents of data that no sample tells, say."""

    def train_on(version, **options):
        return train(ROW, tmp_path, must_match={"data": version, "sizes": {"x": 1}}, **options)

    assert train_on("v1").stopped == "finished"
    assert train_on("v1", train=Shifted()).stopped == "already finished"
    with pytest.raises(ConfigError, match="data: 'v1' in the run, 'v2' now"):
        train_on("v2")
    assert train_on("v2", override="data").stopped == "already finished"
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert config["data"] == "v1" and config["sizes"] == {"x": 1}
    with pytest.raises(ConfigError, match=r"sizes.x: 1 in the run, 2 now"):
        train(ROW, tmp_path, must_match={"data": "v1", "sizes": {"x": 2}})


def test_metrics_that_are_new_to_a_finished_run_are_evaluated(tmp_path):
    train(ROW, tmp_path, metrics=None)
    result = train(ROW, tmp_path)
    assert set(result.metrics) == {"valid/loss", "valid/acc"}
    assert train(ROW, tmp_path).stopped == "already finished"


def test_an_object_has_the_final_weights_however_it_ended(tmp_path):
    results = []
    for _ in range(2):
        model = perceptron()
        optimizer = momentum(model.parameters())
        results.append(train(ROW, tmp_path, model=model, optimizer=optimizer))
        saved = load(results[-1].weights)
        assert all(
            (saved[name] == value.numpy()).all() for name, value in model.state_dict().items()
        )
    assert [result.stopped for result in results] == ["finished", "already finished"]


def test_a_refused_call_leaves_a_finished_run_where_it_is(tmp_path):
    train(ROW, tmp_path / "run")
    with pytest.raises(CheckpointError, match="typo"):
        train(ROW, tmp_path / "run", fresh=True, init_from="typo")
    assert train(ROW, tmp_path / "run").stopped == "already finished"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_epoch_without_batches_is_an_error(tmp_path):
    calls = []

    def batches():
        calls.append(1)
        return iter(loader(batch_size=8)) if len(calls) < 3 else iter([])

    with pytest.raises(DataError, match="a function must return a new iterator each time"):
        train(ROW, tmp_path, train=batches, valid=Points())


def test_an_output_without_a_name_is_refused():
    with pytest.raises(ConfigError, match="output is ''; expected text that is not empty"):
        train(ROW, "")


class KeepsEvaluating(nn.Layer):
    """Freezes its BatchNorm by a `train` of its own."""

    def __init__(self):
        super().__init__()
        self.body = perceptron(nn.BatchNorm1D(16))
        self.train()

    def train(self):
        super().train()
        self.body[1].eval()

    def forward(self, points):
        return self.body(points)


def frozen_norm(build):
    """Return a net with a BatchNorm in evaluation mode, and the BatchNorm."""
    model = build()
    (norm,) = [one for one in model.sublayers() if isinstance(one, nn.BatchNorm1D)]
    norm.eval()
    return model, norm


def test_fit_layer_in_evaluation_mode_before_warns_once_by_name(tmp_path, lines):
    model, norm = frozen_norm(lambda: nn.Sequential(perceptron(nn.BatchNorm1D(16))))
    name = next(name for name, one in model.named_sublayers() if one is norm)
    train(ROW, tmp_path, model=lambda: model)
    (line,) = [line for line in lines() if "in evaluation mode" in line]
    assert line.startswith(f"{name}: in evaluation mode, but each epoch begins with model.train()")
    assert norm._mean.abs().max() > 0  # as it says


def test_fit_layer_in_evaluation_mode_by_a_callback_warns_at_the_next_epoch(tmp_path, lines):
    model, norm = frozen_norm(lambda: perceptron(nn.BatchNorm1D(16)))
    model.train()
    train(ROW, tmp_path, model=lambda: model, epochs=3, callbacks=[StopsAt(2, norm.eval)])
    (line,) = [line for line in lines() if "in evaluation mode" in line]
    assert lines().index(line) > next(
        number for number, other in enumerate(lines()) if "epoch 1/3" in other
    )


@pytest.mark.parametrize("kind", ["train() of its own", "all of it", "each epoch"])
def test_fit_model_that_trains_as_it_says_logs_nothing(kind, tmp_path, lines):
    callback = Callback()
    if kind == "train() of its own":
        model, norm = frozen_norm(KeepsEvaluating)
    else:
        model, norm = frozen_norm(lambda: perceptron(nn.BatchNorm1D(16)))
        (model.eval if kind == "all of it" else model.train)()
    if kind == "each epoch":
        callback.on_epoch_start = lambda view: norm.eval()
    train(ROW, tmp_path, model=lambda: model, epochs=3, callbacks=[callback])
    assert not [line for line in lines() if "in evaluation mode" in line]
    assert (norm._mean.abs().max() == 0) == (kind != "all of it")


def test_one_training_at_a_time(tmp_path):
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


class Counter(nn.Layer):
    def __init__(self):
        super().__init__()
        self.body = perceptron()
        self.register_buffer("passes", paddle.zeros([1]), persistable=False)

    def forward(self, points):
        self.passes += 1
        return self.body(points)


def test_state_that_no_checkpoint_holds_is_named(tmp_path, lines):
    train(ROW, tmp_path, model=Counter)
    assert "not saved, since the first steps do not depend on it: model.passes" in lines()


def test_fit_of_an_instance_logs_that_its_weights_are_not_of_the_seed(tmp_path, lines):
    line = "the model is an instance: its initial weights were drawn before fit seeded"
    train(ROW, tmp_path / "function")
    assert not [text for text in lines() if text.startswith(line)]
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "run", model=perceptron(), callbacks=[StopsAt(3, stop)])
    assert len([text for text in lines() if text.startswith(line)]) == 1
    train(ROW, tmp_path / "run", model=perceptron())
    assert len([text for text in lines() if text.startswith(line)]) == 1


def test_fit_writes_to_train_log_what_it_logs_before_it_opens_the_run(tmp_path):
    def summed(outputs, labels):
        return F.cross_entropy(outputs, labels, reduction="sum")

    train(ROW, tmp_path, loss=summed, train=lambda: iter(loader(batch_size=8)), valid=Points())
    text = (tmp_path / "train.log").read_text()
    assert text.count("a run can resume only from the end of an epoch") == 1
    assert text.count("WARNING the loss of the first batch is") == 1
