"""Read files that `paddle.save` wrote, without running any code from them.

A `.pdparams` or `.pdopt` is a pickle, and a pickle is a program: `pickle.load`, and so
`paddle.load`, call any function that a file names. The unpickler here has only the opcodes that
`paddle.save` needs, imports nothing, and calls only the functions of the table `_FUNCTIONS`, which
stand for those that a file may name. Everything else is refused with a CheckpointError.

Memory and time are bounded by the size of the file: an opcode makes at most one object of a fixed
size, except for strings, bytes and arrays, which together have no more bytes than the file.
"""

import io
import math
import os
import pickle
import pickletools
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, Union

import numpy as np

from paddle_mnist.errors import CheckpointError
from paddle_mnist.system.arrays import SAVED_DTYPES
from paddle_mnist.system.regular_files import open_to_read

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_MAX_AXES = 32  # of an array, as in NumPy 1
_MAX_DEPTH = 8  # of nested containers; a state_dict has 2
_MAX_KEY = 2**60  # of integers as keys: larger ones could be chosen to have the same hash
# Under pickle protocols 2 and 3, paddle.save slices tensors over 1 GiB and lists the slices here.
_SLICED_TENSORS = "UnpackBigParamInfor@@"
# The errors that damaged data cause.
_DAMAGE = LookupError, TypeError, ValueError, AttributeError, ArithmeticError, pickle.PickleError


class BinaryFile(Protocol):
    """The part of a binary file's methods by which it is read."""

    def read(self, size: int, /) -> bytes: ...
    def readline(self) -> bytes: ...


class _RefusedError(Exception):
    """Something that `paddle.save` never writes."""


def safe_load(path: Union[str, Path]) -> dict[str, Any]:
    """Load the dictionary in a file written by `paddle.save` (Paddle 2.x, 3.x; protocols 2 to 4).

    Tensors become NumPy arrays; the name table, if there is one, stays (`NAME_TABLE`).
    Raises CheckpointError for a file that is unreadable, damaged, or holds anything else.
    """
    try:
        with open_to_read(path) as file:
            return load_from(file, os.fstat(file.fileno()).st_size, path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}; expected a readable file") from error


def safe_loads(data: bytes, origin: Union[str, Path] = "checkpoint") -> dict[str, Any]:
    """Load the dictionary in bytes, as `safe_load` does. origin: names them in errors."""
    return load_from(io.BytesIO(data), len(data), origin)


def load_from(file: BinaryFile, size: int, origin: Union[str, Path]) -> dict[str, Any]:
    """Load the dictionary in a file, open at its start, of this size, as `safe_load` does.

    The arrays share the memory of the bytes that are read, and cannot be changed.
    """
    try:
        return _join_slices(_Unpickler(_Bounded(file, size)).load_dict(), size)
    except _RefusedError as refusal:
        raise CheckpointError(
            f"{origin}: {refusal}; expected tensors and plain containers as paddle.save writes "
            "them; do not open it with paddle.load, which would run it"
        ) from None
    except _DAMAGE as error:
        raise CheckpointError(
            f"{origin}: damaged, or not a file of paddle.save ({error!s:.200}); fall back on "
            "another checkpoint"
        ) from error


# ------------------------------------------------------------------ what a file may build


def _refuse_unless(condition: bool, contents: str) -> None:
    """Raise _RefusedError, which describes the contents of a file, unless a condition is true."""
    if not condition:
        raise _RefusedError(contents)


def _describe(value: Any) -> str:
    """Describe a value for a message: a string by its start, anything else by its type.

    The repr of tuples that contain each other many times over would never end.
    """
    return repr(value[:40]) if isinstance(value, str) else f"a {type(value).__name__}"


class _Dtype:
    """A dtype that is being built: the call names it, BUILD sets its byte order."""

    def __init__(self, code: Any, _align: Any, _copy: Any):
        is_known = isinstance(code, str) and code in SAVED_DTYPES
        _refuse_unless(is_known, f"an array of dtype {_describe(code)}")
        self.dtype = np.dtype(code)

    def build(self, state: Any) -> None:
        _refuse_unless(state[1] in ("<", ">", "|", "="), f"byte order {_describe(state[1])}")
        self.dtype = self.dtype.newbyteorder(state[1])


