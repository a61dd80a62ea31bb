"""`safe_load` reads what `paddle.save` writes, and runs nothing of what a file says."""

import ast
import builtins
import contextlib
import copyreg
import io
import os
import pickle
import pickletools
import random
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import paddle
import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import nn
from paddle.utils import unique_name

from paddle_mnist import MNIST
from paddle_mnist.checkpoint.contents import load_checkpoint, manifest_entries
from paddle_mnist.checkpoint.manifest import OPTIMIZER, PARAMS, TRAINING
from paddle_mnist.checkpoint.safe_load import NAME_TABLE, safe_load, safe_loads
from paddle_mnist.checkpoint.saved_weights import find_weights
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.errors import CheckpointError
from paddle_mnist.nn.ema import ExponentialMovingAverage
from paddle_mnist.progress import TrainState

GOLDEN = Path(__file__).parents[1] / "golden"


def equal(value, expected):
    """Equal bit for bit, in form and dtype."""
    if isinstance(expected, (np.ndarray, paddle.Tensor)):
        expected = np.asarray(expected)
        same = (value.dtype, value.shape) == (expected.dtype, expected.shape)
        return same and value.tobytes() == expected.tobytes()
    if isinstance(expected, dict):
        return value.keys() == expected.keys() and all(
            equal(value[key], expected[key]) for key in expected
        )
    if isinstance(expected, (list, tuple)):
        return len(value) == len(expected) and all(map(equal, value, expected))
    return type(value) is type(expected) and value == expected


def trained():
    """A model and an Adam optimizer with a schedule, one step old."""
    model = MNIST()
    schedule = paddle.optimizer.lr.CosineAnnealingDecay(0.01, 10)
    optimizer = paddle.optimizer.Adam(schedule, parameters=model.parameters())
    model(paddle.rand([2, 1, 28, 28])).mean().backward()
    optimizer.step()
    schedule.step()
    return model, optimizer


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_state_dicts_come_back_bit_for_bit(tmp_path, protocol):
    model, optimizer = trained()
    for state in (model.state_dict(), optimizer.state_dict()):
        path = str(tmp_path / "x")
        paddle.save(state, path, protocol=protocol)
        loaded = safe_load(path)
        loaded.pop(NAME_TABLE, None)
        assert equal(loaded, {k: v for k, v in state.items() if k != NAME_TABLE})


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_state_dicts_inside_a_dictionary(protocol):
    model, optimizer = trained()
    both = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    buffer = io.BytesIO()
    paddle.save(both, buffer, protocol=protocol)
    loaded = safe_loads(buffer.getvalue())
    assert equal(loaded["model"], dict(both["model"])) and loaded["epoch"] == 3


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize(
    "dtype",
    "bool int8 uint8 int16 int32 int64 float16 bfloat16 float32 float64 complex64".split(),
)
@pytest.mark.parametrize("shape", [[], [0], [1], [3, 2]])
def test_tensors_of_every_form(protocol, dtype, shape):
    state = {"a": paddle.full(shape, 1, dtype), "nested": {"b": paddle.ones([2]), "c": [1, None]}}
    buffer = io.BytesIO()
    paddle.save(state, buffer, protocol=protocol)
    assert equal(safe_loads(buffer.getvalue()), state)


@pytest.mark.parametrize("protocol", [2, 4])
def test_arrays_and_numbers_as_numpy_pickles_them(protocol):
    state = {
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big-endian": np.arange(3, dtype=">i4"),
    }
    loaded = safe_loads(pickle.dumps(state, protocol=protocol))
    assert all(np.array_equal(loaded[key], state[key]) for key in state)
    assert safe_loads(pickle.dumps({"lr": np.float64(0.1)}, protocol=protocol)) == {"lr": 0.1}


