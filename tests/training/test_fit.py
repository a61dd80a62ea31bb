"""`fit`: what it returns and refuses, when it saves and ends, and the data and tasks it takes."""

import contextlib
import json
import random
import shutil
import threading

import numpy as np
import paddle
import pytest
import yaml
from fit_rows import (
    SAMPLES,
    Points,
    ProgramError,
    StopsAt,
    TextNet,
    Texts,
    TwoHeads,
    bits,
    history,
    momentum,
    on_plateau,
    perceptron,
    stop,
    train,
)
from paddle import nn
from paddle.nn import functional as F
from paddle.optimizer import lr
from small_nets import CLASSES, WIDTH
from stateful_rows import CenterLoss

from paddle_mnist import (
    BatchLoader,
    Callback,
    EarlyStopping,
    Loading,
    Mean,
    ResumableBatchSampler,
    fit,
)
from paddle_mnist.checkpoint.weights import load
from paddle_mnist.errors import CheckpointError, ConfigError, DataError, DeviceError

ROW = "SGD with clipping"


def kept(folder):
    """Return the names of the checkpoints of a run."""
    return {path.stem for path in folder.glob("checkpoints/*.json")}


def test_fit_finished_run_whose_weights_are_damaged_raises_what_to_do(tmp_path):
    result = train("Adam", tmp_path)
    expected, data = load(result.weights), bytearray(result.weights.read_bytes())
    data[bytes(data).index(expected["0.weight"].tobytes()) + 3] ^= 0x40
    result.weights.write_bytes(data)
    what_to_do = r"damaged: .*result\.json; move it away"
    for read in (lambda: train("Adam", tmp_path), lambda: load(result.weights)):
        with pytest.raises(CheckpointError, match=what_to_do) as caught:
            read()
        assert caught.value.exit_code == 4 and "\n" not in str(caught.value)

    # Version 1.0 recorded no SHA-256: then the weights are those of the checkpoint.
    entries = json.loads((tmp_path / "result.json").read_text())
    assert entries.pop("weights_file")["size"] == len(data)
    (tmp_path / "result.json").write_text(json.dumps(entries))
    net = perceptron()
    assert train("Adam", tmp_path, model=net).stopped == "already finished"
    for name, array in net.state_dict().items():
        assert np.array_equal(array.numpy(), expected[name])

    result.weights.unlink()
    assert bits(train("Adam", tmp_path)) == bits(result)
    assert all(np.array_equal(array, expected[n]) for n, array in load(result.weights).items())


def test_fit_finished_run_returns_its_result_and_rebuilds_lost_files(tmp_path, lines):
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
    assert "raise epochs and use override='epochs'; use fresh=True to start over" in last
    assert "only the code of model, " in last
    assert not any("is an instance" in line for line in lines())
    for damaged in ("{}", '{"steps": 10}', "{"):
        (tmp_path / "result.json").write_text(damaged)
        assert train(ROW, tmp_path).metrics == first.metrics
    first.weights.unlink()
    assert train(ROW, tmp_path).stopped == "finished"
    with pytest.raises(CheckpointError, match="typo"):  # which leaves the run where it is
        train(ROW, tmp_path, fresh=True, init_from="typo")
    assert train(ROW, tmp_path, figures=True).stopped == "already finished"
    assert (tmp_path / "figures/curves.png").exists()
    assert bits(train(ROW, tmp_path)) == bits(first)


class Iterable(paddle.io.IterableDataset):
    def __iter__(self):
        return iter([Points()[index] for index in range(SAMPLES)])


def loader(**options):
    return paddle.io.DataLoader(Points(), **options)


def step(model, batch):
    return {"loss": F.cross_entropy(model(batch[0]), batch[1])}


def hits(outputs, labels):
    return Mean((outputs.argmax(axis=1) == labels.flatten()).sum(), len(labels))


def loss_failing(outputs, labels):
    raise KeyError("weight")


def metric_failing(outputs, labels):
    return outputs.numpy()[:, 99].mean()


