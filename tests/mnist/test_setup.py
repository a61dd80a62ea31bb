"""Starts and ends of trainings: from what another has learned, with old images, and early."""

import hashlib
import json
import pickle
import shutil

import numpy as np
import paddle
import pytest
from digit_parts import build
from synthetic_data import tiny_splits, write_json

from paddle_mnist import BatchLoader, MnistDataset, TrainConfig
from paddle_mnist.checkpoint.manifest import OPTIMIZER, PARAMS, checksum, read_manifest
from paddle_mnist.errors import ConfigError, DataError
from paddle_mnist.mnist.augment import Distortion
from paddle_mnist.mnist.cache import open_data
from paddle_mnist.mnist.optim import build_schedule
from paddle_mnist.mnist.training_set import ReplayOrder, TrainingSet
from paddle_mnist.parallel.world import ALONE
from paddle_mnist.plots.history import read_history, series
from paddle_mnist.training.initialize import initialize

SMALL = ["--recipe", "default", "--batch_size", "32", "--visualdl", "false", "--figures", "false"]


@pytest.fixture
def train(tool, tiny):
    def run(output, *args, **kwargs):
        data = () if "--data" in args else ("--data", tiny)
        return tool("train", *SMALL, "--output", output, *data, *args, **kwargs)

    return run


@pytest.fixture(scope="module")
def old(tmp_path_factory, tiny):
    """A finished run on the digits 0 to 4, of two epochs."""
    from paddle_mnist import train_and_evaluate

    folder = tmp_path_factory.mktemp("old") / "run"
    train_and_evaluate(
        TrainConfig(
            data=f"{tiny}#0-4",
            epochs=2,
            batch_size=32,
            output=str(folder),
            visualdl=False,
            figures=False,
            seed=3,
        )
    )
    return folder


def result(folder):
    return json.loads((folder / "result.json").read_text())


def test_schedule_ends_with_the_last_of_the_steps_that_options_count(train, tmp_path):
    counts = [
        "--drop_last",
        "--steps_per_epoch",
        "4",
        "--max_steps",
        "7",
        "--eval_every_steps",
        "3",
    ]
    schedule = ["--lr_schedule", "polynomial", "--learning_rate", "0.1", "--log_every", "1"]
    train(tmp_path / "run", "--epochs", "3", *counts, *schedule)
    assert (result(tmp_path / "run")["steps"], result(tmp_path / "run")["epochs"]) == (7, 1)
    history = read_history(tmp_path / "run/metrics.jsonl")
    rates = series(history, "train/lr")[1]
    whole = TrainConfig(lr_schedule="polynomial", learning_rate=0.1).optimizer
    scheduler = build_schedule(whole, total_steps=7)
    for rate in rates:
        assert rate == pytest.approx(scheduler.get_lr())
        scheduler.step()
    assert list(series(history, "valid/loss")[0]) == [3, 4, 6, 7]


def manifest(folder, name):
    return json.loads((folder / f"checkpoints/{name}.json").read_text())


# ------------------------------------------------------------------ what another has learned


def parts_of(tiny, **options):
    config = TrainConfig(data=str(tiny), batch_size=32, epochs=3, seed=8, **options)
    return config, build(config)


@pytest.mark.parametrize("form", ["", "mnist.pdparams", "checkpoints/mnist_epoch1"])
def test_weights_alone(tiny, old, form):
    """From a run directory, a bare file of weights, or a checkpoint; the optimizer is new."""
    config, parts = parts_of(tiny, init_from=str(old / form))
    fresh = parts.optimizer.state_dict()
    initialize(parts, ALONE, config.start)
    expected = read_manifest(old / "checkpoints/mnist_epoch1.json").load(PARAMS)
    for name, value in parts.model.state_dict().items():
        assert value.numpy().tobytes() == expected[name].tobytes()
    assert parts.optimizer.state_dict().keys() == fresh.keys()  # nothing was put in
    assert parts.schedule.scheduler.last_epoch == 0