def save_golden(folder):
    """Write with `paddle.save` a small net, its optimizer, and both in one dictionary.

    `golden/paddle-2.6.2` (with NumPy 1.26) and `golden/paddle-3.3.1` (with NumPy 2.3) are what
    this left there.
    """
    folder.mkdir(parents=True)
    with unique_name.guard():
        model = nn.Linear(3, 2)
        model.set_state_dict(
            {"weight": paddle.arange(6, dtype="float32").reshape([3, 2]), "bias": paddle.ones([2])}
        )
        schedule = paddle.optimizer.lr.CosineAnnealingDecay(0.5, 4)
        optimizer = paddle.optimizer.Momentum(schedule, 0.9, parameters=model.parameters())
        model(paddle.ones([1, 3])).sum().backward()
        optimizer.step()
        schedule.step()
    for protocol in (2, 3, 4):
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
        paddle.save(saved, str(folder / f"protocol{protocol}.both"), protocol=protocol)
        for suffix, key in ((PARAMS, "model"), (OPTIMIZER, "optimizer")):
            path = str(folder / f"protocol{protocol}{suffix}")
            paddle.save(saved[key], path, protocol=protocol)


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("version", ["2.6.2", "3.3.1", "installed"])
def test_files_of_both_paddles_are_read(tmp_path, version, protocol):
    """Whichever of them is installed: the two pickle arrays by other names, as their NumPys do."""
    folder = GOLDEN / f"paddle-{version}"
    if version == "installed":
        save_golden(folder := tmp_path / version)
    weights = {
        "weight": np.float32([[-0.5, 0.5], [1.5, 2.5], [3.5, 4.5]]),
        "bias": np.float32([0.5, 0.5]),
    }
    velocities = {
        "linear_0.w_0_velocity_0": np.ones([3, 2], np.float32),
        "linear_0.b_0_velocity_0": np.ones([2], np.float32),
    }
    model = safe_load(folder / f"protocol{protocol}.pdparams")
    assert model.pop(NAME_TABLE) == {"weight": "linear_0.w_0", "bias": "linear_0.b_0"}
    assert equal(model, weights)
    optimizer = safe_load(folder / f"protocol{protocol}.pdopt")
    assert optimizer.pop(NAME_TABLE) == {name: name for name in velocities}
    schedule = optimizer.pop("LR_Scheduler")
    assert schedule["last_epoch"] == 1 and abs(schedule["last_lr"] - 0.4267766952966369) < 1e-12
    assert equal(optimizer, velocities)
    both = safe_load(folder / f"protocol{protocol}.both")
    assert equal(both["model"], weights) and both["epoch"] == 3
    assert both["optimizer"].pop("LR_Scheduler") == schedule
    assert equal(both["optimizer"], velocities)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_large_tensors(tmp_path, protocol):
    """Over 64 MiB, and around 64 KiB, where protocol 4 puts bytes outside of its frames.

    Takes the file and the tensors in it. Protocol 2 writes bytes as text, which has to be turned
    into bytes again, and so takes each twice.
    """
    noise = np.random.RandomState(protocol).bytes(70 << 20)
    state = {"large": paddle.to_tensor(np.frombuffer(noise, np.int32).reshape(70, -1))}
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
    assert len(loaded.pop(NAME_TABLE)) == len(state) and equal(loaded, state)


@pytest.mark.release
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_tensor_over_1_gib_that_paddle_cuts(tmp_path, protocol):
    """The real thing; takes 6 GiB of memory. The next test has the same in small."""
    if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 8 << 30:
        pytest.skip("less than 8 GiB of memory are free")
    large = np.zeros(2**30 + 5, np.uint8)
    large[[0, 2**30 - 2, 2**30 - 1, 2**30, -1]] = [1, 2, 3, 4, 5]  # it is cut after 2**30 - 1
    path = str(tmp_path / "x.pdparams")
    paddle.save({"w": paddle.to_tensor(large), "b": paddle.ones([2])}, path, protocol=protocol)
    loaded = safe_load(path)
    os.unlink(path)
    assert sorted(loaded) == [NAME_TABLE, "b", "w"] and np.array_equal(loaded["w"], large)


def test_a_tensor_cut_in_pieces_is_put_together():
    """Under protocols 2 and 3 Paddle cuts tensors over 1 GiB; here by its own function, smaller."""
    from paddle.framework import io_utils

    state = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(2, np.float32)}
    pieces = {
        "w@@.0": state["w"].ravel()[:7],
        "w@@.1": state["w"].ravel()[7:],
        "b": state["b"],
        "UnpackBigParamInfor@@": {"w": {"OriginShape": (3, 4), "slices": ["w@@.0", "w@@.1"]}},
    }
    assert equal(io_utils._pack_loaded_dict(dict(pieces)), state)  # as paddle.load would
    assert equal(safe_loads(pickle.dumps(pieces, protocol=2)), state)


INFO = "UnpackBigParamInfor@@"
PIECES = {"w@@.0": np.ones(7, np.float32), "w@@.1": np.ones(5, np.float32)}
BAD_CUTS = {
    "a piece is missing": {"w": {"OriginShape": (4, 3), "slices": ["w@@.0", "w@@.1", "w@@.2"]}},
    "a piece too few": {"w": {"OriginShape": (4, 3), "slices": ["w@@.0"]}},
    "another shape": {"w": {"OriginShape": (4, 4), "slices": ["w@@.0", "w@@.1"]}},
    "a shape that is none": {"w": {"OriginShape": "abc", "slices": ["w@@.0", "w@@.1"]}},
    "a huge shape": {"w": {"OriginShape": (2**70, 0), "slices": ["w@@.0"]}},
    "a piece twice": {"w": {"OriginShape": (14,), "slices": ["w@@.0", "w@@.0"]}},
    "no pieces": {"w": {"OriginShape": (0,), "slices": []}},
    "no shape": {"w": {"slices": ["w@@.0"]}},
    "a piece that is no array": {"w": {"OriginShape": (1,), "slices": ["epoch"]}},
    "a list": [1, 2],
    "a list inside": {"w": ["w@@.0", "w@@.1"]},
    "nothing": None,
}