NO_LOSS = {"loss": None, "metrics": None}
SPARSE = {
    "model": TextNet,
    "train": Texts(),
    "optimizer": lambda parameters: paddle.optimizer.AdamW(0.1, parameters=parameters),
}
# The changed arguments, and what the message must have.
REFUSED = {
    "model": ({"model": lambda: nn.Linear(7, 3)}, "the batch is (float32 [8, 6], int64 [8, 1])"),
    "train: arrays": ({"train": (Points().points, [0])}, "paddle.io.TensorDataset"),
    "train: an iterator": ({"train": iter([])}, "used up after one epoch"),
    "valid": ({"valid": {"far": [Points()] * 2}}, "valid['far'] is a list of 2 datasets"),
    "valid: a split called train": ({"valid": {"train": Points()}}, "valid is a dict of train"),
    "optimizer: a class": ({"optimizer": paddle.optimizer.Adam}, "optimizer is the class Adam"),
    "optimizer: a number": ({"optimizer": lambda _: 3}, "the optimizer is a int"),
    "optimizer: another net's": (
        {"optimizer": momentum(perceptron().parameters())},
        "parameters that belong neither to the model or the loss",
    ),
    "optimizer: AdamW, sparse gradients": (SPARSE, "sparse=False"),
    "optimizer: plateau": ({"valid": None, "optimizer": on_plateau}, "is a ReduceOnPlateau"),
    "loss and step": ({"step": step}, "one of loss and step is expected"),
    "loss: error": ({"loss": loss_failing}, "fails with KeyError: 'weight'"),
    "loss: one a sample": ({"loss": lambda outputs, labels: outputs.sum(axis=1)}, "shape [8]"),
    "loss: a class": ({"loss": nn.CrossEntropyLoss}, "expected an instance, CrossEntropyLoss()"),
    "loss: a name": ({"loss": "mse"}, "loss is 'mse'; expected a function of outputs and labels"),
    "loss: a number": ({"loss": 0.5}, "loss is 0.5; expected a function of outputs and labels"),
    "loss: several outputs": (
        {"model": TwoHeads},
        "the model's output is a tuple, and the labels are a Tensor; choose one output, as in",
    ),
    "loss: no gradient": ({"loss": lambda outputs, _: outputs.detach().mean()}, "gradient"),
    "step": ({**NO_LOSS, "step": lambda model, batch: {"acc": 1.0}}, "a dict of acc"),
    "step: a name": (
        {**NO_LOSS, "step": "train"},
        "step is 'train'; expected a function of the model and a batch",
    ),
    "metrics: a list": ({"metrics": [paddle.metric.Accuracy()]}, "metrics is a list"),
    "metrics: error": (
        {"metrics": {"own": metric_failing}},
        "the metric 'own' fails with IndexError: index 99 is out of bounds for axis 1 with size 3; "
        "it got (float32 [8, 3], int64 [8, 1])",
    ),
    "metrics: a class": (
        {"metrics": {"acc": paddle.metric.Accuracy}},
        "metrics['acc'] is the class Accuracy; expected an instance, Accuracy()",
    ),
    "metrics: Auc": ({"metrics": {"auc": paddle.metric.Auc()}}, "expected probabilities [N, 2]"),
    "metrics: a name": ({"metrics": {"acc": "accuracy"}}, "metrics['acc'] is 'accuracy'; expected"),
    "metrics: with a step": ({"step": step, "loss": None}, "metrics go with loss"),
    "seed": ({"seed": 2**40}, "expected a whole number <= 4294967295"),
    "resume": ({"resume": True}, "resume is True; expected 'auto', 'off' or a path"),
    "override": ({"override": "batchsize"}, "did you mean 'batch_size'?"),
    "must_match": ({"must_match": {"crop": object()}}, "cannot be compared"),
    "must_match: fit's": ({"must_match": {"ema": 1}}, "must_match names ema"),
    "callbacks: a class": ({"callbacks": [Callback]}, "callbacks contains the class Callback"),
    "callbacks": (
        {"callbacks": [paddle.callbacks.EarlyStopping()]},
        "paddle.hapi.callbacks.EarlyStopping",
    ),
    "saving": ({"saving": Loading()}, "expected a paddle_mnist.Saving"),
    "mode": ({"mode": "max"}, "mode is 'max' without monitor"),
    "monitor": ({"monitor": "valid/ac", "mode": "max"}, "did you mean 'valid/acc'?"),
    "monitor: Keras's": (
        {"monitor": "val_loss"},
        "expected the name of a metric, such as 'valid/loss'",
    ),
    "monitor: no mode": ({"monitor": "valid/error"}, "mode='min' or mode='max', too"),
    "steps_per_epoch": ({"steps_per_epoch": 6}, "an epoch of the data has 5 steps"),
    "drop_last": ({"drop_last": True, "train": lambda: iter([])}, "which makes the batches itself"),
    "batch_size: another than the loader's": (
        {"train": loader(batch_size=4), "batch_size": 64},
        "batch_size is 64, but the data are a DataLoader with batches of 4; leave batch_size out",
    ),
    "batch_size: another than a sampler's": (
        {"train": loader(batch_sampler=ResumableBatchSampler(Points(), 4))},
        "batch_size is 8, but the data are a DataLoader with batches of 4",
    ),
    "batch_size: another than a BatchLoader's": (
        {"train": BatchLoader(Points(), 4)},
        "batch_size is 8, but the data are a BatchLoader with batches of 4",
    ),
    "grad_shards": ({"train": Iterable(), "grad_shards": 2}, "cannot be divided between shards"),
    "keep_best": ({"early_stop_patience": 2, "keep_best": False}, "keep_best is off"),
    "save_every_epochs": ({"train": Iterable(), "save_every_epochs": 0}, "every_epochs is 0"),
    "eval_every_steps": ({"train": Iterable(), "eval_every_steps": 2}, "save inside epochs"),
    "visualdl": (
        {"visualdl": ["scalars", "images", "graph"]},
        "VisualDL: pages has images, graph, which fit does not write, and no callback does",
    ),
    "save_every_steps": ({"train": Iterable(), "save_every_steps": 2}, "save inside epochs"),
    "early stopping": ({"early_stop_patience": 2, "valid": None}, "nothing is evaluated"),
    "nprocs: lambdas": ({"nprocs": 2, "model": lambda: 3}, "model cannot be sent"),
    "nprocs: objects": ({"nprocs": 2, "model": perceptron()}, "model is an object"),
}


