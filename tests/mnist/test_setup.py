"""Starts and ends of trainings: from what another has learned, with old images, and early."""

import hashlib
import json
import shutil

import numpy as np
import paddle
import pytest
from digit_parts import build

from paddle_mnist import BatchLoader, MnistDataset, TrainConfig
from paddle_mnist.checkpoint.manifest import OPTIMIZER, PARAMS, read_manifest
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.augment import Distortion
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


def test_schedule_ends_with_the_last_step_that_options_allow(train, tmp_path):
    counts = "--drop_last --steps_per_epoch 4 --max_steps 7 --eval_every_steps 3".split()
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


def test_init_from_takes_the_weights_alone(tiny, old):
    """From a run directory, a bare file of weights, or a checkpoint; the optimizer is new."""
    expected = read_manifest(old / "checkpoints/mnist_epoch1.json").load(PARAMS)
    for form in ("", "mnist.pdparams", "checkpoints/mnist_epoch1"):
        config, parts = parts_of(tiny, init_from=str(old / form))
        fresh = parts.optimizer.state_dict()
        initialize(parts, ALONE, config.start)
        for name, value in parts.model.state_dict().items():
            assert value.numpy().tobytes() == expected[name].tobytes()
        assert parts.optimizer.state_dict().keys() == fresh.keys()
        assert parts.schedule.scheduler.last_epoch == 0


def test_incremental_from_takes_weights_and_moments_but_not_the_schedule(tiny, old):
    checkpoint = read_manifest(old / "checkpoints/mnist_epoch1.json")
    config, parts = parts_of(tiny, incremental_from=str(old))
    initialize(parts, ALONE, config.start)
    for name, value in parts.model.state_dict().items():
        assert value.numpy().tobytes() == checkpoint.load(PARAMS)[name].tobytes()
    saved, ours = checkpoint.load(OPTIMIZER), parts.optimizer.state_dict()
    moments = [key for key in ours if "velocity" in key]
    assert len(moments) == 6
    for key in moments:
        assert ours[key].numpy().tobytes() == saved[key].tobytes()
    assert saved["LR_Scheduler"]["last_epoch"] == ours["LR_Scheduler"]["last_epoch"] + 10
    assert parts.optimizer.get_lr() == pytest.approx(config.optimizer.learning_rate / 25)


def test_init_partial_takes_the_weights_that_fit(train, tmp_path, old):
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


def test_incremental_run_resumes_without_its_origin(train, tmp_path, old):
    """Once it has a checkpoint of its own, it needs no other; and it is still the same run."""
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
    origin = manifest(old, "mnist_epoch1")["run_id"]
    for name in ("whole", "broken"):
        last = manifest(tmp_path / name, "mnist_epoch1")
        assert last["parent"] == origin != last["run_id"]
        assert (last["state"]["epoch"], last["state"]["step"]) == (2, 20)  # they start anew


@pytest.mark.parametrize(
    ("args", "code", "part"),
    [
        (["--incremental_from", "OLD", "--optimizer", "adam"], 4, "Momentum there, Adam"),
        (["--init_from", "nope.pdparams"], 4, "nope.pdparams"),
        (["--init_from", "OLD", "--incremental_from", "OLD"], 2, "incremental_from"),
        (["--early_stop_patience", "2", "--resume", "OLD"], 2, "resume"),
        (["--init_partial"], 2, "init_partial"),
        (["--replay_data", "nope"], 3, "nope"),
        (["--replay_data", "OLDDATA", "--replay_fraction", "0.6"], 2, "at most 0.5"),
        (["--replay_data", "OLDDATA", "--replay_fraction", "0.0001"], 2, "less than one image"),
        (["--augment", "rotat=3"], 2, "rotate=N"),
    ],
)
def test_start_that_does_not_fit_exits_with_one_line(train, tmp_path, tiny, old, args, code, part):
    names = {"OLD": str(old), "OLDDATA": str(tiny)}
    error = train("new", *(names.get(arg, arg) for arg in args), expect=code).stderr
    assert error.startswith("error: ") and part in error and "Traceback" not in error
    assert not (tmp_path / "new/checkpoints").exists()


# ------------------------------------------------------------------ old images mixed in


def test_replay_draws_its_share_again_for_every_epoch(tiny):
    new = MnistDataset("train", f"{tiny}#5-9")
    old = MnistDataset("train", f"{tiny}#0-4")
    loader = BatchLoader(TrainingSet(new, old), 32, order=ReplayOrder(len(new), len(old), 0.2, 1))
    epochs = []
    for epoch in range(2):
        order = loader.sampler.order(epoch)
        assert sorted(order[order < len(new)]) == list(range(len(new)))  # each new one once
        epochs.append({index for index in order if index >= len(new)})
        assert len(epochs[-1]) == (order >= len(new)).sum()  # no old one twice
        assert len(epochs[-1]) == pytest.approx(0.2 * len(order), abs=0.5)
        batches = list(loader.epoch(epoch))
        images, labels = (
            np.concatenate([part.numpy() for part in parts]) for parts in zip(*batches)
        )
        for index, image, label in zip(order, images, labels):
            expected = new[index] if index < len(new) else old[index - len(new)]
            assert np.array_equal(image, expected[0]) and label == expected[1]
    assert epochs[0] != epochs[1]