@pytest.mark.parametrize("name", BAD_CUTS)
def test_a_tensor_whose_pieces_do_not_fit_is_refused(name):
    """A file cut by a disk that was full must not give a tensor of other numbers."""
    data = pickle.dumps({**PIECES, "epoch": 1, INFO: BAD_CUTS[name]}, protocol=2)
    with pytest.raises(CheckpointError, match=r"damaged|expected tensors"):
        safe_loads(data)


# ------------------------------------------------------------------ hostile files


class Calls:
    """Pickled as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


MARKER = "PWNED"  # what each of them would make in the current directory, were it run
TOUCH = f"open({MARKER!r}, 'w')"


def _nested(levels):
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


PROTO = "\x80\x02"
# What is found in pickles that mean harm, and what is like the names that are known.
GLOBALS = [
    ("os", "system"),
    ("posix", "system"),
    ("nt", "system"),
    ("os", "path.os.system"),
    ("os", "execv"),
    ("subprocess", "Popen"),
    ("subprocess", "check_output"),
    ("builtins", "eval"),
    ("builtins", "exec"),
    ("builtins", "compile"),
    ("builtins", "__import__"),
    ("builtins", "getattr"),
    ("builtins", "globals"),
    ("builtins", "open"),
    ("builtins", "print"),
    ("builtins", "bytearray"),
    ("__builtin__", "eval"),
    ("__builtin__", "file"),
    ("copyreg", "_reconstructor"),
    ("copyreg", "__newobj__"),
    ("copy_reg", "_reconstructor"),
    ("importlib", "import_module"),
    ("runpy", "run_path"),
    ("pickle", "loads"),
    ("_pickle", "loads"),
    ("marshal", "loads"),
    ("types", "FunctionType"),
    ("types", "CodeType"),
    ("functools", "partial"),
    ("functools", "reduce"),
    ("operator", "attrgetter"),
    ("operator", "methodcaller"),
    ("socket", "create_connection"),
    ("urllib.request", "urlopen"),
    ("webbrowser", "open"),
    ("pty", "spawn"),
    ("ctypes", "CDLL"),
    ("code", "interact"),
    ("timeit", "timeit"),
    ("cProfile", "run"),
    ("asyncio", "run"),
    ("collections", "Counter"),
    ("_codecs", "decode"),
    ("numpy", "load"),
    ("numpy", "fromfile"),
    ("numpy", "core.multiarray._reconstruct"),
    ("numpy.core.multiarray", "fromfile"),
    ("numpy.testing._private.utils", "runstring"),
    ("paddle", "load"),
    ("paddle.framework.io_utils", "_open_file_buffer"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("__main__", "x"),
    ("", ""),
]
# Every opcode there is, but those that paddle.save writes: here as a pickle would hold it.
OTHER_OPCODES = {
    "INT": b"I1\n",
    "LONG": b"L1L\n",
    "LONG4": b"\x8b\x01\x00\x00\x00\x01",
    "STRING": b"S'x'\n",
    "BINSTRING": b"T\x01\x00\x00\x00x",
    "SHORT_BINSTRING": b"U\x01x",
    "BYTEARRAY8": b"\x96\x01" + bytes(7) + b"x",
    "NEXT_BUFFER": b"\x97",
    "READONLY_BUFFER": b"}\x98",
    "UNICODE": b"Vx\n",
    "FLOAT": b"F1.0\n",
    "LIST": b"(l",
    "DICT": b"(d",
    "EMPTY_SET": b"\x8f",
    "ADDITEMS": b"](\x90",
    "FROZENSET": b"(\x91",
    "POP": b"}K\x010",
    "DUP": b"}2",
    "POP_MARK": b"}(1",
    "GET": b"}q\x00g0\n",
    "PUT": b"}p0\n",
    "EXT1": b"\x82\x01",
    "EXT2": b"\x83\x01\x00",
    "EXT4": b"\x84\x01\x00\x00\x00",
    "INST": b"(icollections\nOrderedDict\n",
    "OBJ": b"(ccollections\nOrderedDict\no",
    "NEWOBJ": b"ccollections\nOrderedDict\n)\x81",
    "NEWOBJ_EX": b"ccollections\nOrderedDict\n)}\x92",
    "PERSID": b"Px\n",
    "BINPERSID": b"K\x01Q",
}
WRITTEN_OPCODES = (
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT "
    "SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8 EMPTY_DICT SETITEM "
    "SETITEMS EMPTY_LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 BINPUT LONG_BINPUT "
    "MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD".split()
)


def _hostile():
    for name, value in {
        "os.system": Calls(os.system, f"touch {MARKER}"),
        "subprocess": Calls(subprocess.call, ["touch", MARKER]),
        "eval": Calls(eval, TOUCH),
        "exec": Calls(exec, TOUCH),
        "open": Calls(open, MARKER, "w"),
        "getattr": Calls(getattr, "", "join"),
        "__import__": Calls(builtins.__import__, "os"),
        "copyreg": Calls(copyreg._reconstructor, dict, object, None),
        "a class": io.StringIO("x"),
        "an exception": ValueError("x"),
        "a function": os.system,
        "a reduce in a reduce": Calls(tuple, [Calls(os.system, f"touch {MARKER}")]),
        "np.load": Calls(np.load, MARKER),
        "object array": np.array([Calls(os.system, f"touch {MARKER}")], object),
        "a set": {1, 2},
        "shared containers": [(shared := [1]), shared],
        "billion laughs": _nested(60),
    }.items():
        for protocol in (2, 4):
            yield f"{name}, protocol {protocol}", pickle.dumps({"w": value}, protocol=protocol)
    for module, name in GLOBALS:
        yield f"{module}.{name} by GLOBAL", f"{PROTO}c{module}\n{name}\n)R.".encode("latin1")
        yield f"{module}.{name} by STACK_GLOBAL", b"\x80\x04" + _text(module, name) + b"\x93)R."
    for name, code in OTHER_OPCODES.items():
        yield f"opcode {name}", b"\x80\x04" + code + b"."
    yield "a key of nested tuples", pickle.dumps({_nested(20): 1}, protocol=2)
    yield "dotted global", b"\x80\x04\x8c\x02os\x8c\x0bpath.system\x93\x8c\x01x\x85R."
    yield "dotted global behind a good one", b"\x80\x04" + _text("numpy", "dtype.type") + b"\x93."
    yield "global of builtins", b"\x80\x02cbuiltins\neval\n(X\x01\x00\x00\x001tR."
    yield "global whose name is no text", b"\x80\x04K\x01K\x02\x93."
    yield "persistent id", b"\x80\x02Pabc\n."
    yield "binary persistent id", b"\x80\x02K\x01Q."
    yield "extension code", b"\x80\x02\x82\x01."
    yield "inst", b"\x80\x02(ios\nsystem\n."
    yield "obj", b"\x80\x02(cos\nsystem\no."
    yield "newobj of a good global", b"\x80\x02cnumpy\ndtype\nX\x02\x00\x00\x00f4\x85\x81."
    yield "calls ndarray", b"\x80\x02cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85R."
    yield "calls a text", b"\x80\x02X\x01\x00\x00\x00x)R."
    yield "calls with a dict", b"\x80\x02cnumpy\ndtype\n}R."
    yield "a function that is left", b"\x80\x02}X\x01\x00\x00\x00wcnumpy\ndtype\ns."
    yield "build on a dict", b"\x80\x02}}b."
    yield "build on a function", b"\x80\x02cnumpy\ndtype\n}b."
    yield "pop", b"\x80\x02}K\x010."
    yield "dup", b"\x80\x02}2\x86."
    yield "memo that was never put", b"\x80\x02h\x07."
    yield "memo of nothing", b"\x80\x02q\x00}."
    yield "memo of a mark", b"\x80\x02(q\x00h\x00t."
    yield "memo taken twice for one value", b"\x80\x02}q\x00X\x01\x00\x00\x00wh\x00s."
    yield "memo exchanged under a call", b"\x80\x02cnumpy\ndtype\nq\x00cos\nsystem\nq\x00h\x00)R."
    yield "list that holds itself", b"\x80\x02}X\x01\x00\x00\x00w]q\x00h\x00as."
    yield "dict that holds itself", b"\x80\x02}q\x00X\x01\x00\x00\x00wh\x00s."
    yield "a hundred thousand tuples deep", b"\x80\x02)" + b"\x85" * 10**5 + b"."
    yield "stack underflow", b"\x80\x02\x86."
    yield "no mark", b"\x80\x02t."
    yield "huge length", b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f."
    yield "huge text", b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f."
    yield "length below nothing", b"\x80\x04\x8b\xff\xff\xff\xff."
    yield "huge frame and nothing in it", b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f"
    yield "array of a huge shape", _array("f4", (2**62,), b"")
    yield "array of negative shape", _array("u1", (-1, -1), b"x")
    yield "array of many axes", _array("u1", (1,) * 100, b"x")
    yield "array of objects", _array("O8", (1,), bytes(8))
    yield "array of records", _array("V8", (1,), bytes(8))
    yield "array of text", _array("U2", (1,), bytes(8))
    yield "array of other arrays", _array("f4", (1,), [1.0])
    yield "array of no bytes", b"\x80\x02" + _ARRAY + b"."
    yield (
        "bytes of another encoding",
        (b"\x80\x02c_codecs\nencode\n(X\x01\x00\x00\x00xX\x03\x00\x00\x00hextR."),
    )
    yield "text that is no UTF-8", b"\x80\x02X\x02\x00\x00\x00\xff\xfe."
    yield "not a dict", pickle.dumps([1, 2])
    yield "dtype nested", b"\x80\x02cnumpy\ndtype\n((tK\x00K\x01tR."
    yield "empty", b""
    yield "no stop", b"\x80\x04}"
    yield "more after the end", pickle.dumps({}) + b"x"
    yield "two pickles", pickle.dumps({}) * 2
    yield "protocol 0", pickle.dumps({"w": 1}, protocol=0)
    yield "text", b"hello"
    yield "zip, as PyTorch writes it", b"PK\x03\x04" + bytes(60)
    yield "zeros", bytes(100)
    yield "an opcode that is none", b"\x80\x04\xff."


HOSTILE = dict(_hostile())


# What this process is about to do, told by Python itself, while it reads a file. The hook stays.
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


def test_the_watch_sees_what_a_pickle_does():
    """It has eyes: else the tests below would pass whatever was run."""
    data = pickle.dumps(Calls(eval, "1 + 1"))
    with pytest.raises(AssertionError), nothing_done():
        pickle.loads(data)
    assert {"pickle.find_class", "exec"} <= set(_events)
    with pytest.raises(AssertionError), nothing_done():  # an error after the deed hides nothing
        pickle.loads(data)
        raise CheckpointError


def test_the_corpus_is_whole():
    """It is made by loops, and names each thing that the demand for it names."""
    assert len(HOSTILE) == 224
    for name in (
        "os.system, protocol 4",
        "builtins.eval by GLOBAL",
        "a reduce in a reduce, protocol 2",
        "copyreg, protocol 2",
        "copyreg._reconstructor by STACK_GLOBAL",
        "dotted global",
        "persistent id",
        "binary persistent id",
        "memo that was never put",
        "billion laughs, protocol 4",
    ):
        assert name in HOSTILE


def test_every_opcode_is_known_to_the_corpus():
    """A Python with a new one must make us look at it."""
    every = sorted(opcode.name for opcode in pickletools.opcodes)
    assert sorted([*WRITTEN_OPCODES, *OTHER_OPCODES]) == every


@pytest.mark.parametrize("name", OTHER_OPCODES)
def test_opcode_that_paddle_never_writes_is_refused_by_name(name):
    """By its kind, not because something else about the file is odd."""
    with pytest.raises(CheckpointError, match=rf"has the opcode {name} at byte \d+"):
        safe_loads(HOSTILE[f"opcode {name}"])


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_refused_and_runs_nothing(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError), nothing_done():
        safe_loads(HOSTILE[name])
    Path("x.pdparams").write_bytes(HOSTILE[name])
    with pytest.raises(CheckpointError, match=r"x\.pdparams") as caught:
        safe_load("x.pdparams")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert not Path(MARKER).exists()


def test_a_huge_memo_index_takes_no_memory():
    """pickle would make room for two thousand million entries."""
    assert safe_loads(b"\x80\x02}r\xff\xff\xff\x7f.") == {}


def test_the_corpus_does_run_when_unpickled(tmp_path, monkeypatch):
    """The corpus has teeth: plain pickle, and so paddle.load, runs what it says."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.pdparams").write_bytes(HOSTILE["os.system, protocol 4"])
    paddle.load("x.pdparams")
    assert (tmp_path / MARKER).exists()


