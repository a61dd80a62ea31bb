"""Interprets the opcodes of a pickle that `paddle.save` needs, and imports nothing.

A pickle is a program. This interpreter knows a few opcodes, which build plain containers, and calls
no function but those of the table `_CALLS`, which stand for the ones that a file may name. Anything
else raises RefusedError before it is built. Memory and time are bounded by the size of the file:
each opcode makes at most one object of a fixed size, except for strings, bytes and arrays, which
together have no more bytes than the file.
"""

import math
import pickletools
from collections.abc import Callable, Iterator
from typing import Any, Optional, Protocol, Union, cast

import numpy as np

_DTYPES = frozenset("b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split())
_MAX_AXES = 32  # of an array, as in NumPy 1
_MAX_ARGUMENTS = 3  # of a call
_MAX_KEY = 2**60  # of integers as keys: larger ones may be chosen to have one hash

Stack = list[Any]


class RefusedError(Exception):
    """Something that `paddle.save` never writes."""


def _describe(value: Any) -> str:
    """Describe a value for a message: a string by its start, anything else by its type.

    The repr of tuples that contain each other many times over would take for ever.
    """
    return repr(value[:40]) if isinstance(value, str) else f"a {type(value).__name__}"


# ------------------------------------------------------------------ what a file may build


class _Dtype:
    """A dtype that is being built: the call names it, BUILD sets its byte order."""

    def __init__(self, code: str, *_flags: Any):
        if not isinstance(code, str) or code not in _DTYPES:
            raise RefusedError(f"an array of dtype {_describe(code)}")
        self.dtype = np.dtype(code)

    def build(self, state: tuple[Any, ...]) -> None:
        if state[1] not in ("<", ">", "|", "="):
            raise RefusedError(f"byte order {_describe(state[1])}")
        self.dtype = self.dtype.newbyteorder(state[1])


class UnfinishedArray:
    """An array that is being built: the call makes it empty, BUILD fills it."""

    value = None

    def build(self, state: tuple[Any, ...]) -> None:
        _version, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes):
            raise RefusedError("an array that is not plain bytes")
        if len(shape) > _MAX_AXES or not all(type(n) is int and n >= 0 for n in shape):
            raise RefusedError(f"an array whose shape is not {_MAX_AXES} whole numbers at most")
        if math.prod(shape) * dtype.dtype.itemsize != len(raw):
            raise ValueError(f"an array of {len(raw)} bytes, which is not what its shape takes")
        flat = np.frombuffer(raw, dtype.dtype)
        self.value = flat.reshape(shape, order="F" if fortran else "C")


def _scalar(dtype: _Dtype, raw: bytes) -> Union[int, float, bool, complex]:
    number: Union[int, float, bool, complex] = np.frombuffer(raw, dtype.dtype, count=1)[0].item()
    return number


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise RefusedError(f"bytes in the encoding {_describe(encoding)}")
    return text.encode("latin1")


def _named_tensor(pair: tuple[Any, ...]) -> tuple[Any, ...]:
    if type(pair) is not tuple:  # of a list it would make another one
        raise RefusedError(f"a tuple of {_describe(pair)}")
    return pair


_NDARRAY = object()  # the class is only ever an argument of _reconstruct

_CALLS: dict[str, Any] = {
    # numpy.core became numpy._core with NumPy 2; __builtin__ and builtins: protocols 2 and 3+
    **dict.fromkeys(
        ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"),
        lambda _type, _shape, _code: UnfinishedArray(),
    ),
    **dict.fromkeys(("numpy.core.multiarray scalar", "numpy._core.multiarray scalar"), _scalar),
    "numpy ndarray": _NDARRAY,
    "numpy dtype": _Dtype,
    "_codecs encode": _encode,
    # a state_dict inside another dictionary
    "collections OrderedDict": lambda: {},  # noqa: PIE807, `dict` would take arguments
    **dict.fromkeys(("__builtin__ bytes", "builtins bytes"), lambda: b""),
    **dict.fromkeys(("__builtin__ tuple", "builtins tuple"), _named_tensor),
}


# ------------------------------------------------------------------ opcodes that take values


def _tuple(stack: Stack, items: list[Any]) -> None:
    stack.append(tuple(items))


def _update(stack: Stack, items: list[Any]) -> None:
    target = stack[-1]
    if type(target) is not dict or len(items) % 2:
        raise RefusedError(f"sets items of a {type(target).__name__}")
    for key, value in zip(items[::2], items[1::2]):
        if type(key) not in (str, int):  # a tuple of tuples would take for ever to hash
            raise RefusedError(f"a key that is a {type(key).__name__}")
        if type(key) is int and abs(key) > _MAX_KEY:
            raise RefusedError("a key that is a huge number")
        target[key] = value


