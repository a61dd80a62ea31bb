"""Compare and replace numbers, strings, arrays, tensors, generators and containers of them.

These are called plain data, with the members of an Enum, functions, and objects that only have
plain attributes, as far as the program itself holds their definitions: `held`, by `name_of`.
`packing` converts plain data for files.
"""

import array
import collections
import copy
import enum
import functools
import hashlib
import json
import random
import sys
import types
from collections.abc import Collection, Mapping
from typing import Any, Optional

import numpy as np
import paddle
from numpy.lib.format import descr_to_dtype

from paddle_mnist.system.arrays import as_array, is_saved_dtype, is_tensor

SCALARS = (bool, int, float, complex, str, bytes, type(None), np.generic)
# The types of most values: they hold no others, and an object of them never changes.
ATOMS = frozenset(SCALARS) - {np.generic}
GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, np.random.SeedSequence)
SETS = (set, frozenset)
BUFFERS = (bytearray, array.array)
LEAVES = (*SCALARS, *GENERATORS, *SETS, *BUFFERS, np.ndarray, paddle.Tensor)
DEFINED = (enum.Enum, types.FunctionType)  # values that the program defines
CONSTANTS = (*SCALARS, *DEFINED)  # values that do not change in place
SEQUENCES = (list, tuple, collections.deque)
CONTAINERS = (dict, *SEQUENCES)
KINDS_OF_DICT = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
_BASES = (collections.OrderedDict, *CONTAINERS, *SETS)
MOST_ITEMS = 10_000  # of a container that is examined
FACTORIES = (None, int, float, list, dict, set)  # of a defaultdict
SEEDS = "seed_sequence"  # of a NumPy generator, in its state
MAX_DEPTH = 8  # of containers in containers


class _Absent:
    """Stands for a value that does not exist."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT = _Absent()


def is_leaf(value: Any) -> bool:
    """Return whether a value is data that does not hold other values."""
    return isinstance(value, LEAVES) and not is_of_objects(value)


def is_of_objects(value: Any) -> bool:
    """Return whether a value is an array of objects, which is a container."""
    return isinstance(value, np.ndarray) and bool(value.dtype == object)


def base_of(value: Any) -> Any:
    """Return the built-in class of a container, whose methods run no code of a subclass."""
    kind: type = type(value)
    return _base_of_class(kind)


@functools.cache  # called for each item of the user's containers in each step
def _base_of_class(kind: type) -> type:
    return next((base for base in _BASES if issubclass(kind, base)), kind)


def items_of(value: Any) -> list[Any]:
    """Return the items of a container, of a dict its keys; see `base_of`."""
    return [*base_of(value).__iter__(value)]


def name_of(definition: Any) -> str:
    """Return the name of a class or a function, such as "__main__:Net.forward"."""
    return f"{definition.__module__}:{definition.__qualname__}"


def is_plain(
    value: Any,
    known: Collection[int] = (),
    held: Mapping[str, Any] = {},
    depth: int = MAX_DEPTH,
    most_items: float = MOST_ITEMS,
) -> bool:
    """Return whether a value is plain data.

    known: the `id` of tensors and objects that do not count, such as the parameters of a model.
    held: the classes and functions that count. most_items: the limit on the items of a container.
    """
    kind = type(value)
    if kind in ATOMS or kind in (*GENERATORS, *BUFFERS):
        return True
    if isinstance(value, np.generic):
        return is_saved_dtype(value.dtype)
    if kind is np.ma.MaskedArray:
        return is_saved_dtype(value.dtype) and value._fill_value is None and not value.hardmask
    if kind is np.ndarray and not value.dtype.hasobject:
        return spelled_dtype(value.dtype) is not None
    if is_tensor(value):
        return id(value) not in known and value.is_dense() and value._is_initialized()
    if isinstance(value, enum.Enum):
        return held.get(name_of(kind)) is kind and value.name in kind.__members__
    if kind is types.FunctionType:
        return held.get(name_of(value)) is value
    if is_record_class(kind, held) and id(value) not in known and depth:
        items = [*attributes_of(value).values()]
    elif kind is np.ndarray and is_of_objects(value):
        items = value.ravel().tolist()
    elif kind in (*CONTAINERS, *SETS, *KINDS_OF_DICT) or is_namedtuple(kind):
        items = items_of(value)
    else:
        return False
    if not depth or len(items) > most_items:
        return False
    if isinstance(value, (dict, *SETS)):
        if getattr(value, "default_factory", None) not in FACTORIES:
            return False
        if not all(_is_key(key, held) for key in items):
            return False
        items = list(value.values()) if isinstance(value, dict) else []
    return all(is_plain(item, known, held, depth - 1, most_items) for item in items)


def _is_key(value: Any, held: Mapping[str, Any]) -> bool:
    """Return whether a value is plain data that cannot change, so that it may be a key."""
    if isinstance(value, (tuple, frozenset)):
        return is_plain(value, (), held) and all(_is_key(item, held) for item in items_of(value))
    return not is_mutable(value) and is_plain(value, (), held)


def is_record_class(kind: Any, held: Mapping[str, Any]) -> bool:
    """Return whether the objects of a class consist of their attributes, as a dataclass's do."""
    bases = kind.__mro__[:-1]
    return (
        bool(bases)
        and all(held.get(name_of(base)) is base for base in bases)
        and not any(hasattr(kind, name) for name in ("__setstate__", "__del__", "__next__"))
        and (kind.__reduce__, kind.__reduce_ex__) == (object.__reduce__, object.__reduce_ex__)
        and kind.__new__ is object.__new__
    )


