"""State that no `state_dict` holds: kinds of it, and the places of a training where it hides.

Every place keeps it under a name that contains "hidden", if it has a name. Each call builds
everything anew, as a new process does.
"""

import array
import collections
import functools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F
from paddle.optimizer import lr
from small_nets import CLASSES, WIDTH, Points

from paddle_mnist import Callback

SAMPLES = 12


class Kind(NamedTuple):
    """A kind of state.

    make: returns it as a training begins. turn: returns it as it is afterwards, which may be the
    same object, and a number from 0 to 1 that depends on all that was before.
    """

    make: Callable[[], Any]
    turn: Callable[[Any], tuple[Any, float]]


def part(number):
    """Return a number from 0 to 1 that differs from call to call."""
    return 0.37 * float(number) % 1


def counted(step):
    """Return the `turn` of what counts, with another value each time."""

    def turn(value):
        value = step(value)
        return value, part(value)

    return turn


def changed(change, count):
    """Return the `turn` of what changes in place. count: reads a number from it."""

    def turn(value):
        change(value)
        return value, part(count(value))

    return turn


def drawn(draw):
    return lambda value: (value, float(draw(value)))


class Inside:
    """An object of the caller's own, with numbers inside."""

    def __init__(self):
        self.total, self.seen = 0, [0.0]

    def count(self):
        self.total += 1
        self.seen[0] += 0.5


class Slotted:
    """The same without a `__dict__`."""

    __slots__ = ("total",)

    def __init__(self):
        self.total = 0

    def count(self):
        self.total += 1


def numbers():
    number = 0
    while True:
        number += 1
        yield part(number)


def count_inside(value):
    value["net"]["sums"] += np.arange(2)
    value["calls"][-1] += 1


def add_in_place(array):
    array += 1


KINDS = {
    "int": Kind(lambda: 0, counted(lambda value: value + 1)),
    "bool": Kind(lambda: False, counted(lambda value: not value)),
    "float": Kind(lambda: 0.5, counted(lambda value: 0.9 * value + 0.3)),
    "str": Kind(lambda: "", lambda value: (value + "+", part(len(value)))),
    "NumPy scalar": Kind(lambda: np.float32(1), counted(lambda value: value * np.float32(1.3))),
    "array": Kind(lambda: np.zeros([]), counted(lambda value: np.asarray(value + 1))),
    "array, in place": Kind(lambda: np.zeros(2), changed(add_in_place, np.sum)),
    "tensor": Kind(lambda: paddle.zeros([]), counted(lambda value: value + 1)),
    "tensor, in place": Kind(
        lambda: paddle.zeros([1]),
        changed(lambda value: value.set_value(value + 1), lambda value: value.item()),
    ),
    "Generator": Kind(lambda: np.random.default_rng(3), drawn(lambda value: value.random())),
    "RandomState": Kind(lambda: np.random.RandomState(3), drawn(lambda value: value.rand())),
    "Random": Kind(lambda: random.Random(3), drawn(lambda value: value.random())),
    "dict": Kind(
        lambda: {"count": 0},
        changed(lambda value: value.update(count=value["count"] + 1), lambda value: value["count"]),
    ),
    "dict that grows": Kind(
        dict, changed(lambda value: value.update({f"n{len(value)}": 1.0}), len)
    ),
    "dict of arrays": Kind(
        lambda: {"net": {"sums": np.zeros(2)}, "calls": [0, 0]},
        changed(count_inside, lambda value: value["net"]["sums"][1] + value["calls"][-1]),
    ),
    "list": Kind(list, changed(lambda value: value.append(1 + len(value) / 2), sum)),
    "list of tensors": Kind(
        lambda: [paddle.zeros([2])],
        changed(lambda value: value.__setitem__(0, value[0] + 1), lambda value: value[0].sum()),
    ),
    "deque": Kind(
        lambda: collections.deque([0.1, 0.2], maxlen=2),
        changed(lambda value: value.append(0.3 + sum(value)), sum),
    ),
    "array.array": Kind(
        lambda: array.array("d"), changed(lambda value: value.append(1 + len(value) / 2), sum)
    ),
    "array.array, in place": Kind(
        lambda: array.array("f", [0, 0]),
        changed(lambda value: value.__setitem__(1, value[1] + 1.5), sum),
    ),
    "bytearray": Kind(bytearray, changed(lambda value: value.append(1 + len(value)), sum)),
    "set": Kind(set, changed(lambda value: value.add(len(value)), len)),
    "object": Kind(
        Inside, changed(lambda value: value.count(), lambda value: value.total + value.seen[0])
    ),
    "object with slots": Kind(
        Slotted, changed(lambda value: value.count(), lambda value: value.total)
    ),
    "iterator": Kind(lambda: iter([part(number) for number in range(1, 500)]), drawn(next)),
    "generator": Kind(numbers, drawn(next)),
}
DRAWN = ("Generator", "RandomState", "Random")
UNSAVABLE = ("iterator", "generator")


