"""Programs with state as people write them, which must resume to the same bits or be refused.

Each is a function that returns the arguments of `fit`, built anew as a new process does.
"""

import collections
import enum
import functools
import itertools

import numpy as np
import paddle
from hiding_places import SAMPLES, base, linear
from paddle import nn
from paddle.nn import functional as F
from small_nets import CLASSES, WIDTH, Points, with_dropout
from stateful_rows import seeded

from paddle_mnist import Callback


class After(Callback):
    """Calls a function after each step or epoch."""

    def __init__(self, step=None, epoch=None):
        self.step, self.epoch = step, epoch

    def after_step(self, view):
        if self.step:
            self.step()

    def after_epoch(self, view):
        if self.epoch:
            self.epoch()


# ------------------------------------------------------------------ other nets in the step


def moving_another(act, in_state=False):
    """Return a program whose step acts on a net of its own and on the net's optimizer."""
    other = seeded(lambda: nn.Linear(CLASSES, 1))
    optimizer = paddle.optimizer.SGD(0.1, parameters=other.parameters())
    state = {"other": other, "other_optimizer": optimizer} if in_state else None

    def step(model, batch):
        outputs = model(batch[0])
        if model.training:
            act(other, optimizer, (other(outputs.detach()) ** 2).mean())
        return {"loss": (other(outputs) - 1).square().mean()}

    return base(step=step, loss=None, state=state)


def train_by_hand(other, optimizer, loss):
    other.clear_gradients()
    loss.backward()
    for parameter in other.parameters():
        parameter.set_value(parameter - 0.1 * parameter.grad)


def train(other, optimizer, loss):
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()


def train_and_freeze(other, optimizer, loss):
    for parameter in other.parameters():
        parameter.stop_gradient = False
    train(other, optimizer, other(paddle.ones([1, CLASSES])).square().mean())
    for parameter in other.parameters():
        parameter.stop_gradient = True


def clear_too_late(other, optimizer, loss):
    """The loss of the model leaves gradients in the other net, which its next step adds to."""
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()


def never_clear(other, optimizer, loss):
    loss.backward()
    optimizer.step()


def optimizer_before_discriminator():
    """The step names the optimizer first, by which the discriminator's weights are found, too."""
    discriminator = seeded(lambda: nn.Linear(CLASSES, 1))
    optimizer = paddle.optimizer.SGD(0.1, parameters=discriminator.parameters())

    def step(model, batch, optimizer=optimizer, discriminator=discriminator):
        outputs = model(batch[0])
        if model.training:
            train(discriminator, optimizer, (discriminator(outputs.detach()) ** 2).mean())
        return {"loss": (discriminator(outputs) - 1).square().mean()}

    return base(step=step, loss=None)


def trained_outside_the_model(in_state=False, **others):
    """The optimizer has the parameters of a layer that only the step uses."""
    head = seeded(lambda: nn.Linear(CLASSES, 1))

    def step(model, batch):
        return {"loss": (head(model(batch[0])) - 1).square().mean()}

    def optimizer(own):
        return paddle.optimizer.Momentum(0.1, parameters=[*own, *head.parameters()])

    state = {"head": head} if in_state else None
    return base(step=step, loss=None, optimizer=optimizer, state=state, **others)


def bare_parameter():
    scale = seeded(lambda: paddle.create_parameter([1], "float32"))

    def optimizer(own):
        return paddle.optimizer.Momentum(0.1, parameters=[*own, scale])

    def step(model, batch):
        return {"loss": (model(batch[0]) * scale - 1).square().mean()}

    return base(step=step, loss=None, optimizer=optimizer)


class MakesTeacher(Callback):
    """Makes a teacher before the training, and has it follow the model."""

    def before_training(self, training):
        paddle.seed(1)
        self.model, self.teacher = training.model, linear()

    def after_step(self, view):
        for one, other in zip(self.teacher.parameters(), self.model.parameters()):
            one.set_value(0.8 * one + 0.2 * other)


def taught():
    callback = MakesTeacher()

    def step(model, batch):
        outputs = model(batch[0])
        loss = F.cross_entropy(outputs, batch[1])
        if hasattr(callback, "teacher"):
            loss = loss + F.mse_loss(outputs, callback.teacher(batch[0]).detach())
        return {"loss": loss}

    return base(step=step, loss=None, callbacks=[callback])


# ------------------------------------------------------------------ what callbacks change


