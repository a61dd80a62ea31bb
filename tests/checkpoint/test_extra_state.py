"""The file of further state: what can be in it comes back, and what it must not change stays."""

import array
import collections
import json
import random

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import nn

from paddle_mnist.checkpoint.manifest import EXTRA, Checkpoint
from paddle_mnist.checkpoint.safe_load import safe_loads
from paddle_mnist.checkpoint.saved_state import SavedState
from paddle_mnist.errors import CheckpointError
from paddle_mnist.hidden_state.extra_state import ExtraState
from paddle_mnist.hidden_state.object_graph import describe
from paddle_mnist.hidden_state.plain_data import STRUCTURE, copied, equal, is_plain, pack, unpack

NUMPY_SCALARS = st.sampled_from(
    [np.float32(0.1), np.float64(-0.0), np.int8(-3), np.uint16(9), np.bool_(True), np.float16(2)]
)
ARRAYS = st.sampled_from(
    [
        np.arange(6.0).reshape(2, 3),
        np.array(7),
        np.zeros((0, 3), "int64"),
        np.array([np.nan, -0.0], "float32"),
        np.array([True, False]),
        np.array([1 + 2j]),
    ]
)
TENSORS = st.builds(
    lambda values, dtype: paddle.to_tensor(values).astype(dtype),
    st.sampled_from([[1.0, 2.5], [[0.0]], 3.0]),
    st.sampled_from(["float32", "float64", "int64", "bfloat16"]),
)


def drawn(generator):
    for _ in range(3):
        generator.random() if not isinstance(generator, np.random.RandomState) else generator.rand()
    return generator


BUFFERS = st.one_of(
    st.builds(bytearray, st.binary()),
    st.builds(array.array, st.sampled_from("fd"), st.lists(st.floats(width=32))),
    st.builds(array.array, st.sampled_from("bhilq"), st.lists(st.integers(-128, 127))),
    st.builds(array.array, st.just("u"), st.text()),
)
GENERATORS = st.builds(
    lambda make: drawn(make(5)),
    st.sampled_from(
        [
            np.random.default_rng,
            np.random.RandomState,
            random.Random,
            lambda seed: np.random.Generator(np.random.Philox(seed)),
            lambda seed: np.random.Generator(np.random.MT19937(seed)),
        ]
    ),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.complex_numbers(),
    NUMPY_SCALARS,
)
KEYS = st.one_of(st.integers(), st.text(), st.tuples(st.integers(), st.text()), st.booleans())
PLAIN = st.recursive(
    st.one_of(SCALARS, ARRAYS, TENSORS, GENERATORS, BUFFERS),
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.lists(parts, max_size=3).map(tuple),
        st.dictionaries(KEYS, parts, max_size=3),
        st.builds(collections.deque, st.lists(parts, max_size=3), st.sampled_from([None, 5])),
        st.sets(st.integers(), max_size=3),
        st.frozensets(st.text(), max_size=3),
    ),
    max_leaves=8,
)


def packed_and_read(value):
    return unpack(safe_loads(SavedState(pack(value)).to_bytes()), {}, "file")


@settings(max_examples=40)
@given(PLAIN)
def test_plain_data_that_are_saved_come_back_bit_for_bit(value):
    if not is_plain(value):  # too deep
        return
    again = packed_and_read(value)
    assert type(again) is type(value) and equal(again, value)
    assert equal(copied(value), value)


Named = collections.namedtuple("Named", "points reward")


def test_containers_keep_their_class():
    for value in (
        Named(np.ones(2), 1.5),
        collections.deque([Named(1, None)], maxlen=3),
        collections.Counter(a=2),
        collections.OrderedDict(b=1, a=2),
        collections.defaultdict(list, {"a": [1]}),
    ):
        again = packed_and_read(value)
        assert type(again) is type(value) and equal(again, value) and equal(copied(value), value)
        assert getattr(again, "default_factory", None) == getattr(value, "default_factory", None)


def test_namedtuple_that_loading_would_not_find_is_not_plain():
    local = collections.namedtuple("Local", "points")
    assert is_plain(Named(1, 2)) and not is_plain(local(1))


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


class Saved(Checkpoint):
    """A checkpoint whose file of further state holds whatever a test says."""

    def __init__(self, path, contents):
        super().__init__(path, {"names": {}}, {EXTRA: SavedState(contents).to_bytes()})

    def has_file(self, suffix):
        return suffix == EXTRA


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
    checkpoint = Saved(tmp_path / "model_epoch0.json", packed)
    state.load_values(state.read(checkpoint))


@pytest.mark.parametrize(
    "path, value",
    [
        (root("model", ("attribute", "calls")), 7),
        (root("model", ("attribute", "table")), {"rate": 0.1}),
        (root("model", ("attribute", "table"), ("item", "new")), 1),
        (root("model", ("attribute", "made_later")), np.ones(2)),
        (root("step", ("global", "COMMAND")), "of the run"),
        (root("optimizer", ("attribute", "count")), 3),
    ],
    ids=str,
)
def test_load_sets_values_of_the_programs_own_objects(path, value, state, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "COMMAND", COMMAND)  # put back afterwards
    load(state, tmp_path, pack(contents([path, value])))
    if path[0][1] != "optimizer":  # whose values are saved by themselves where they change
        assert [describe(known) for known in state.saved] == [describe([*map(tuple, path)])]
    ((packed, again),) = state.contents()["values"]
    assert packed == path and equal(again, value)


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
    "nothing": [],
}


@pytest.mark.parametrize("path", HOSTILE.values(), ids=HOSTILE)
def test_load_of_a_hostile_path_raises_and_sets_nothing(path, state, tmp_path):
    before = dict(globals()), dict(vars(Net)), dict(vars(step)), state.optimizer._parameter_list
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
    "a class that is no namedtuple": {
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
    "very deep": {STRUCTURE: '{"list": [' * 5000 + "]}" * 5000},
}


@pytest.mark.parametrize("packed", DAMAGED.values(), ids=DAMAGED)
def test_load_of_damaged_state_raises(packed, state, tmp_path):
    with pytest.raises(CheckpointError, match=r"model_epoch0\.pdstate: "):
        load(state, tmp_path, packed)
