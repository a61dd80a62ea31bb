"""Programs with state as people write them, which must resume to the same bits.

Each is a function that returns arguments of `fit`, built again as a new process does. It combines
what one program may well have; whatever is lost on the way changes the bits of a resumed run.
"""

import collections
import functools

import numpy as np
import paddle
from hiding_places import SAMPLES, After, base, linear
from paddle import nn
from paddle.nn import functional as F
from small_nets import CLASSES, Points, with_dropout
from stateful_rows import follow, seeded

from paddle_mnist import Callback

Transition = collections.namedtuple("Transition", "points reward")


def step_with_other_nets_and_a_memory():
    """The step freezes a net that it trains; the optimizer has parameters outside the model."""
    critic, head = (seeded(lambda: nn.Linear(CLASSES, 1)) for _ in range(2))
    scale = seeded(lambda: paddle.create_parameter([1], "float32"))
    critic_optimizer = paddle.optimizer.SGD(0.1, parameters=critic.parameters())
    memory = collections.deque(maxlen=4)

    def optimizer(parameters):
        return paddle.optimizer.Momentum(0.02, parameters=[*parameters, *head.parameters(), scale])

    def freeze(is_frozen):
        for parameter in critic.parameters():
            parameter.stop_gradient = is_frozen

    def step(model, batch):
        points, labels = batch
        if model.training:
            freeze(False)
            critic_optimizer.clear_grad()
            critic(paddle.ones([1, CLASSES])).square().mean().backward()
            critic_optimizer.step()
            freeze(True)
            memory.append(Transition(points.numpy(), len(memory)))
        outputs = model(points)
        old = model(paddle.to_tensor(memory[0].points) if memory else points)
        judged = (critic(outputs) - 1).square().mean() + (head(outputs) * scale - 1).square().mean()
        return {"loss": F.cross_entropy(outputs, labels) + judged + 0.1 * old.abs().mean()}

    state = {"critic": critic, "critic_optimizer": critic_optimizer}
    return base(step=step, loss=None, optimizer=optimizer, state=state)


class MakesTeacher(Callback):
    """Makes a teacher before the training, and has it follow the model."""

    def before_training(self, training):
        self.model, self.teacher = training.model, seeded(linear)

    def after_step(self, view):
        follow(self.teacher, self.model)


class Patience(Callback):
    """Lowers the rate when the loss has not improved, and begins again as Keras' do."""

    def before_training(self, training):
        self.optimizer, self.best = training.optimizer, np.inf

    def after_epoch(self, view):
        loss = view.metrics["valid/loss"]
        if loss < 0.5 * self.best:
            self.best = loss
        else:
            self.optimizer.set_lr(0.5 * self.optimizer.get_lr())


def callbacks_that_teach_and_lower_the_rate():
    """A list is shared by a callback and the step."""
    teaching, recent = MakesTeacher(), [1.0]

    def step(model, batch):
        outputs = model(batch[0])
        loss = F.cross_entropy(outputs, batch[1]) * recent[-1]
        if hasattr(teaching, "teacher"):
            loss = loss + F.mse_loss(outputs, teaching.teacher(batch[0]).detach())
        return {"loss": loss}

    shortens = After(step=lambda: recent.append(0.8 * recent[-1]))
    return base(step=step, loss=None, callbacks=[teaching, Patience(), shortens])


def callback_that_changes_clipping_dropout_and_freezing():
    net, clip = seeded(with_dropout), nn.ClipGradByGlobalNorm(0.4)
    optimizer = paddle.optimizer.Momentum(0.1, parameters=net.parameters(), grad_clip=clip)

    def change():
        clip.clip_norm /= 2
        net[1].p /= 2
        net[0].bias.stop_gradient = not net[0].bias.stop_gradient

    return base(model=net, optimizer=optimizer, callbacks=[After(epoch=change)])


class Numbered(Points):
    def __getitem__(self, index):
        return (*super().__getitem__(index), index)


