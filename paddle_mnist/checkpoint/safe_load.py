"""Reads what `paddle.save` writes, without running any of it.

A `.pdparams` or `.pdopt` is a pickle, and a pickle is a program: `pickle.load`, and so
`paddle.load`, call whatever function a file names. Here the file's opcodes are walked by a small
interpreter that knows only those `paddle.save` needs, builds plain containers and NumPy arrays,
and imports nothing: the functions that a file may name stand in the table `_CALLS`. Whatever else
it holds is refused with a CheckpointError before anything is made of it. Memory and time are
bounded by the file's size: each opcode makes at most one object, of a fixed size but for texts,
bytes and arrays, and of those no more bytes are made than the file has.
"""

import math
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Union

import numpy as np

from paddle_mnist.errors import CheckpointError

# What paddle.save leaves beside the tensors: the map of structured to generated names, and how a
# tensor over 1 GiB was cut under pickle protocols 2 and 3.
NAME_TABLE = "StructuredToParameterName@@"
_CUT_TENSORS = "UnpackBigParamInfor@@"

_DTYPES = frozenset("b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split())
_MAX_DEPTH = 8  # of containers in each other; a state_dict has 2
_MAX_AXES = 32  # of an array, as NumPy 1 has it
_MAX_ARGUMENTS = 3  # of a call
_MAX_KEY = 2**60  # of whole numbers as keys: greater ones may be made to have one hash


def safe_load(path: Union[str, Path]) -> dict[str, Any]:
    """The dictionary in a file written by `paddle.save` (Paddle 2.x, 3.x; protocols 2 to 4).

    Tensors come as NumPy arrays; the name table, where there is one, stays under NAME_TABLE.
    Raises CheckpointError for a file that is unreadable, damaged, or holds anything else.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}; expected a readable file") from error
    return safe_loads(data, path)


def safe_loads(data: bytes, origin: Union[str, Path] = "checkpoint") -> dict[str, Any]:
    """As `safe_load`, from bytes; `origin` names them in errors."""
    try:
        found = _plain(_run(data))
        if not isinstance(found, dict):
            raise _RefusedError(f"holds a {type(found).__name__}")
        return _join_cut_tensors(found, len(data))
    except _RefusedError as refusal:
        raise CheckpointError(
            f"{origin}: {refusal}; expected tensors and plain containers as paddle.save writes "
            "them; do not open it with paddle.load, which would run it"
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise CheckpointError(
            f"{origin}: damaged, or not a file of paddle.save ({error!s:.200}); fall back on "
            "another checkpoint"
        ) from error


class _RefusedError(Exception):
    """Something that `paddle.save` never writes."""


def _shown(value: Any) -> str:
    """A value for a message. Only of strings the value itself: a repr of tuples that hold each
    other many times over would take for ever."""
    return repr(value[:40]) if isinstance(value, str) else f"a {type(value).__name__}"


# ------------------------------------------------------------------ what a file may build


class _Dtype:
    """A dtype in the making: named by the call, finished by BUILD with its byte order."""

    def __init__(self, code: str, *_flags):
        if not isinstance(code, str) or code not in _DTYPES:
            raise _RefusedError(f"an array of dtype {_shown(code)}")
        self.dtype = np.dtype(code)

    def build(self, state: tuple) -> None:
        if state[1] not in ("<", ">", "|", "="):
            raise _RefusedError(f"byte order {_shown(state[1])}")
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """An array in the making: empty by the call, filled by BUILD."""

    value = None

    def build(self, state: tuple) -> None:
        _version, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes):
            raise _RefusedError("an array that is not plain bytes")
        if len(shape) > _MAX_AXES or not all(type(n) is int and n >= 0 for n in shape):
            raise _RefusedError(f"an array whose shape is not {_MAX_AXES} whole numbers at most")
        if math.prod(shape) * dtype.dtype.itemsize != len(raw):
            raise ValueError(f"an array of {len(raw)} bytes, which is not what its shape takes")
        flat = np.frombuffer(raw, dtype.dtype)
        self.value = flat.reshape(shape, order="F" if fortran else "C")


def _new_array(_type, _shape, _code) -> _Array:
    return _Array()


def _scalar(dtype: _Dtype, raw: bytes) -> Union[int, float, bool, complex]:
    return np.frombuffer(raw, dtype.dtype, count=1)[0].item()


def _encoded(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise _RefusedError(f"bytes in the encoding {_shown(encoding)}")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


def _ordered() -> dict:
    return {}


def _named_tensor(pair: tuple) -> tuple:
    if type(pair) is not tuple:  # of a list it would make another one
        raise _RefusedError(f"a tuple of {_shown(pair)}")
    return pair


_NDARRAY = object()  # the class is only ever an argument of _reconstruct

_CALLS: dict[str, Any] = {
    # numpy.core became numpy._core with NumPy 2; __builtin__ and builtins: protocols 2 and 3+
    **dict.fromkeys(
        ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"), _new_array
    ),
    **dict.fromkeys(("numpy.core.multiarray scalar", "numpy._core.multiarray scalar"), _scalar),
    "numpy ndarray": _NDARRAY,
    "numpy dtype": _Dtype,
    "_codecs encode": _encoded,
    "collections OrderedDict": _ordered,  # a state_dict inside another dictionary
    **dict.fromkeys(("__builtin__ bytes", "builtins bytes"), _no_bytes),
    **dict.fromkeys(("__builtin__ tuple", "builtins tuple"), _named_tensor),
}


# ------------------------------------------------------------------ the interpreter

_MARK = object()
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": lambda: _MARK,
}
_LITERALS = frozenset(
    "BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINUNICODE BINUNICODE BINUNICODE8 "
    "SHORT_BINBYTES BINBYTES BINBYTES8".split()
)
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _run(data: bytes) -> Any:
    """The object a pickle describes, with `_Array` and `_Dtype` where NumPy's would be."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    end = None
    left = len(data)  # bytes that calls may make
    for opcode, argument, position in pickletools.genops(data):
        name = opcode.name
        if name in _LITERALS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [tuple(_top(stack, _TUPLES[name]))]
        elif name == "TUPLE":
            stack.append(tuple(_marked(stack)))
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            _set(stack[-1], [key, value])
        elif name == "SETITEMS":
            items = _marked(stack)
            _set(stack[-1], items)
        elif name == "APPEND":
            value = stack.pop()
            _extend(stack[-1], [value])
        elif name == "APPENDS":
            items = _marked(stack)
            _extend(stack[-1], items)
        elif name == "GLOBAL":
            stack.append(_callable(argument))
        elif name == "STACK_GLOBAL":
            function, module = stack.pop(), stack.pop()
            if type(function) is not str or type(module) is not str:
                raise _RefusedError(f"names {_shown(module)} and {_shown(function)}")
            stack.append(_callable(f"{module} {function}"))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            if function is _NDARRAY or not any(function is call for call in _CALLS.values()):
                raise _RefusedError(f"calls something at byte {position}")
            if type(arguments) is not tuple or len(arguments) > _MAX_ARGUMENTS:
                raise _RefusedError(f"calls with other arguments at byte {position}")
            made = function(*arguments)
            left -= len(made) if type(made) is bytes else 0
            if left < 0:
                raise _RefusedError("makes more bytes than it has")
            stack.append(made)
        elif name == "BUILD":
            state, target = stack.pop(), stack[-1]
            if not isinstance(target, (_Array, _Dtype)):
                raise _RefusedError(f"sets the state of a {type(target).__name__}")
            target.build(state)
        elif name == "STOP":
            end = position + 1
        elif name not in ("PROTO", "FRAME"):
            raise _RefusedError(f"has the opcode {name} at byte {position}")
    if end != len(data):
        raise _RefusedError(f"goes on for {len(data) - end} bytes after its end")
    if len(stack) != 1:
        raise ValueError("ends with an unfinished object")
    return stack[0]


def _top(stack: list, count: int) -> list:
    if len(stack) < count:
        raise IndexError("stack underflow")
    return stack[-count:]


def _marked(stack: list) -> list:
    """Take all above the last mark off the stack, and the mark."""
    for index in range(len(stack) - 1, -1, -1):
        if stack[index] is _MARK:
            items = stack[index + 1 :]
            del stack[index:]
            return items
    raise IndexError("no mark on the stack")


def _callable(name: str) -> Any:
    if name not in _CALLS:
        raise _RefusedError(f"names {name.replace(' ', '.')!r:.80}")
    return _CALLS[name]


def _set(target: Any, items: list) -> None:
    if type(target) is not dict or len(items) % 2:
        raise _RefusedError(f"sets items of a {type(target).__name__}")
    for key, value in zip(items[::2], items[1::2]):
        if type(key) not in (str, int):  # a tuple of tuples would take for ever to hash
            raise _RefusedError(f"a key that is a {type(key).__name__}")
        if type(key) is int and abs(key) > _MAX_KEY:
            raise _RefusedError("a key that is a huge number")
        target[key] = value


def _extend(target: Any, items: list) -> None:
    if type(target) is not list:
        raise _RefusedError(f"appends to a {type(target).__name__}")
    target.extend(items)


# ------------------------------------------------------------------ afterwards


def _plain(found: Any) -> Any:
    """`found` with finished arrays in it. Containers inside each other are limited in depth.

    A container that stands in several places is walked in each, so what one file can make this
    cost is limited by refusing shared containers: `paddle.save` shares none.
    """
    seen: set[int] = set()

    def walk(value: Any, depth: int) -> Any:
        if isinstance(value, _Array):
            if value.value is None:
                raise ValueError("an array without contents")
            return value.value
        if isinstance(value, (dict, list, tuple)):
            if depth > _MAX_DEPTH or (value and id(value) in seen):
                raise _RefusedError("containers nested too deep, or in several places")
            seen.add(id(value))
            if isinstance(value, dict):
                return {key: walk(item, depth + 1) for key, item in value.items()}
            if len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], _Array):
                return walk(value[1], depth + 1)  # a tensor outside a state_dict: (name, array)
            return type(value)(walk(item, depth + 1) for item in value)
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            return value
        raise _RefusedError(f"holds a {type(value).__name__}")

    return walk(found, depth=0)


def _join_cut_tensors(found: dict[str, Any], limit: int) -> dict[str, Any]:
    """limit: bytes in all, lest one array stand for many pieces."""
    for name, cut in found.pop(_CUT_TENSORS, {}).items():
        pieces = [found.pop(part) for part in cut["slices"]]
        if not all(isinstance(piece, np.ndarray) for piece in pieces):
            raise _RefusedError("a tensor in pieces that are no arrays")
        limit -= sum(piece.nbytes for piece in pieces)
        if limit < 0:
            raise _RefusedError("tensors in pieces with more bytes than it has")
        found[name] = np.concatenate([np.ravel(piece) for piece in pieces])
        found[name] = found[name].reshape(cut["OriginShape"])
    return found
