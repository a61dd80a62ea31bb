"""`safe_load` reads what `paddle.save` writes, and runs nothing of what a file says."""

import contextlib
import io
import os
import pickle
import pickletools
import random
import resource
import struct
import sys
import tracemalloc
from pathlib import Path

import forked
import numpy as np
import paddle
import pytest
from paddle import nn

from paddle_mnist.checkpoint.contents import load_checkpoint, optimizer_entries
from paddle_mnist.checkpoint.manifest import OPTIMIZER, PARAMS, TRAINING
from paddle_mnist.checkpoint.safe_load import safe_load, safe_loads
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.errors import CheckpointError
from paddle_mnist.hidden_state.plain_data import equal
from paddle_mnist.nn.ema import ExponentialMovingAverage
from paddle_mnist.nn.state_dict import NAME_TABLE
from paddle_mnist.train_state import TrainState

GOLDEN = Path(__file__).parents[1] / "golden"


def saved(state, protocol):
    """The bytes that `paddle.save` writes."""
    paddle.save(state, buffer := io.BytesIO(), protocol=protocol)
    return buffer.getvalue()


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_safe_load_of_tensors_of_every_form_returns_the_same_bits(protocol):
    dtypes = "bool int8 uint8 int16 int32 int64 float16 bfloat16 float32 float64 complex64".split()
    shapes = ([], [0], [1], [3, 2])
    state = {
        f"{dtype} {shape}": paddle.full(shape, 1, dtype) for dtype in dtypes for shape in shapes
    }
    expected = {name: tensor.numpy() for name, tensor in state.items()}
    loaded = safe_loads(saved(state, protocol))
    assert loaded.pop(NAME_TABLE).keys() == state.keys()
    assert equal(loaded, expected)
    items = {"list": [1, None, 0.5], "after a text": ["a", paddle.ones([1]), 0.5]}
    loaded = safe_loads(saved({"nested": {**state, **items}}, protocol))
    items["after a text"][1] = np.ones(1, "float32")
    assert equal(loaded, {"nested": {**expected, **items}})
    arrays = {
        "fortran": np.asfortranarray(np.ones((2, 3))),
        "big-endian": np.arange(3, dtype=">i4"),
    }
    # Of a name and a tensor, as Paddle saves it outside of a state_dict, only the tensor is read.
    others = {"lr": 0.1, "pairs": [("name", np.ones(2)), ["name", np.ones(2)]]}
    written = {**arrays, **others, "lr": np.float64(0.1)}
    loaded = safe_loads(pickle.dumps(written, protocol=protocol))
    assert equal({name: loaded.pop(name) for name in others}, others)
    assert all(np.array_equal(loaded[name], values) for name, values in arrays.items())


@pytest.mark.parametrize("version", ["2.6.2", "3.3.1"])
def test_safe_load_of_files_of_both_paddles_returns_the_saved_values(version):
    """Whichever of them is installed: they pickle arrays by other names, as their NumPys do.

    Each wrote the states of a small net and its optimizer, and both in one dictionary.
    """
    weights = {
        "weight": np.float32([[-0.5, 0.5], [1.5, 2.5], [3.5, 4.5]]),
        "bias": np.float32([0.5, 0.5]),
    }
    velocities = {
        "linear_0.w_0_velocity_0": np.ones([3, 2], np.float32),
        "linear_0.b_0_velocity_0": np.ones([2], np.float32),
    }
    for protocol in (2, 3, 4):
        stem = GOLDEN / f"paddle-{version}" / f"protocol{protocol}"
        model = safe_load(stem.with_suffix(".pdparams"))
        assert model.pop(NAME_TABLE) == {"weight": "linear_0.w_0", "bias": "linear_0.b_0"}
        assert equal(model, weights)
        optimizer = safe_load(stem.with_suffix(".pdopt"))
        assert optimizer.pop(NAME_TABLE) == {name: name for name in velocities}
        schedule = optimizer.pop("LR_Scheduler")
        assert schedule["last_epoch"] == 1 and abs(schedule["last_lr"] - 0.4267766952966369) < 1e-12
        assert equal(optimizer, velocities)
        both = safe_load(stem.with_suffix(".both"))
        assert equal(both["model"], weights) and both["epoch"] == 3
        assert both["optimizer"].pop("LR_Scheduler") == schedule
        assert equal(both["optimizer"], velocities)


