"""State that no `state_dict` holds: kinds of it, and the places of a run where it hides.

Every place keeps it under a name that contains "hidden", if it has a name. Each call builds all
objects again, as a new process does.
"""

import array
import collections
import dataclasses
import enum
import functools
import random
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import numpy as np
import paddle
import small_nets
from paddle import nn
from paddle.nn import functional as F
from paddle.optimizer import lr
from small_nets import CLASSES, WIDTH, Points

from paddle_mnist import Callback

SAMPLES = 12


class Kind(NamedTuple):
    """A kind of state.

    make: returns it as a run begins. change: changes it in place, or returns the next value.
    number: reads a number that depends on all changes before.
    """

    make: Callable[[], Any]
    change: Callable[[Any], Any]
    number: Callable[[Any], Any] = float


class State(NamedTuple):
    """State of some kind in a run.

    influence: what a step makes of it; without one, it acts on nothing. is_time: whether it changes
    now. has_begun: whether it has changed, and acts.
    """

    kind: Kind
    influence: Optional[str]
    is_time: Callable[[], bool]
    has_begun: Callable[[], bool]

    def make(self):
        return self.kind.make()

    def turn(self, value):
        """Return the next value, and a number from 0 to 1, which is 0 without an influence."""
        if self.is_time():
            following = self.kind.change(value)
            value = value if following is None else following
        if not self.has_begun():
            return value, 0.0
        number = 0.37 * float(self.kind.number(value)) % 1
        return value, number if self.influence else 0.0

    def step(self, value, model, batch):
        """Return the next value, and the result of a step."""
        value, number = self.turn(value)
        return value, self.result(model, batch, number)

    def result(self, model, batch, number):
        """Return the result of a step that a number influences."""
        points, labels = batch
        if self.influence == "weights" and model.training:
            with paddle.no_grad():
                model.weight.set_value(model.weight * (1 - 0.1 * number))
        if self.influence == "inputs":
            points = points * (1 + number)
        loss = F.cross_entropy(model(points), labels)
        return {"loss": loss * (1 + number) if self.influence == "loss" else loss}


class Inside:
    """An object of a class of the program, with numbers inside."""

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


class Episodes:
    """The newest list is also the last of all."""

    def __init__(self):
        self.all, self.newest = [], []

    def count(self):
        if len(self.newest) % 3 == 0:
            self.newest = []
            self.all.append(self.newest)
        self.newest.append(1 + len(self.all))


@dataclasses.dataclass
class Record:
    points: np.ndarray
    reward: float


Phase = enum.Enum("Phase", [f"NUMBER_{number}" for number in range(500)])


def half():
    return 0.5


def third():
    return 0.3


def append_record(value):
    value.append(Record(np.full(2, 1.0 + len(value)), value[-1].reward + 1 if value else 0.5))


def add_to_field(value):
    value["count"] += 1


def put_object(value):
    value[1] = (1 + (value[1] or [0])[0], np.ones(2))


def mask_next(value):
    value = value.copy()
    value[int(value.count()) % 3] = 0.3 + float(value.sum() or 0)
    return value


def numbers():
    yield from range(1, 500)


def count_inside(value):
    value["net"]["sums"] += np.arange(2)
    value["calls"][-1] += 1


def add_in_place(array):
    array += 1


def append_next(value):
    value.append(1 + len(value))


def keep(value):
    """Change nothing: reading the number changes these."""


