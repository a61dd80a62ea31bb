"""Programs with state as people write them, which must resume to the same bits or be refused.

Each is a function that returns the arguments of `fit`.
"""

import collections
import enum

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F
from small_nets import WIDTH, Points, perceptron

from paddle_mnist import Callback


def base(**others):
    return {
        "model": perceptron,
        "optimizer": lambda parameters: paddle.optimizer.Adam(0.02, parameters=parameters),
        "loss": F.cross_entropy,
        "train": Points(12),
        "valid": Points(6),
        **others,
    }


class StatefulLSTM(nn.Layer):
    """Carries its state from batch to batch; a callback resets it after each epoch."""

    def __init__(self):
        super().__init__()
        self.lstm, self.out, self.state = nn.LSTM(1, 4), nn.Linear(4, 3), None

    def forward(self, points):
        outputs, state = self.lstm(points.unsqueeze(-1), self.state if self.training else None)
        if self.training:
            self.state = tuple(one.detach() for one in state)
        return self.out(outputs[:, -1])


class Resets(Callback):
    def before_training(self, training):
        self.model = training.model

    def after_epoch(self, view):
        self.model.state = None


class NoiseOfTheFirstCall(nn.Layer):
    """Draws something once, with the seed of the first step."""

    def __init__(self):
        super().__init__()
        self.body, self.noise = perceptron(), None

    def forward(self, points):
        if self.noise is None:
            self.noise = paddle.randn([1, WIDTH])
        return self.body(points + self.noise)


class ById(paddle.optimizer.Optimizer):
    """Keeps an average for each parameter by its `id`."""

    def __init__(self, parameters):
        super().__init__(learning_rate=0.02, parameters=parameters)
        self.averages = {}

    @paddle.no_grad()
    def step(self):
        for one in self._parameter_list:
            if one.grad is not None:
                before = self.averages.get(id(one), paddle.zeros_like(one))
                self.averages[id(one)] = 0.9 * before + one.grad
                one.set_value(one - self.get_lr() * self.averages[id(one)])


class Patience(Callback):
    """Lowers the rate when the loss has not improved for a while, and begins as Keras' do."""

    def before_training(self, training):
        self.optimizer, self.best, self.wait = training.job.parts.optimizer, np.inf, 0

    def after_epoch(self, view):
        loss = view.metrics["valid/loss"]
        if loss < 0.5 * self.best:
            self.best, self.wait = loss, 0
        else:
            self.wait += 1
            if self.wait == 2:
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


class MakesTeacher(Callback):
    """Makes a teacher before the training, and has it follow the model."""

    def before_training(self, training):
        paddle.seed(1)
        self.model, self.teacher = training.model, perceptron()

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


def freezing_gan():
    """The discriminator is frozen between its own steps, and its rate has a schedule."""
    paddle.seed(2)
    discriminator = nn.Linear(3, 1)
    rate = paddle.optimizer.lr.ExponentialDecay(0.01, 0.9)
    optimizer = paddle.optimizer.Adam(rate, parameters=discriminator.parameters())

    def freeze(is_frozen):
        for parameter in discriminator.parameters():
            parameter.stop_gradient = is_frozen

    def step(model, batch):
        outputs = model(batch[0])
        if model.training:
            freeze(False)
            optimizer.clear_grad()
            (discriminator(outputs.detach()) ** 2).mean().backward()
            optimizer.step()
            rate.step()
            freeze(True)
        return {"loss": (discriminator(outputs) - 1).square().mean()}

    return base(step=step, loss=None, state={"d": discriminator, "d_optimizer": optimizer})


class Switches(nn.Layer):
    """Chooses one of the objects that it has."""

    def __init__(self):
        super().__init__()
        self.body, self.choices = perceptron(), [F.relu, F.tanh, F.sigmoid]
        self.chosen = self.choices[0]

    def forward(self, points):
        outputs = self.chosen(self.body(points))
        if self.training:
            self.chosen = self.choices[(self.choices.index(self.chosen) + 1) % 3]
        return outputs


class Phase(enum.Enum):
    FIRST = 1
    LATER = 2


class HasPhase(nn.Layer):
    def __init__(self):
        super().__init__()
        self.body, self.phase = perceptron(), Phase.FIRST

    def forward(self, points):
        outputs = self.body(points) * self.phase.value
        if self.training:
            self.phase = Phase.LATER
        return outputs


class KeepsOrder(nn.Layer):
    """Uses the entries of a dict in the order of their last use."""

    def __init__(self):
        super().__init__()
        self.body = perceptron()
        self.recent = collections.OrderedDict(a=1.0, b=2.0, c=3.0)

    def forward(self, points):
        key = next(iter(self.recent))
        outputs = self.body(points) * self.recent[key]
        if self.training:
            self.recent.move_to_end(key)
        return outputs


class SharesArray(nn.Layer):
    """Has an array in two places, and changes it in one."""

    def __init__(self):
        super().__init__()
        self.body, self.history, self.last = perceptron(), [], None

    def forward(self, points):
        outputs = self.body(points)
        if self.training:
            if self.last is None:
                self.last = np.zeros(1, "float32")
                self.history.append(self.last)
            self.last += 0.1
        scale = float(self.history[0][0]) if self.history else 0.0
        return outputs * (1 + scale)


class CachesNoise(Points):
    """Keeps samples after their random augmentation."""

    def __init__(self, samples):
        super().__init__(samples)
        self.cache = {}

    def __getitem__(self, index):
        point, label = super().__getitem__(index)
        if index not in self.cache:
            self.cache[index] = point + 0.3 * np.random.randn(WIDTH).astype("float32")
        return self.cache[index], label


SAVED = {
    "state that an epoch's end resets": lambda: base(model=StatefulLSTM, callbacks=[Resets()]),
    "noise of the first call": lambda: base(model=NoiseOfTheFirstCall),
    "optimizer by the id of parameters": lambda: base(optimizer=lambda p: ById(p)),  # no class
    "patience that begins anew": lambda: base(callbacks=[Patience()]),
    "averaged weights": lambda: base(callbacks=[AveragesWeights()]),
    "teacher made before the training": taught,
    "memory of named tuples": with_memory,
    "GAN that freezes": freezing_gan,
    "order of a dict": lambda: base(model=KeepsOrder),
    "array in two places": lambda: base(model=SharesArray),
}
# with words that the error must contain
REFUSED = {
    "function that is switched": (lambda: base(model=Switches), "model.chosen"),
    "member of an enumeration": (lambda: base(model=HasPhase), "model.phase"),
    "cached augmentation": (lambda: base(train=CachesNoise(12)), "train.cache"),
}