def with_objects(act, model=linear, **options):
    """Build the net and the optimizer; a callback acts on both after each epoch."""
    net = seeded(model)
    optimizer = paddle.optimizer.Momentum(0.1, parameters=net.parameters(), **options)
    callback = After(epoch=lambda: act(net, optimizer))
    return base(model=net, optimizer=optimizer, callbacks=[callback])


def halve_rate(net, optimizer):
    optimizer.set_lr(optimizer.get_lr() / 2)


def clip_more(net, optimizer):
    optimizer._grad_clip.clip_norm /= 2


def drop_less(net, optimizer):
    net[1].p /= 2


def toggle_freezing(net, optimizer):
    net.bias.stop_gradient = not net.bias.stop_gradient


class Patience(Callback):
    """Lowers the rate when the loss has not improved, and begins as Keras' do."""

    def before_training(self, training):
        self.optimizer, self.best = training.optimizer, np.inf

    def after_epoch(self, view):
        loss = view.metrics["valid/loss"]
        if loss < 0.5 * self.best:
            self.best = loss
        else:
            self.optimizer.set_lr(0.5 * self.optimizer.get_lr())


class AveragesWeights(Callback):
    """Uses what it keeps only at the end."""

    def __init__(self):
        self.number, self.average = 0, {}

    def before_training(self, training):
        self.model = training.model

    def after_epoch(self, view):
        self.number += 1
        for name, value in self.model.state_dict().items():
            mean = self.average.get(name, 0.0)
            self.average[name] = mean + (value.numpy() - mean) / self.number

    def final_metrics(self, training):
        return {"average/norm": float(sum(np.abs(one).sum() for one in self.average.values()))}


def list_of_callback_and_loss():
    """What is restored must be the same list for both."""
    recent = [1.0]

    def loss(outputs, labels):
        return F.cross_entropy(outputs, labels) * recent[-1]

    return base(loss=loss, callbacks=[After(step=lambda: recent.append(0.8 * recent[-1]))])


# ------------------------------------------------------------------ what nets and steps keep


class StatefulLSTM(nn.Layer):
    """Carries its state from batch to batch."""

    def __init__(self):
        super().__init__()
        self.lstm, self.out, self.state = nn.LSTM(1, 4), nn.Linear(4, CLASSES), None

    def forward(self, points):
        outputs, state = self.lstm(points.unsqueeze(-1), self.state if self.training else None)
        if self.training:
            self.state = tuple(one.detach() for one in state)
        return self.out(outputs[:, -1])


def lstm_that_an_epochs_end_resets():
    net = seeded(StatefulLSTM)
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    reset = After(epoch=lambda: setattr(net, "state", None))
    return base(model=net, optimizer=optimizer, callbacks=[reset])


class Keeps(nn.Layer):
    """A net that keeps something. start: makes it. use: acts on the net, and returns a factor."""

    def __init__(self, start, use):
        super().__init__()
        self.linear, self.kept, self.use = linear(), start(), use

    def forward(self, points):
        factor = self.use(self)
        return self.linear(points) * factor


def keeps(start, use):
    return lambda: base(model=lambda: Keeps(start, use))


def draw_once(net):
    """Draw something once, with the seed of the first step."""
    if net.kept is None:
        net.kept = paddle.rand([1])
    return 1 + net.kept


def first_in_order(net):
    """Use the entries of a dict in the order of their last use."""
    key = next(iter(net.kept))
    factor = net.kept[key]
    if net.training:
        net.kept.move_to_end(key)
    return factor


def array_in_two_places(net):
    """Have an array in two places, and change it in one."""
    if net.training:
        if not net.kept:
            net.last = np.zeros(1, "float32")
            net.kept.append(net.last)
        net.last += 0.1
    return 1 + (float(net.kept[0][0]) if net.kept else 0.0)


class Note:
    """An object of the user's own."""

    def __init__(self, value=1.0):
        self.value = value


def add_note(net, has_influence=True):
    """Keep objects in a sequence that grows."""
    newest = [*net.kept][-1].value
    if net.training:
        net.kept = type(net.kept)([*net.kept, Note(0.9 * newest)])
    return newest if has_influence else 1.0


def switch(net):
    """Choose one of the functions that there are."""
    factor = net.kept(1)
    if net.training:
        net.kept = one_tenth if net.kept is float else float
    return factor


def one_tenth(number):
    return 0.1 * number


class Phase(enum.Enum):
    FIRST = 1
    LATER = 2


def enter_phase(net):
    factor = net.kept.value
    if net.training:
        net.kept = Phase.LATER
    return factor