# ------------------------------------------------------------------ files that swell


_NESTED = b")" + b"q\x00h\x00\x86" * 60  # a tuple that holds another twice, 60 times over
_FLOAT32 = b"cnumpy\ndtype\n" + _text("f4") + b"\x89\x88\x87R"


def _again(function, arguments, times):
    """A list of what a function gives, called again and again with the same arguments."""
    first = b"c" + function + b"\nq\x00" + arguments + b"q\x01R"
    return b"\x80\x02}" + _text("w") + b"](" + first + b"h\x00h\x01R" * times + b"es."


def _dict(**values):
    """values: opcodes that put each on the stack."""
    items = b"".join(_text(key) + value for key, value in values.items())
    return b"\x80\x03}(" + items + b"u."


def _bombs():
    """Small files, less than 1 MB, that ask for gigabytes, or for hours."""
    yield "billion laughs of tuples", _dict(w=_NESTED)
    yield "billion laughs of lists", _dict(w=b"]" + b"q\x00]q\x01h\x00ah\x00a" * 60)
    yield (
        "one text into bytes",
        _again(b"_codecs\nencode", _text("x" * 50_000, "latin1") + b"\x86", 9_000),
    )
    yield (
        "one list into tuples",
        _again(b"__builtin__\ntuple", b"](" + b"N" * 50_000 + b"e\x85", 9_000),
    )
    yield (
        "one text into tuples",
        _again(b"__builtin__\ntuple", _text("x" * 50_000) + b"\x85", 9_000),
    )
    yield (
        "a hundred thousand arguments",
        _again(b"numpy\ndtype", b"(" + _text("f4") + b"N" * 99_999 + b"t", 99_999),
    )
    yield "nested encoding", _dict(w=b"c_codecs\nencode\n" + _text("x") + _NESTED + b"\x86R")
    yield (
        "nested text to encode",
        _dict(w=b"c_codecs\nencode\n" + _NESTED + _text("latin1") + b"\x86R"),
    )
    yield "nested module", _dict(w=_NESTED + _text("x") + b"\x93")
    yield "nested name of a function", _dict(w=_text("x") + _NESTED + b"\x93")
    yield "nested dtype", _dict(w=b"cnumpy\ndtype\n" + _NESTED + b"\x89\x88\x87R")
    yield (
        "nested byte order",
        _dict(w=_FLOAT32 + b"(K\x03" + _NESTED + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"),
    )
    yield "nested shape", _dict(w=_ARRAY + b"(K\x01" + _NESTED + _FLOAT32 + b"\x89C\x00tb")
    yield "nested contents", _dict(w=_ARRAY + b"(K\x01)" + _FLOAT32 + b"\x89" + _NESTED + b"tb")
    long = b"\x8a\xff" + b"\x7f" * 255 + b"q\x05" + b"h\x05" * 30_000
    yield (
        "a shape of huge numbers",
        _dict(w=_ARRAY + b"(K\x01(" + long + b"t" + _FLOAT32 + b"\x89C\x00tb"),
    )
    multiples = ((2**61 - 1) * n for n in range(1, 40_000))
    keys = b"".join(b"\x8a\x0b" + n.to_bytes(11, "little") + b"N" for n in multiples)
    yield "keys of one hash", b"\x80\x02}(" + keys + b"u."
    array = pickle.dumps(np.zeros(50_000, np.uint8), protocol=3)[2:-1] + b"r\x00\x00\x01\x00"
    slices = b"](" + b"".join(_text(str(n)) for n in range(5_000)) + b"e"
    cut = b"}(" + _text("OriginShape") + b"N" + _text("slices") + slices + b"u"
    pieces = {str(n): b"j\x00\x00\x01\x00" for n in range(5_000)}
    yield (
        "one array as many pieces",
        _dict(a=array, **pieces, **{INFO: b"}" + _text("w") + cut + b"s"}),
    )
    texts = b"](" + _text("x" * 50_000) + _text("") * 50_000 + b"e"
    cut = b"}(" + _text("OriginShape") + b"N" + _text("slices") + b"]" + _text("a") + b"au"
    yield "pieces of text", _dict(a=texts, **{INFO: b"}" + _text("w") + cut + b"s"})


BOMBS = dict(_bombs())
READ_BOMB = """
import resource, sys, tracemalloc
from paddle_mnist.checkpoint.safe_load import safe_load
from paddle_mnist.errors import CheckpointError
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
tracemalloc.start()
try:
    safe_load(sys.argv[1])
    print("read")
except CheckpointError as error:
    print(error)
print(tracemalloc.get_traced_memory()[1])
"""


FEW_BOMBS = ("nested encoding", "keys of one hash", "one array as many pieces")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FEW_BOMBS else pytest.mark.release) for name in BOMBS],
)
def test_small_file_takes_no_gigabytes_and_no_hours(tmp_path, name):
    """In a process of its own, with 10 s and 4 GiB.

    An opcode is a byte at least, and makes an object of some 100 bytes at most: that is what a
    file may take, 256 times its size, and no more.
    """
    path = tmp_path / "x.pdparams"
    path.write_bytes(BOMBS[name])
    assert len(BOMBS[name]) < 1_000_000
    done = subprocess.run(
        [sys.executable, "-c", READ_BOMB, path], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-300:] or f"ended with {done.returncode}: time is up"
    message, peak = done.stdout.splitlines()
    assert "x.pdparams: " in message and len(message) < 400
    assert int(peak) < 256 * len(BOMBS[name]) + (1 << 20)