def _new_array(_type: Any, _shape: Any, _code: Any) -> np.ndarray:
    return np.empty(0, object)  # a dtype that is refused, until BUILD sets another


def _build_array(array: np.ndarray, state: Any) -> None:
    """Give an empty array its contents, which share the memory of their bytes in the file."""
    _version, shape, dtype, fortran, raw = state
    is_plain = type(dtype) is _Dtype and type(raw) is bytes
    _refuse_unless(is_plain, "an array that is not plain bytes")
    is_shape = len(shape) <= _MAX_AXES and all(type(n) is int and n >= 0 for n in shape)
    _refuse_unless(is_shape, f"an array whose shape is not {_MAX_AXES} whole numbers at most")
    if math.prod(shape) * dtype.dtype.itemsize != len(raw):
        raise ValueError(f"an array of {len(raw)} bytes, which does not match its shape")
    fill: Any = array.__setstate__
    fill((1, shape, dtype.dtype, bool(fortran), raw))
    array.flags.writeable = False


def _scalar(dtype: Any, raw: Any) -> Any:
    is_plain = type(dtype) is _Dtype and type(raw) is bytes
    _refuse_unless(is_plain, "a number that is not plain bytes")
    return np.frombuffer(raw, dtype.dtype, count=1)[0].item()


def _encode(text: str, encoding: str) -> bytes:
    _refuse_unless(encoding == "latin1", f"bytes in the encoding {_describe(encoding)}")
    return text.encode("latin1")


def _without_name(pair: Any) -> Any:
    """Return the array of (name, array), as Paddle saves a tensor outside of a state_dict."""
    is_pair = type(pair) is tuple and list(map(type, pair)) == [str, np.ndarray]
    _refuse_unless(is_pair, f"a tuple of {_describe(pair)}")
    return pair[1]


# Each takes a fixed number of arguments: calls with thousands could take days.
_FUNCTIONS: dict[tuple[str, str], Any] = {
    # numpy.core became numpy._core with NumPy 2; __builtin__ and builtins: protocols 2 and 3+
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy._core.multiarray", "_reconstruct"): _new_array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): object(),  # not called, but an argument of _reconstruct
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): lambda: {},  # noqa: PIE807, `dict` would take arguments
    ("__builtin__", "bytes"): lambda: b"",
    ("builtins", "bytes"): lambda: b"",
    ("__builtin__", "tuple"): _without_name,
    ("builtins", "tuple"): _without_name,
}


# ------------------------------------------------------------------ the unpickler


class _Bounded:
    """Reads a file, but never asks for more bytes than are left: Python would make room first."""

    def __init__(self, file: BinaryFile, size: int):
        self._file, self.size, self.bytes_left = file, size, size

    def read(self, size: int, /) -> bytes:
        data = self._file.read(min(size, self.bytes_left))
        self.bytes_left -= len(data)
        if len(data) < size:
            raise ValueError("it ends too early")
        return data

    def readline(self) -> bytes:
        line = self._file.readline()
        self.bytes_left -= len(line)
        return line


def _refuse(opcode: str, unpickler: "_Unpickler") -> None:
    position = unpickler.file.size - unpickler.file.bytes_left - 1
    raise _RefusedError(f"has the opcode {opcode} at byte {position}")


# These put plain values on the stack, or into the memo and out of it.
_PLAIN_NAMES = (
    "PROTO STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINUNICODE "
    "BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8 EMPTY_DICT EMPTY_LIST EMPTY_TUPLE "
    "TUPLE TUPLE1 TUPLE2 TUPLE3 BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL"
).split()
_PLAIN_OPCODES = [ord(getattr(pickle, name)) for name in _PLAIN_NAMES]


