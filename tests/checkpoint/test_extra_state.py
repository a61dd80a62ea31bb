"""The file of extra state: what can be in it comes back, and what it must not change stays."""

import array
import collections
import dataclasses
import enum
import json
import random
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import nn

from paddle_mnist.checkpoint.manifest import EXTRA, LATER_FORMAT, read_manifest
from paddle_mnist.checkpoint.safe_load import safe_loads
from paddle_mnist.checkpoint.statefile import SavedState
from paddle_mnist.errors import CheckpointError
from paddle_mnist.hidden_state.extra_state import ExtraState
from paddle_mnist.hidden_state.packing import STRUCTURE, pack, unpack
from paddle_mnist.hidden_state.plain_data import copied, digest_of, equal, is_plain, nbytes

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
FIELDS = [("mode", "i1"), ("at", [("x", "f4"), ("y", "f4", 2)])]
LEAVES = [
    *(None, True, 3, 2**70, -0.0, float("nan"), 1 + 2j, "text", b"bytes"),
    *(np.float32(0.1), np.float64(-0.0), np.int8(-3), np.bool_(True), np.float16(2)),
    *(np.arange(6.0).reshape(2, 3), np.array(7), np.zeros((0, 3), "int64"), np.array([1 + 2j])),
    *(np.array([np.nan, -0.0], dtype) for dtype in ("float32", "longdouble", ">f4")),
    *(paddle.to_tensor([1.0, 2.5]).astype(dtype) for dtype in ("float32", "int64", "bfloat16")),
    np.zeros(2, FIELDS),
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
    swapped = np.dtype({"names": ["a", "b"], "formats": ["f4", "f4"], "offsets": [4, 0]})
    padded, unnamed = np.dtype(FIELDS, align=True), np.dtype("i1, i4", align=True)
    titled = np.dtype([(("title", "a"), "i4")])
    mapped = np.memmap(tmp_path / "file", "int8", "w+", shape=3)
    factory = collections.defaultdict(lambda: 1)
    objects = np.array([object()])
    others = [local(1), mapped, factory, objects, [[[[[[[[[1]]]]]]]]]]
    others += [np.zeros(2, dtype) for dtype in (swapped, padded, unnamed, titled)]
    assert not any(map(is_plain, others))
    assert not is_plain(np.longdouble(1)) and not is_plain(np.ma.masked_all(2, "longdouble"))


def test_padding_of_fields_does_not_count():
    array = np.zeros(2, np.dtype("i1, i4", align=True))
    other = array.copy()
    other.view(np.uint8)[1:4] = 7
    assert equal(array, other)
    other["f1"] = 1
    assert not equal(array, other)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant != 63, reason="the bytes have no padding")
def test_padding_of_longdouble_does_not_count():
    array = np.arange(2, dtype=np.longdouble)
    other = array.copy()
    other.view(np.uint8)[10:16] = 7
    assert np.array_equal(array, other) and equal(array, other)
    assert digest_of(array) == digest_of(other) != digest_of(array + 1)


def test_size_of_plain_data_is_that_of_all_arrays_in_it():
    array = np.zeros(1000)
    for value in (array, [{"a": array}], Sample(array), np.array([array, None], object)):
        assert 8000 <= nbytes(value) < 8200


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


def test_loaded_values_fill_the_programs_objects_and_share_what_they_shared(state, tmp_path):
    model, shared, array = state.roots["model"], [1, 2], np.ones(2)
    model.newest, model.all, model.array = [], {"newest": None}, np.zeros(2)
    newest, own = model.newest, model.array
    saved = [
        [root("model", ("attribute", "all")), {"newest": shared, "arrays": [array]}],
        [root("model", ("attribute", "newest")), shared],
        [root("model", ("attribute", "array")), array],
    ]
    load(state, tmp_path, pack(contents(*saved)))
    assert model.newest is newest is model.all["newest"] and newest == [1, 2]
    assert model.array is own is model.all["arrays"][0] and equal(own, np.ones(2))


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


class Mode(enum.Enum):
    SLOW, FAST = 1, 2


class Other(enum.Enum):
    SLOW = 1


@dataclasses.dataclass
class Sample:
    points: np.ndarray
    reward: float = 0.5


def gelu():
    return 2


def half():
    return 0.5


class Elsewhere:
    """A class that the program below does not hold."""


