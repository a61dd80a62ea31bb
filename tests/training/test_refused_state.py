"""Before its first step `fit` refuses state that it cannot save, and waste that nobody sees."""

import functools
from decimal import Decimal

import numpy as np
import paddle
import pytest
from fit_rows import momentum, train
from paddle import nn
from paddle.nn import functional as F
from small_nets import CLASSES, WIDTH, Points, perceptron
from stateful_rows import CenterLoss

from paddle_mnist.errors import ConfigError

SEEDED = ["numpy.random", "seeded"]  # the remedy for samples that differ


class Noisy(Points):
    """Adds noise from a generator of its own."""

    def __init__(self, rng):
        super().__init__()
        self.rng = rng

    def __getitem__(self, index):
        point, label = super().__getitem__(index)
        return point + np.float32(0.3 * self.rng.random()), label


class NoisyClass(Points):
    """The same from a generator of its class."""

    rng = np.random.default_rng(0)

    def __getitem__(self, index):
        point, label = super().__getitem__(index)
        return point + np.float32(0.3 * type(self).rng.random()), label


class Counter(Points):
    def __init__(self):
        super().__init__()
        self.reads = 0

    def __getitem__(self, index):
        self.reads += 1
        point, label = super().__getitem__(index)
        return point * np.float32(1 + 0.01 * self.reads), label


def counting_collate():
    batches = [0]

    def collate(samples):
        batches[0] += 1
        points, labels = (np.stack(column) for column in zip(*samples))
        return points * np.float32(1 + 0.01 * batches[0]), labels

    return collate


class Lazy(nn.Layer):
    """Makes its last layer when it sees what comes to it."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, 8), None

    def forward(self, points):
        hidden = F.relu(self.body(points))
        if self.head is None:
            self.head = nn.Linear(hidden.shape[-1], CLASSES)
        return self.head(hidden)


def first_layer_only(parameters):
    return momentum(parameters[:2])


def net_only(parameters):
    return momentum(parameters[:4])  # the loss's follow


def step_with_iterator():
    scales = iter([1 + number / 10 for number in range(500)])

    def step(model, batch):
        points, labels = batch
        scale = next(scales) if model.training else 1.0
        return {"loss": F.cross_entropy(model(points), labels) * scale}

    return step


def step_with_decimal():
    """Each step reads and replaces an object that no checkpoint can hold."""
    scales = [Decimal(1)]

    def step(model, batch):
        loss = F.cross_entropy(model(batch[0]), batch[1]) * float(scales[0])
        if model.training:
            scales[0] *= Decimal("1.1")
        return {"loss": loss}

    return step


def step_with_large_memory():
    """Each step reads what the step before has added to a dict that is too large to examine."""
    memory, count = dict.fromkeys(range(20000), 1.0), [20_000]

    def step(model, batch):
        points, labels = batch
        if model.training:
            memory[count[0]] = 0.9 * memory[count[0] - 1]
            count[0] += 1
        return {"loss": F.cross_entropy(model(points), labels)}

    return step


class TaskWeights(nn.Layer):
    """Learns the weights of two losses, outside the model."""

    def __init__(self):
        super().__init__()
        zero = nn.initializer.Constant(0.0)
        self.logs = self.create_parameter([2], default_initializer=zero)

    def forward(self, *losses):
        return sum((self.logs[i].exp() * loss - self.logs[i]) for i, loss in enumerate(losses))


def two_losses(weigh):
    def step(model, batch):
        outputs = model(batch[0])
        return {"loss": weigh(F.cross_entropy(outputs, batch[1]), outputs.square().mean())}

    return step


def weighed(weigh, outputs, labels):
    return weigh(F.cross_entropy(outputs, labels))


class Unregistered(nn.Layer):
    """Has a layer in a list, of which Paddle does not know."""

    def __init__(self):
        super().__init__()
        self.body, self.heads = nn.Linear(WIDTH, 8), [nn.Linear(8, CLASSES)]

    def forward(self, points):
        return self.heads[0](F.relu(self.body(points)))


class HalfAState:
    def state_dict(self):
        return {}


def plain_step(model, batch):
    return {"loss": F.cross_entropy(model(batch[0]), batch[1])}


def with_step(step, **others):
    return {"step": step, "loss": None, "metrics": None, **others}


# What is given to fit, made anew for each call, and what the error must say.
REFUSED = {
    "dataset's NumPy generator": (
        lambda: {"train": Noisy(np.random.default_rng(0)), "valid": Points()},
        ["rng", *SEEDED],
    ),
    "generator of the dataset's class": (
        lambda: {"train": NoisyClass(), "valid": Points()},
        ["rng", *SEEDED],
    ),
    "dataset's counter": (lambda: {"train": Counter(), "valid": Points()}, ["reads"]),
    "counter of the data to evaluate": (lambda: {"valid": Counter()}, ["reads"]),
    "collate_fn's counter": (lambda: {"collate_fn": counting_collate()}, ["batches"]),
    "layer made in the first pass": (lambda: {"model": Lazy}, ["head", "first"]),
    "parameters without an optimizer": (
        lambda: {"optimizer": first_layer_only},
        ["2.weight", "optimizer", "stop_gradient"],
    ),
    "loss's parameters without an optimizer": (
        lambda: {"loss": CenterLoss(), "optimizer": net_only},
        ["centers", "optimizer"],
    ),
    "parameters of the step without an optimizer": (
        lambda: with_step(two_losses(TaskWeights())),
        ["step.weigh.logs", "optimizer", "stop_gradient"],
    ),
    "parameters of a loss function without an optimizer": (
        lambda: {"loss": functools.partial(weighed, TaskWeights())},
        ["loss.args[0].logs", "optimizer"],
    ),
    "unregistered parameters of the model": (
        lambda: {"model": Unregistered},
        ["model.heads[0].weight", "optimizer"],
    ),
    "iterator in the step's closure": (
        lambda: with_step(step_with_iterator()),
        ["scales", "state="],
    ),
    "object that no checkpoint can hold": (
        lambda: with_step(step_with_decimal()),
        ["scales", "Decimal", "state="],
    ),
    "state without a state_dict": (
        lambda: {"state": {"teacher": object()}},
        ["teacher", "object", "state_dict"],
    ),
    "state that cannot be set": (
        lambda: {"state": {"teacher": HalfAState()}},
        ["teacher", "HalfAState", "set_state_dict"],
    ),
    "a list of states": (lambda: {"state": [nn.Linear(2, 2)]}, ["state", "list", "dict"]),
}


def call(output, values):
    return train("SGD with clipping", output, **{"optimizer": momentum, "epochs": 1, **values})


@pytest.mark.parametrize("what", REFUSED)
def test_fit_state_that_cannot_be_saved_raises_with_the_remedy_before_anything_is_saved(
    what, tmp_path
):
    build, words = REFUSED[what]
    with pytest.raises(ConfigError) as refusal:
        call(tmp_path, build())
    text = str(refusal.value)
    assert not [word for word in words if word not in text], text
    assert "\n" not in text and len(text) < 700
    kinds = ("*.pdparams", "*.pdopt", "*.json")
    assert not [path for kind in kinds for path in tmp_path.rglob(kind)]
    with pytest.raises(ConfigError):  # nothing is left that the second call would resume
        call(tmp_path, build())


def test_fit_names_what_is_too_large_where_a_repeated_step_fails(tmp_path, lines):
    with pytest.raises(
        ConfigError, match=r"KeyError: .*step\.memory \(20000 items\).*give fit state"
    ):
        call(tmp_path, with_step(step_with_large_memory()))
    (line,) = (line for line in lines() if line.startswith("too large to be examined"))
    assert "step.memory (20000 items)" in line and "give fit state=" in line


class SharedHead(nn.Layer):
    """Has a layer that no pass uses: it gets no gradient, though the optimizer has it."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(WIDTH, CLASSES), nn.Linear(2, 2)

    def forward(self, points):
        return self.used(points)