@pytest.mark.parametrize("protocol", [2, 4])
def test_safe_load_of_large_tensors_takes_little_more_memory_than_the_file(tmp_path, protocol):
    """And around 64 KiB, where protocol 4 puts bytes outside of its frames.

    Protocol 2 writes bytes as text, which has to be turned into bytes again: it takes each twice.
    """
    noise = np.random.RandomState(protocol).bytes(10 << 20)
    state = {"large": paddle.to_tensor(np.frombuffer(noise, np.int32).reshape(10, -1))}
    for size in (255, 256, 2**16 - 200, 2**16 - 1, 2**16, 2**16 + 1, 2**20 + 1):
        state[f"of {size}"] = paddle.to_tensor(np.frombuffer(noise[:size], np.uint8))
    path = tmp_path / "x.pdparams"
    paddle.save(state, str(path), protocol=protocol)
    tracemalloc.start()
    try:
        loaded = safe_load(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (4.2 if protocol == 2 else 2.1) * path.stat().st_size
    assert not loaded["large"].flags.writeable  # it shares the memory of a `bytes`
    assert len(loaded.pop(NAME_TABLE)) == len(state)
    assert equal(loaded, {name: tensor.numpy() for name, tensor in state.items()})


def test_safe_load_of_a_sliced_tensor_joins_it():
    """Under protocols 2 and 3 Paddle cuts tensors over 1 GiB; here by its own function, smaller."""
    from paddle.framework import io_utils

    state = {"b": np.ones(2, np.float32), "w": np.arange(12, dtype=np.float32).reshape(3, 4)}
    pieces = {
        "w@@.0": state["w"].ravel()[:7],
        "w@@.1": state["w"].ravel()[7:],
        "b": state["b"],
        "UnpackBigParamInfor@@": {"w": {"OriginShape": (3, 4), "slices": ["w@@.0", "w@@.1"]}},
    }
    assert equal(io_utils._pack_loaded_dict(dict(pieces)), state)  # as paddle.load would
    assert equal(safe_loads(pickle.dumps(pieces, protocol=2)), state)


def nested_dicts(levels):
    return {"w": nested_dicts(levels - 1)} if levels else {}


def test_safe_load_of_deep_containers_and_a_huge_memo_index_returns_them():
    """pickle would make room for two thousand million entries."""
    assert safe_loads(pickle.dumps(nested_dicts(8), protocol=2)) == nested_dicts(8)
    assert safe_loads(b"\x80\x02}r\xff\xff\xff\x7f.") == {}


# ------------------------------------------------------------------ hostile files

INFO = "UnpackBigParamInfor@@"
# A file cut by a disk that was full must not give a tensor of other numbers.
PIECES = {"w@@.0": np.ones(7, np.float32), "w@@.1": np.ones(5, np.float32)}
BAD_CUTS = {
    "a piece is missing": {"w": {"OriginShape": (4, 3), "slices": ["w@@.0", "w@@.1", "w@@.2"]}},
    "another shape": {"w": {"OriginShape": (4, 4), "slices": ["w@@.0", "w@@.1"]}},
    "an invalid shape": {"w": {"OriginShape": "abc", "slices": ["w@@.0", "w@@.1"]}},
    "a huge shape": {"w": {"OriginShape": (2**70, 0), "slices": ["w@@.0"]}},
    "a piece that is not an array": {"w": {"OriginShape": (1,), "slices": ["epoch"]}},
    "a list": [1, 2],
}


class Calls:
    """Pickled as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


MARKER = "PWNED"  # what each of them would make in the current directory, were it run


def _nested(levels):
    """A tuple that holds another twice, and so on."""
    value = ()
    for _ in range(levels):
        value = (value, value)
    return value


def _text(*texts):
    """Opcodes that put texts on the stack."""
    return b"".join(b"X" + struct.pack("<I", len(t.encode())) + t.encode() for t in texts)


# An array in the making, as NumPy pickles it; then its state, and BUILD.
_ARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"


def _array(code, shape, contents):
    state = pickle.dumps((1, shape, "DTYPE", False, contents), protocol=3)[2:-1]
    dtype = b"cnumpy\ndtype\n" + _text(code) + b"\x89\x88\x87R"
    name = pickle.dumps("DTYPE", protocol=3)[2:-3]
    assert name in state
    return b"\x80\x03}" + _text("w") + _ARRAY + state.replace(name, dtype) + b"bs."


FLOAT = _array("f4", (1,), bytes(4))  # is read


def _number(dtype):
    """A file with a number: opcodes that put its dtype on the stack."""
    start = b"\x80\x03}" + _text("w") + b"cnumpy.core.multiarray\nscalar\n"
    return start + dtype + b"C\x04" + bytes(4) + b"\x86Rs."


# Of functions that `paddle.save` never names.
OTHER_NAMES = [
    ("os", "system"),
    ("os", "path.os.system"),
    ("builtins", "eval"),
    ("__builtin__", "getattr"),
    ("copyreg", "_reconstructor"),
    ("_codecs", "decode"),
    ("collections", "UserDict"),
    ("numpy", "load"),
    ("numpy", "core.multiarray._reconstruct"),
    ("numpy.core.multiarray", "fromfile"),
    ("paddle", "load"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("", ""),
]
# Arguments of opcodes, by what `pickletools` calls their kind.
ARGUMENTS = {
    "decimalnl_short": b"1\n",
    "decimalnl_long": b"1L\n",
    "floatnl": b"1.0\n",
    "stringnl": b"'x'\n",
    "unicodestringnl": b"x\n",
    "stringnl_noescape": b"x\n",
    "stringnl_noescape_pair": b"collections\nOrderedDict\n",
    "string1": b"\x01x",
    "string4": b"\x01\x00\x00\x00x",
    "bytearray8": b"\x01" + bytes(7) + b"x",
    "uint1": b"\x01",
    "uint2": b"\x01\x00",
    "int4": b"\x01\x00\x00\x00",
    "long4": b"\x01\x00\x00\x00\x01",
}
WRITTEN_OPCODES = (
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT "
    "SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8 EMPTY_DICT SETITEM "
    "SETITEMS EMPTY_LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 BINPUT LONG_BINPUT "
    "MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD".split()
)
OTHER_OPCODES = {
    opcode.name: opcode.code.encode("latin1") + (ARGUMENTS[opcode.arg.name] if opcode.arg else b"")
    for opcode in pickletools.opcodes
    if opcode.name not in WRITTEN_OPCODES
}


def _hostile_values():
    for name, value in {
        "os.system": Calls(os.system, f"touch {MARKER}"),
        "eval": Calls(eval, f"open({MARKER!r}, 'w')"),
        "an object": io.StringIO("x"),
        "a reduce in a reduce": Calls(tuple, [Calls(os.system, f"touch {MARKER}")]),
        "object array": np.array([Calls(os.system, f"touch {MARKER}")], object),
        "a set": {1, 2},
        "shared containers": [(shared := [1]), shared],
        "billion laughs": _nested(60),
        "nested too deep": nested_dicts(8),
    }.items():
        for protocol in (2, 4):
            yield f"{name}, protocol {protocol}", pickle.dumps({"w": value}, protocol=protocol)
    for name, cut in BAD_CUTS.items():
        yield f"slices: {name}", pickle.dumps({**PIECES, "epoch": 1, INFO: cut}, protocol=2)
    for name, code in OTHER_OPCODES.items():
        yield f"opcode {name}", b"\x80\x04(}}" + code + b"."
    for module, name in OTHER_NAMES:
        yield f"global {module} {name}", b"\x80\x02c" + f"{module}\n{name}\n".encode() + b")R."
        yield f"by stack {module} {name}", b"\x80\x04" + _text(module, name) + b"\x93)R."


OF_DTYPE = _text("f4") + b"\x89\x88\x87"  # the arguments of a call of np.dtype


def _hostile_programs():
    yield "a key of nested tuples", pickle.dumps({_nested(20): 1}, protocol=2)
    yield "global whose name is not text", b"\x80\x04K\x01K\x02\x93."
    yield "calls ndarray", b"\x80\x02cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85R."
    yield "calls a text", b"\x80\x02X\x01\x00\x00\x00x)R."
    yield "calls with a dict", b"\x80\x02cnumpy\ndtype\n}R."
    code = _text("f4")
    yield "calls with a list", FLOAT.replace(OF_DTYPE, b"](" + code + b"\x89\x88e")
    yield "calls with four arguments", FLOAT.replace(OF_DTYPE, b"(" + code + b"\x89\x88\x88t")
    yield "a number by the dtype of an array", _number(FLOAT[9:-2])
    yield "a function that is left", b"\x80\x02}X\x01\x00\x00\x00wcnumpy\ndtype\ns."
    yield "build on a dict", b"\x80\x02}}b."
    yield "item of a list", b"\x80\x02}" + _text("w") + b"](K\x01eK\x00K\x02ss."
    yield "appends to a dict", b"\x80\x02}K\x01a."
    yield "build on a function", b"\x80\x02cnumpy\ndtype\n}b."
    yield "memo that was never put", b"\x80\x02h\x07."
    yield "memo of nothing", b"\x80\x02q\x00}."
    yield "memo of a mark", b"\x80\x02(q\x00h\x00t."
    yield "memo taken twice for one value", b"\x80\x02}q\x00X\x01\x00\x00\x00wh\x00s."
    yield "memo exchanged under a call", b"\x80\x02cnumpy\ndtype\nq\x00cos\nsystem\nq\x00h\x00)R."
    yield "list that holds itself", b"\x80\x02}X\x01\x00\x00\x00w]q\x00h\x00as."
    yield "a hundred thousand tuples deep", b"\x80\x02)" + b"\x85" * 10**5 + b"."


def _hostile_data():
    yield "no mark", b"\x80\x02t."
    yield "a mark that is left", b"\x80\x02(}."
    yield "a value that is left", b"\x80\x02}}."
    yield "huge length", b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f."
    yield "huge text", b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f."
    yield "length below nothing", b"\x80\x04\x8b\xff\xff\xff\xff."
    yield "huge frame and nothing in it", b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f"
    yield "array of a huge shape", _array("f4", (2**62,), b"")
    yield "array of negative shape", _array("u1", (-1, -1), b"x")
    yield "array of many axes", _array("u1", (1,) * 100, b"x")
    yield "array of objects", _array("O8", (1,), bytes(8))
    yield "array of texts", _array("U1", (1,), bytes(4))
    order = b"(K\x03" + _text("S") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    yield "array of another byte order", FLOAT.replace(OF_DTYPE + b"R", OF_DTYPE + b"R" + order)
    yield "array of other arrays", _array("f4", (1,), [1.0])
    yield "array of no bytes", b"\x80\x02}" + _text("w") + _ARRAY + b"s."
    encoded = _text("w") + b"c_codecs\nencode\n(" + _text("x", "hex") + b"tR"
    yield "bytes of another encoding", b"\x80\x02}" + encoded + b"s."
    yield "text that is no UTF-8", b"\x80\x02X\x02\x00\x00\x00\xff\xfe."
    yield "not a dict", pickle.dumps([1, 2])
    yield "empty", b""
    yield "no stop", b"\x80\x04}"
    yield "more after the end", pickle.dumps({}) + b"x"
    yield "more after the end of a frame", b"\x80\x04\x95\x03" + bytes(7) + b"}.x"
    yield "protocol 0", pickle.dumps({"w": 1}, protocol=0)
    yield "an unknown opcode", b"\x80\x04\xff."
    # What Python's own errors would quote in full.
    yield "a huge text without a quote", b"S" + b"x" * 10**6 + b"\n."
    huge = {"w": {"slices": ["x\n" * 10**6], "OriginShape": (1,)}}
    yield "a huge name of a slice", pickle.dumps({INFO: huge}, protocol=2)


HOSTILE = dict([*_hostile_values(), *_hostile_programs(), *_hostile_data()])
EVIL = HOSTILE["os.system, protocol 4"]


# Python's audit events of this process while it reads a file. The hook stays.
_events = []
_watched = False


def _note(event, args):
    if _watched and event != "builtins.id":
        _events.append(event)


sys.addaudithook(_note)


@contextlib.contextmanager
def nothing_done():
    """Inside nothing is imported, looked up, compiled, opened or started."""
    global _watched
    _events.clear()
    _watched = True
    try:
        yield
    finally:  # also when it ends in a refusal
        _watched = False
        assert _events == []


def test_hostile_file_runs_its_code_without_safe_load(tmp_path, monkeypatch):
    """Else the tests below would pass whatever was run: `paddle.load` is noticed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.pdparams").write_bytes(EVIL)
    with pytest.raises(AssertionError), nothing_done():
        paddle.load("x.pdparams")
        raise CheckpointError  # after the deed: it hides nothing
    assert {"pickle.find_class", "os.system"} <= set(_events)
    assert (tmp_path / MARKER).exists()


def refusal(data):
    """The message with which bytes are refused while nothing is done; None if they are read."""
    try:
        with nothing_done():
            safe_loads(data, "x.pdparams")
    except CheckpointError as error:
        return str(error)
    return None


# What is refused before it is done, not because Python cannot do it.
REASONS = {
    "calls a text": "calls 'x'",
    "calls with a list": "calls with a list",
    "appends to a dict": "appends to a dict",
    "item of a list": "sets items of a list",
    "build on a dict": "sets the state of a dict",
    "build on a function": "sets the state of a type",
    "more after the end": "has 1 bytes after its end",
    "nested too deep, protocol 4": "containers nested too deep",
    **{f"opcode {name}": f"has the opcode {name} at byte " for name in OTHER_OPCODES},
    **{f"global {module} {name}": "names " for module, name in OTHER_NAMES},
    **{f"by stack {module} {name}": "names " for module, name in OTHER_NAMES},
}


def test_hostile_file_is_refused_and_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refusal(FLOAT) is None
    assert len(OTHER_OPCODES) + len(WRITTEN_OPCODES) == len(pickletools.opcodes)
    for name, data in HOSTILE.items():
        message = refusal(data)
        assert message, name
        assert "\n" not in message and len(message) < 400, name
        assert f"x.pdparams: {REASONS.get(name, '')}" in message, name
        assert not Path(MARKER).exists(), name


# ------------------------------------------------------------------ files that swell


_NESTED = b")" + b"q\x00h\x00\x86" * 60  # a tuple that holds another twice, 60 times over
_FLOAT32 = b"cnumpy\ndtype\n" + _text("f4") + b"\x89\x88\x87R"


def _again(function, arguments, times):
    """A dictionary with a list of what a function makes of the same arguments, again and again."""
    first = b"c" + function + b"\nq\x00" + arguments + b"q\x01R"
    return _dict(w=b"](" + first + b"h\x00h\x01R" * times + b"e")


def _dict(**values):
    """values: opcodes that put each on the stack."""
    items = b"".join(_text(key) + value for key, value in values.items())
    return b"\x80\x03}(" + items + b"u."


def _bombs():
    """Small files, less than 1 MB, that ask for gigabytes, or for hours."""
    yield "a huge length", b"\x80\x04\x8e" + struct.pack("<Q", 1 << 30) + b"."
    encode, text = b"c_codecs\nencode\n", _text("x" * 50_000)
    nothings = b"](" + b"N" * 50_000 + b"e"
    yield "one list into tuples", _again(b"__builtin__\ntuple", nothings + b"\x85", 9_000)
    latin1 = text + _text("latin1") + b"\x86"
    yield "one text into bytes", _again(b"_codecs\nencode", latin1, 9_000)
    arguments = b"(" + _text("f4") + b"N" * 99_999 + b"t"
    yield "a hundred thousand arguments", _again(b"numpy\ndtype", arguments, 99_999)
    yield "nested encoding", _dict(w=encode + _text("x") + _NESTED + b"\x86R")
    yield "nested text to encode", _dict(w=encode + _NESTED + _text("latin1") + b"\x86R")
    yield "nested module", _dict(w=_NESTED + _text("x") + b"\x93")
    yield "nested name of a function", _dict(w=_text("x") + _NESTED + b"\x93")
    yield "nested dtype", _dict(w=b"cnumpy\ndtype\n" + _NESTED + b"\x89\x88\x87R")
    order = b"(K\x03" + _NESTED + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    yield "nested byte order", _dict(w=_FLOAT32 + order)
    yield "nested shape", _dict(w=_ARRAY + b"(K\x01" + _NESTED + _FLOAT32 + b"\x89C\x00tb")
    yield "nested contents", _dict(w=_ARRAY + b"(K\x01)" + _FLOAT32 + b"\x89" + _NESTED + b"tb")
    shape = b"(\x8a\xff" + b"\x7f" * 255 + b"q\x05" + b"h\x05" * 30_000 + b"t"
    huge = _dict(w=_ARRAY + b"(K\x01" + shape + _FLOAT32 + b"\x89C\x00tb")
    yield "a shape of huge numbers", huge
    multiples = ((2**61 - 1) * n for n in range(1, 40_000))
    keys = b"".join(b"\x8a\x0b" + n.to_bytes(11, "little") + b"N" for n in multiples)
    yield "keys of one hash", b"\x80\x02}(" + keys + b"u."
    array = pickle.dumps(np.zeros(50_000, np.uint8), protocol=3)[2:-1] + b"r\x00\x00\x01\x00"
    slices = b"](" + b"".join(_text(str(n)) for n in range(5_000)) + b"e"
    cut = b"}(" + _text("OriginShape") + b"N" + _text("slices") + slices + b"u"
    pieces = {str(n): b"j\x00\x00\x01\x00" for n in range(5_000)}
    sliced = _dict(a=array, **pieces, **{INFO: b"}" + _text("w") + cut + b"s"})
    yield "one array as many pieces", sliced
    texts = b"](" + text + _text("") * 50_000 + b"e"
    cut = b"}(" + _text("OriginShape") + b"N" + _text("slices") + b"]" + _text("a") + b"au"
    yield "pieces of text", _dict(a=texts, **{INFO: b"}" + _text("w") + cut + b"s"})


BOMBS = dict(_bombs())


def read_bombs():
    """An opcode is a byte at least, and makes an object of some 100 bytes at most.

    So a file may take 256 times its size.
    """
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (90, 90))
    for name, data in BOMBS.items():
        tracemalloc.start()
        message = refusal(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert message and len(message) < 400, name
        assert len(data) < 1_000_000 and peak < 256 * len(data) + (1 << 20), name


def test_small_file_takes_neither_gigabytes_nor_hours():
    """In a process with limits, so that no machine is brought down."""
    command = [sys.executable, "-c", "import test_safe_load; test_safe_load.read_bombs()"]
    done = forked.run(command)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------ fuzz


FILES = [path.read_bytes() for path in sorted(GOLDEN.rglob("protocol*"))]
CASES, FEW_CASES = 10_000, 1_000


def _opcodes(data):
    starts = [position for *_, position in pickletools.genops(data)]
    return [data[start:end] for start, end in zip(starts, [*starts[1:], len(data)])]


# To put into good files: their own, and those that are refused.
OPCODES = sorted({code for data in FILES[::3] for code in _opcodes(data) if len(code) < 100})
OPCODES += OTHER_OPCODES.values()


def shuffled(draw):
    """A good file with opcodes taken out, doubled, exchanged, or others put in."""
    opcodes = _opcodes(draw.choice(FILES))
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(opcodes))
        opcodes[at : at + draw.randint(0, 2)] = draw.choice(
            [[], [draw.choice(opcodes)], [draw.choice(OPCODES)], [opcodes[at]] * 3]
        )
    return b"".join(opcodes)


