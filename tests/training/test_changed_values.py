"""What a callback changes in the midst of a run: it is saved, or a warning names it."""

import dataclasses
import json
from datetime import datetime
from decimal import Decimal

import numpy as np
import paddle
import pytest
from fit_rows import ProgramError, StopsAt, stop
from hiding_places import After, base
from paddle import nn
from paddle.nn import functional as F
from silence import silent
from small_nets import CLASSES, WIDTH, Points
from stateful_rows import seeded
from test_hidden_state import check_resumes, train
from tqdm import tqdm

from paddle_mnist import Callback, is_rehearsal
from paddle_mnist.checkpoint.manifest import FORMAT, LATER_FORMAT


def perceptron():
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1D(8), nn.ReLU(), nn.Linear(8, CLASSES))


class Changes(Callback):
    """Calls a function of the net after the second epoch."""

    def __init__(self, change):
        self.change = change

    def before_training(self, training):
        self.net = training.model

    def after_epoch(self, view):
        if view.state.epoch == 2 and not is_rehearsal():
            self.change(self.net)


def changing(change, **others):
    clip = nn.ClipGradByGlobalNorm(0.1)

    def optimizer(parameters):
        return paddle.optimizer.Momentum(0.1, parameters=parameters, grad_clip=clip)

    return base(
        model=lambda: perceptron(), optimizer=optimizer, callbacks=[Changes(change)], **others
    )


def teacher_that_drops():
    teacher = seeded(lambda: nn.Sequential(nn.Linear(WIDTH, CLASSES), nn.Dropout(0.5)))
    teacher.eval()

    def step(model, batch):
        outputs = model(batch[0])
        target = teacher(batch[0]).detach()
        return {"loss": F.cross_entropy(outputs, batch[1]) + F.mse_loss(outputs, target)}

    return changing(lambda net: teacher.train(), step=step, loss=None)


def regularized():
    def build():
        net = perceptron()
        net[0].weight.regularizer = paddle.regularizer.L2Decay(0.01)
        return net

    values = changing(lambda net: setattr(net[0].weight.regularizer, "_coeff", 0.5))
    return {**values, "model": build}


def scaled_by_parameter(name, at_first=None):
    """The step reads an attribute of the program's own of a parameter."""

    def build():
        net = perceptron()
        vars(net[0].weight).update(at_first or {})
        return net

    def step(model, batch):
        factor = vars(model[0].weight).get(name, 1.0)
        return {"loss": F.cross_entropy(model(batch[0]), batch[1]) * factor}

    values = changing(lambda net: setattr(net[0].weight, name, 0.3), step=step, loss=None)
    return {**values, "model": build}


SAVED = {
    "attribute of a parameter": lambda: scaled_by_parameter("scale", {"scale": 1.0}),
    "new attribute of a parameter": lambda: scaled_by_parameter("factor"),
    "momentum of BatchNorm": lambda: changing(lambda net: setattr(net[1], "_momentum", 0.3)),
    "statistics frozen": lambda: changing(lambda net: setattr(net[1], "_use_global_stats", True)),
    "factor of the rate": lambda: changing(
        lambda net: net[0].weight.optimize_attr.update(learning_rate=0.1)
    ),
    "clipping of a parameter": lambda: changing(
        lambda net: setattr(net[3].weight, "need_clip", False)
    ),
    "coefficient of a regularizer": regularized,
    "mode of a teacher": teacher_that_drops,
}


@pytest.mark.parametrize("what", SAVED)
def test_attribute_that_changes_late_resumes_to_the_same_bits(what, tmp_path):
    with silent():
        check_resumes(tmp_path, SAVED[what], (10,))
    for path in (tmp_path / "run/checkpoints").glob("*.json"):
        manifest = json.loads(path.read_text())
        was_changed = manifest["state"]["step"] >= 8
        assert manifest["format"] == (LATER_FORMAT if was_changed else FORMAT)


