"""Write a dictionary of tensors to a file as `paddle.save` does.

`paddle.save` copies the whole state, and the memo of its pickler holds a second copy until the end.
Here each entry is copied when it is written, and then released.
"""

import copy
import io
import pickle
import re
import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, ClassVar, NamedTuple, Union

import numpy as np

from paddle_mnist.nn.state_dict import NAME_TABLE
from paddle_mnist.system.arrays import as_array, copied_array, is_tensor, unforked_array
from paddle_mnist.system.files import PendingFile

_PROTOCOL = 4  # that of paddle.save
_GENERATED = re.compile(r"(eager_tmp|generated_tensor)_\d+")  # names that differ after a resume
_LARGE_BYTES = 2**16  # bytes from which an array is written without a copy


class SavedState:
    """A state_dict, or other plain containers of tensors and arrays, to be written to a file.

    state: its tensors and arrays must not change until they are written or copied.
    """

    def __init__(self, state: Mapping[str, Any]):
        self._contents = _with_names(state)

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors and arrays."""
        return sum(
            int(value.size) * int(value.element_size() if is_tensor(value) else value.itemsize)
            for value in _arrays(self._contents)
        )

    def copied(self) -> "SavedState":
        """Return a copy that shares no memory with the state. Raises MemoryError."""
        tensors = {id(value): value for value in _arrays(self._contents) if is_tensor(value)}
        copies = {key: copied_array(value, unforked_array) for key, value in tensors.items()}
        copied = copy.copy(self)
        copied._contents = copy.deepcopy(self._contents, copies)
        return copied

    def write_to(self, output: Union[BinaryIO, PendingFile]) -> None:
        _StatePickler(output, _PROTOCOL).dump(self._contents)

    def to_bytes(self) -> bytes:
        buffer = io.BytesIO()
        self.write_to(buffer)
        return buffer.getvalue()


class _Named(NamedTuple):
    """A tensor outside of a state_dict."""

    name: str
    tensor: Any


def _with_names(state: Mapping[str, Any]) -> dict[str, Any]:
    """Add the names of the tensors: of a state_dict in a table, otherwise beside each tensor."""
    names = {}
    for key, value in state.items():
        if is_tensor(value):
            names[key] = key if _GENERATED.fullmatch(value.name) else value.name
        elif not isinstance(value, dict) or any(map(is_tensor, _arrays(value))):
            return {key: _named(value) for key, value in state.items()}  # no state_dict
    return {**state, NAME_TABLE: names}


def _named(value: Any) -> Any:
    """Add their names to the tensors in containers."""
    if is_tensor(value):
        return _Named(value.name, value)
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _named(item)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(map(_named, value))
    return value


def _arrays(value: Any) -> Iterator[Any]:
    """Yield the tensors and arrays in containers, each as often as it occurs."""
    if is_tensor(value) or isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _arrays(item)


_Pickler: Any = pickle._Pickler  # in Python, because the one in C copies arrays to write them


class _StatePickler(_Pickler):  # type: ignore[misc]  # its base is Any to mypy
    """Writes tensors as arrays, each once, without copying or holding their contents."""

    dispatch: ClassVar[dict[type, Any]] = dict(_Pickler.dispatch)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _Named):
            return tuple, (tuple(obj),)  # as `paddle.save` does
        if type(obj) in self.dispatch or not (is_tensor(obj) or isinstance(obj, np.ndarray)):
            return NotImplemented
        array = as_array(obj)
        if array.nbytes < _LARGE_BYTES or not array.flags.c_contiguous or array.dtype.hasobject:
            return array.__reduce__()
        call: Any = np.empty(0).__reduce__()[:2]
        contents = array.reshape(-1).view(np.uint8).data
        return *call, (1, array.shape, array.dtype, False, contents)

    def memoize(self, obj: Any) -> None:
        """Memoize a written object, which keeps it alive, unless it is contents or a tuple."""
        if not isinstance(obj, (bytes, tuple)):
            super().memoize(obj)

    def save_contents(self, contents: memoryview) -> None:
        """Write the contents of an array as `bytes`, without creating such an object."""
        opcode, form = (pickle.BINBYTES8, "<Q") if len(contents) >> 32 else (pickle.BINBYTES, "<I")
        self._write_large_bytes(opcode + struct.pack(form, len(contents)), contents)

    dispatch[memoryview] = save_contents