def test_replay_of_more_than_there_is_raises():
    assert ReplayOrder(100, 50, 1 / 3).num_replayed == 50
    with pytest.raises(ConfigError, match=r"100 images to 100 new ones, .* has 50; .* 0\.333"):
        ReplayOrder(100, 50, 0.5)


@pytest.mark.parametrize(
    ("shuffle", "digest"), [(True, "9a7a68a4ae015e52"), (False, "b0813dad20ac3c56")]
)
def test_replayed_order_is_the_same_on_every_version_of_numpy(shuffle, digest):
    order = ReplayOrder(100, 60, 0.2, seed=1, shuffle=shuffle)
    assert hashlib.sha256(order(3).astype("<i8").tobytes()).hexdigest()[:16] == digest


def test_distortion_depends_on_epoch_and_index_alone(tiny):
    """Of old and new images; whatever batch they are in."""
    new, old = MnistDataset("train", f"{tiny}#5-9"), MnistDataset("train", f"{tiny}#0-4")
    distortion = Distortion({"rotate": 10, "elastic": 1}, seed=3)
    images = TrainingSet(new, old, distortion)
    chosen = [0, len(new), 3, len(new) - 1, len(images) - 1]
    plain, expected = TrainingSet(new, old).__getitems__(chosen)
    for epoch in (0, 2):
        images.set_epoch(epoch)
        batch, labels = images.__getitems__(chosen)
        distorted = distortion(paddle.to_tensor(plain), epoch, np.array(chosen))
        assert batch.numpy().tobytes() == distorted.numpy().tobytes()
        assert np.array_equal(labels, expected)
        single = images[chosen[1]]  # Paddle 2.6.2 rounds by the batch
        np.testing.assert_allclose(single[0], batch.numpy()[1], rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------ little new data


@pytest.mark.slow
def test_little_new_data_is_learned(train, tmp_path, real_data):
    """Digits that the net has never seen, with the defaults: it learns them, and unlearns few."""
    limits = ("--train_limit", "3000", "--epochs", "1", "--batch_size", "64", "--watch", "0")
    old_data, new_data = f"{real_data}#0,1,2,3,4", f"{real_data}#5,6,7,8,9"
    train("old", "--data", old_data, *limits)
    assert result(tmp_path / "old")["eval_acc"] > 0.93
    train(
        "new", "--data", new_data, "--replay_data", old_data, "--incremental_from", "old", *limits
    )
    values = result(tmp_path / "new")
    assert values["eval_acc"] > 0.85
    assert values["replay_eval_acc"] > 0.85


def test_loss_of_accuracy_is_logged_and_stored(train, tool, tmp_path, tiny):
    """On the old images, which are evaluated beside the new; also after a resume."""
    old_data, new_data = f"{tiny}#0-4", f"{tiny}#5-9"
    train("old", "--data", old_data, "--epochs", "10", "--keep_epochs", "false", "--watch", "0")
    start = ("--incremental_from", "old", "--replay_data", old_data, "--replay_fraction", "0.01")
    arguments = ("--data", new_data, *start, "--epochs", "2", "--watch", "0")
    output = train("new", *arguments).stdout
    values = result(tmp_path / "new")
    before, after = values["metrics_before"], values["metrics"]
    assert set(before) == {"valid/acc", "valid/loss", "replay/acc", "replay/loss"}
    assert before["replay/acc"] == 1 and before["valid/acc"] == 0
    assert values["lost"] == {"replay/acc": before["replay/acc"] - after["replay/acc"]}
    assert values["lost"]["replay/acc"] > 0.01
    line = f"replay/acc has fallen from 1.0000 before this training to {after['replay/acc']:.4f}"
    assert line in output and line in (tmp_path / "new/train.log").read_text()
    for data, key in ((new_data, "eval_acc"), (old_data, "replay_eval_acc")):
        report = tool("eval", "--output", "new", "--data", data, "--json").stdout
        assert json.loads(report)["accuracy"] == values[key]
    tags = [json.loads(line)["tag"] for line in (tmp_path / "new/metrics.jsonl").open()]
    assert tags.count("replay/acc") == tags.count("valid/acc") == 2

    (tmp_path / "new/result.json").unlink()
    for path in (tmp_path / "new/checkpoints").glob("mnist_epoch1.*"):
        path.unlink()
    assert line in train("new", *arguments).stdout
    assert result(tmp_path / "new")["metrics_before"] == before
    other = [f"{tiny}#0-3" if argument == old_data else argument for argument in arguments]
    assert "  replay_data: " in train("new", *other, expect=2).stderr


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