def is_plain(value):
    """Return whether it is made of numbers and names, and nothing that could do something."""
    if type(value) is dict:
        return all(type(key) in (str, int) and is_plain(item) for key, item in value.items())
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    if type(value) is np.ndarray:
        return value.dtype.kind in "biufc"
    return value is None or type(value) in (bool, int, float, complex, str, bytes)


def test_safe_load_of_changed_files_returns_plain_data_or_raises(pytestconfig):
    """Always the same cases: plain things or a CheckpointError, and nothing is done."""
    cases = CASES if pytestconfig.getoption("thorough") else FEW_CASES
    read = 0
    for seed in range(cases):
        data = shuffled(random.Random(seed))
        try:
            with nothing_done():
                loaded = safe_loads(data)
        except CheckpointError as error:
            assert "\n" not in str(error), seed
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {data!r}") from error
        else:
            assert type(loaded) is dict and is_plain(loaded), seed
            read += 1
    assert cases // 250 < read < cases - cases // 250  # neither is everything refused at once


# ------------------------------------------------------------------ what loads files

# `ruff` allows no other way to load a file: see `banned-api` in pyproject.toml.


class Raw:
    """Bytes in place of a `SavedState`."""

    def __init__(self, data):
        self.data = data

    def write_to(self, file):
        file.write(self.data)


