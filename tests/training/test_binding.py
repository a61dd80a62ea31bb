"""Comparisons of a resume: a table of what changes which entry, and of what changes none."""

import itertools
import json
import random

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.optimizer import lr

from paddle_mnist.training.description import (
    describe_data,
    describe_optimizer,
    describe_parameters,
    describe_schedule,
    flattened,
)

optim = paddle.optimizer


def perceptron(width=4):
    return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2))


def describe(make, model=None):
    """The description of an optimizer that a function makes of a model's parameters."""
    with paddle.utils.unique_name.guard():
        model = model or perceptron()
        optimizer = make(model.parameters())
    return flattened(
        {
            "optimizer": describe_optimizer(optimizer, model),
            "schedule": describe_schedule(optimizer),
        }
    )


def of(kind, *arguments, **options):
    return lambda parameters: kind(*arguments, parameters=parameters, **options)


def groups(**first):
    def make(parameters):
        return optim.AdamW(
            0.1, parameters=[{"params": parameters[:2], **first}, {"params": parameters[2:]}]
        )

    return make


def unequal_groups(parameters):
    return optim.AdamW(0.1, parameters=[{"params": parameters[:1]}, {"params": parameters[1:]}])


def warmup(rate, steps):
    return lr.LinearWarmup(lr.StepDecay(rate, 2), steps, 0.0, 1.0)


# what is compared with what, and the entries in which they must differ
CHANGES = {
    "rate": (of(optim.SGD, 0.1), of(optim.SGD, 0.2), "optimizer.learning_rate"),
    "class": (
        of(optim.Adam, 0.1),
        of(optim.Adamax, 0.1),
        "optimizer.class optimizer.lazy_mode optimizer.amsgrad",
    ),
    "momentum": (
        of(optim.Momentum, 0.1, 0.9),
        of(optim.Momentum, 0.1, 0.8),
        "optimizer.momentum",
    ),
    "Nesterov": (
        of(optim.Momentum, 0.1),
        of(optim.Momentum, 0.1, use_nesterov=True),
        "optimizer.use_nesterov",
    ),
    "beta1": (of(optim.Adam, 0.1), of(optim.Adam, 0.1, beta1=0.8), "optimizer.beta1"),
    "lazy_mode": (of(optim.Adam, 0.1), of(optim.Adam, 0.1, lazy_mode=True), "optimizer.lazy_mode"),
    "multi_precision": (
        of(optim.Adam, 0.1),
        of(optim.Adam, 0.1, multi_precision=True),
        "optimizer.multi_precision",
    ),
    "always_adapt": (
        of(optim.Lamb, 0.1),
        of(optim.Lamb, 0.1, always_adapt=True),
        "optimizer.always_adapt",
    ),
    "decay of AdamW": (
        of(optim.AdamW, 0.1),
        of(optim.AdamW, 0.1, weight_decay=0.3),
        "optimizer.weight_decay",
    ),
    "decay of SGD": (
        of(optim.SGD, 0.1, weight_decay=0.1),
        of(optim.SGD, 0.1, weight_decay=0.2),
        "optimizer.regularization",
    ),
    "no decay": (
        of(optim.SGD, 0.1),
        of(optim.SGD, 0.1, weight_decay=0.2),
        "optimizer.regularization optimizer.weight_decay",
    ),
    "L1 for L2": (
        of(optim.SGD, 0.1, weight_decay=paddle.regularizer.L1Decay(0.1)),
        of(optim.SGD, 0.1, weight_decay=paddle.regularizer.L2Decay(0.1)),
        "optimizer.regularization",
    ),
    "clipping": (
        of(optim.SGD, 0.1),
        of(optim.SGD, 0.1, grad_clip=nn.ClipGradByGlobalNorm(1.0)),
        "optimizer.grad_clip",
    ),
    "norm of clipping": (
        of(optim.SGD, 0.1, grad_clip=nn.ClipGradByNorm(2.0)),
        of(optim.SGD, 0.1, grad_clip=nn.ClipGradByNorm(1.0)),
        "optimizer.grad_clip",
    ),
    "kind of clipping": (
        of(optim.SGD, 0.1, grad_clip=nn.ClipGradByNorm(1.0)),
        of(optim.SGD, 0.1, grad_clip=nn.ClipGradByGlobalNorm(1.0)),
        "optimizer.grad_clip",
    ),
    "least of clipping": (
        of(optim.SGD, 0.1, grad_clip=nn.ClipGradByValue(1.0, -1.0)),
        of(optim.SGD, 0.1, grad_clip=nn.ClipGradByValue(1.0, -0.5)),
        "optimizer.grad_clip",
    ),
    "rate of a group": (
        groups(learning_rate=0.5),
        groups(learning_rate=0.4),
        "optimizer.group0.learning_rate",
    ),
    "decay of a group": (
        groups(weight_decay=0.5),
        groups(weight_decay=0.4),
        "optimizer.group0.weight_decay",
    ),
    "parameters of groups": (
        groups(),
        unequal_groups,
        "optimizer.group0.parameters optimizer.group1.parameters",
    ),
    "a schedule": (
        of(optim.SGD, 0.1),
        of(optim.SGD, lr.NoamDecay(10, 5)),
        "optimizer.learning_rate schedule.class schedule.base_lr schedule.d_model "
        "schedule.last_epoch schedule.last_lr schedule.verbose schedule.warmup_steps",
    ),
    "its numbers": (
        of(optim.SGD, lr.StepDecay(0.1, 2)),
        of(optim.SGD, lr.StepDecay(0.1, 3)),
        "schedule.step_size",
    ),
    "its boundaries": (
        of(optim.SGD, lr.MultiStepDecay(0.1, [2, 4])),
        of(optim.SGD, lr.MultiStepDecay(0.1, [2, 5])),
        "schedule.milestones",
    ),
    "what follows a warm-up": (
        of(optim.SGD, warmup(0.1, 3)),
        of(optim.SGD, warmup(0.2, 3)),
        "schedule.learning_rate.base_lr schedule.learning_rate.last_lr",
    ),
}
if hasattr(optim, "Rprop"):  # Paddle 3
    CHANGES |= {
        "amsgrad": (of(optim.Adam, 0.1), of(optim.Adam, 0.1, amsgrad=True), "optimizer.amsgrad"),
        "etas of Rprop": (
            of(optim.Rprop, 0.1),
            of(optim.Rprop, 0.1, etas=(0.4, 1.2)),
            "optimizer.etas",
        ),
        "batches of ASGD": (
            of(optim.ASGD, 0.1),
            of(optim.ASGD, 0.1, batch_num=3),
            "optimizer.batch_num",
        ),
    }


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_of_an_optimizer_shows_where_it_was_made(change):
    one, other, expected = CHANGES[change]
    one, other = describe(one), describe(other)
    missing = object()
    differing = {name for name in one | other if one.get(name, missing) != other.get(name, missing)}
    allowed = set(expected.split())
    assert differing <= allowed and next(iter(expected.split())) in differing, differing


