"""`Unfreeze`: what is trained in which epoch, and that a killed run ends with the same bits."""

import numpy as np
import paddle
import pytest
from fit_rows import ProgramError, StopsAt, bits, stop, train
from paddle import nn
from small_nets import CLASSES, WIDTH

from paddle_mnist import Callback, Unfreeze, is_rehearsal
from paddle_mnist.errors import ConfigError


class Net(nn.Layer):
    """A backbone of two blocks with BatchNorm, and a head."""

    def __init__(self):
        super().__init__()
        blocks = (nn.Sequential(nn.Linear(n, 8), nn.BatchNorm1D(8), nn.ReLU()) for n in (WIDTH, 8))
        self.backbone = nn.Sequential(*blocks)
        self.back = nn.Linear(8, 8)  # whose name begins another's
        self.head = nn.Linear(8, CLASSES)

    def forward(self, inputs):
        return self.head(self.back(self.backbone(inputs)))


class Recorder(Callback):
    """Keeps the weights and buffers after each epoch, and which parts have a gradient."""

    def __init__(self):
        self.values, self.gradients, self.training = {}, {}, None

    def before_first_step(self, training):
        self.training = training
        self.values[0] = {k: v.numpy() for k, v in training.model.state_dict().items()}

    def after_step(self, view):
        if not is_rehearsal():
            named = self.training.model.named_parameters()
            trained = {name for name, parameter in named if not parameter.stop_gradient}
            self.gradients[view.state.epoch] = {n for n in trained if view.gradient(n) is not None}

    def after_epoch(self, view):
        if not is_rehearsal():
            state = self.training.model.state_dict()
            self.values[view.state.epoch] = {k: v.numpy() for k, v in state.items()}

    def changed(self, epoch):
        """Return the first parts of the names of what an epoch has changed."""
        before, after = self.values[epoch - 1], self.values[epoch]
        names = {name for name in after if not np.array_equal(before[name], after[name])}
        return {
            ".".join(name.split(".")[: 2 if name.startswith("backbone") else 1]) for name in names
        }


EPOCHS = {"backbone": 2, "backbone.1": 1}


def run(folder, *callbacks, **options):
    options = {"epochs": 4, "save_every_steps": 3, "model": Net, **options}
    unfreeze = Unfreeze(options.pop("unfreeze", EPOCHS))
    return train("EMA", folder, callbacks=[unfreeze, *callbacks], **options)


def test_parts_and_their_statistics_change_only_once_they_are_unfrozen(tmp_path, lines):
    recorder = Recorder()
    run(tmp_path / "run", recorder)
    assert recorder.changed(1) == {"back", "head"}
    assert recorder.changed(2) == {"back", "head", "backbone.1"}
    assert recorder.changed(3) == {"back", "head", "backbone.0", "backbone.1"}
    assert not [line for line in lines() if "evaluation mode" in line]


@pytest.mark.parametrize(
    "options",
    [{}, {"grad_shards": 2}, {"accumulate": 2, "batch_size": 4}],
    ids=["whole", "shards", "accumulation"],
)
def test_run_that_is_killed_ends_with_the_same_bits(options, tmp_path):
    """Inside frozen epochs, and inside later ones; five steps are an epoch."""
    unbroken = run(tmp_path / "unbroken", **options)
    for step in (2, 4, 8, 12, 19):
        with pytest.raises(ProgramError):
            run(tmp_path / "run", StopsAt(step, stop), save_on_exception=step % 3 == 0, **options)
    assert bits(run(tmp_path / "run", **options)) == bits(unbroken)


def test_frozen_net_trains_as_one_whose_parameters_are_frozen(tmp_path):
    def frozen():
        net = Net()
        for parameter in net.backbone.parameters():
            parameter.stop_gradient = True
        for block in net.backbone:
            block[1]._use_global_stats = True
        return net

    expected = train("EMA", tmp_path / "expected", model=frozen)
    result = run(tmp_path / "run", unfreeze={"backbone": 9}, epochs=2)
    weights = [paddle.load(str(one.weights)) for one in (result, expected)]
    assert all((weights[0][name] == weights[1][name]).all() for name in Net().state_dict())


def test_model_that_is_an_object_is_left_as_it_was(tmp_path):
    """For the next call, after one that was stopped."""
    model = Net()
    optimizer = paddle.optimizer.SGD(0.1, model.parameters())
    with pytest.raises(ProgramError):
        run(tmp_path / "run", StopsAt(4, stop), model=model, optimizer=optimizer)
    trained = {name for name, p in model.named_parameters() if not p.stop_gradient}
    assert "backbone.0.0.weight" in trained and "backbone.0.1._mean" not in trained


@pytest.mark.slow
def test_two_processes_train_the_same_bits_as_one(tmp_path):
    expected = run(tmp_path / "one", grad_shards=2)
    assert bits(run(tmp_path / "two", grad_shards=2, nprocs=2)) == bits(expected)


@pytest.mark.parametrize(
    "epochs, message",
    [
        ({"backbon": 1}, "Unfreeze: unknown name 'backbon'; did you mean 'backbone'?"),
        ({"backbone.7": 1}, "Unfreeze"),
        ({"backbone": -1}, "epochs"),
        ({"backbone": 1, "back": 1, "head": 1}, "no parameter to train in the first epoch"),
    ],
)
def test_wrong_names_and_epochs_raise_one_line(epochs, message, tmp_path):
    with pytest.raises(ConfigError) as raised:
        run(tmp_path / "run", unfreeze=epochs)
    (line,) = str(raised.value).splitlines()
    assert message in line
    assert not (tmp_path / "run").exists()


def test_other_epochs_are_refused_on_a_resume(tmp_path):
    run(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"unfreeze: .* in the run, .* now"):
        run(tmp_path / "run", unfreeze={"backbone": 1})
    with pytest.raises(ConfigError, match="unfreeze"):
        train("EMA", tmp_path / "run", epochs=4, save_every_steps=3, model=Net)