def test_no_bomb_is_lost():
    assert len(BOMBS) == 18


def test_a_message_is_one_line_whatever_the_file_holds(tmp_path):
    """The texts that Python adds quote the file, which may be a gigabyte without a quote in it."""
    for data in (b"S" + b"x" * 10**6 + b"\n.", _dict(**{INFO: BOMB_CUT})):
        with pytest.raises(CheckpointError) as caught:
            safe_loads(data, "x.pdparams")
        assert len(str(caught.value)) < 500 and "\n" not in str(caught.value)


BOMB_CUT = pickle.dumps({"w": {"slices": ["x\n" * 10**6], "OriginShape": (1,)}}, protocol=2)[2:-1]


# ------------------------------------------------------------------ fuzz


FILES = [path.read_bytes() for path in sorted(GOLDEN.rglob("protocol*"))]
SMALL = [data for data in HOSTILE.values() if len(data) < 5_000]
CASES, FEW_CASES = 5_000, 500  # of each kind


def _ends(data):
    """Return where each opcode of a pickle begins, and the last one ends; as far as it is one."""
    starts = []
    with contextlib.suppress(ValueError):
        starts += [position for *_, position in pickletools.genops(data)]
    return [*starts, len(data)]


def _opcodes(data):
    at = _ends(data)
    return [data[start:end] for start, end in zip(at, at[1:])]