def stateful():
    """Return extra state of a program that holds `Mode`, `Sample` and `gelu`."""
    step.mode, step.samples, step.function = Mode.SLOW, [Sample(np.zeros(1))], gelu
    step.others = [half]
    model = Net()
    optimizer = Own(0.1, parameters=model.parameters())
    return ExtraState(model, optimizer, {"model": model, "step": step}, named={}, optional={})


@pytest.fixture
def held_state():
    yield stateful()
    vars(step).clear()


def test_values_by_name_come_back_as_the_programs_own(held_state):
    sample, inner = Sample(np.ones(2), 2.0), [1]
    value = {"mode": Mode.FAST, "samples": [sample, sample], "function": gelu, "a": [inner, inner]}
    assert is_plain(value, (), held_state.held) and not is_plain(value)
    again = unpack(safe_loads(SavedState(pack(value)).to_bytes()), {}, "file", held_state.held)
    assert again["mode"] is Mode.FAST and again["function"] is gelu
    first, second = again["samples"]
    assert first is second and type(first) is Sample and equal(vars(first), vars(sample))
    assert again["a"][0] is again["a"][1] == inner


def test_children_of_a_generator_are_counted(held_state):
    parent = np.random.default_rng(3)
    parent.spawn(2)
    (again,) = copied([parent])
    assert again.spawn(1)[0].random() == parent.spawn(1)[0].random()


# What a file may not name, or make.
UNHELD = {
    "a function of the program's module": {"function": f"{__name__}:stateful"},
    "a function of Python's": {"function": "os:system"},
    "a class as a function": {"function": f"{__name__}:Sample"},
    "another enumeration": {"enum": [f"{__name__}:Other", "SLOW"]},
    "a member that is not there": {"enum": [f"{__name__}:Mode", "__class__"]},
    "an object of another class": {"object": [f"{__name__}:Elsewhere", {}]},
    "an object of a library": {"object": ["subprocess:Popen", {"args": "true"}]},
    "an object with a special attribute": {"object": [f"{__name__}:Sample", {"__class__": 1}]},
    "an enumeration as an object": {"object": [f"{__name__}:Mode", {}]},
    "objects in a structured array": {"structured": [[["a", "|O"]], [1], 0]},
    "no list before it": {"same": 5},
}


@pytest.mark.parametrize("what", UNHELD)
def test_load_of_a_name_that_the_program_does_not_hold_raises(what, held_state):
    values = [root("step", ("attribute", "mode")), UNHELD[what]]
    text = json.dumps({"dict": [[["values", {"list": [values]}]], None]})
    packed = {STRUCTURE: text, "0": np.zeros(8, "uint8")}
    with pytest.raises(CheckpointError, match=r"model_epoch0\.pdstate: "):
        held_state.load_values(held_state.unpacked(packed, Path("model_epoch0.pdstate")))
    assert step.mode is Mode.SLOW


def test_file_with_values_by_name_is_readable_by_paddle(held_state, tmp_path):
    step.mode, step.samples = Mode.FAST, [Sample(np.ones(2))]
    assert not held_state.save_changed(held_state.changes())
    path = tmp_path / "model_epoch0.pdstate"
    path.write_bytes(SavedState(held_state.packed()).to_bytes())
    assert held_state.is_later and "FAST" in paddle.load(str(path))[STRUCTURE]
    packed = safe_loads(path.read_bytes())
    step.mode, step.samples = Mode.SLOW, [Sample(np.zeros(1))]
    another = stateful()
    another.load_values(another.unpacked(packed, path))
    assert step.mode is Mode.FAST and equal(step.samples[0].points, np.ones(2))


def change(state):
    """Change what format 5 is for."""
    step.mode, step.samples, step.function = Mode.FAST, [Sample(np.ones(2), 2.0)], half
    state.roots["model"].body.weight.need_clip = False


def test_checkpoint_of_format_5_restores(held_state):
    """`golden/format-5` is what `change` left under Paddle 3.3.1. Never replace it."""
    checkpoint = read_manifest(Path(__file__).parents[1] / "golden/format-5/model_epoch0.json")
    assert checkpoint.manifest["format"] == LATER_FORMAT
    checkpoint.verify()
    held_state.load_values(held_state.unpacked(checkpoint.load(EXTRA), checkpoint.path))
    assert step.mode is Mode.FAST and step.function is half
    assert equal(step.samples[0].points, np.ones(2)) and step.samples[0].reward == 2.0
    assert not held_state.roots["model"].body.weight.need_clip