class Labelled(Points):
    """Points whose labels are of another kind."""

    def __init__(self, convert):
        super().__init__()
        self.convert = convert

    def __getitem__(self, index):
        point, label = super().__getitem__(index)
        return point, self.convert(label)


class Torn(Points):
    def __getitem__(self, index):
        raise DataError("image 3 is torn")


REFUSED_WITH = {
    "data that are not finite": (
        {"train": Points(noise=float("nan")), "model": lambda: nn.Linear(6, 3)},
        DataError,
        "numbers that are not finite",
    ),
    "labels: text": (
        {"train": Labelled(str)},
        ConfigError,
        "the labels are a list; number the classes from 0",
    ),
    "labels: floats": (
        {"train": Labelled(np.float32)},
        DataError,
        "the labels of a cross-entropy are float32 [8, 1]; expected whole numbers, int64, or",
    ),
    "too few samples": ({"drop_last": True, "batch_size": 40}, DataError, "have no batches"),
    "no data": ({"train": list}, DataError, "have no batches"),
    "an error of the package": ({"train": Torn()}, DataError, "image 3 is torn"),
    "a shape to evaluate": ({"valid": Texts()}, ConfigError, "the first batch of valid fails"),
    "mixed precision on a CPU": ({"amp": "O1"}, DeviceError, "has no bfloat16"),
    "no GPU": ({"device": "gpu"}, DeviceError, "device is 'gpu'"),
    **{name: (changed, ConfigError, message) for name, (changed, message) in REFUSED.items()},
}


@pytest.mark.parametrize("wrong", REFUSED_WITH)
def test_fit_wrong_argument_raises_before_anything_is_written(wrong, tmp_path):
    changed, error, message = REFUSED_WITH[wrong]
    with pytest.raises(error) as refusal:
        train(ROW, tmp_path / "run", **changed)
    assert message in str(refusal.value)
    assert error is DeviceError or "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("num_workers", "pass loading=Loading(num_workers=2)"),
        ("save_every_steps", "pass saving=Saving(every_steps=2)"),
        ("keep_last", "pass saving=Saving(keep_last=2)"),
        ("early_stop_patience", "pass callbacks=[EarlyStopping(patience=2)]"),
        ("init_from", "pass start=StartFrom(path=2, weights_only=True)"),
        ("grad_clip", "it belongs to the optimizer, as in paddle.optimizer.Adam(..., grad_clip="),
        ("epoch", "did you mean 'epochs'?"),
        ("colour", "help(fit) lists them"),
    ],
)
def test_fit_unknown_argument_raises_with_what_to_write(name, hint):
    with pytest.raises(TypeError) as refusal:
        fit(perceptron, Points(), optimizer=momentum, epochs=1, output="unused", **{name: 2})
    expected = f"fit() got an unexpected keyword argument {name!r}; {hint}"
    assert str(refusal.value).startswith(expected)