# Opcodes to put together: those of good files, of bad ones, and of their parts.
OPCODES = sorted(
    {opcode for data in FILES[::3] + SMALL for opcode in _opcodes(data) if len(opcode) < 100}
)


def flipped(draw):
    """Bits of a good file."""
    data = bytearray(draw.choice(FILES))
    for _ in range(draw.randint(1, 3)):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


def spliced(draw):
    """The beginning of one good file and the end of another, or of a bad one."""
    first, second = draw.choice(FILES), draw.choice(FILES + SMALL)
    if draw.random() < 0.5:
        return first[: draw.randrange(len(first) + 1)] + second[draw.randrange(len(second) + 1) :]
    begin, end = _opcodes(first), _opcodes(second)  # after as many opcodes: that may be read
    at = draw.randrange(len(begin) + 1)
    return b"".join(begin[:at] + end[at:])


def shuffled(draw):
    """A good file with opcodes taken out, doubled, exchanged, or others put in."""
    opcodes = _opcodes(draw.choice(FILES))
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(opcodes))
        opcodes[at : at + draw.randint(0, 2)] = draw.choice(
            [[], [draw.choice(opcodes)], [draw.choice(OPCODES)], [opcodes[at]] * 3]
        )
    return b"".join(opcodes)


def drawn(draw):
    """A dictionary whose values are opcodes, whichever come."""
    items = (
        _text("k") + b"".join(draw.choices(OPCODES, k=draw.choice([1, 1, 1, 2, 3, 6]))) + b"s"
        for _ in range(draw.randint(1, 4))
    )
    return b"\x80\x02}" + b"".join(items) + b"."