Transition = collections.namedtuple("Transition", "points reward")


def with_memory():
    """Replays what it has seen, as DQN does."""
    memory = collections.deque(maxlen=4)

    def step(model, batch):
        if model.training:
            memory.append(Transition(batch[0].numpy(), len(memory)))
        old = paddle.to_tensor(memory[0].points) if memory else batch[0]
        return {"loss": F.cross_entropy(model(batch[0]), batch[1]) + 0.1 * model(old).abs().mean()}

    return base(step=step, loss=None)


def cycle_of_two():
    """Two steps bring this cycle back to where it was."""
    weights = itertools.cycle([1.0, 3.0])

    def step(model, batch):
        loss = F.cross_entropy(model(batch[0]), batch[1])
        return {"loss": loss * next(weights) if model.training else loss}

    return base(step=step, loss=None)


class ById(paddle.optimizer.Optimizer):
    """Keeps an average for each parameter by its `id`."""

    def __init__(self, parameters):
        super().__init__(learning_rate=0.02, parameters=parameters)
        self.averages = {}

    @paddle.no_grad()
    def step(self):
        for one in self._parameter_list:
            before = self.averages.get(id(one), paddle.zeros_like(one))
            self.averages[id(one)] = 0.9 * before + one.grad
            one.set_value(one - self.get_lr() * self.averages[id(one)])


class CachesNoise(Points):
    """Keeps samples after their random augmentation."""

    def __init__(self):
        super().__init__(SAMPLES)
        self.cache = {}

    def __getitem__(self, index):
        point, label = super().__getitem__(index)
        if index not in self.cache:
            self.cache[index] = point + 0.3 * np.random.randn(WIDTH).astype("float32")
        return self.cache[index], label


def spectral_norm():
    """Has buffers, which Paddle names by the number of temporary tensors in the process so far."""
    return nn.Sequential(nn.utils.spectral_norm(nn.Linear(WIDTH, CLASSES)))


SAVED = {
    "a net trained by hand": lambda: moving_another(train_by_hand),
    "a net frozen between its steps": lambda: moving_another(train_and_freeze, in_state=True),
    "optimizer named before its discriminator": optimizer_before_discriminator,
    "parameters outside the model": trained_outside_the_model,
    "parameters in state": lambda: trained_outside_the_model(in_state=True),
    "parameters outside the model, in shards": lambda: trained_outside_the_model(grad_shards=2),
    "a parameter by itself": bare_parameter,
    "teacher made before the training": taught,
    "rate set by a callback": lambda: with_objects(halve_rate),
    "clipping changed by a callback": lambda: with_objects(
        clip_more, grad_clip=nn.ClipGradByGlobalNorm(0.4)
    ),
    "dropout changed by a callback": lambda: with_objects(drop_less, with_dropout),
    "layers frozen by a callback": lambda: with_objects(toggle_freezing),
    "patience that begins anew": lambda: base(callbacks=[Patience()]),
    "averaged weights": lambda: base(callbacks=[AveragesWeights()]),
    "a list of callback and loss": list_of_callback_and_loss,
    "state that an epoch's end resets": lstm_that_an_epochs_end_resets,
    "random number of the first call": keeps(lambda: None, draw_once),
    "order of a dict": keeps(lambda: collections.OrderedDict(a=1.0, b=2.0), first_in_order),
    "array in two places": keeps(list, array_in_two_places),
    "objects without influence": keeps(
        lambda: [Note()], functools.partial(add_note, has_influence=False)
    ),
    "memory of named tuples": with_memory,
    "optimizer by the id of parameters": lambda: base(optimizer=lambda p: ById(p)),  # no class
    "spectral norm": lambda: base(model=spectral_norm),
}
# with a word that the error must contain
REFUSED = {
    "gradients left over": (lambda: moving_another(clear_too_late), "gradient of step.other"),
    "gradients never cleared": (lambda: moving_another(never_clear), "gradient of step.other"),
    "a cycle of two": (cycle_of_two, "weights"),
    "a list of objects": (keeps(lambda: [Note()], add_note), "model.kept"),
    "a tuple of objects": (keeps(lambda: (Note(),), add_note), "model.kept"),
    "function that is switched": (keeps(lambda: float, switch), "model.kept"),
    "member of an enumeration": (keeps(lambda: Phase.FIRST, enter_phase), "model.kept"),
    "cached augmentation": (lambda: base(train=CachesNoise()), "train.cache"),
}