def sgd(parameters):
    return paddle.optimizer.SGD(0.1, parameters=parameters)


def linear():
    return nn.Linear(WIDTH, CLASSES)


def base(**others):
    """Return the arguments of `fit` of a small training, some of them by name."""
    return {
        "model": linear,
        "optimizer": sgd,
        "loss": F.cross_entropy,
        "train": Points(SAMPLES),
        "valid": Points(6),
        **others,
    }


# ------------------------------------------------------------------ optimizer and schedule


def in_optimizer(kind, influence):
    class Own(paddle.optimizer.SGD):
        def __init__(self, parameters):
            super().__init__(0.1, parameters=parameters)
            self.hidden = kind.make()

        @paddle.no_grad()
        def step(self):
            self.hidden, number = kind.turn(self.hidden)
            if influence == "rate":
                self.set_lr(0.1 / (1 + number))
            super().step()
            if influence == "weights":
                for parameter in self._parameter_list:
                    parameter.set_value(parameter * (1 - 0.1 * number))

    return {"optimizer": lambda parameters: Own(parameters)}


def in_schedule(kind, influence):
    class Own(lr.LRScheduler):
        def __init__(self):
            self.hidden = kind.make()
            super().__init__(0.1)

        def get_lr(self):
            self.hidden, number = kind.turn(self.hidden)
            return 0.1 / (1 + number) if influence else 0.1

    return {"optimizer": lambda parameters: paddle.optimizer.SGD(Own(), parameters=parameters)}


# ------------------------------------------------------------------ model


def layer_with(kind, influence):
    class Own(nn.Layer):
        def __init__(self):
            super().__init__()
            self.linear = linear()
            self.hidden = kind.make()

        def forward(self, points):
            self.hidden, number = kind.turn(self.hidden)
            if influence == "inputs":
                points = points * (1 + number)
            outputs = self.linear(points)
            return outputs * (1 + number) if influence == "outputs" else outputs

    return Own


def in_model(kind, influence):
    return {"model": layer_with(kind, influence)}


def in_sublayer(kind, influence):
    return {"model": lambda: nn.Sequential(layer_with(kind, influence)(), nn.Tanh())}


def in_hook(kind, influence):
    hidden = kind.make()

    def hook(layer, inputs, outputs):
        nonlocal hidden
        hidden, number = kind.turn(hidden)
        return outputs * (1 + number) if influence else outputs

    def build():
        model = nn.Sequential(linear())
        model[0].register_forward_post_hook(hook)
        return model

    return {"model": build}


# ------------------------------------------------------------------ loss, metric


def in_loss_closure(kind, influence):
    hidden = kind.make()

    def loss(outputs, labels):
        nonlocal hidden
        hidden, number = kind.turn(hidden)
        return F.cross_entropy(outputs, labels) * (1 + number if influence else 1)

    return {"loss": loss}


def in_loss_layer(kind, influence):
    class Own(nn.Layer):
        def __init__(self):
            super().__init__()
            self.hidden = kind.make()

        def forward(self, outputs, labels):
            self.hidden, number = kind.turn(self.hidden)
            return F.cross_entropy(outputs, labels) * (1 + number if influence else 1)

    return {"loss": Own()}