def is_plain(value):
    """Return whether it is made of numbers and names, and nothing that could do something."""
    if type(value) is dict:
        return all(type(key) in (str, int) and is_plain(item) for key, item in value.items())
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    if type(value) is np.ndarray:
        return value.dtype.kind in "biufc"
    return value is None or type(value) in (bool, int, float, complex, str, bytes)


@pytest.mark.parametrize("change", [flipped, spliced, shuffled, drawn])
def test_fuzz(change, pytestconfig):
    """Always the same cases: plain things or a CheckpointError, and nothing is done."""
    cases = CASES if pytestconfig.getoption("thorough") else FEW_CASES
    read = 0
    for seed in range(cases):
        data = change(random.Random(seed))
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


def _valid():
    buffer = io.BytesIO()
    paddle.save({"w": paddle.arange(4, dtype="float32"), "LR_Scheduler": {"last_lr": 0.1}}, buffer)
    return buffer.getvalue()


VALID = _valid()


@settings(max_examples=500, deadline=None, derandomize=True)
@given(st.data())
def test_changed_files_are_read_or_refused(data):
    """Bytes changed, cut out or put in anywhere: a dictionary or a CheckpointError."""
    raw = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw)))
        end = min(len(raw), at + data.draw(st.integers(0, 3)))
        raw[at:end] = data.draw(st.binary(max_size=4))
    with contextlib.suppress(CheckpointError):
        assert isinstance(safe_loads(bytes(raw)), dict)