def test_fit_argument_of_another_type_raises_with_the_names_of_python():
    with pytest.raises(ConfigError, match=r"^output is None; expected a path$"):
        fit(perceptron, Points(), optimizer=momentum, epochs=1, output=None)
    text = r"^EarlyStopping\(patience\) is 'valid/acc'; expected a whole number or None$"
    with pytest.raises(ConfigError, match=text):
        EarlyStopping("valid/acc")


def test_fit_second_training_at_a_time_raises(tmp_path):
    refusals = []

    def train_another():
        with pytest.raises(ConfigError) as refusal:
            train(ROW, tmp_path / "another")
        refusals.append(str(refusal.value))

    def in_a_thread():
        thread = threading.Thread(target=train_another)
        thread.start()
        thread.join()

    train(ROW, tmp_path / "one", callbacks=[StopsAt(3, in_a_thread)])
    assert len(refusals) == 1 and "another fit is running in this process" in refusals[0]


def test_fit_monitor_of_several_k_is_the_highest(tmp_path):
    metrics = {"acc": paddle.metric.Accuracy(topk=(1, 2)), "mIoU": lambda *_: 0.5, "F1": hits}
    for monitor in ("valid/acc_top1", "valid/mIoU", "valid/F1"):
        train(ROW, tmp_path, metrics=metrics, monitor=monitor, epochs=1, fresh=True)
        config = yaml.safe_load((tmp_path / "config.yaml").read_text())
        assert (config["monitor"], config["mode"]) == (monitor, "max")


def test_fit_resumed_at_the_end_of_an_epoch_logs_no_speed_of_no_step(tmp_path, lines):
    with pytest.raises(ProgramError):
        train(ROW, tmp_path, callbacks=[StopsAt(5, stop)])
    train(ROW, tmp_path)
    assert not any("ips 0 " in line for line in lines())
    assert history(tmp_path, "train/loss")[0] == [3, 5, 6, 9, 10]


def test_fit_metric_that_is_undefined_is_logged_once(tmp_path, lines):
    metrics = {"never": lambda outputs, labels: None, "acc": paddle.metric.Accuracy()}
    assert set(train(ROW, tmp_path, metrics=metrics).metrics) == {"valid/loss", "valid/acc"}
    (line,) = (line for line in lines() if "None" in line)
    assert line.startswith("the metric 'never' is None for a batch")


# When it saves, and when it ends


def test_fit_saving_by_steps_alone_keeps_the_last_steps(tmp_path, lines):
    options = {"save_every_epochs": 0, "save_every_steps": 3, "keep_best": False, "keep_last": 3}
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "run", epochs=3, callbacks=[StopsAt(15, stop)], **options)
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
    train(ROW, tmp_path / "rare", save_every_epochs=0, save_every_seconds=None)
    assert any("a run that is killed loses" in line for line in lines())


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
    assert history(tmp_path / "whole", "valid/loss")[0] == [3, 5, 6, 9, 10]
    for tag in ("valid/loss", "train/loss"):
        assert history(tmp_path / "run", tag) == history(tmp_path / "whole", tag)


# Data


class SamplerByEpoch(paddle.io.Sampler):
    """Shuffles by the epoch that it is given, as PyTorch's, and by a generator of its own."""

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


def shuffled_by_epoch():
    sampler = paddle.io.BatchSampler(sampler=SamplerByEpoch(), batch_size=8)
    return loader(batch_sampler=sampler, num_workers=1)


def resumable():
    return loader(batch_sampler=ResumableBatchSampler(Points(), batch_size=8, seed=5))


def test_fit_loader_records_its_own_batch_size(tmp_path):
    """32 is the default of `fit`, so that it may be that of datasets to evaluate alone."""
    for evaluated, is_given in ((32, {}), (5, {"eval_batch_size": 5})):
        train(ROW, tmp_path, train=loader(batch_size=8), batch_size=32, fresh=True, **is_given)
        config = yaml.safe_load((tmp_path / "config.yaml").read_text())
        sizes = [config["batch_size"], config["data"]["batch_size"], config["eval_batch_size"]]
        assert sizes == [8, 8, evaluated]
    other = {"train": loader(batch_size=11), "batch_size": 32, **is_given}
    with pytest.raises(ConfigError, match=r"data.batch_size: 8 in the run, 11 now"):
        train(ROW, tmp_path, **other)


def noisy():
    return paddle.io.DataLoader(Points(noise=0.3), batch_size=8, shuffle=True)