@pytest.mark.parametrize("change", CHANGES)
def test_optimizers_that_are_made_again_have_the_same_description(change):
    for make in CHANGES[change][:2]:
        assert describe(make) == describe(make)


def test_descriptions_are_plain_values_that_json_keeps():
    for one, other, _ in CHANGES.values():
        for make in (one, other):
            description = describe(make)
            assert json.loads(json.dumps(description)) == description


@pytest.mark.parametrize("kind", ["SGD", "Adam", "Rprop", "ASGD"])
def test_steps_do_not_change_the_description_of_an_optimizer(kind):
    if not hasattr(optim, kind):
        pytest.skip("not in Paddle 2.6.2")
    model = perceptron()
    optimizer = getattr(optim, kind)(0.01, parameters=model.parameters())
    before = describe_optimizer(optimizer, model)
    model(paddle.ones([2, 3])).sum().backward()
    optimizer.step()
    assert describe_optimizer(optimizer, model) == before


def test_parameters_of_groups_have_the_names_of_the_net():
    """Paddle's generated names differ when a net is built twice in a process."""
    description = describe(groups())
    assert description["optimizer.group0.parameters"] == ["0.weight", "0.bias"]
    model = perceptron()
    other = describe_optimizer(groups()(model.parameters()), model)
    assert other["group0"]["parameters"] == ["0.weight", "0.bias"]


def test_parameters_are_told_by_name_shape_dtype_and_whether_they_are_trained():
    model = perceptron()
    expected = {
        "0.weight": "[3, 4] float32",
        "0.bias": "[4] float32",
        "2.weight": "[4, 2] float32",
        "2.bias": "[2] float32",
    }
    assert describe_parameters(model) == expected
    model[0].weight.stop_gradient = True
    assert describe_parameters(model) == {**expected, "0.weight": "[3, 4] float32 frozen"}
    assert describe_parameters(perceptron(5))["0.weight"] == "[3, 5] float32"
    assert describe_parameters(model.to(dtype="float64"))["2.bias"] == "[2] float64"


def test_nested_names_are_joined():
    nested = {"a": {"b": {"c": 1}, "d": [2]}, "e": None, "f": {}}
    assert flattened(nested) == {"a.b.c": 1, "a.d": [2], "e": None}