def order_of_the_hardest_first():
    """The order of an epoch depends on what the steps have kept, and on draws."""
    losses, draws = np.zeros(SAMPLES), np.random.default_rng(3)

    def order(epoch):
        return np.argsort(losses + draws.random(SAMPLES), kind="stable")

    def step(model, batch):
        points, labels, numbers = batch
        each = F.cross_entropy(model(points), labels, reduction="none")
        losses[numbers.numpy()] = each.numpy().ravel()
        return {"loss": each.mean()}

    return base(train=Numbered(SAMPLES), valid=None, step=step, loss=None, order=order)


class KeepsSpeeds(paddle.optimizer.SGD):
    """Keeps its momentum as attributes of the parameters."""

    def step(self):
        for parameter in self._parameter_list:
            parameter.speed = 0.9 * getattr(parameter, "speed", 0.0) + parameter.grad
            parameter.grad.set_value(parameter.speed)
        super().step()


def optimizer_that_keeps_its_momentum_on_parameters():
    return base(optimizer=lambda parameters: KeepsSpeeds(0.1, parameters=parameters))


def step_with_an_adapter_that_a_parameter_has(optimizer=paddle.optimizer.Adam):
    net = seeded(linear)
    net.weight.stop_gradient = True
    adapter = seeded(lambda: paddle.create_parameter(net.weight.shape, "float32"))
    net.weight.adapter = adapter
    optimizer = optimizer(0.1, parameters=[net.bias, adapter])

    def step(model, batch):
        outputs = F.linear(batch[0], model.weight + adapter, model.bias)
        return {"loss": F.cross_entropy(outputs, batch[1])}

    return base(model=net, optimizer=optimizer, step=step, loss=None)


def momentum_on_an_adapter_that_a_parameter_has():
    return step_with_an_adapter_that_a_parameter_has(KeepsSpeeds)


def generator_that_two_dicts_hold():
    first, second = [{"draws": draws} for draws in [np.random.default_rng(3)] * 2]

    def step(model, batch):
        loss = F.cross_entropy(model(batch[0]), batch[1])
        if model.training:
            loss = loss * (1 + first["draws"].random() + second["draws"].random())
        return {"loss": loss}

    return base(step=step, loss=None)


class Recurs:
    """Has a hidden state that every eighth step sets to the first one, which never changes."""

    def __init__(self):
        self.steps, self.initial = 0, np.zeros(CLASSES)
        self.hidden = self.initial

    def __call__(self, model, batch):
        if model.training:
            self.steps += 1
            self.hidden = 0.9 * self.hidden + 0.1
            if self.steps % 8 == 0:
                self.hidden = self.initial
        return {"loss": F.cross_entropy(model(batch[0]), batch[1]) * (1 + self.hidden.sum())}


def hidden_state_that_begins_again():
    return base(step=Recurs(), loss=None)


def hidden_state_that_begins_as_a_parameter():
    """A tensor takes its place, which lacks the attributes of parameters."""
    hidden = seeded(lambda: paddle.create_parameter([CLASSES], "float32"))

    def step(model, batch):
        nonlocal hidden
        if model.training:
            hidden = (0.9 * hidden + 0.1).detach()
        return {"loss": F.cross_entropy(model(batch[0]), batch[1]) * (1 + hidden.square().sum())}

    return base(step=step, loss=None)


def hidden_state_that_begins_with_an_argument():
    recurs = Recurs()

    def step(initial, model, batch):
        result = recurs(model, batch)
        if recurs.hidden is recurs.initial:
            recurs.hidden = initial
        return result

    return base(step=functools.partial(step, recurs.initial), loss=None)


PROGRAMS = [
    optimizer_that_keeps_its_momentum_on_parameters,
    step_with_an_adapter_that_a_parameter_has,
    momentum_on_an_adapter_that_a_parameter_has,
    generator_that_two_dicts_hold,
    hidden_state_that_begins_again,
    hidden_state_that_begins_as_a_parameter,
    hidden_state_that_begins_with_an_argument,
    order_of_the_hardest_first,
    step_with_other_nets_and_a_memory,
    callbacks_that_teach_and_lower_the_rate,
    callback_that_changes_clipping_dropout_and_freezing,
]