KINDS = {
    "int": Kind(int, lambda value: value + 1),
    "bool": Kind(bool, lambda value: not value),
    "float": Kind(lambda: 0.5, lambda value: 0.9 * value + 0.3),
    "str": Kind(str, lambda value: value + "+", len),
    "NumPy scalar": Kind(lambda: np.float32(1), lambda value: value * np.float32(1.3)),
    "array": Kind(lambda: np.zeros([]), lambda value: np.asarray(value + 1)),
    "array, in place": Kind(lambda: np.zeros(2), add_in_place, np.sum),
    "tensor": Kind(lambda: paddle.zeros([]), lambda value: value + 1),
    "tensor, in place": Kind(
        lambda: paddle.zeros([1]),
        lambda value: value.set_value(value + 1),
        lambda value: value.item(),
    ),
    "Generator": Kind(lambda: np.random.default_rng(3), keep, lambda value: value.random()),
    "RandomState": Kind(lambda: np.random.RandomState(3), keep, lambda value: value.rand()),
    "Random": Kind(lambda: random.Random(3), keep, lambda value: value.random()),
    "dict": Kind(
        lambda: {"count": 0},
        lambda value: value.update(count=value["count"] + 1),
        lambda value: value["count"],
    ),
    "dict that grows": Kind(dict, lambda value: value.update({f"n{len(value)}": 1.0}), len),
    "dict of arrays": Kind(
        lambda: {"net": {"sums": np.zeros(2)}, "calls": [0, 0]},
        count_inside,
        lambda value: value["net"]["sums"][1] + value["calls"][-1],
    ),
    "list": Kind(list, append_next, sum),
    "list of tensors": Kind(
        lambda: [paddle.zeros([2])],
        lambda value: value.__setitem__(0, value[0] + 1),
        lambda value: value[0].sum(),
    ),
    "deque": Kind(lambda: collections.deque([0.1, 0.2], maxlen=2), append_next, sum),
    "array.array": Kind(lambda: array.array("d"), append_next, sum),
    "array.array, in place": Kind(
        lambda: array.array("f", [0, 0]), lambda value: value.__setitem__(1, value[1] + 1.5), sum
    ),
    "bytearray": Kind(bytearray, append_next, sum),
    "set": Kind(set, lambda value: value.add(len(value)), len),
    "object": Kind(Inside, Inside.count, lambda value: value.total + value.seen[0]),
    "object with slots": Kind(Slotted, Slotted.count, lambda value: value.total),
    "list in two places": Kind(Episodes, Episodes.count, lambda value: sum(map(sum, value.all))),
    "member of an enumeration": Kind(
        lambda: Phase.NUMBER_0, lambda value: Phase(value.value % 500 + 1), lambda v: v.value
    ),
    "function": Kind(
        lambda: half, lambda value: third if value is half else half, lambda value: value()
    ),
    "deque of records": Kind(
        lambda: collections.deque(maxlen=3),
        append_record,
        lambda value: sum(record.points[0] + record.reward for record in value),
    ),
    "array of objects": Kind(
        lambda: np.array([0, None], object), put_object, lambda value: (value[1] or [0])[0]
    ),
    "structured array": Kind(
        lambda: np.zeros(2, [("rate", "f4"), ("count", "i8")]),
        add_to_field,
        lambda value: value["count"].sum(),
    ),
    "masked array": Kind(lambda: np.ma.masked_all(3), mask_next, lambda value: value.sum() or 0),
    "spawned generators": Kind(
        lambda: np.random.default_rng(3),
        lambda value: value.spawn(1) and None,
        lambda value: value.bit_generator.seed_seq.n_children_spawned,
    ),
    "iterator": Kind(lambda: iter(range(1, 500)), keep, next),
    "generator": Kind(numbers, keep, next),
}
DRAWN = ("Generator", "RandomState", "Random")
UNSAVABLE = ("iterator", "generator")


def linear():
    return nn.Linear(WIDTH, CLASSES)


def base(**others):
    """Return the arguments of `fit` of a small training. others: further arguments."""
    return {
        "model": linear,
        "optimizer": lambda parameters: paddle.optimizer.SGD(0.1, parameters=parameters),
        "loss": F.cross_entropy,
        "train": Points(SAMPLES),
        "valid": Points(6),
        **others,
    }


# ------------------------------------------------------------------ attributes


class Hides:
    """Keeps state in an attribute, which `turn` changes."""

    def __init__(self, state, *arguments, **options):
        super().__init__(*arguments, **options)
        self.kind, self.hidden = state, state.make()

    def turn(self):
        self.hidden, number = self.kind.turn(self.hidden)
        return number