class Samples(paddle.io.Dataset):
    def __init__(self, samples):
        self.samples = samples
        self.read = []

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        self.read.append(index)
        sample = self.samples[index]
        return sample() if callable(sample) else sample


class Marked(Samples):
    fingerprint = "v1"


class MarkedBy(Samples):
    def fingerprint(self):
        return len(self.samples[0])


class Stream(paddle.io.IterableDataset):
    def __iter__(self):
        return iter([1])


def floats(*values):
    return np.array(values, "float32")


FIVE = [floats(value, 2) for value in range(5)]


def with_one(index, sample):
    return Samples([*FIVE[:index], sample, *FIVE[index + 1 :]])


TOLD_APART = {
    "five": Samples(FIVE),
    "one less": Samples(FIVE[:4]),
    "another first": with_one(0, floats(9, 2)),
    "another in the middle": with_one(2, floats(9, 2)),
    "another last": with_one(4, floats(9, 2)),
    "of another dtype": with_one(0, FIVE[0].astype("float64")),
    "of another shape": with_one(0, FIVE[0][:, np.newaxis]),
    "a pair": with_one(0, (FIVE[0], 1)),
    "another pair": with_one(0, (FIVE[0], 2)),
    "a text": with_one(0, {"x": FIVE[0], "name": "a"}),
    "another text": with_one(0, {"x": FIVE[0], "name": "b"}),
    "without one": with_one(0, {"x": FIVE[0], "name": None}),
    "with a set": with_one(0, {"x": FIVE[0], "name": {1}}),
    "ragged": with_one(0, np.array([floats(1), floats(1, 2)], object)),
    "ragged in another way": with_one(0, np.array([floats(1), floats(1, 3)], object)),
    "a fingerprint": Marked(FIVE),
    "a method": MarkedBy(FIVE),
    "a stream": Stream(),
    "a function": lambda: iter([]),
    "a loader": paddle.io.DataLoader(Samples(FIVE), batch_size=2),
    "smaller batches": paddle.io.DataLoader(Samples(FIVE), batch_size=1),
    "nothing": Samples([]),
}


def test_data_are_told_apart():
    descriptions = {name: describe_data(data, 1) for name, data in TOLD_APART.items()}
    for one, other in itertools.combinations(descriptions, 2):
        assert descriptions[one] != descriptions[other], (one, other)
    assert descriptions["five"]["length"] == 5
    assert descriptions["a function"] == {"length": None, "class": "function"}
    assert descriptions["a stream"] == {"length": None, "class": "Stream"}
    assert descriptions["a fingerprint"] == {"length": 5, "fingerprint": "v1"}


SAME = {
    "a copy": Samples([sample.copy() for sample in FIVE]),
    "a list": FIVE,
    "tensors": Samples([paddle.to_tensor(sample) for sample in FIVE]),
    "a sample that is not looked at": with_one(1, floats(9, 9)),
    "not contiguous": Samples([np.stack([sample, sample], 1)[:, 0] for sample in FIVE]),
}


@pytest.mark.parametrize("kind", SAME)
def test_the_same_data_in_another_form_are_the_same(kind):
    assert describe_data(SAME[kind], 1) == describe_data(Samples(FIVE), 1)


def test_only_three_samples_are_read():
    data = Samples([1] * 9)
    describe_data(data, 1)
    assert data.read == [0, 4, 8]


def test_random_samples_have_one_description_and_draw_from_nobody():
    data = Samples([lambda: (random.random(), np.random.rand(2), paddle.rand([2]))] * 3)
    random.seed(1), np.random.seed(1), paddle.seed(1)
    first = describe_data(data, 1)
    drawn = random.random(), np.random.rand(), paddle.rand([1]).item()
    assert describe_data(data, 1) == first != describe_data(data, 2)
    random.seed(1), np.random.seed(1), paddle.seed(1)
    assert (random.random(), np.random.rand(), paddle.rand([1]).item()) == drawn


def test_samples_that_workers_read_are_read_by_one_here_too():
    """A file that a dataset opened in this process would be one for all workers."""
    data = Samples(FIVE)
    assert describe_data(data, 1, num_workers=2) == describe_data(Samples(FIVE), 1)
    assert data.read == []


class Thing:
    """An object for a `collate_fn` to make something of."""


def test_objects_have_the_same_description_wherever_they_lie():
    """Their bytes in an array are addresses; a resume in a new process was refused for them."""
    one, other = (
        [(None, {1, "a"}, np.array([Thing(), "b", 2.5], object), Thing())] for _ in range(2)
    )
    assert describe_data(one, 1) == describe_data(other, 1)
