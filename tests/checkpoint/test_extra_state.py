"""The file of extra state: what can be in it comes back, and what it must not change stays."""

import array
import collections
import json
import random

import numpy as np
import paddle
import pytest
from paddle import nn

from paddle_mnist.checkpoint.safe_load import safe_loads
from paddle_mnist.checkpoint.statefile import SavedState
from paddle_mnist.errors import CheckpointError
from paddle_mnist.hidden_state.extra_state import ExtraState
from paddle_mnist.hidden_state.packing import STRUCTURE, copied, pack, unpack
from paddle_mnist.hidden_state.plain_data import equal, is_plain

Named = collections.namedtuple("Named", "points reward")
GENERATORS = [
    random.Random(5),
    np.random.RandomState(5),
    np.random.default_rng(5),
    np.random.Generator(np.random.Philox(5)),
    np.random.Generator(np.random.MT19937(5)),
]
for generator in GENERATORS:
    generator.random()
LEAVES = [
    *(None, True, 3, 2**70, -0.0, float("nan"), 1 + 2j, "text", b"bytes"),
    *(np.float32(0.1), np.float64(-0.0), np.int8(-3), np.bool_(True), np.float16(2)),
    *(np.arange(6.0).reshape(2, 3), np.array(7), np.zeros((0, 3), "int64"), np.array([1 + 2j])),
    np.array([np.nan, -0.0], "float32"),
    *(paddle.to_tensor([1.0, 2.5]).astype(dtype) for dtype in ("float32", "int64", "bfloat16")),
    *(bytearray(b"ab"), array.array("f", [0.5]), array.array("q", [-3]), array.array("u", "text")),
    *GENERATORS,
]
CONTAINERS = [
    LEAVES,
    tuple(LEAVES),
    {(number, "key"): leaf for number, leaf in enumerate(LEAVES)},
    {1: [], "1": {}, False: [{2}, frozenset("ab")]},
    Named(np.ones(2), 1.5),
    collections.deque([Named(1, None)], maxlen=3),
    collections.Counter(a=2),
    collections.OrderedDict(b=1, a=2),
    collections.defaultdict(list, {"a": [1]}),
]


def packed_and_read(value):
    return unpack(safe_loads(SavedState(pack(value)).to_bytes()), {}, "file")


def test_plain_data_that_are_saved_come_back_bit_for_bit():
    for value in (*LEAVES, *CONTAINERS):
        assert is_plain(value), value
        again = packed_and_read(value)
        assert type(again) is type(value) and equal(again, value) and equal(copied(value), value)
        assert getattr(again, "default_factory", None) == getattr(value, "default_factory", None)
        assert getattr(again, "maxlen", None) == getattr(value, "maxlen", None)


def test_data_that_loading_would_not_find_are_not_plain(tmp_path):
    local = collections.namedtuple("Local", "points")
    mapped = np.memmap(tmp_path / "file", "int8", "w+", shape=3)
    factory = collections.defaultdict(lambda: 1)
    assert not any(
        map(is_plain, (local(1), mapped, factory, np.array([object()]), [[[[[[[[[1]]]]]]]]]))
    )


def test_array_in_two_places_comes_back_as_one_array():
    last = np.zeros(2)
    again = packed_and_read({"last": last, "all": [last]})
    assert again["all"][0] is again["last"]


def test_names_of_parameters_come_back_as_those_of_the_next_process():
    first, second = (nn.Linear(2, 2) for _ in range(2))
    before, after = (dict(layer.named_parameters()) for layer in (first, second))
    weight, bias = first.weight, first.bias
    averages = {weight.name: 1, id(bias): 2, (bias.name, 1): weight.name, "other": 3, 4: 5}
    again = unpack(pack(averages, before), after, "file")
    weight, bias = second.weight, second.bias
    assert again == {weight.name: 1, id(bias): 2, (bias.name, 1): weight.name, "other": 3, 4: 5}


class Net(nn.Layer):
    limit = 3

    def __init__(self):
        super().__init__()
        self.body, self.calls, self.table = nn.Linear(2, 2), 0, {"rate": 0.5}

    def forward(self, inputs):
        return self.body(inputs)


class Own(paddle.optimizer.SGD):
    """An optimizer of the caller's own."""


COMMAND = "harmless"


def step(model, batch, scale=(1.0,)):
    return {"loss": model(batch).sum() * scale[0] * len(COMMAND)}


@pytest.fixture
def state():
    model = Net()
    optimizer = Own(0.1, parameters=model.parameters())
    roots = {"optimizer": optimizer, "model": model, "step": step}
    return ExtraState(model, optimizer, roots, named={}, optional={})


def contents(*values, **others):
    empty = {"named": {}, "optimizers": {}, "frozen": {}, "left": []}
    return {**empty, "values": list(values), **others}