def in_metric(kind, influence):
    class Own:
        def __init__(self):
            self.hidden = kind.make()

        def __call__(self, outputs, labels):
            self.hidden, number = kind.turn(self.hidden)
            value = (outputs.argmax(axis=1) == labels.flatten()).astype("float32").mean()
            return value + number if influence else value

    return {"metrics": {"own": Own()}}


# ------------------------------------------------------------------ step


def computed(model, batch, number, influence):
    """Return the result of a step that a number influences."""
    points, labels = batch
    if influence == "weights" and model.training:
        with paddle.no_grad():
            model.weight.set_value(model.weight * (1 - 0.1 * number))
    if influence == "inputs":
        points = points * (1 + number)
    loss = F.cross_entropy(model(points), labels)
    return {"loss": loss * (1 + number) if influence == "loss" else loss}


def as_step(step):
    return {"step": step, "loss": None}


def turned(kind, hidden, model):
    """Turn state in a training step, but not in an evaluation."""
    return kind.turn(hidden) if model.training else (hidden, 0.0)


def in_step_closure(kind, influence):
    hidden = kind.make()

    def step(model, batch):
        nonlocal hidden
        hidden, number = turned(kind, hidden, model)
        return computed(model, batch, number, influence)

    return as_step(step)


def in_step_default(kind, influence):
    def step(model, batch, hidden=[kind.make()]):  # noqa: B006, B008
        hidden[0], number = turned(kind, hidden[0], model)
        return computed(model, batch, number, influence)

    return as_step(step)


def in_step_attribute(kind, influence):
    def step(model, batch):
        step.hidden, number = turned(kind, step.hidden, model)
        return computed(model, batch, number, influence)

    step.hidden = kind.make()
    return as_step(step)


HIDDEN = None  # a global that a step names


def in_step_global(kind, influence):
    global HIDDEN
    HIDDEN = kind.make()  # as the import of a script does in a new process

    def step(model, batch):
        global HIDDEN
        HIDDEN, number = turned(kind, HIDDEN, model)
        return computed(model, batch, number, influence)

    return as_step(step)


def in_step_helper(kind, influence):
    """In a global that only a function names which the step calls."""
    global HIDDEN
    HIDDEN = kind.make()

    def step(model, batch):
        return computed(model, batch, turned_global(kind, model), influence)

    return as_step(step)


def turned_global(kind, model):
    global HIDDEN
    HIDDEN, number = turned(kind, HIDDEN, model)
    return number


def in_step_partial(kind, influence):
    """By position: the text can only say `args`."""

    def step(hidden, model, batch):
        hidden[0], number = turned(kind, hidden[0], model)
        return computed(model, batch, number, influence)

    return as_step(functools.partial(step, [kind.make()]))


def in_step_keyword(kind, influence):
    def step(model, batch, hidden):
        hidden[0], number = turned(kind, hidden[0], model)
        return computed(model, batch, number, influence)

    return as_step(functools.partial(step, hidden=[kind.make()]))


def task_with(kind, influence):
    class Task:
        def __init__(self):
            self.hidden = kind.make()

        def __call__(self, model, batch):
            self.hidden, number = kind.turn(self.hidden)
            return computed(model, batch, number, influence)

        step = __call__

    return Task()


def in_step_self(kind, influence):
    return as_step(task_with(kind, influence).step)


def in_step_object(kind, influence):
    return as_step(task_with(kind, influence))


def in_step_class(kind, influence):
    class Task:
        hidden = kind.make()

        def __call__(self, model, batch):
            Task.hidden, number = kind.turn(Task.hidden)
            return computed(model, batch, number, influence)

    return as_step(Task())


# ------------------------------------------------------------------ data


def in_collate(kind, influence):
    hidden = kind.make()

    def collate(samples):
        nonlocal hidden
        hidden, number = kind.turn(hidden)
        points, labels = (np.stack(column) for column in zip(*samples))
        return points * np.float32(1 + number) if influence else points, labels

    return {"collate_fn": collate}


def dataset_with(kind, influence):
    class Own(Points):
        def __init__(self):
            super().__init__(SAMPLES)
            self.hidden = kind.make()

        def __getitem__(self, index):
            point, label = super().__getitem__(index)
            self.hidden, number = kind.turn(self.hidden)
            return point * np.float32(1 + number) if influence else point, label

    return Own()


