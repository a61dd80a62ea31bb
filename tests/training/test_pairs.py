"""A run continues from the `.pdparams` and `.pdopt` that any program wrote with `paddle.save`."""

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F
from paddle.optimizer import lr
from small_nets import SAMPLES, WIDTH, Points, perceptron

from paddle_mnist import Loading, fit
from paddle_mnist.checkpoint import load
from paddle_mnist.checkpoint.names import newest_pair
from paddle_mnist.errors import CheckpointError, ConfigError

BATCH, EPOCHS = 8, 3
STEPS = -(-SAMPLES // BATCH)


def adam(parameters):
    schedule = lr.PolynomialDecay(0.01, EPOCHS * STEPS, 0.001)
    return paddle.optimizer.Adam(schedule, parameters=parameters)


def adam_without_schedule(parameters):
    return paddle.optimizer.Adam(0.01, parameters=parameters)


def momentum(parameters):
    return paddle.optimizer.Momentum(lr.NoamDecay(8, 9), parameters=parameters)


def other_net():
    return nn.Sequential(nn.Linear(WIDTH, 4), nn.Linear(4, 3))


def train_plainly(net, optimizer, epochs=1):
    """Train as the tutorial does, without this package."""
    points = Points()
    for first in [*range(0, SAMPLES, BATCH)] * epochs:
        labels = points.classes[first : first + BATCH, np.newaxis]
        outputs = net(paddle.to_tensor(points.points[first : first + BATCH]))
        F.cross_entropy(outputs, paddle.to_tensor(labels)).backward()
        optimizer.step()
        optimizer.clear_grad()
        if isinstance(optimizer._learning_rate, lr.LRScheduler):
            optimizer._learning_rate.step()


def save_pair(stem, build=perceptron, optimizer=adam):
    """Train a net for an epoch and save it and its optimizer, which are returned."""
    net = build()
    optimizer = optimizer(net.parameters())
    train_plainly(net, optimizer)
    paddle.save(net.state_dict(), f"{stem}.pdparams")
    paddle.save(optimizer.state_dict(), f"{stem}.pdopt")
    return net, optimizer


@pytest.fixture
def program(tmp_path):
    """A program that saves after the first epoch and goes on: the folder, and its last weights."""
    folder = tmp_path / "tutorial"
    net, optimizer = save_pair(folder / "mnist_epoch0")
    train_plainly(net, optimizer, EPOCHS - 1)
    return folder, {name: value.numpy() for name, value in net.state_dict().items()}


def continue_from(path, output, **arguments):
    return fit(
        perceptron,
        Points(),
        optimizer=adam,
        loss=nn.CrossEntropyLoss(),
        epochs=EPOCHS,
        batch_size=BATCH,
        output=output,
        resume=path,
        loading=Loading(shuffle=False),
        **arguments,
    )


@pytest.mark.parametrize("name", ["mnist_epoch0", "mnist_epoch0.pdparams", "own.pdopt"])
def test_run_goes_on_to_the_bits_of_the_program_that_saved_the_pair(
    name, program, tmp_path, capsys
):
    folder, expected = program
    options = {}
    if name.startswith("own"):
        for suffix in (".pdparams", ".pdopt"):
            (folder / f"mnist_epoch0{suffix}").rename(folder / f"own{suffix}")
        options = {"start_epoch": 1}
    result = continue_from(folder / name, tmp_path / "run", **options)
    weights = load(result.weights)
    assert all(np.array_equal(weights[key], value) for key, value in expected.items())
    assert (result.steps, result.epochs) == (EPOCHS * STEPS, EPOCHS)
    output = capsys.readouterr().out
    assert "no manifest lists these files" in output
    assert "rehearsing a resume" in output  # so its own checkpoints have all state
    again = continue_from(folder / name, tmp_path / "run", **options)
    assert again.stopped == "already finished"


@pytest.mark.parametrize(
    ("name", "saved", "options", "error", "message"),
    [
        ("a_epoch0", {"build": other_net}, {}, CheckpointError, "not the weights of this net"),
        ("a_epoch0", {"optimizer": momentum}, {}, CheckpointError, "not of this net's Adam"),
        ("a_epoch0", {"optimizer": adam_without_schedule}, {}, CheckpointError, "LR_Scheduler"),
        ("a_epoch7", {}, {}, ConfigError, "epochs=3, but .*a_epoch7.* has already started epoch 8"),
        ("a_epoch0", {}, {"start_epoch": 4}, ConfigError, "has already started epoch 4"),
        ("a", {}, {}, ConfigError, "no manifest says after which epoch"),
    ],
)
def test_pair_that_does_not_fit_is_refused_in_one_line_and_nothing_is_written(
    name, saved, options, error, message, tmp_path
):
    save_pair(tmp_path / name, **saved)
    with pytest.raises(error, match=message) as raised:
        continue_from(tmp_path / name, tmp_path / "run", **options)
    assert "\n" not in str(raised.value)
    assert not list((tmp_path / "run").rglob("*.pd*"))
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_pair_with_the_optimizer_of_another_net_is_refused(tmp_path):
    save_pair(tmp_path / "a_epoch0")
    save_pair(tmp_path / "b", build=other_net)
    (tmp_path / "b.pdopt").replace(tmp_path / "a_epoch0.pdopt")
    with pytest.raises(CheckpointError, match=r"a_epoch0\.pdopt: not of this net's Adam") as raised:
        continue_from(tmp_path / "a_epoch0", tmp_path / "run")
    assert "\n" not in str(raised.value)


def test_weights_without_the_names_that_paddle_generated_are_refused(tmp_path):
    net, _ = save_pair(tmp_path / "a_epoch0")
    arrays = {name: value.numpy() for name, value in net.state_dict().items()}
    paddle.save(arrays, str(tmp_path / "a_epoch0.pdparams"))
    with pytest.raises(CheckpointError, match="StructuredToParameterName@@ differ; expected what"):
        continue_from(tmp_path / "a_epoch0", tmp_path / "run")


def test_start_epoch_is_only_for_a_pair(tmp_path):
    with pytest.raises(ConfigError, match="start_epoch is 1, but resume is 'auto'"):
        continue_from("auto", tmp_path / "run", start_epoch=1)
    save_pair(tmp_path / "mnist_epoch0")
    run = continue_from(tmp_path / "mnist_epoch0", tmp_path / "run")
    with pytest.raises(ConfigError, match="names its epoch"):
        continue_from(run.checkpoint, tmp_path / "other", start_epoch=1)


def test_folder_of_pairs_is_named_with_what_continues_from_them(tmp_path, capsys):
    save_pair(pair := tmp_path / "mnist_epoch0")
    with pytest.raises(CheckpointError, match=f"give {pair} for its weights, or resume='{pair}'"):
        continue_from(tmp_path, tmp_path / "run")
    continue_from("auto", tmp_path)
    remedy = f"not used; to continue from them, start with resume='{pair}' and another output"
    assert remedy in capsys.readouterr().out


def test_folder_with_a_link_that_leads_nowhere_is_no_folder_of_pairs(tmp_path):
    (tmp_path / "other.pdopt").symlink_to("nowhere")
    assert newest_pair(tmp_path) is None
    save_pair(tmp_path / "mnist_epoch0")
    assert newest_pair(tmp_path) == tmp_path / "mnist_epoch0"
