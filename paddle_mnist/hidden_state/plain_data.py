"""Compare and replace numbers, strings, arrays, tensors, generators and containers of them.

These are called plain data. `packing` converts it for files.
"""

import array
import collections
import hashlib
import random
import sys
from collections.abc import Collection, Mapping
from typing import Any, Optional

import numpy as np

from paddle_mnist.system.arrays import as_array, is_tensor

SCALARS = (bool, int, float, complex, str, bytes, type(None), np.generic)
GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)
SETS = (set, frozenset)
BUFFERS = (bytearray, array.array)
LEAVES = (*SCALARS, *GENERATORS, *SETS, *BUFFERS, np.ndarray)
CONTAINERS = (dict, list, tuple, collections.deque)
KINDS_OF_DICT = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
MOST_ITEMS = 10_000  # of a container that is examined
FACTORIES = (None, int, float, list, dict, set)  # of a defaultdict
MAX_DEPTH = 8  # of containers in containers


class _Absent:
    """Stands for a value that does not exist."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT = _Absent()


def is_leaf(value: Any) -> bool:
    """Return whether a value is data that does not hold other values."""
    return isinstance(value, LEAVES) or is_tensor(value)


def is_plain(
    value: Any,
    known: Collection[int] = (),
    depth: int = MAX_DEPTH,
    most_items: Optional[int] = MOST_ITEMS,
) -> bool:
    """Return whether a value is plain data.

    known: the `id` of tensors that do not count, such as the parameters of a model. most_items: the
    limit on the items of a container; None for no limit.
    """
    if isinstance(value, np.memmap):  # stands for a file
        return False
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.kind in "biufc" and value.dtype.itemsize <= 16
    if is_tensor(value):
        return id(value) not in known and value.is_dense() and value._is_initialized()
    if type(value) in (*SCALARS, *GENERATORS, *BUFFERS):
        return True
    is_container = type(value) in (*CONTAINERS, *SETS, *KINDS_OF_DICT)
    is_container |= is_namedtuple(type(value))
    if not is_container or not depth or len(value) > (most_items or len(value)):
        return False
    if getattr(value, "default_factory", None) not in FACTORIES:
        return False
    items = list(value)  # of a dict its keys
    if isinstance(value, dict):
        if any(is_tensor(key) or not is_plain(key) for key in items):
            return False
        items = list(value.values())
    return all(is_plain(item, known, depth - 1, most_items) for item in items)


def nbytes(value: Any) -> int:
    """Return the bytes of the arrays, tensors, buffers and strings in plain data."""
    if isinstance(value, Mapping):
        return sum(map(nbytes, value.values()))
    if isinstance(value, (list, tuple, collections.deque)):
        return sum(map(nbytes, value))
    if is_tensor(value):
        return int(value.size) * int(value.element_size())
    if isinstance(value, BUFFERS):
        return memoryview(value).nbytes
    return value.nbytes if isinstance(value, (np.ndarray, np.generic)) else sys.getsizeof(value)


def is_namedtuple(kind: Any) -> bool:
    """Return whether a class is a namedtuple class that can be found by its name."""
    is_named = issubclass(kind, tuple) and hasattr(kind, "_fields")
    is_found = kind is getattr(sys.modules.get(kind.__module__), kind.__name__, None)
    return is_named and kind.__new__ is not tuple.__new__ and is_found


def replace_in_place(current: Any, new: Any) -> bool:
    """Replace the contents of an object with those of another; return whether that was possible.

    Other references to the object then see the new contents, too. The kinds of dict may differ.
    """
    if current is new:
        return True
    if isinstance(current, dict) and isinstance(new, dict):
        current.clear()
        current.update(new)
        return True
    if is_tensor(current) and is_tensor(new) and _fits(current, new):  # one may be a Parameter
        current.set_value(new)
        return True
    if type(current) is not type(new):
        return False
    if isinstance(current, np.ndarray) and _fits(current, new) and current.flags.writeable:
        current[...] = new
    elif isinstance(current, GENERATORS) and bits_of(current) == bits_of(new):
        set_generator_state(current, generator_state(new))
    elif isinstance(current, (list, *BUFFERS)) and typecode(current) == typecode(new):
        current[:] = new
    elif isinstance(current, set):
        current.clear()
        current.update(new)
    elif isinstance(current, collections.deque) and current.maxlen == new.maxlen:
        current.clear()
        current.extend(new)
    else:
        return False
    return True


def _fits(current: Any, new: Any) -> bool:
    return list(current.shape) == list(new.shape) and current.dtype == new.dtype


def equal(value: Any, other: Any) -> bool:
    """Return whether two values of plain data are equal: arrays bit for bit, and NaN to NaN."""
    if type(value) is not type(other):
        return False
    if isinstance(value, np.ndarray) or is_tensor(value):
        first, second = as_array(value), as_array(other)
        is_alike = first.shape == second.shape and first.dtype == second.dtype
        return is_alike and np.array_equal(_as_bits(first), _as_bits(second))
    if isinstance(value, GENERATORS):
        return equal(generator_state(value), generator_state(other))
    if isinstance(value, BUFFERS):
        return typecode(value) == typecode(other) and as_bytes(value) == as_bytes(other)
    if isinstance(value, dict):
        return list(value) == list(other) and all(equal(value[key], other[key]) for key in value)
    if isinstance(value, (list, tuple, collections.deque)):
        return len(value) == len(other) and all(map(equal, value, other))
    return bool(value == other) or (value != value and other != other)  # NaN


def add_to_digest(digest: Any, value: Any) -> None:
    """Add the bits of plain data to a digest."""
    if isinstance(value, GENERATORS):
        value = generator_state(value)
    digest.update(type(value).__name__.encode())
    if isinstance(value, np.ndarray) or is_tensor(value):
        values = as_array(value)
        digest.update(f"{values.dtype} {values.shape}".encode())
        digest.update(_as_bits(values))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            add_to_digest(digest, key)
            add_to_digest(digest, item)
    elif isinstance(value, (list, tuple, collections.deque)):
        for item in value:
            add_to_digest(digest, item)
    elif isinstance(value, SETS):
        digest.update(repr(sorted(value, key=repr)).encode())
    else:
        digest.update(repr(value).encode())


def digest_of(value: Any) -> str:
    """Return the SHA-256 of plain data."""
    digest = hashlib.sha256()
    add_to_digest(digest, value)
    return digest.hexdigest()


def typecode(buffer: Any) -> str:
    """Return the type code of an `array.array`; "" for others."""
    return getattr(buffer, "typecode", "")


def as_bytes(buffer: Any) -> bytes:
    return buffer.tobytes() if isinstance(buffer, array.array) else bytes(buffer)


def _as_bits(values: np.ndarray) -> np.ndarray:
    """Return an array as bytes, because NaN != NaN and 0.0 == -0.0."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


# ------------------------------------------------------------------ generators of random numbers


def generator_state(generator: Any) -> Any:
    """Return the state of a generator of random numbers, as plain data."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.getstate()


def set_generator_state(generator: Any, state: Any) -> None:
    """Set the state of a generator that `generator_state` returned."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.setstate(state)


def bits_of(generator: Any) -> str:
    """Return the class of a generator's source of bits, such as "PCG64", or its own."""
    return type(getattr(generator, "bit_generator", generator)).__name__