@pytest.mark.parametrize("suffix", [PARAMS, OPTIMIZER, TRAINING])
def test_load_checkpoint_with_a_hostile_file_raises(tmp_path, monkeypatch, suffix):
    """Committed correctly, with valid checksums: a checkpoint of others to resume from."""
    monkeypatch.chdir(tmp_path)
    model = nn.Linear(3, 2)
    rate = paddle.optimizer.lr.StepDecay(0.01, 3)
    optimizer = paddle.optimizer.Adam(rate, parameters=model.parameters())
    average = ExponentialMovingAverage(model, 0.5)  # of which all three files are read
    files = {
        PARAMS: saved(model.state_dict(), protocol=4),
        OPTIMIZER: saved(optimizer.state_dict(), protocol=4),
        TRAINING: saved(model.state_dict(), protocol=4),
    }
    bad = CheckpointStore("c").commit(
        "model_epoch0",
        {end: Raw(data) for end, data in {**files, suffix: EVIL}.items()},
        TrainState(epoch=1),
        optimizer_entries(model, optimizer),
    )
    bad.verify()
    with pytest.raises(CheckpointError, match=rf"model_epoch0\{suffix}: names 'posix.system'"):
        load_checkpoint(bad, model, optimizer, average)
    assert not Path(MARKER).exists()


def test_commands_given_hostile_weights_exit_4(tmp_path, tool, tiny):
    (tmp_path / "x.pdparams").write_bytes(EVIL)
    for command in (["eval", "-k", "x.pdparams"], ["train", "--init_from", "x.pdparams"]):
        error = tool(*command, "--data", tiny, expect=4).stderr
        assert error.startswith("error: x.pdparams: names 'posix.system'")
        assert error.count("\n") == 1 and not (tmp_path / MARKER).exists()