def root(name, *steps):
    return [["root", name], *map(list, steps)]


def load(state, tmp_path, packed):
    path = tmp_path / "model_epoch0.pdstate"
    state.load_values(state.unpacked(safe_loads(SavedState(packed).to_bytes()), path))


def test_load_sets_values_of_the_programs_own_objects(state, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "COMMAND", COMMAND)  # restored afterwards
    saved = [
        (root("model", ("attribute", "calls")), 7),
        (root("model", ("attribute", "table")), {"rate": 0.1}),
        (root("model", ("attribute", "table"), ("item", "new")), 1),
        (root("model", ("attribute", "made_later")), np.ones(2)),
        (root("step", ("global", "COMMAND")), "of the run"),
        (root("optimizer", ("attribute", "count")), 3),
    ]
    load(state, tmp_path, pack(contents(*map(list, saved))))
    model = state.roots["model"]
    assert (model.calls, model.table) == (7, {"rate": 0.1, "new": 1})
    assert np.array_equal(model.made_later, np.ones(2))
    assert (COMMAND, state.optimizer.count) == ("of the run", 3)


HOSTILE = {
    "a function's globals": root("step", ("part", "__globals__"), ("item", "COMMAND")),
    "a global that the step does not name": root("step", ("global", "HOSTILE")),
    "a builtin": root("step", ("global", "len")),
    "a module": root("step", ("global", "np"), ("attribute", "pi")),
    "a method": root("model", ("attribute", "forward")),
    "a method of the class": root("model", ("part", "__class__"), ("attribute", "forward")),
    "a new attribute of the class": root("model", ("part", "__class__"), ("attribute", "new")),
    "the class": root("model", ("attribute", "__class__")),
    "a special attribute": root("model", ("attribute", "__dict__")),
    "the code of a function": root("step", ("attribute", "__code__")),
    "a function's new attribute": root("step", ("attribute", "new")),
    "Paddle's own": root("optimizer", ("attribute", "_parameter_list")),
    "a root": root("model"),
    "an unknown root": root("os", ("attribute", "name")),
    "a hook": root("model", ("hook", ("_forward_pre_hooks", 0))),
    "an unknown kind": root("model", ("call", "forward")),
    "a kind that is a list": root("model", ([], "calls")),
    "a parameter as the root": [["parameter", "body.weight"], ["attribute", "name"]],
    "a list as the root": [["root", []], ["attribute", "calls"]],
    "an attribute that is a list": root("model", ("attribute", [])),
    "an attribute that is a number": root("model", ("attribute", "body"), ("attribute", 1)),
    "a hook that is a number": root("model", ("hook", 1)),
    "nothing": [],
}


def test_load_of_a_hostile_path_raises_and_sets_nothing(state, tmp_path):
    before = dict(globals()), dict(vars(Net)), dict(vars(step)), state.optimizer._parameter_list
    for path in HOSTILE.values():
        with pytest.raises(CheckpointError, match=r"model_epoch0\.pdstate: "):
            load(state, tmp_path, pack(contents([path, "evil"])))
    after = dict(globals()), dict(vars(Net)), dict(vars(step)), state.optimizer._parameter_list
    assert after == before
    assert state.roots["model"].forward.__func__ is Net.forward


DAMAGED = {
    "no structure": {"other": 1},
    "no JSON": {STRUCTURE: "{"},
    "a number": {STRUCTURE: "3"},
    "an unknown kind": {STRUCTURE: json.dumps({"call": "os.system"})},
    "an array that is missing": {STRUCTURE: json.dumps({"array": 3})},
    "a class that is not a namedtuple": {
        STRUCTURE: json.dumps({"namedtuple": ["subprocess", "Popen", ["true"]]})
    },
    "an unknown generator": {STRUCTURE: json.dumps({"generator": ["os", {"dict": []}, "system"]})},
    "another structure": pack({"named": 1}),
    "no values": pack(contents(values=None)),
    "values without a path": pack(contents(3)),
    "a parameter that is not there": pack(contents(frozen={"other": True})),
    "no truth value": pack(contents(frozen={"body.weight": "yes"})),
    "a key that is not there": pack(contents([[["root", "model"], ["parameter", "other"]], 1])),
    "an optimizer without a state": pack(contents(optimizers={"step.second": {}})),
    "parameters without names": pack(
        contents(optimizers={"step.second": {"state": {}, "schedule": {}, "parameters": [[]]}})
    ),
    "very deep": {STRUCTURE: '{"list": [' * 5000 + "]}" * 5000},
}


def test_load_of_damaged_state_raises(state, tmp_path):
    for packed in DAMAGED.values():
        with pytest.raises(CheckpointError, match=r"model_epoch0\.pdstate: "):
            load(state, tmp_path, packed)