class _Unpickler(pickle._Unpickler):
    """The unpickler in Python, whose `dispatch` has only the opcodes that `paddle.save` needs."""

    stack: list[Any]
    metastack: list[list[Any]]
    pop_mark: Any

    def __init__(self, file: _Bounded):
        super().__init__(file)
        self.file = file
        self._bytes_left = file.size  # that calls may make

    def load_dict(self) -> dict[str, Any]:
        value: dict[str, Any] = self.load()
        left = self.file.bytes_left
        _refuse_unless(left == 0, f"has {left} bytes after its end")
        if self.stack or self.metastack:
            raise ValueError("ends with an unfinished object")
        _refuse_unless(type(value) is dict, f"holds {_describe(value)}")
        _require_plain(value, 0, set())
        return value

    def find_class(self, module: str, name: str) -> Any:
        _refuse_unless((module, name) in _FUNCTIONS, f"names {f'{module}.{name}'!r:.80}")
        return _FUNCTIONS[module, name]

    def load_frame(self) -> None:
        self.file.read(8)  # its size: the opcodes in a frame are read like all others

    def load_reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        is_known = any(function is known for known in _FUNCTIONS.values())
        _refuse_unless(is_known, f"calls {_describe(function)}")
        _refuse_unless(type(arguments) is tuple, f"calls with {_describe(arguments)}")
        made = function(*arguments)
        self._bytes_left -= len(made) if type(made) is bytes else 0
        _refuse_unless(self._bytes_left >= 0, "makes more bytes than it has")
        self.stack.append(made)

    def load_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if type(target) is np.ndarray:
            _build_array(target, state)
        else:
            _refuse_unless(type(target) is _Dtype, f"sets the state of {_describe(target)}")
            target.build(state)

    def load_append(self) -> None:
        self._extend([self.stack.pop()])

    def load_appends(self) -> None:
        self._extend(self.pop_mark())

    def _extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        _refuse_unless(type(target) is list, f"appends to {_describe(target)}")
        target.extend(items)

    def load_setitem(self) -> None:
        self._update([self.stack.pop(-2), self.stack.pop()])

    def load_setitems(self) -> None:
        self._update(self.pop_mark())

    def _update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        _refuse_unless(type(target) is dict, f"sets items of {_describe(target)}")
        for index in range(0, len(items), 2):
            key = items[index]  # must be quick to hash, and must not collide with others
            is_small = type(key) is str or (type(key) is int and abs(key) <= _MAX_KEY)
            _refuse_unless(is_small, f"a key that is {_describe(key)}, or a huge number")
            target[key] = items[index + 1]

    dispatch: ClassVar[dict[int, Any]] = {
        **{ord(code.code): partial(_refuse, code.name) for code in pickletools.opcodes},
        **{code: pickle._Unpickler.dispatch[code] for code in _PLAIN_OPCODES},
        pickle.FRAME[0]: load_frame,
        pickle.REDUCE[0]: load_reduce,
        pickle.BUILD[0]: load_build,
        pickle.APPEND[0]: load_append,
        pickle.APPENDS[0]: load_appends,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
    }


# ------------------------------------------------------------------ what was read


def _require_plain(value: Any, depth: int, seen: set[int]) -> None:
    """Raise _RefusedError unless a value has only plain contents, in containers not too deep.

    seen: containers, by their `id`. Those in several places are refused too, because each place
    would be visited, which takes exponential time; `paddle.save` shares none.
    """
    if type(value) in (dict, list, tuple):
        is_new = depth <= _MAX_DEPTH and not (value and id(value) in seen)
        _refuse_unless(is_new, "containers nested too deep, or in several places")
        seen.add(id(value))
        for item in value.values() if type(value) is dict else value:
            _require_plain(item, depth + 1, seen)
    elif type(value) is np.ndarray:
        if value.dtype == object:
            raise ValueError("an array without contents")
    else:
        _refuse_unless(type(value) in _SCALARS, f"holds {_describe(value)}")


def _join_slices(state_dict: dict[str, Any], max_bytes: int) -> dict[str, Any]:
    """Join the tensors that were saved in slices.

    max_bytes: of all slices together, so that one array cannot stand for many of them.
    """
    for name, sliced in state_dict.pop(_SLICED_TENSORS, {}).items():
        slices = [state_dict.pop(key) for key in sliced["slices"]]
        are_arrays = all(isinstance(values, np.ndarray) for values in slices)
        _refuse_unless(are_arrays, "a tensor in slices that are not arrays")
        max_bytes -= sum(values.nbytes for values in slices)
        _refuse_unless(max_bytes >= 0, "tensors in slices with more bytes than it has")
        joined = np.concatenate([np.ravel(values) for values in slices])
        state_dict[name] = joined.reshape(sliced["OriginShape"])
    return state_dict