def test_weights_that_fit_in_part(train, tmp_path, old):
    """The net's first layers, from one of the same kind with 26 classes."""
    letters = paddle.load(str(old / "mnist.pdparams"))
    letters.update({"fc.weight": paddle.zeros([980, 26]), "fc.bias": paddle.zeros([26])})
    paddle.save(letters, str(tmp_path / "letters.pdparams"))
    refusal = train("strict", "--init_from", "letters.pdparams", expect=4).stderr
    assert "fc.bias" in refusal
    options = ("--init_partial", "--learning_rate", "1e-30", "--epochs", "1")
    output = train("part", "--init_from", "letters.pdparams", *options).stdout
    assert "fc.weight, fc.bias: of another shape or dtype there" in output
    trained = paddle.load(str(tmp_path / "part/mnist.pdparams"))
    assert (trained["conv2.weight"] == letters["conv2.weight"]).all()
    assert trained["fc.weight"].shape == [980, 10]


@pytest.mark.parametrize("form", ["", "checkpoints/mnist_epoch1.pdopt"])
def test_weights_and_moments_but_not_the_schedule(tiny, old, form):
    config, parts = parts_of(tiny, incremental_from=str(old / form))
    initialize(parts, ALONE, config.start)
    checkpoint = read_manifest(old / "checkpoints/mnist_epoch1.json")
    for name, value in parts.model.state_dict().items():
        assert value.numpy().tobytes() == checkpoint.load(PARAMS)[name].tobytes()
    saved, ours = checkpoint.load(OPTIMIZER), parts.optimizer.state_dict()
    moments = [key for key in ours if "velocity" in key]
    assert len(moments) == 6
    for key in moments:
        assert ours[key].numpy().tobytes() == saved[key].tobytes()
    assert saved["LR_Scheduler"]["last_epoch"] == ours["LR_Scheduler"]["last_epoch"] + 10
    assert parts.optimizer.get_lr() == pytest.approx(config.optimizer.learning_rate / 25)


def test_a_new_run_with_its_parent_recorded(train, tmp_path, tiny, old):
    arguments = ("--epochs", "2", "--data", f"{tiny}#5-9", "--incremental_from", old)
    train("new", *arguments)
    ours, theirs = manifest(tmp_path / "new", "mnist_epoch1"), manifest(old, "mnist_epoch1")
    assert ours["parent"] == theirs["run_id"] != ours["run_id"]
    assert (ours["state"]["epoch"], ours["state"]["step"]) == (2, 10)  # they start anew
    assert result(tmp_path / "new")["dataset"] == "tiny.json.gz#5,6,7,8,9"


def test_such_a_run_goes_on_without_its_origin(train, tmp_path, tiny, old):
    """Once it has a checkpoint of its own, it needs no other; and is still the same run."""
    shutil.copytree(old, tmp_path / "origin")
    arguments = ("--incremental_from", "origin", "--seed", "4")
    train("whole", *arguments, "--epochs", "2")
    train("broken", *arguments, "--epochs", "2", "--save_every_steps", "1", "--keep_last", "99")
    checkpoints = tmp_path / "broken/checkpoints"
    for path in [*checkpoints.glob("mnist_epoch1*"), *checkpoints.glob("mnist_epoch0.*")]:
        path.unlink()
    (tmp_path / "broken/result.json").unlink()
    shutil.rmtree(tmp_path / "origin")
    output = train("broken", *arguments, "--epochs", "2").stdout
    assert "resuming after step 10" in output
    files = [(tmp_path / name / "mnist.pdparams").read_bytes() for name in ("whole", "broken")]
    assert files[0] == files[1]
    run_ids = {manifest(tmp_path / name, "mnist_epoch1")["parent"] for name in ("whole", "broken")}
    assert run_ids == {manifest(old, "mnist_epoch1")["run_id"]}


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (
            ["--incremental_from", "OLD", "--optimizer", "adam"],
            4,
            "the optimizers differ: Momentum there, Adam",
        ),
        (["--incremental_from", "nope"], 4, "No such file"),
        (["--init_from", "nope.pdparams"], 4, "No such file"),
        (["--init_from", "OLD", "--incremental_from", "OLD"], 2, "at most one of them"),
        (["--init_from", "OLD", "--resume", "OLD"], 2, "at most one of them"),
        (["--replay_data", "nope"], 3, "no such file"),
        (["--replay_data", "OLDDATA", "--replay_fraction", "0.6"], 2, "expected at most 0.5"),
        (["--replay_data", "OLDDATA", "--replay_fraction", "1"], 2, "replay_fraction is '1'"),
        (["--early_stop_patience", "2", "--keep_best", "false"], 2, "expected keep_best on"),
        (["--early_stop_patience", "2", "--resume", "OLD"], 2, "expected one of them"),
        (["--incremental_from", ""], 2, "incremental_from is ''"),
        (["--init_from", ""], 2, "init_from is ''"),
        (["--init_partial"], 2, "init_partial is True without incremental_from or init_from"),
        (
            ["--init_partial", "--incremental_from", "OLD"],
            2,
            "init_partial is on without init_from",
        ),
        (["--soften"], 2, "soften is 'fc' without incremental_from or init_from"),
        (["--soften", "--init_from", "OLD"], 2, "soften is 'fc' with init_from; expected one"),
        (["--replay_data", ""], 2, "replay_data is ''"),
        (["--replay_data", "OLDDATA", "--replay_fraction", "0.0001"], 2, "less than one image"),
        (["--augment", "rotat=3"], 2, "expected rotate=N"),
        (["--augment", "rotate=x"], 2, "at least 0 and below 180"),
        (["--ema", "1"], 2, "ema is '1'"),
        (["--override", "epoch"], 2, "override: unknown name 'epoch'; did you mean 'epochs'?"),
    ],
)
def test_what_does_not_fit_is_one_line_and_trains_nothing(
    train, tmp_path, tiny, old, args, code, said
):
    names = {"OLD": str(old), "OLDDATA": str(tiny)}
    error = train("new", *(names.get(arg, arg) for arg in args), expect=code).stderr
    assert error.startswith("error: ") and said in error and "Traceback" not in error
    assert not (tmp_path / "new/checkpoints").exists()