def slots_of(kind: type) -> list[str]:
    """Return the names of the attributes that the objects of a class have in slots."""
    names: list[str] = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object itself, by name."""
    own = [name for name in slots_of(type(value)) if hasattr(value, name)]
    return {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in own}}


def spelled_dtype(dtype: np.dtype) -> Any:
    """Return a dtype as text, or as a list of fields for that of a structured array.

    None for one that `dtype_of` cannot make again, such as one with padding, whose bits may be
    anything.
    """
    if not dtype.names:
        return dtype.str
    try:
        spelled = json.loads(json.dumps(dtype.descr))
        return spelled if repr(dtype_of(spelled)) == repr(dtype) else None
    except (TypeError, ValueError):  # of fields that overlap, or have titles
        return None


def dtype_of(spelled: Any) -> np.dtype:
    """Return the dtype that `spelled_dtype` has spelled. Raises TypeError, ValueError."""
    dtype: np.dtype = descr_to_dtype(spelled)  # type: ignore[no-untyped-call]
    return dtype


def parts_of(value: Any) -> Optional[list[Any]]:
    """Return the plain data of which a value consists; None if it is not made of such parts."""
    if type(value) in ATOMS:
        return None
    if isinstance(value, Mapping):
        return [part for item in value.items() for part in item]
    if isinstance(value, SEQUENCES):
        return items_of(value)
    if isinstance(value, GENERATORS):
        return [generator_state(value)]
    if isinstance(value, BUFFERS):
        return [typecode(value), memoryview(value).tobytes()]
    if isinstance(value, np.ma.MaskedArray):
        return [value.data, mask_of(value)]
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return [value.shape, value.ravel().tolist()]
    return None


def nbytes(value: Any) -> int:
    """Return the bytes of the arrays, tensors, buffers and strings in plain data."""
    if is_tensor(value):
        return int(value.size) * int(value.element_size())
    if isinstance(value, BUFFERS):
        return memoryview(value).nbytes
    if isinstance(value, (*SCALARS, *GENERATORS, *SETS, *DEFINED)):
        return sys.getsizeof(value)
    if isinstance(value, np.ndarray) and not is_of_objects(value):
        return value.nbytes
    parts = parts_of(value)
    return sum(map(nbytes, attributes_of(value).values() if parts is None else parts))


def is_namedtuple(kind: Any) -> bool:
    """Return whether a class is a namedtuple class that can be found by its name."""
    is_named = issubclass(kind, tuple) and hasattr(kind, "_fields")
    is_found = kind is getattr(sys.modules.get(kind.__module__), kind.__name__, None)
    return is_named and kind.__new__ is not tuple.__new__ and is_found


def can_replace(current: Any, new: Any) -> bool:
    """Return whether `replace_in_place` can replace the contents of an object."""
    is_fixed = isinstance(current, np.ndarray) and not current.flags.writeable
    return is_mutable(current) and not is_fixed and _form(current) == _form(new)


def _form(value: Any) -> tuple[Any, ...]:
    """Return what an object keeps when its contents are replaced.

    The kinds of dict may differ, and one tensor may be a parameter.
    """
    if isinstance(value, dict):
        return (dict,)
    if is_tensor(value):
        return paddle.Tensor, value.shape, value.dtype
    if isinstance(value, np.ndarray):
        return type(value), value.shape, value.dtype
    if isinstance(value, collections.deque):
        return type(value), value.maxlen
    if isinstance(value, (*BUFFERS, *GENERATORS)):
        return type(value), typecode(value), bits_of(value)
    return (type(value),)


def replace_in_place(current: Any, new: Any) -> None:
    """Replace the contents of an object with those of another, if `can_replace`.

    Other references to the object then also refer to the new contents.
    """
    if current is new or not can_replace(current, new):
        return
    if is_tensor(current):
        current.set_value(new)
        current.stop_gradient = new.stop_gradient
    elif isinstance(current, np.ndarray):
        current[...] = new
    elif isinstance(current, GENERATORS):
        set_generator_state(current, generator_state(new))
    elif isinstance(current, (list, *BUFFERS)):
        current[:] = new
    elif isinstance(current, (dict, set)):
        current.clear()
        current.update(new)
    elif isinstance(current, collections.deque):
        current.clear()
        current.extend(new)
    else:  # an object
        for name in {*attributes_of(current)} - {*attributes_of(new)}:
            object.__delattr__(current, name)
        set_attributes(current, attributes_of(new))


def copied(value: Any, copies: Optional[dict[int, Any]] = None) -> Any:
    """Return a deep copy of plain data, in which what is referenced twice is one object again.

    copies: the copies so far, by the `id` of the originals.
    """
    copies = {} if copies is None else copies
    kind = type(value)
    if kind in ATOMS or value is ABSENT or isinstance(value, CONSTANTS):
        return value
    if isinstance(value, tuple):
        return tuple.__new__(kind, [copied(item, copies) for item in items_of(value)])
    if id(value) not in copies:
        copies[id(value)] = _copied_object(value, copies)
    return copies[id(value)]


def _copied_object(value: Any, copies: dict[int, Any]) -> Any:
    made: Any
    if is_tensor(value):
        return paddle.to_tensor(as_array(value), stop_gradient=value.stop_gradient)
    if is_leaf(value):
        made = copy.deepcopy(value)
        if isinstance(value, np.random.Generator):  # before NumPy 1.25, a copy has other seeds
            set_generator_state(made, generator_state(value))
        return made
    if isinstance(value, dict):
        made = copy.copy(value)
        for key, item in value.items():
            made[key] = copied(item, copies)
    elif isinstance(value, (list, collections.deque, np.ndarray)):
        made = copy.copy(value)
        items = made.reshape(-1) if isinstance(value, np.ndarray) else made
        if not {*map(type, items)} <= ATOMS:
            for number, item in enumerate(items):
                items[number] = copied(item, copies)
    else:  # an object, made without the code of its class
        made = object.__new__(type(value))
        set_attributes(made, {k: copied(v, copies) for k, v in attributes_of(value).items()})
    return made


def set_attributes(value: Any, attributes: Mapping[str, Any]) -> None:
    """Set attributes of an object without the code of its class."""
    slots = slots_of(type(value))
    for name, attribute in attributes.items():
        if name in slots:
            object.__setattr__(value, name, attribute)
        else:
            vars(value)[name] = attribute


def is_mutable(value: Any) -> bool:
    """Return whether plain data can change in place, so that a shared object must stay shared."""
    return not isinstance(value, (*CONSTANTS, tuple, frozenset))


def equal(value: Any, other: Any) -> bool:
    """Return whether two values of plain data are equal: arrays bit for bit, and NaN to NaN."""
    if type(value) is not type(other):
        return False
    parts, others = parts_of(value), parts_of(other)
    if parts is not None and others is not None:
        return len(parts) == len(others) and all(map(equal, parts, others))
    if isinstance(value, np.ndarray) or is_tensor(value):
        first, second = as_array(value), as_array(other)
        is_alike = first.shape == second.shape and first.dtype == second.dtype
        return is_alike and np.array_equal(_as_bits(first), _as_bits(second))
    return bool(value == other) or (value != value and other != other)  # NaN


def add_to_digest(digest: Any, value: Any) -> None:
    """Add the bits of plain data to a digest."""
    digest.update(type(value).__name__.encode())
    parts = parts_of(value)
    if isinstance(value, np.ma.MaskedArray):
        parts = [value.filled(0), mask_of(value)]  # what is masked may be uninitialized
    if parts is not None:
        for part in parts:
            add_to_digest(digest, part)
    elif isinstance(value, np.ndarray) or is_tensor(value):
        values = as_array(value)
        digest.update(f"{values.dtype} {values.shape}".encode())
        digest.update(_as_bits(values))
    elif isinstance(value, SETS):
        digest.update(repr(sorted(value, key=repr)).encode())
    elif isinstance(value, types.FunctionType):
        digest.update(name_of(value).encode())
    elif not isinstance(value, (*SCALARS, enum.Enum)):  # an object
        add_to_digest(digest, attributes_of(value))
    else:
        digest.update(repr(value).encode())


def digest_of(value: Any) -> str:
    """Return the SHA-256 of plain data."""
    digest = hashlib.sha256()
    add_to_digest(digest, value)
    return digest.hexdigest()


def mask_of(array: Any) -> np.ndarray:
    """Return the mask of a masked array."""
    mask: np.ndarray = np.ma.getmaskarray(array)  # type: ignore[no-untyped-call]
    return mask


def typecode(buffer: Any) -> str:
    """Return the type code of an `array.array`; "" for others."""
    return getattr(buffer, "typecode", "")


def _as_bits(values: np.ndarray) -> np.ndarray:
    """Return an array as bytes, because NaN != NaN and 0.0 == -0.0."""
    values = np.ascontiguousarray(values).reshape(-1)
    is_padded = values.dtype.char in "gG" or spelled_dtype(values.dtype) is None
    if is_padded:  # np.longdouble, or fields; the padding may be uninitialized
        return np.frombuffer(repr(values.tolist()).encode(), np.uint8)
    return values.view(np.uint8)


# ------------------------------------------------------------------ generators of random numbers


def generator_state(generator: Any) -> Any:
    """Return the state of a generator of random numbers, as plain data."""
    if isinstance(generator, np.random.SeedSequence):
        return generator.state
    if isinstance(generator, np.random.Generator):
        seeds = _seeds(generator)
        is_known = isinstance(seeds, np.random.SeedSequence)
        spawned = {SEEDS: seeds.state} if is_known else {}  # which `spawn` counts
        return {**generator.bit_generator.state, **spawned}
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.getstate()


def set_generator_state(generator: Any, state: Any) -> None:
    """Set the state of a generator that `generator_state` returned."""
    if isinstance(generator, np.random.SeedSequence):
        as_saved: Any = np.random.SeedSequence(**state).__reduce__()
        generator.__setstate__(as_saved[2])  # type: ignore[attr-defined]  # one of Cython's
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state  # ignores other entries
        if SEEDS in state:  # not saved by version 1.0
            set_generator_state(_seeds(generator), state[SEEDS])
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.setstate(state)


def _seeds(generator: np.random.Generator) -> Any:
    bits: Any = generator.bit_generator
    return getattr(bits, "seed_seq", None) or bits._seed_seq  # before NumPy 1.25


def bits_of(generator: Any) -> str:
    """Return the class of a generator's source of bits, such as "PCG64", or its own."""
    return type(getattr(generator, "bit_generator", generator)).__name__