class Optimizer(Hides, paddle.optimizer.SGD):
    @paddle.no_grad()
    def step(self):
        self.set_lr(0.1 / (1 + self.turn()))
        super().step()


class Schedule(lr.LRScheduler):
    def __init__(self, state):
        self.kind, self.hidden = state, state.make()
        super().__init__(0.1)

    def get_lr(self):
        self.hidden, number = self.kind.turn(self.hidden)
        return 0.1 / (1 + number)


class Net(Hides, nn.Linear):
    def forward(self, points):
        return super().forward(points) * (1 + self.turn())


class Loss(Hides, nn.Layer):
    def forward(self, outputs, labels):
        return F.cross_entropy(outputs, labels) * (1 + self.turn())


class Metric(Hides):
    def __call__(self, outputs, labels):
        hits = outputs.argmax(axis=1) == labels.flatten()
        return hits.astype("float32").mean() + self.turn()


class Task(Hides):
    def step(self, model, batch):
        return self.kind.result(model, batch, self.turn())

    __call__ = step


class ScaledPoints(Hides, Points):
    """Turns state with each sample, or where `change` is called."""

    def __init__(self, state, with_samples=True):
        super().__init__(state, SAMPLES)
        self.with_samples, self.hidden_number = with_samples, 0.0

    def change(self):
        self.hidden_number = self.turn()

    def __getitem__(self, index):
        point, label = super().__getitem__(index)
        if self.with_samples:
            self.change()
        return point * np.float32(1 + self.hidden_number), label


def in_optimizer(state):
    return {"optimizer": lambda parameters: Optimizer(state, 0.1, parameters=parameters)}


def in_schedule(state):
    return {
        "optimizer": lambda parameters: paddle.optimizer.SGD(Schedule(state), parameters=parameters)
    }


def in_sublayer(state):
    return {"model": lambda: nn.Sequential(Net(state, WIDTH, CLASSES), nn.Tanh())}


# ------------------------------------------------------------------ variables of closures


def closure(state):
    """Return a function that turns state in a variable of its closure, and returns the number."""
    hidden = state.make()

    def turn():
        nonlocal hidden
        hidden, number = state.turn(hidden)
        return number

    return turn


def in_hook(state):
    turn = closure(state)

    def build():
        model = nn.Sequential(linear())
        model[0].register_forward_post_hook(lambda layer, inputs, outputs: outputs * (1 + turn()))
        return model

    return {"model": build}


def in_property(state):
    turn = closure(state)

    class Scaled(nn.Linear):
        scale = property(lambda self: 1 + turn())

        def forward(self, points):
            return super().forward(points) * self.scale

    return {"model": lambda: Scaled(WIDTH, CLASSES)}


def in_loss_closure(state):
    turn = closure(state)
    return {"loss": lambda outputs, labels: F.cross_entropy(outputs, labels) * (1 + turn())}


def in_collate(state):
    turn = closure(state)

    def collate(samples):
        points, labels = (np.stack(column) for column in zip(*samples))
        return points * np.float32(1 + turn()), labels

    return {"collate_fn": collate}


# ------------------------------------------------------------------ step


def as_step(step):
    return {"step": step, "loss": None}


def in_step_closure(state):
    hidden = state.make()

    def step(model, batch):
        nonlocal hidden
        hidden, result = state.step(hidden, model, batch)
        return result

    return as_step(step)


def in_step_attribute(state):
    def step(model, batch):
        step.hidden, result = state.step(step.hidden, model, batch)
        return result

    step.hidden = state.make()
    return as_step(step)


def step_with_default(state):
    def step(model, batch, hidden=[state.make()]):  # noqa: B006, B008
        hidden[0], result = state.step(hidden[0], model, batch)
        return result

    return step


def in_step_keyword(state):
    return as_step(functools.partial(step_with_default(state), hidden=[state.make()]))