def half_frozen():
    model = perceptron()
    for parameter in model[0].parameters():
        parameter.stop_gradient = True
    return model


def of_unfrozen(parameters):
    return momentum([parameter for parameter in parameters if not parameter.stop_gradient])


def by_two_optimizers():
    """The step trains the last layer, by an optimizer in `state`."""
    model = perceptron()
    second = paddle.optimizer.Adam(0.01, parameters=model[-1].parameters())

    def step(model, batch):
        points, labels = batch
        if model.training:
            second.clear_grad()
            F.cross_entropy(model(points), labels).backward()
            second.step()
            model.clear_gradients()
        return {"loss": F.cross_entropy(model(points), labels)}

    return {
        **with_step(step),
        "model": model,
        "optimizer": momentum(model[0].parameters()),
        "state": {"second": second},
    }


def net_and_loss_in_one_optimizer():
    model, loss = perceptron(), CenterLoss()
    optimizer = momentum([*model.parameters(), *loss.parameters()])
    return {"model": model, "loss": loss, "optimizer": optimizer}


ALLOWED = {
    "a layer that no pass uses": lambda: {"model": SharedHead},
    "frozen layers": lambda: {"model": half_frozen, "optimizer": of_unfrozen},
    "parameters of an optimizer in state": by_two_optimizers,
    "objects: one optimizer of net and loss": net_and_loss_in_one_optimizer,
    "state that does not change": lambda: {"state": {"other": nn.Linear(2, 2)}},
}


@pytest.mark.parametrize("what", ALLOWED)
def test_fit_state_that_is_no_waste_trains(what, tmp_path):
    assert call(tmp_path, ALLOWED[what]()).stopped == "finished"


def test_fit_parameters_of_a_loss_are_trained_and_loaded_again(tmp_path):
    """After a resume the loss's parameters are those that were trained, not the initial ones."""
    losses = [CenterLoss(), CenterLoss()]
    initial = losses[0].centers.numpy()
    for loss in losses:  # the second call finds the run finished
        call(tmp_path, {"loss": loss})
    trained = losses[0].centers.numpy()
    assert np.abs(trained - initial).max() > 1e-3
    np.testing.assert_array_equal(losses[1].centers.numpy(), trained)
