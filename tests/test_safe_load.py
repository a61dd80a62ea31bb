"""`safe_load` reads what `paddle.save` writes, and runs nothing of what a file says."""

import builtins
import contextlib
import copyreg
import io
import os
import pickle
import subprocess

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_mnist import MNIST
from paddle_mnist.checkpoint.safe_load import NAME_TABLE, safe_load, safe_loads
from paddle_mnist.errors import CheckpointError


def equal(found, expected):
    """Equal bit for bit, in form and dtype."""
    if isinstance(expected, (np.ndarray, paddle.Tensor)):
        expected = np.asarray(expected)
        same = (found.dtype, found.shape) == (expected.dtype, expected.shape)
        return same and found.tobytes() == expected.tobytes()
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            equal(found[key], expected[key]) for key in expected
        )
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(equal, found, expected))
    return type(found) is type(expected) and found == expected


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
        found = safe_load(path)
        found.pop(NAME_TABLE, None)
        assert equal(found, {k: v for k, v in state.items() if k != NAME_TABLE})


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_state_dicts_inside_a_dictionary(protocol):
    model, optimizer = trained()
    both = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    buffer = io.BytesIO()
    paddle.save(both, buffer, protocol=protocol)
    found = safe_loads(buffer.getvalue())
    assert equal(found["model"], dict(both["model"])) and found["epoch"] == 3


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64"]
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
    found = safe_loads(pickle.dumps(state, protocol=protocol))
    assert all(np.array_equal(found[key], state[key]) for key in state)
    assert safe_loads(pickle.dumps({"lr": np.float64(0.1)}, protocol=protocol)) == {"lr": 0.1}


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
    yield "a key of nested tuples", pickle.dumps({_nested(20): 1}, protocol=2)
    yield "dotted global", b"\x80\x04\x8c\x02os\x8c\x0bpath.system\x93\x8c\x01x\x85R."
    yield "global of builtins", b"\x80\x02cbuiltins\neval\n(X\x01\x00\x00\x001tR."
    yield "persistent id", b"\x80\x02Pabc\n."
    yield "binary persistent id", b"\x80\x02K\x01Q."
    yield "extension code", b"\x80\x02\x82\x01."
    yield "inst", b"\x80\x02(ios\nsystem\n."
    yield "obj", b"\x80\x02(cos\nsystem\no."
    yield "build on a dict", b"\x80\x02}}b."
    yield "pop", b"\x80\x02}K\x010."
    yield "dup", b"\x80\x02}2\x86."
    yield "memo that was never put", b"\x80\x02h\x07."
    yield "stack underflow", b"\x80\x02\x86."
    yield "no mark", b"\x80\x02t."
    yield "huge length", b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f."
    yield "not a dict", pickle.dumps([1, 2])
    yield "dtype nested", b"\x80\x02cnumpy\ndtype\n((tK\x00K\x01tR."
    yield "empty", b""
    yield "no stop", b"\x80\x04}"
    yield "more after the end", pickle.dumps({}) + b"x"
    yield "protocol 0", pickle.dumps({"w": 1}, protocol=0)
    yield "text", b"hello"


HOSTILE = dict(_hostile())


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_refused_and_runs_nothing(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.pdparams").write_bytes(HOSTILE[name])
    with pytest.raises(CheckpointError, match=r"x\.pdparams") as caught:
        safe_load("x.pdparams")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert not (tmp_path / MARKER).exists()


def test_a_huge_memo_index_takes_no_memory():
    """pickle would make room for two thousand million entries."""
    assert safe_loads(b"\x80\x02}r\xff\xff\xff\x7f.") == {}


def test_the_corpus_does_run_when_unpickled(tmp_path, monkeypatch):
    """The corpus has teeth: plain pickle, and so paddle.load, runs what it says."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.pdparams").write_bytes(HOSTILE["os.system, protocol 4"])
    paddle.load("x.pdparams")
    assert (tmp_path / MARKER).exists()


def _valid():
    buffer = io.BytesIO()
    paddle.save({"w": paddle.arange(4, dtype="float32"), "LR_Scheduler": {"last_lr": 0.1}}, buffer)
    return buffer.getvalue()


VALID = _valid()


@settings(max_examples=500, deadline=None)
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