# ------------------------------------------------------------------ some of the digits


@pytest.mark.parametrize(
    ("selection", "digits"),
    [("#0-4", {0, 1, 2, 3, 4}), ("#7", {7}), ("#1,3,5-6", {1, 3, 5, 6}), ("", set(range(10)))],
)
def test_some_of_the_digits(tiny, selection, digits):
    data, whole = open_data(f"{tiny}{selection}"), open_data(str(tiny))
    for mode in ("train", "valid", "eval"):
        labels = whole[mode].labels
        kept = [index for index, label in enumerate(labels) if label in digits]
        assert data[mode].labels.tolist() == labels[kept].tolist()
        assert data[mode].pixels(slice(None)).tobytes() == whole[mode].pixels(kept).tobytes()
    assert (data.hash == whole.hash) == (len(digits) == 10)
    assert open_data(data.location).hash == data.hash


def test_a_selection_that_is_none(tiny, tmp_path, monkeypatch):
    with pytest.raises(DataError, match="no digits between"):
        open_data(f"{tiny}#4-0")
    few = write_json(tmp_path / "few.json.gz", tiny_splits({"train": 9, "valid": 1, "eval": 1}))
    with pytest.raises(DataError, match=r"in its .* split; expected some"):
        open_data(f"{few}#0-4")
    odd = write_json(tmp_path / "a#0-4", tiny_splits())  # the name of a file, as it is
    assert len(open_data(str(odd))["train"]) == 300
    monkeypatch.setenv("PADDLE_MNIST_DATA", f"{tiny}#0-4")
    assert set(open_data()["train"].labels.tolist()) == {0, 1, 2, 3, 4}


# ------------------------------------------------------------------ old images mixed in


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.5])
def test_replayed_share_of_every_epoch(tiny, fraction):
    new = MnistDataset("train", f"{tiny}#5-9")
    old = MnistDataset("train", f"{tiny}#0-4")
    order = ReplayOrder(len(new), len(old), fraction, seed=1)
    loader = BatchLoader(TrainingSet(new, old), 32, order=order)
    epochs = []
    for epoch in range(3):
        labels = paddle.concat([labels for _, labels in loader.epoch(epoch)]).numpy().ravel()
        assert (labels < 5).sum() == pytest.approx(fraction * len(labels), abs=0.5)
        order = loader.sampler.order(epoch)
        assert sorted(order[order < len(new)]) == list(range(len(new)))  # each new one once
        epochs.append({index for index in order if index >= len(new)})
        assert len(epochs[-1]) == (labels < 5).sum()  # no old one twice
        for batch, (images, shown) in zip(loader.sampler.batches(epoch), loader.epoch(epoch)):
            for index, image, label in zip(batch, images.numpy(), shown.numpy()):
                whole = new if index < len(new) else old
                expected = whole[index % len(new) if index < len(new) else index - len(new)]
                assert image.tobytes() == expected[0].tobytes() and label == expected[1]
    assert fraction == 0.5 or epochs[0] != epochs[1] != epochs[2]  # drawn anew


