"""Small trainings with state beside the weights, the optimizer's accumulators and the schedule.

A row's "build" returns new arguments of `fit` for each call, as a new process does.
"""

import collections

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F
from paddle.optimizer import lr
from small_nets import CLASSES, WIDTH, Points, perceptron

from paddle_mnist import Callback
from paddle_mnist.data.seeding import generators_restored

FEATURES, QUEUE = 4, 12


def seeded(build):
    """Return what `build` returns, with the same random weights in each call and process."""
    with generators_restored():
        paddle.seed(7)
        return build()


def falling_rate():
    return lr.PolynomialDecay(0.3, decay_steps=9, end_lr=0.01)


def look_ahead(parameters):
    inner = paddle.optimizer.Momentum(falling_rate(), parameters=parameters)
    return paddle.incubate.LookAhead(inner, alpha=0.5, k=3)  # a stop at step 7 is between two


class Lion(paddle.optimizer.SGD):
    """Follows the sign of an average of gradients, kept by name; a counter warms it up."""

    def __init__(self, rate, parameters):
        super().__init__(rate, parameters=parameters)
        self.averages, self.done = {}, 0

    @paddle.no_grad()
    def step(self):
        self.done += 1
        rate = self.get_lr() / self.done**0.5
        for parameter in self._parameter_list:
            if parameter.grad is None:
                continue
            average = self.averages.get(parameter.name)
            average = paddle.zeros_like(parameter) if average is None else average
            direction = paddle.sign(0.9 * average + 0.1 * parameter.grad)
            parameter.set_value(parameter - rate * direction)
            self.averages[parameter.name] = 0.99 * average + 0.01 * parameter.grad


class Wavering(lr.LRScheduler):
    """A schedule whose state is a number of NumPy's, a dict and a deque."""

    def __init__(self, rate):
        self.rate = np.float32(rate)
        self.table = {"calls": 0, "halved": {"at": []}}
        self.recent = collections.deque([rate], maxlen=2)
        super().__init__(rate)

    def get_lr(self):
        self.table["calls"] += 1
        self.rate = self.rate * np.float32(0.93)
        if self.table["calls"] % 4 == 0:
            self.table["halved"]["at"].append(self.table["calls"])
        self.recent.append(float(self.rate) / 2 ** len(self.table["halved"]["at"]))
        return sum(self.recent) / len(self.recent)


def lion(parameters):
    return Lion(Wavering(0.02), parameters)


class CenterLoss(nn.Layer):
    """Has the centre of each class for its parameter, and a learned temperature."""

    def __init__(self):
        super().__init__()
        first = np.random.RandomState(7).randn(CLASSES, CLASSES).astype("float32")
        self.centers = self.create_parameter(
            [CLASSES, CLASSES], default_initializer=nn.initializer.Assign(first)
        )
        self.temperature = self.create_parameter(
            [1], default_initializer=nn.initializer.Constant(1.0)
        )

    def forward(self, outputs, labels):
        distances = ((outputs.unsqueeze(1) - self.centers.unsqueeze(0)) ** 2).sum(axis=-1)
        return F.cross_entropy(-distances * self.temperature, labels)


def with_center_loss():
    return {"loss": CenterLoss()}


def adversarial():
    """A GAN: `fit` trains the generator, and the step trains the discriminator."""
    discriminator = seeded(lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 1)))
    optimizer = paddle.optimizer.Adam(0.01, parameters=discriminator.parameters())

    def real_or_not(points, is_real):
        logits = discriminator(points)
        labels = paddle.full_like(logits, float(is_real))
        return F.binary_cross_entropy_with_logits(logits, labels)

    def step(model, batch):
        real = batch[0]
        generated = model(paddle.randn([len(real), WIDTH]))
        if model.training:
            optimizer.clear_grad()
            loss = real_or_not(real, True) + real_or_not(generated.detach(), False)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
        loss = real_or_not(generated, True)
        return {"loss": loss}

    return {
        "step": step,
        "state": {"discriminator": discriminator, "discriminator_optimizer": optimizer},
    }


def generator():
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, WIDTH))


def frozen(layer):
    for parameter in layer.parameters():
        parameter.stop_gradient = True
    return layer


@paddle.no_grad()
def follow(teacher, model):
    for slow, fast in zip(teacher.parameters(), model.parameters()):
        slow.set_value(0.8 * slow + 0.2 * fast)


def distillation(teacher, follows):
    """Return a step that learns from labels and from a teacher. follows: it moves the teacher."""

    def step(model, batch):
        points, labels = batch
        outputs = model(points)
        with paddle.no_grad():
            targets = F.softmax(teacher(points))
        loss = F.cross_entropy(outputs, labels)
        loss = loss + F.cross_entropy(outputs, targets, soft_label=True)
        if follows and model.training:
            follow(teacher, model)
        return {"loss": loss}

    return step


class Follows(Callback):
    """Moves a teacher after each step of the student."""

    def __init__(self, teacher):
        self.teacher = teacher

    def before_training(self, training):
        self.model = training.model

    def after_step(self, view):
        follow(self.teacher, self.model)


def taught_by_state():
    teacher = seeded(lambda: frozen(perceptron()))
    return {
        "step": distillation(teacher, follows=False),
        "state": {"teacher": teacher},
        "callbacks": [Follows(teacher)],
    }


def taught_by_closure():
    return {"step": distillation(seeded(lambda: frozen(perceptron())), follows=True)}


def contrastive():
    """Compares a batch with the keys of earlier ones: a queue and a pointer, as of MoCo."""
    queue = paddle.to_tensor(np.random.RandomState(7).randn(QUEUE, FEATURES).astype("float32"))
    pointer = 0

    def step(model, batch):
        nonlocal queue, pointer
        points = batch[0]
        queries = F.normalize(model(points))
        keys = F.normalize(model(0.9 * points)).detach()
        same = (queries * keys).sum(axis=1, keepdim=True)
        logits = paddle.concat([same, queries @ queue.t()], axis=1)
        loss = F.cross_entropy(logits / 0.2, paddle.zeros([len(points)], "int64"))
        if model.training:
            rows = paddle.to_tensor((pointer + np.arange(len(points))) % QUEUE)
            queue = paddle.scatter(queue, rows, keys)
            pointer = (pointer + len(points)) % QUEUE
        return {"loss": loss}

    return {"step": step}


def encoder():
    return nn.Linear(WIDTH, FEATURES)


class Curriculum(Callback):
    """Makes the data harder after each epoch: their noise grows."""

    def __init__(self, dataset):
        self.dataset, self.level = dataset, 0

    def after_epoch(self, view):
        self.level += 1
        self.dataset.noise = 0.2 * self.level


def with_curriculum():
    dataset = Points(noise=0.1)
    return {"train": dataset, "valid": Points(), "callbacks": [Curriculum(dataset)]}


STEP_OF_ITS_OWN = {"loss": None, "metrics": None}
STATEFUL = {
    "LookAhead": {"optimizer": look_ahead},
    "own optimizer": {"optimizer": lion},
    "loss with parameters": {"build": with_center_loss},
    "GAN": {"model": generator, "build": adversarial, **STEP_OF_ITS_OWN},
    "EMA teacher in state": {"build": taught_by_state, **STEP_OF_ITS_OWN},
    "EMA teacher in the step": {"build": taught_by_closure, **STEP_OF_ITS_OWN},
    "queue of keys in the step": {"model": encoder, "build": contrastive, **STEP_OF_ITS_OWN},
    "callback that changes the data": {"build": with_curriculum},
}