@pytest.mark.parametrize("make", [shuffled_by_epoch, noisy, Iterable, resumable])
def test_fit_ready_data_resume_from_ends_of_epochs_or_inside_by_a_resumable_sampler(
    make, tmp_path, lines
):
    def options():  # each training has objects of its own, as in a process of its own
        return {"train": make(), "valid": make(), "epochs": 3}

    whole = train(ROW, tmp_path / "whole", **options())
    assert (whole.epochs, whole.steps) == (3, 15)
    np.random.rand(7)  # whatever else draws numbers
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "run", callbacks=[StopsAt(8, stop)], **options())
    is_inside = make is resumable
    assert any("can resume only from the end of an epoch" in line for line in lines()) != is_inside
    assert any(tmp_path.glob("run/checkpoints/*step7*")) == is_inside
    assert bits(train(ROW, tmp_path / "run", **options())) == bits(whole)


class CountedEpochs(paddle.io.BatchSampler):
    """Counts its epochs, each when it has been read to its end."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        order = np.random.RandomState(self.epoch).permutation(SAMPLES)
        yield from np.array_split(order, len(self))
        self.epoch += 1

    def __len__(self):
        return 5


def test_fit_sampler_that_counts_epochs_resumes_where_only_a_part_of_each_is_read(tmp_path):
    def options():
        train = loader(batch_sampler=CountedEpochs())
        return {"train": train, "valid": Points(), "epochs": 3, "steps_per_epoch": 3}

    whole = train(ROW, tmp_path / "whole", **options())
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "run", callbacks=[StopsAt(7, stop)], **options())
    assert bits(train(ROW, tmp_path / "run", **options())) == bits(whole)


def test_fit_drop_last_trains_on_full_batches_only(tmp_path):
    result = train(ROW, tmp_path, drop_last=True, epochs=3, accumulate=2)
    assert (result.steps, bits(result)["state"]["samples"]) == (6, 3 * 32)


class Pool(Points):
    """Points to which some are added."""

    use = 20

    def __len__(self):
        return self.use

    def grow(self):
        self.use += 10


@pytest.mark.parametrize(("split", "is_ready"), [("train", False), ("valid", True)])
def test_fit_data_that_grow_raise_by_name(split, is_ready, tmp_path):
    pool = Pool()
    sampler = ResumableBatchSampler(pool, batch_size=8)
    ready = paddle.io.DataLoader(pool, batch_sampler=sampler) if is_ready else pool
    data = {"train": Points(), "valid": Points(), split: ready}
    with pytest.raises(ConfigError, match="Pool had 20 samples at first, and has 30 now; expected"):
        train(ROW, tmp_path, callbacks=[StopsAt(3, pool.grow)], epochs=3, **data)


def test_fit_list_of_samples_is_a_dataset(tmp_path):
    samples = [Points()[index] for index in range(SAMPLES)]
    whole = train(ROW, tmp_path / "dataset", grad_shards=2)
    listed = train(ROW, tmp_path / "list", train=samples, valid=samples, grad_shards=2)
    assert bits(listed) == bits(whole)


def test_fit_leaves_the_callers_generators_alone(tmp_path):
    def draw():
        return random.random(), np.random.rand(), paddle.rand([1]).item()

    random.seed(1), np.random.seed(1), paddle.seed(1)
    before = draw()
    random.seed(1), np.random.seed(1), paddle.seed(1)
    train("random samples", tmp_path)
    assert draw() == before


# The task


def test_fit_objects_train_from_their_own_weights_and_have_the_final_ones(tmp_path, lines):
    def train_objects(*callbacks):
        model, loss = perceptron(), CenterLoss()
        optimizer = momentum([*model.parameters(), *loss.parameters()])
        options = {"model": model, "loss": loss, "optimizer": optimizer, "keep_last": 9}
        initial = model[0].weight.numpy().tolist()
        result = None
        with contextlib.suppress(ProgramError):
            result = train(ROW, tmp_path, callbacks=callbacks, **options)
        centers.append(loss.centers.numpy())
        return initial, result, {name: value.numpy() for name, value in model.state_dict().items()}

    centers = [CenterLoss().centers.numpy()]
    initial, _, _ = train_objects(StopsAt(3, stop))
    for ending in ("finished", "already finished"):  # with other weights, which are replaced
        _, result, values = train_objects()
        assert result.stopped == ending
        saved = load(result.weights)
        assert all((saved[name] == value).all() for name, value in values.items())
    first, stopped, *final = centers
    assert np.abs(stopped - first).max() > 1e-3 and np.abs(final[0] - stopped).max() > 1e-3
    np.testing.assert_array_equal(*final)
    first = load(tmp_path / "checkpoints/model_epoch0_step0")
    assert first["0.weight"].tolist() == initial
    line = "the model is an instance, built before fit seeded the generators: unless paddle.seed"
    assert len([text for text in lines() if text.startswith(line)]) == 1


def backward_step(model, batch):
    values = step(model, batch)
    if model.training:
        values["loss"].backward(retain_graph=True)
    return values


def plain_sgd(parameters):
    return paddle.optimizer.SGD(0.1, parameters)


class WithBias(nn.Layer):
    """A net whose first parameter has a dtype."""

    def __init__(self, dtype):
        super().__init__()
        self.bias = self.create_parameter([CLASSES], dtype=dtype, is_bias=True)
        self.net = perceptron()

    def forward(self, points):
        return self.net(points) + self.bias.astype("float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fit_warns_of_a_step_that_calls_backward(tmp_path, lines, dtype):
    options = {"model": lambda: WithBias(dtype), "optimizer": plain_sgd, "step": backward_step}
    train(ROW, tmp_path, **options, **NO_LOSS)
    assert len([line for line in lines() if "the step leaves a gradient of bias" in line]) == 1


def with_former_gradients():
    """A net with gradients of a pass before `fit`."""
    model = perceptron()
    model(paddle.ones([1, WIDTH])).sum().backward()
    return {"model": model}


class WithCritic(nn.Layer):
    def __init__(self):
        super().__init__()
        self.net, self.critic = perceptron(), nn.Linear(CLASSES, 1)

    def forward(self, points):
        return self.net(points)


def with_critic():
    """A net with a critic, whose own optimizer clears the gradients as a step begins."""
    model = WithCritic()
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.critic.parameters())

    def adversarial_step(model, batch):
        outputs = model(batch[0])
        if model.training:
            optimizer.clear_grad()
            model.critic(outputs.detach()).mean().backward()
            optimizer.step()
        return {"loss": F.cross_entropy(outputs, batch[1]) + model.critic(outputs).mean()}

    own = paddle.optimizer.SGD(0.1, parameters=model.net.parameters())
    return {"model": model, "optimizer": own, "step": adversarial_step, **NO_LOSS}


@pytest.mark.parametrize("build", [with_former_gradients, with_critic])
def test_fit_warns_of_no_gradient_that_the_loss_is_not_added_to(tmp_path, lines, build):
    train(ROW, tmp_path, **build())
    assert not [line for line in lines() if "leaves a gradient" in line]


# Layers in evaluation mode


def normalized(is_training):
    """Return a net in training or evaluation mode, and its BatchNorm."""
    norm = nn.BatchNorm1D(16)
    model = nn.Sequential(perceptron(norm))
    model.train() if is_training else model.eval()
    return model, norm


def evaluating(lines):
    return [line for line in lines() if "in evaluation mode" in line]


def test_fit_layer_in_evaluation_mode_warns_once_by_name_as_an_epoch_begins(tmp_path, lines):
    model, norm = normalized(is_training=True)
    norm.eval()
    train(ROW, tmp_path / "before", model=lambda: model)
    (line,) = evaluating(lines)
    assert line.startswith("0.1: in evaluation mode, but each epoch begins with model.train()")
    assert norm._mean.abs().max() > 0  # as it says
    train(ROW, tmp_path / "inside", model=lambda: model, callbacks=[StopsAt(2, norm.eval)])
    assert len(evaluating(lines)) == 2


@pytest.mark.parametrize("is_training", [False, True])
def test_fit_model_in_one_mode_or_with_a_layer_frozen_each_epoch_logs_nothing(
    is_training, tmp_path, lines
):
    model, norm = normalized(is_training)
    callback = Callback()
    if is_training:
        callback.on_epoch_start = lambda view: norm.eval()
    train(ROW, tmp_path, model=lambda: model, callbacks=[callback])
    assert not evaluating(lines)
    assert (norm._mean.abs().max() == 0) == is_training


def test_fit_repeated_no_longer_needs_the_checkpoint_that_resume_names(tmp_path, lines):
    source = train(ROW, tmp_path / "source", epochs=1)
    options = {"resume": str(source.checkpoint), "override": "epochs"}
    unbroken = train(ROW, tmp_path / "whole", **options)
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "run", callbacks=[StopsAt(8, stop)], **options)
    shutil.rmtree(tmp_path / "source")
    assert bits(train(ROW, tmp_path / "run", **options)) == bits(unbroken)
    assert any("the run resumes from its own checkpoint" in line for line in lines())