def _extend(stack: Stack, items: list[Any]) -> None:
    target = stack[-1]
    if type(target) is not list:
        raise RefusedError(f"appends to a {type(target).__name__}")
    target.extend(items)


def _stack_global(stack: Stack, items: list[Any]) -> None:
    module, function = items
    if type(function) is not str or type(module) is not str:
        raise RefusedError(f"names {_describe(module)} and {_describe(function)}")
    stack.append(_look_up(f"{module} {function}"))


def _build(stack: Stack, items: list[Any]) -> None:
    target = stack[-1]
    if not isinstance(target, (UnfinishedArray, _Dtype)):
        raise RefusedError(f"sets the state of a {type(target).__name__}")
    target.build(*items)


def _look_up(name: str) -> Any:
    if name not in _CALLS:
        raise RefusedError(f"names {name.replace(' ', '.')!r:.80}")
    return _CALLS[name]


# What they do with what they take, and how many that is: None for all above the last mark.
_STACK_OPCODES: dict[str, tuple[Callable[[Stack, list[Any]], None], Optional[int]]] = {
    "TUPLE1": (_tuple, 1),
    "TUPLE2": (_tuple, 2),
    "TUPLE3": (_tuple, 3),
    "TUPLE": (_tuple, None),
    "SETITEM": (_update, 2),
    "SETITEMS": (_update, None),
    "APPEND": (_extend, 1),
    "APPENDS": (_extend, None),
    "STACK_GLOBAL": (_stack_global, 2),
    "BUILD": (_build, 1),
}


def _pop(stack: Stack, count: Optional[int]) -> list[Any]:
    """Pop some values, or the last mark and all above it; return the values in their order."""
    if count is None:
        marks = (index for index in reversed(range(len(stack))) if stack[index] is _MARK)
        start = next(marks, -1)
    else:
        start = len(stack) - count
    if start < 0:
        raise IndexError("the stack has no mark, or too few values")
    items = stack[start + (count is None) :]
    del stack[start:]
    return items


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


class Source(Protocol):
    """The part of a binary file's methods by which it is read."""

    def read(self, size: int, /) -> bytes: ...
    def readline(self) -> bytes: ...
    def tell(self) -> int: ...


class _Bounded:
    """Reads a file, and never asks it for more bytes than it has, for which it would make room."""

    def __init__(self, file: Source, size: int):
        self._file, self._size = file, size
        self.readline, self.tell = file.readline, file.tell

    def read(self, size: int) -> bytes:
        return self._file.read(max(0, min(size, self._size - self._file.tell())))


def interpret(file: Source, size: int) -> Any:
    """Return the object that a pickle describes, with an `UnfinishedArray` for each array.

    file: positioned at its begin. size: its bytes.

    Raises RefusedError for what `paddle.save` never writes; ValueError, LookupError, TypeError,
    AttributeError or ArithmeticError for damaged data.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    end = 0
    bytes_left = size  # that calls may make
    opcodes: Iterator[tuple[pickletools.OpcodeInfo, Any, Any]] = pickletools.genops(
        cast(Any, _Bounded(file, size))
    )
    for opcode, argument, position in opcodes:
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
        elif name in _STACK_OPCODES:
            act, count = _STACK_OPCODES[name]
            act(stack, _pop(stack, count))
        elif name == "GLOBAL":
            stack.append(_look_up(argument))
        elif name == "REDUCE":
            made = _call(stack, position)
            bytes_left -= len(made) if type(made) is bytes else 0
            if bytes_left < 0:
                raise RefusedError("makes more bytes than it has")
            stack.append(made)
        elif name == "STOP":
            end = position + 1
        elif name not in ("PROTO", "FRAME"):
            raise RefusedError(f"has the opcode {name} at byte {position}")
    if end != size:
        raise RefusedError(f"goes on for {size - end} bytes after its end")
    if len(stack) != 1:
        raise ValueError("ends with an unfinished object")
    return stack[0]


def _call(stack: Stack, position: int) -> Any:
    """Pop arguments and function; return what the function makes."""
    function, arguments = _pop(stack, 2)
    if function is _NDARRAY or not any(function is call for call in _CALLS.values()):
        raise RefusedError(f"calls something at byte {position}")
    if type(arguments) is not tuple or len(arguments) > _MAX_ARGUMENTS:
        raise RefusedError(f"calls with other arguments at byte {position}")
    return function(*arguments)