@pytest.mark.parametrize("path", ["nope.pdparams", "."])
def test_file_that_cannot_be_read_is_named(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="expected a readable file"):
        safe_load(path)


# ------------------------------------------------------------------ every place that loads

# Of torch, which the benchmark compares with, only the loading is.
UNPICKLERS = set("pickle _pickle cPickle dill cloudpickle joblib shelve marshal".split())
HARMLESS = {"joblib.cpu_count"}  # reads no file of a user's


def loads_of(source):
    """Return what in a program may run what a file says, without going through safe_load."""
    tree = ast.parse(source)
    modules = {}  # name in the program -> module
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                root = name.name.split(".")[0]
                modules[name.asname or root] = name.name if name.asname else root
                if root in UNPICKLERS:
                    yield name.name
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                modules[name.asname or name.name] = f"{node.module}.{name.name}"
                if (
                    node.module.split(".")[0] in UNPICKLERS
                    and f"{node.module}.{name.name}" not in HARMLESS
                ):
                    yield node.module
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        first, *rest = ast.unparse(node.func).split(".")
        called = ".".join([modules.get(first, ""), *rest] if first in modules else [first, *rest])
        known = first in modules and not called.startswith("paddle_mnist.")
        if called in ("eval", "exec", "compile", "__import__"):
            yield called
        elif known and called.split(".")[-1] in ("load", "loads", "unsafe_load", "full_load"):
            arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if called == "numpy.load" and arguments.get("allow_pickle") == "False":
                continue
            if called.split(".")[0] not in ("json", "simdjson"):
                yield called
        elif any(keyword.arg == "allow_pickle" for keyword in node.keywords) and (
            called != "numpy.load"
        ):
            yield called


def test_nothing_is_loaded_but_through_safe_load():
    """Every file a user names may come from a stranger.

    Machine code runs whatever wraps it. Nobody names its files: they are in a folder that only this
    user may write, or are not read (`nn/test_compiler.py`). `saved_state` only writes pickles, and
    `own_nets` has read those of a saved program safely before Paddle does
    (`mnist/test_own_nets.py`).
    """
    allowed = {
        "compiler.py": ["pickle", "pickle.loads"],
        "own_nets.py": ["paddle.jit.load"],
        "saved_state.py": ["pickle"],
    }
    paths = [*(ROOT / "paddle_mnist").rglob("*.py"), *(ROOT / "tools").glob("*.py")]
    found = {path.name: list(loads_of(path.read_text())) for path in paths}
    assert {name: loads for name, loads in found.items() if loads} == allowed


EVIL = HOSTILE["os.system, protocol 4"]


@pytest.mark.parametrize("suffix", [PARAMS, OPTIMIZER, TRAINING])
def test_a_checkpoint_with_a_hostile_file_is_refused(tmp_path, monkeypatch, suffix):
    """Committed rightly, with right checksums: somebody else's checkpoint, to go on from."""
    monkeypatch.chdir(tmp_path)
    model, optimizer = trained()
    files = {PARAMS: model.state_dict(), OPTIMIZER: optimizer.state_dict()}
    for key, state in {**files, TRAINING: model.state_dict()}.items():
        paddle.save(state, buffer := io.BytesIO())
        files[key] = buffer.getvalue()
    entries = manifest_entries(model, optimizer)
    store = CheckpointStore("c")
    good = store.commit("mnist_epoch0", files, TrainState(epoch=1), entries)
    average = ExponentialMovingAverage(model, 0.5)  # of which all three files are read
    load_checkpoint(good, model, optimizer, average)
    evil = {**files, suffix: EVIL}
    bad = store.commit("mnist_epoch1", evil, TrainState(epoch=2), entries)
    bad.verify()
    with pytest.raises(CheckpointError, match=rf"mnist_epoch1\{suffix}: names 'posix.system'"):
        load_checkpoint(bad, model, optimizer, average)
    assert not Path(MARKER).exists()


def test_weights_that_somebody_names_are_not_run(tmp_path, monkeypatch, tool, tiny):
    """`tools/eval.py -k`, `--init_from`: the files one gets from others."""
    monkeypatch.chdir(tmp_path)
    Path("x.pdparams").write_bytes(EVIL)
    with pytest.raises(CheckpointError, match=r"names 'posix\.system'"):
        find_weights("x.pdparams")
    for command in (
        ["eval", "-k", "x.pdparams", "--data", tiny],
        ["train", "--init_from", "x.pdparams", "--data", tiny],
    ):
        error = tool(*command, expect=4).stderr
        assert error.startswith("error: x.pdparams: names 'posix.system'")
        assert error.count("\n") == 1 and not Path(MARKER).exists()