def in_dataset(kind, influence):
    return {"train": dataset_with(kind, influence)}


def in_valid(kind, influence):
    return {"valid": dataset_with(kind, influence)}


def in_dataset_by_callback(event):
    """A callback changes the data after each "step" or "epoch", as a curriculum does."""

    def place(kind, influence):
        class Own(Points):
            def __init__(self):
                super().__init__(SAMPLES)
                self.hidden, self.hidden_number = kind.make(), 0.0

            def turn(self):
                self.hidden, self.hidden_number = kind.turn(self.hidden)

            def __getitem__(self, index):
                point, label = super().__getitem__(index)
                return point * np.float32(1 + self.hidden_number) if influence else point, label

        dataset = Own()
        return {"train": dataset, "callbacks": [calling(event, lambda callback: dataset.turn())]}

    return place


# ------------------------------------------------------------------ callback


def calling(event, act, hidden=None):
    """Return a callback that calls `act(callback)` after each "step" or "epoch"."""

    class Own(Callback):
        def __init__(self):
            self.hidden = hidden

        def after_step(self, view):
            if event == "step":
                act(self)

        def after_epoch(self, view):
            if event == "epoch":
                act(self)

    return Own()


def in_callback(event):
    """A callback sets a scale that the step reads."""

    def place(kind, influence):
        scale = {"hidden": 0.0}

        def turn(callback):
            callback.hidden, scale["hidden"] = kind.turn(callback.hidden)

        def step(model, batch):
            return computed(model, batch, scale["hidden"], influence)

        return {**as_step(step), "callbacks": [calling(event, turn, kind.make())]}

    return place


class Place(NamedTuple):
    """A place where state hides.

    build: (kind, influence) -> arguments of `fit`; influence is None where it acts on nothing.
    influences: what it can act on there. of_data: whether it changes samples as they are read.
    """

    build: Callable[[Kind, Any], dict[str, Any]]
    influences: tuple[str, ...]
    of_data: bool = False


STEPS_INFLUENCES = ("loss", "inputs", "weights")
PLACES = {
    "optimizer": Place(in_optimizer, ("rate", "weights")),
    "schedule": Place(in_schedule, ("rate",)),
    "model": Place(in_model, ("inputs", "outputs")),
    "sublayer": Place(in_sublayer, ("inputs", "outputs")),
    "forward hook": Place(in_hook, ("outputs",)),
    "loss's closure": Place(in_loss_closure, ("loss",)),
    "loss layer": Place(in_loss_layer, ("loss",)),
    "metric": Place(in_metric, ("metric",)),
    "step's closure": Place(in_step_closure, STEPS_INFLUENCES),
    "step's default": Place(in_step_default, STEPS_INFLUENCES),
    "step's self": Place(in_step_self, STEPS_INFLUENCES),
    "step's global": Place(in_step_global, STEPS_INFLUENCES),
    "step's helper": Place(in_step_helper, STEPS_INFLUENCES),
    "step's attribute": Place(in_step_attribute, STEPS_INFLUENCES),
    "step's partial": Place(in_step_partial, STEPS_INFLUENCES),
    "step's keyword": Place(in_step_keyword, STEPS_INFLUENCES),
    "step object": Place(in_step_object, STEPS_INFLUENCES),
    "step's class": Place(in_step_class, STEPS_INFLUENCES),
    "collate_fn": Place(in_collate, ("inputs",), of_data=True),
    "dataset": Place(in_dataset, ("inputs",), of_data=True),
    "valid dataset": Place(in_valid, ("inputs",), of_data=True),
    "dataset, by step": Place(in_dataset_by_callback("step"), ("inputs",)),
    "dataset, by epoch": Place(in_dataset_by_callback("epoch"), ("inputs",)),
    "callback, by step": Place(in_callback("step"), STEPS_INFLUENCES),
    "callback, by epoch": Place(in_callback("epoch"), STEPS_INFLUENCES),
}


def task(place, kind, influence):
    """Return the arguments of `fit` of a small training that hides state, built anew."""
    return base(**PLACES[place].build(KINDS[kind], influence))
