"""The contents of a file as `paddle.save` writes them, bit for bit, but written entry by entry.

Only buffers, which Paddle names by the number of temporary tensors so far, are named by their key.

`paddle.save` copies the whole state, and pickles it into memory or a file; the memo of the pickler
holds a further copy until the end. Here a tensor is copied when it is written, and then released.
"""

import copy
import io
import pickle
import re
import struct
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Protocol, cast

import numpy as np

from paddle_mnist.nn.state_dict import NAME_TABLE
from paddle_mnist.system.arrays import as_array, copied_array, is_tensor, unforked_array
from paddle_mnist.system.files import Buffer

_PROTOCOL = 4  # that of paddle.save
_LARGE = 2**16  # bytes of an array that is written as it is; those of smaller ones are copied
_CONTAINERS = (dict, OrderedDict, list, tuple)


class Output(Protocol):
    """Something that takes bytes."""

    def write(self, data: Buffer, /) -> Any: ...


class _Copy:
    """The name and a copy of the values of a tensor."""

    def __init__(self, tensor: Any):
        self._name = tensor.name.encode()
        self.array = copied_array(tensor, unforked_array)

    @property
    def name(self) -> str:
        """Another string each time, as that of a tensor is: a pickle refers to one it has."""
        name: str = self._name.decode()
        return name


class SavedState:
    """A state_dict, or other plain containers of tensors and arrays, as `paddle.save` takes them.

    state: may be changed until it is written or copied.
    """

    def __init__(self, state: Mapping[str, Any]):
        self._state = state

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors and arrays."""
        return _nbytes(self._state)

    def copied(self) -> "SavedState":
        """Return a copy, which does not change any more."""
        return SavedState(_copied(self._state, {}))

    def write_to(self, output: Output) -> None:
        state: Any = self._state
        if has_table := _is_state_dict(state):
            names = {key: _name(key, value) for key, value in state.items() if _is_tensor(value)}
            state = {**state, NAME_TABLE: names}
        _StatePickler(output, named=not has_table).dump(state)

    def to_bytes(self) -> bytes:
        buffer = io.BytesIO()
        self.write_to(buffer)
        return buffer.getvalue()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, _Copy) or is_tensor(value)


def _name(key: str, tensor: Any) -> str:
    """Return the name of a tensor, or its key for a temporary's, which differs after a resume."""
    return key if re.fullmatch(r"(eager_tmp|generated_tensor)_\d+", tensor.name) else tensor.name


def _values(tensor: Any) -> np.ndarray:
    return tensor.array if isinstance(tensor, _Copy) else as_array(tensor)


def _is_state_dict(state: Mapping[str, Any]) -> bool:
    """Return whether `paddle.save` writes the names of the tensors in a table, not beside each."""
    return all(
        not any(map(_holds_tensor, value.values()))
        if isinstance(value, dict)
        else _is_tensor(value)
        for value in state.values()
    )


def _holds_tensor(value: Any) -> bool:
    if type(value) in _CONTAINERS:
        return any(map(_holds_tensor, value.values() if isinstance(value, dict) else value))
    return _is_tensor(value)


def _nbytes(value: Any) -> int:
    if is_tensor(value):
        return int(value.size) * int(value.element_size())
    if isinstance(value, _Copy):
        return value.array.nbytes
    if isinstance(value, Mapping):
        return sum(map(_nbytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_nbytes, value))
    return value.nbytes if isinstance(value, np.ndarray) else 0


def _copied(value: Any, copies: dict[int, Any]) -> Any:
    """Copy containers, tensors and arrays.

    copies: of tensors and arrays, by `id`: what is one array stays one, as in a pickle.
    """
    if is_tensor(value):
        if id(value) not in copies:
            copies[id(value)] = _Copy(value)
        return copies[id(value)]
    if isinstance(value, np.ndarray):
        if id(value) not in copies:
            copies[id(value)] = value.copy("K")
        return copies[id(value)]
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _copied(item, copies)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(_copied(item, copies) for item in value)
    return copy.deepcopy(value)


_Pickler: Any = pickle._Pickler  # the one in Python, whose memo can be bypassed


class _StatePickler(_Pickler):  # type: ignore[misc]  # its base is Any to mypy
    """Pickles as `paddle.save` does, without holding the bytes of large arrays.

    named: write tensors with their names, as (name, array).
    """

    def __init__(self, output: Output, named: bool):
        super().__init__(output, _PROTOCOL)
        self._named = named

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if _is_tensor(obj) and not self._named:
            self._save_array(_values(obj), is_temporary=True)
        elif _is_tensor(obj) and id(obj) not in self.memo:
            self._save_named(obj)
        elif type(obj) is np.ndarray and id(obj) not in self.memo:
            self._save_array(obj)
        else:
            super().save(obj, save_persistent_id)

    def _save_named(self, tensor: Any) -> None:
        """Write the call `tuple((name, array))`."""
        self.save(tuple)
        self.save(tensor.name)
        self._save_array(_values(tensor), is_temporary=True)
        for opcode in (pickle.TUPLE2, pickle.TUPLE1):
            self.write(opcode)
            self._leave_place_in_memo()
        self.write(pickle.REDUCE)
        self.memoize(tensor)

    def _save_array(self, array: np.ndarray, is_temporary: bool = False) -> None:
        """Do as `save` does, but do not copy the values.

        is_temporary: nothing else refers to it, so it need not be in the memo.
        """
        if array.nbytes < _LARGE or not array.flags.c_contiguous or array.dtype.hasobject:
            super().save(array)
            return
        self.framer.commit_frame()
        reconstruct, arguments, (version, _, _, is_fortran, _) = cast(
            Any, np.empty(0, array.dtype).__reduce__()
        )
        self.save_reduce(reconstruct, arguments)
        if is_temporary:
            self._leave_place_in_memo()
        else:
            self.memoize(array)
        self.write(pickle.MARK)
        for item in (version, array.shape, array.dtype, is_fortran):
            self.save(item)
        size = array.nbytes
        header = (
            pickle.BINBYTES8 + struct.pack("<Q", size)
            if size > 0xFFFFFFFF
            else pickle.BINBYTES + struct.pack("<I", size)
        )
        self._write_large_bytes(header, array.reshape(-1).view(np.uint8).data)
        self._leave_place_in_memo()  # of the bytes
        self.write(pickle.TUPLE)
        self._leave_place_in_memo()  # of the tuple
        self.write(pickle.BUILD)

    def _leave_place_in_memo(self) -> None:
        """Number an object that is never referred to, as `memoize` does, without keeping it."""
        number = len(self.memo)
        self.write(self.put(number))
        self.memo[-1 - number] = number, None  # an `id` is never negative