def hooked():
    """Return a net with a hook, and the handle that removes it."""
    net = seeded(perceptron)
    return net, net[0].register_forward_post_hook(lambda layer, inputs, outputs: outputs * 2)


def removed_hook():
    net, hook = hooked()
    return {**changing(lambda net: hook.remove()), "model": net}


def parameter_removed():
    made = []

    def optimizer(parameters):
        made.append(paddle.optimizer.Momentum(0.1, parameters=parameters))
        return made[0]

    return {**changing(lambda net: made[0]._parameter_list.pop()), "optimizer": optimizer}


def decimals():
    kept = {}
    step = After(epoch=None)
    step.kept = kept
    values = changing(lambda net: kept.update(scale=Decimal(1)))
    return {**values, "callbacks": [*values["callbacks"], step]}


def gradients(first, every):
    """From a step on, another net adds up gradients, and learns from them in some steps."""
    other, done = seeded(lambda: nn.Linear(CLASSES, 1)), [0]
    optimizer = paddle.optimizer.SGD(0.1, parameters=other.parameters())

    def step(model, batch):
        outputs = model(batch[0])
        if model.training:
            done[0] += 1
            if done[0] >= first:
                other(outputs.detach()).square().mean().backward()
            if done[0] % every == 0:
                optimizer.step()
                optimizer.clear_grad()
        return {"loss": F.cross_entropy(outputs, batch[1]) + other(outputs).detach().mean()}

    return base(step=step, loss=None)


def gradients_of_epochs():
    other = seeded(lambda: nn.Linear(CLASSES, 1))
    optimizer = paddle.optimizer.SGD(0.1, parameters=other.parameters())

    class Learns(Callback):
        def after_epoch(self, view):
            if view.state.epoch % 2 == 1:
                optimizer.step()
                optimizer.clear_grad()

    def step(model, batch):
        outputs = model(batch[0])
        if model.training:
            other(outputs.detach()).square().mean().backward()
        return {"loss": F.cross_entropy(outputs, batch[1]) + other(outputs).detach().mean()}

    return base(step=step, loss=None, callbacks=[Learns()])


def critic(every, optimizer=paddle.optimizer.SGD):
    """Return a GAN in which the generator leaves gradients in a critic that clears them first."""
    other, done = seeded(lambda: nn.Linear(CLASSES, 1)), [0]
    its_optimizer = paddle.optimizer.SGD(0.1, parameters=other.parameters())

    def step(model, batch):
        outputs = model(batch[0])
        if model.training:
            done[0] += 1
            if done[0] % every == 0:
                its_optimizer.clear_grad()
                other(outputs.detach()).square().mean().backward()
                its_optimizer.step()
        return {"loss": F.cross_entropy(outputs, batch[1]) + other(outputs).mean()}

    values = base(step=step, loss=None)
    return {**values, "optimizer": lambda parameters: optimizer(0.1, parameters=parameters)}


class Clears(paddle.optimizer.SGD):
    def clear_grad(self, set_to_zero=True):
        super().clear_grad(set_to_zero)


@pytest.mark.parametrize("optimizer", [paddle.optimizer.SGD, Clears])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_gradients_that_a_step_leaves_and_clears_are_no_warning(every, optimizer, tmp_path):
    with silent():  # a resumed run, too, which does not rehearse
        check_resumes(tmp_path, lambda: critic(every, optimizer), (5, 10))