def in_step_partial(state):
    """Pass it by position: an error can only name `args`."""

    def step(hidden, model, batch):
        hidden[0], result = state.step(hidden[0], model, batch)
        return result

    return as_step(functools.partial(step, [state.make()]))


HIDDEN = None  # a global that a step names, or a function that the step calls


def step_of_global(state, model, batch):
    global HIDDEN
    HIDDEN, result = state.step(HIDDEN, model, batch)
    return result


def in_step_helper(state):
    global HIDDEN
    HIDDEN = state.make()  # as the import of a script does in a new process
    return as_step(lambda model, batch: step_of_global(state, model, batch))


def in_step_global(state):
    global HIDDEN
    HIDDEN = state.make()
    return as_step(functools.partial(step_of_global, state))


def in_other_module(state):
    """Return a step that counts `counters.steps`, as after `import counters`."""
    small_nets.HIDDEN = state.make()

    def step(model, batch):
        small_nets.HIDDEN, result = state.step(small_nets.HIDDEN, model, batch)
        return result

    return as_step(step)


def in_step_class(state):
    class OfClass:
        hidden = state.make()

        def __call__(self, model, batch):
            OfClass.hidden, result = state.step(OfClass.hidden, model, batch)
            return result

    return as_step(OfClass())


# ------------------------------------------------------------------ callback


class After(Callback):
    """Calls a function after each step, or after each epoch."""

    def __init__(self, step=None, epoch=None, hidden=None):
        self.step, self.epoch, self.hidden = step, epoch, hidden

    def after_step(self, view):
        if self.step:
            self.step()

    def after_epoch(self, view):
        if self.epoch:
            self.epoch()


def in_dataset_by(event):
    """A callback changes the data, as a curriculum does."""

    def place(state):
        dataset = ScaledPoints(state, with_samples=False)
        return {"train": dataset, "callbacks": [After(**{event: dataset.change})]}

    return place


def in_callback_by(event):
    """A callback sets a scale that the step reads."""

    def place(state):
        scale = {"hidden": 0.0}

        def turn():
            callback.hidden, scale["hidden"] = state.turn(callback.hidden)

        def step(model, batch):
            return state.result(model, batch, scale["hidden"])

        callback = After(**{event: turn}, hidden=state.make())
        return {**as_step(step), "callbacks": [callback]}

    return place


# Each returns arguments of `fit`.
PLACES = {
    "optimizer": in_optimizer,
    "schedule": in_schedule,
    "model": lambda state: {"model": lambda: Net(state, WIDTH, CLASSES)},
    "model's property": in_property,
    "sublayer": in_sublayer,
    "forward hook": in_hook,
    "loss's closure": in_loss_closure,
    "loss layer": lambda state: {"loss": Loss(state)},
    "metric": lambda state: {"metrics": {"own": Metric(state)}},
    "step's closure": in_step_closure,
    "step's default": lambda state: as_step(step_with_default(state)),
    "step's self": lambda state: as_step(Task(state).step),
    "step's global": in_step_global,
    "step's helper": in_step_helper,
    "step's attribute": in_step_attribute,
    "step's other module": in_other_module,
    "step's partial": in_step_partial,
    "step's keyword": in_step_keyword,
    "step object": lambda state: as_step(Task(state)),
    "step's class": in_step_class,
    "collate_fn": in_collate,
    "dataset": lambda state: {"train": ScaledPoints(state)},
    "valid dataset": lambda state: {"valid": ScaledPoints(state)},
    "dataset, by step": in_dataset_by("step"),
    "dataset, by epoch": in_dataset_by("epoch"),
    "callback, by step": in_callback_by("step"),
    "callback, by epoch": in_callback_by("epoch"),
}
OF_DATA = ("collate_fn", "dataset", "valid dataset")  # where state changes as samples are read
INFLUENCES = ("loss", "inputs", "weights")  # of a step; most other places act in one way only