def test_more_than_there_is_cannot_be_replayed():
    assert ReplayOrder(100, 50, 1 / 3).num_replayed == 50
    with pytest.raises(ConfigError, match=r"100 images to 100 new ones, .* has 50; .* 0\.333"):
        ReplayOrder(100, 50, 0.5)


@pytest.mark.parametrize(
    ("shuffle", "digest"), [(True, "9a7a68a4ae015e52"), (False, "b0813dad20ac3c56")]
)
def test_replayed_order_is_the_same_on_every_version_of_numpy(shuffle, digest):
    order = pickle.loads(pickle.dumps(ReplayOrder(100, 60, 0.2, seed=1, shuffle=shuffle)))
    assert hashlib.sha256(order(3).astype("<i8").tobytes()).hexdigest()[:16] == digest


def test_distorted_images_depend_on_epoch_and_index_alone(tiny):
    """Of old and new images; whatever batch they are in, and read singly, too."""
    new, old = MnistDataset("train", f"{tiny}#5-9"), MnistDataset("train", f"{tiny}#0-4")
    distortion = Distortion({"rotate": 10, "elastic": 1}, seed=3)
    images = TrainingSet(new, old, distortion)
    chosen = [0, len(new), 3, len(new) - 1, len(images) - 1]
    for epoch in (0, 2):
        images.set_epoch(epoch)
        batch, labels = images.__getitems__(chosen)
        plain, expected = TrainingSet(new, old).__getitems__(chosen)
        distorted = distortion(paddle.to_tensor(plain), epoch, np.array(chosen))
        assert batch.numpy().tobytes() == distorted.numpy().tobytes()
        assert np.array_equal(labels, expected)
        for index, image, label in zip(chosen, batch.numpy(), labels):
            single = images[index]
            np.testing.assert_allclose(
                single[0], image, rtol=1e-5, atol=1e-5
            )  # 2.6.2 rounds by the batch
            assert single[1] == label
    with pytest.raises(IndexError):
        images[len(images)]


def test_evaluated_on_the_new_and_the_replayed(train, tool, tmp_path, tiny, old):
    old_data, new_data = f"{tiny}#0-4", f"{tiny}#5-9"
    replay = ("--incremental_from", old, "--replay_data", old_data)
    train("new", "--data", new_data, "--epochs", "2", *replay)
    values = result(tmp_path / "new")
    for data, key in ((new_data, "eval_acc"), (old_data, "replay_eval_acc")):
        arguments = ("--output", "new", "--data", data, "--json")
        assert json.loads(tool("eval", *arguments).stdout)["accuracy"] == values[key]
    tags = [json.loads(line)["tag"] for line in (tmp_path / "new/metrics.jsonl").open()]
    assert tags.count("replay/acc") == tags.count("valid/acc") == 2
    # other old images are another run
    other = (*replay[:3], f"{tiny}#0-3")
    error = train("new", "--data", new_data, "--epochs", "2", *other, expect=2).stderr
    assert "  replay_data: " in error


# ------------------------------------------------------------------ little new data


@pytest.mark.slow
@pytest.mark.parametrize("replay", [pytest.param(False, marks=pytest.mark.release), True])
def test_little_new_data_is_learned(train, tmp_path, real_data, replay):
    """Digits that the net has never seen, with the defaults: it learns them, and unlearns few."""
    limits = ("--train_limit", "3000", "--epochs", "1", "--batch_size", "64", "--watch", "0")
    old_data, new_data = f"{real_data}#0,1,2,3,4", f"{real_data}#5,6,7,8,9"
    train("old", "--data", old_data, *limits)
    assert result(tmp_path / "old")["eval_acc"] > 0.93
    old = ("--replay_data", old_data) if replay else ()
    train("new", "--data", new_data, *old, "--incremental_from", "old", *limits)
    values = result(tmp_path / "new")
    assert values["eval_acc"] > 0.85
    assert not replay or values["replay_eval_acc"] > 0.85