NAMED = {
    "gradient that appears late": (
        lambda: gradients(first=7, every=3),
        "the gradient of step.other.weight",
    ),
    "gradients of many steps": (
        lambda: gradients(first=1, every=9),
        "the gradient of step.other.weight",
    ),
    "gradients of epochs": (gradients_of_epochs, "the gradient of step.other.weight"),
    "hook of a gradient": (
        lambda: changing(lambda net: net[0].weight.register_hook(lambda gradient: gradient * 0.1)),
        "a gradient hook of 0.weight",
    ),
    "hook of a layer": (
        lambda: changing(
            lambda net: net[0].register_forward_post_hook(lambda layer, inputs, outputs: outputs)
        ),
        "model.0.forward_post_hooks[0]",
    ),
    "removed hook of a layer": (removed_hook, "model.0.forward_post_hooks[0]"),
    "new attribute of a parameter that hides a method": (
        lambda: scaled_by_parameter("scale"),
        "model.0.weight.scale",
    ),
    "buffer of the model": (
        lambda: changing(lambda net: net[0].register_buffer("late", paddle.ones([1]))),
        "model.0.late",
    ),
    "parameters of the optimizer": (parameter_removed, "the list of the optimizer's parameters"),
    "default dtype": (
        lambda: changing(lambda net: paddle.set_default_dtype("float64")),
        "paddle.get_default_dtype()",
    ),
    "new regularizer": (
        lambda: changing(
            lambda net: setattr(net[0].weight, "regularizer", paddle.regularizer.L2Decay(0.3))
        ),
        "model.0.weight.regularizer",
    ),
    "object of a library": (decimals, "kept['scale']"),
}


@pytest.mark.parametrize("what", NAMED)
def test_change_that_cannot_be_saved_is_a_warning_at_the_first_checkpoint(what, tmp_path, lines):
    build, name = NAMED[what]
    try:
        with pytest.raises(ProgramError):
            train(tmp_path, build, StopsAt(10, stop), save_on_exception=False)
    finally:
        paddle.set_default_dtype("float32")
    (warning,) = [line for line in lines() if "checkpoints do not contain" in line]
    assert name in warning


@dataclasses.dataclass(frozen=True)
class Scale:
    value: float = 1.0


def test_object_that_each_step_replaces_resumes_to_the_same_bits(tmp_path):
    def build():
        scales = [Scale()]

        def step(model, batch):
            loss = F.cross_entropy(model(batch[0]), batch[1]) * scales[0].value
            if model.training:
                scales[0] = Scale(scales[0].value * 1.1)
            return {"loss": loss}

        return base(step=step, loss=None)

    with silent():
        check_resumes(tmp_path, build, (5, 10))


def test_clock_and_progress_bar_of_a_callback_are_no_warning(tmp_path, lines):
    class Shows(Callback):
        def __init__(self):
            self.bar = self.time = None

        def after_step(self, view):
            if not is_rehearsal():
                self.bar, self.time = tqdm(disable=True), datetime.now()

    with pytest.raises(ProgramError):
        train(tmp_path, lambda: base(callbacks=[Shows()]), StopsAt(10, stop))
    assert not [line for line in lines() if "checkpoints do not contain" in line]
    assert any("changed, and not saved" in line and "].time" in line for line in lines())


class Growing(paddle.io.BatchSampler):
    """Makes larger batches in each epoch."""

    def __init__(self):
        self.epoch = 0

    def __len__(self):
        return -(-24 // (4 + self.epoch))

    def __iter__(self):
        order, size = np.random.permutation(24).tolist(), 4 + self.epoch
        self.epoch += 1
        return (order[first : first + size] for first in range(0, 24, size))


def growing_batches():
    data = paddle.io.DataLoader(Points(24), batch_sampler=Growing())
    return base(train=data, valid=None, loss=F.cross_entropy)


def test_batches_that_grow_resume_from_the_end_of_an_epoch(tmp_path):
    options = {"batch_size": 32}
    unbroken = train(tmp_path / "unbroken", growing_batches, **options)
    with pytest.raises(ProgramError):
        train(tmp_path / "run", growing_batches, StopsAt(13, stop), **options)
    resumed = train(tmp_path / "run", growing_batches, **options)
    assert resumed.stopped == "finished" and resumed.steps == unbroken.steps == 15
    names = ("model.pdparams",) * 2
    first, second = (
        (tmp_path / run / name).read_bytes() for run, name in zip(("unbroken", "run"), names)
    )
    assert first == second