def test_a_loss_of_accuracy_is_said_and_stored(train, tmp_path, tiny):
    """Against what the net could before; and again where the training is broken off."""
    train("old", "--data", f"{tiny}#0-4", "--epochs", "20")
    replay = ("--data", f"{tiny}#5-9", "--replay_data", f"{tiny}#0-4", "--replay_fraction", "0.01")
    arguments = (*replay, "--incremental_from", "old", "--epochs", "2", "--watch", "0")
    output = train("new", *arguments).stdout
    values = result(tmp_path / "new")
    before, after = values["metrics_before"], values["metrics"]
    assert set(before) == {"valid/acc", "valid/loss", "replay/acc", "replay/loss"}
    assert before["replay/acc"] == 1 and before["valid/acc"] == 0
    assert values["lost"] == {"replay/acc": before["replay/acc"] - after["replay/acc"]}
    assert values["lost"]["replay/acc"] > 0.01
    line = f"replay/acc has fallen from 1.0000 before this training to {after['replay/acc']:.4f}"
    assert line in output and line in (tmp_path / "new/train.log").read_text()

    (tmp_path / "new/result.json").unlink()
    for path in (tmp_path / "new/checkpoints").glob("mnist_epoch1.*"):
        path.unlink()
    assert line in train("new", *arguments).stdout
    assert result(tmp_path / "new")["metrics_before"] == before

    train("same", "--data", f"{tiny}#0-4", "--incremental_from", "old", "--epochs", "1")
    assert result(tmp_path / "same")["lost"] == {}


def test_a_run_of_an_earlier_version_keeps_its_schedule(train, tmp_path, tiny, old):
    """Continued training had the recipe's schedule, and its manifests no metrics from before."""
    arguments = ("--data", f"{tiny}#5-9", "--incremental_from", old, "--epochs", "2")
    former = ("--learning_rate", "0.1", "--lr_schedule", "onecycle", "--soften", "false")
    train("whole", *arguments, *former)
    train("broken", *arguments, *former)
    folder = tmp_path / "broken"
    (folder / "result.json").unlink()
    for path in (folder / "checkpoints").glob("mnist_epoch1.*"):
        path.unlink()
    path = folder / "checkpoints/mnist_epoch0.json"
    earlier = json.loads(path.read_text())
    del earlier["metrics_before"]
    path.write_text(json.dumps({**earlier, "checksum": checksum(earlier)}))
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("soften: null\n", ""))
    assert "resuming after step 5" in train("broken", *arguments).stdout
    files = [(tmp_path / name / "mnist.pdparams").read_bytes() for name in ("whole", "broken")]
    assert files[0] == files[1]
    assert not {"metrics_before", "lost"} & set(result(folder))
    error = train("broken", *arguments, "--learning_rate", "0.05", expect=2).stderr
    assert "learning_rate: 0.1 in the run, 0.05 now" in error


# ------------------------------------------------------------------ early stopping


def test_early_stopping_ends_with_the_best(train, tool, tmp_path):
    patience = ("--epochs", "30", "--early_stop_patience", "2", "--save_every_epochs", "50")
    output = train("early", *patience).stdout
    values = result(tmp_path / "early")
    lines = map(json.loads, (tmp_path / "early/metrics.jsonl").open())
    scores = [line["value"] for line in lines if line["tag"] == "valid/acc"]
    best = scores.index(max(scores))
    assert values["epochs"] == len(scores) == best + 3 < 30
    assert values["checkpoint"] == f"mnist_epoch{best}" and values["valid_acc"] == max(scores)
    of_the_best = f"is that of epoch {best + 1} (mnist_epoch{best})"
    assert f"the best of {len(scores)} evaluations {of_the_best}" in output
    folder = tmp_path / "early"
    final = (folder / "mnist.pdparams").read_bytes()
    assert final == (folder / f"checkpoints/mnist_epoch{best}.pdparams").read_bytes()
    report = tool("eval", "--output", "early", "-k", "best", "--json").stdout
    assert json.loads(report)["accuracy"] == values["eval_acc"]
    assert "this run is finished" in train("early", *patience).stdout

    # broken off after the second evaluation, it stops at the same epoch, with the same weights
    (folder / "result.json").unlink()
    (folder / "mnist.pdparams").unlink()
    for path in (folder / "checkpoints").glob(f"mnist_epoch{values['epochs'] - 1}.*"):
        path.unlink()
    train("early", *patience)
    assert result(folder)["epochs"] == values["epochs"]
    assert (folder / "mnist.pdparams").read_bytes() == final
