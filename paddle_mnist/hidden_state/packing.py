"""Pack plain data for `paddle.save`, as a flat dict of arrays and one text, and unpack them."""

import array
import collections
import enum
import json
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, Optional

import numpy as np
import paddle

from paddle_mnist.errors import CheckpointError
from paddle_mnist.hidden_state.plain_data import (
    BUFFERS,
    CONTAINERS,
    FACTORIES,
    GENERATORS,
    KINDS_OF_DICT,
    SETS,
    attributes_of,
    bits_of,
    dtype_of,
    generator_state,
    is_mutable,
    is_namedtuple,
    is_record_class,
    items_of,
    mask_of,
    name_of,
    set_attributes,
    set_generator_state,
    spelled_dtype,
    typecode,
)
from paddle_mnist.system.arrays import as_array, is_saved_dtype, is_tensor

STRUCTURE = "structure"  # the entry of packed data that is JSON; the others are its arrays
LATER = "later"  # the entry that says whether version 1.0 cannot read the others; not for files
# The errors that damaged data cause.
_DAMAGE = ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError
SOURCES = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")  # of bits, for NumPy's generators
DICTS: dict[str, Any] = {kind.__name__: kind for kind in KINDS_OF_DICT}


def pack(value: Any, parameters: Mapping[str, paddle.Tensor] = {}) -> dict[str, Any]:
    """Return plain data as a flat dictionary of NumPy arrays and one text, for `paddle.save`.

    parameters: by their names in the model. These names replace the ones that Paddle generated, and
        the `id` of parameters as keys, as in an optimizer's dict, which may differ in another
        process.
    Raises TypeError for a value that is not plain.
    """
    packer = _Packer(parameters)
    text = json.dumps(packer.node(value))
    arrays = {str(number): values for number, values in enumerate(packer.arrays)}
    return {STRUCTURE: text, LATER: packer.is_later, **arrays}


def unpack(
    packed: Mapping[str, Any],
    parameters: Optional[Mapping[str, paddle.Tensor]],
    origin: Any,
    held: Optional[Mapping[str, Any]] = {},
) -> Any:
    """Return the plain data that `pack` packed, without executing code from the file.

    parameters: by their names in the model; None to keep these names.
    held: the classes and functions of the program that the file may name; None to have None in
        place of them and of their objects.
    origin: the file, for errors. Raises CheckpointError.
    """
    try:
        return _Unpacker(packed, parameters, held).value(json.loads(packed[STRUCTURE]))
    except _DAMAGE as error:
        raise CheckpointError(
            f"{origin}: holds values that cannot be read ({type(error).__name__}: {error!s:.100}); "
            "expected those of this training; use another checkpoint"
        ) from error


class _Packer:
    """Turns values into nodes of JSON, which refer to `arrays` by number."""

    def __init__(self, parameters: Mapping[str, paddle.Tensor]):
        self.generated = {parameter.name: name for name, parameter in parameters.items()}
        self.ids = {id(parameter): name for name, parameter in parameters.items()}
        self.arrays: list[np.ndarray] = []
        self.numbers: dict[int, int] = {}  # of the arrays, by the `id` of their owner
        # The containers and objects so far, each with its number, by `id`.
        self.containers: dict[int, tuple[int, Any]] = {}
        self.is_later = False

    def node(self, value: Any) -> Any:
        if type(value) is str and value in self.generated:
            return {"parameter": self.generated[value]}
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, enum.Enum):
            return self.later("enum", [name_of(type(value)), value.name])
        if isinstance(value, types.FunctionType):
            return self.later("function", name_of(value))
        if is_tensor(value):
            return {"tensor": [self.shared(value), bool(value.stop_gradient)]}
        if type(value) is np.ndarray and is_saved_dtype(value.dtype):
            return {"array": self.shared(value)}
        if isinstance(value, np.generic):
            return {"scalar": self.number(as_array(value))}
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if isinstance(value, bytes):
            return {"bytes": value.hex()}
        if is_mutable(value):
            if id(value) in self.containers:
                return self.later("same", self.containers[id(value)][0])
            self.containers[id(value)] = len(self.containers), value
        if isinstance(value, np.ma.MaskedArray):
            numbers = [self.number(value.data), self.number(mask_of(value))]
            return self.later("masked", numbers)
        if isinstance(value, np.ndarray) and value.dtype != object:
            number = self.number(np.frombuffer(value.tobytes(), np.uint8))
            return self.later("structured", [spelled_dtype(value.dtype), value.shape, number])
        if isinstance(value, BUFFERS):
            number = self.number(np.frombuffer(memoryview(value).tobytes(), np.uint8))
            return {"buffer": [typecode(value), number]}
        if isinstance(value, GENERATORS):
            state = self.node(generator_state(value))
            return {"generator": [type(value).__name__, state, bits_of(value)]}
        return self.container(value)

    def container(self, value: Any) -> dict[str, Any]:
        name = type(value).__name__
        if isinstance(value, dict):
            items = [[self.key(key), self.node(item)] for key, item in value.items()]
            factory = getattr(value, "default_factory", None)
            return {name: [items, factory and factory.__name__]}
        if isinstance(value, np.ndarray):
            nodes = [self.node(item) for item in value.ravel().tolist()]
            return self.later("objects", [value.shape, nodes])
        if not isinstance(value, (*SETS, *CONTAINERS)):
            own = {key: self.node(item) for key, item in attributes_of(value).items()}
            return self.later("object", [name_of(type(value)), own])
        nodes = [self.node(item) for item in items_of(value)]
        if isinstance(value, SETS):  # sorted, since their order depends on the process
            return {name: sorted(nodes, key=json.dumps)}
        if isinstance(value, collections.deque):
            return {"deque": [nodes, value.maxlen]}
        if is_namedtuple(type(value)):
            return {"namedtuple": [type(value).__module__, name, nodes]}
        return {name: nodes}

    def later(self, kind: str, item: Any) -> dict[str, Any]:
        self.is_later = True
        return {kind: item}

    def key(self, key: Any) -> Any:
        is_id = type(key) is int and key in self.ids
        return {"id of parameter": self.ids[key]} if is_id else self.node(key)

    def number(self, values: np.ndarray) -> int:
        """Return the number of a new array."""
        self.arrays.append(values)
        return len(self.arrays) - 1

    def shared(self, owner: Any) -> int:
        """Return the number of the array of an owner, which may be in several places."""
        if id(owner) not in self.numbers:
            self.numbers[id(owner)] = self.number(as_array(owner))
        return self.numbers[id(owner)]


class _Unpacker:
    """Turns nodes of JSON into values. parameters, held: see `unpack`."""

    def __init__(
        self,
        packed: Mapping[str, Any],
        parameters: Optional[Mapping[str, paddle.Tensor]],
        held: Optional[Mapping[str, Any]],
    ):
        self.packed, self.parameters, self.held = packed, parameters, held
        self.shared_values: dict[str, Any] = {}  # by number
        self.containers: list[Any] = []  # of `_Packer`

    def value(self, node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        ((kind, item),) = node.items()
        if kind in ("parameter", "id of parameter"):
            if self.parameters is None:
                return item
            parameter = self.parameters[item]
            return parameter.name if kind == "parameter" else id(parameter)
        if kind == "tensor":
            return self.shared(
                item[0], lambda values: paddle.to_tensor(values, stop_gradient=item[1])
            )
        if kind == "array":
            return self.shared(item, np.array)
        if kind == "scalar":
            return self.packed[str(item)][()]
        if kind == "complex":
            return complex(*item)
        if kind == "bytes":
            return bytes.fromhex(item)
        if kind == "same":
            return self.containers[item]
        if kind in ("enum", "function", "frozenset", "tuple", "namedtuple"):
            return self.immutable(kind, item)
        self.containers.append(None)
        number = len(self.containers) - 1
        self.containers[number] = value = self.container(kind, item)
        return value

    def immutable(self, kind: str, item: Any) -> Any:
        if kind == "enum":
            members = self.definition(item[0], enum.EnumMeta)
            return members and members.__members__[item[1]]
        if kind == "function":
            return self.definition(item, types.FunctionType)
        if kind == "namedtuple":  # without the class's own code
            named = getattr(sys.modules.get(item[0]), item[1], None)
            if not isinstance(named, type) or not is_namedtuple(named):
                raise TypeError(f"{item[0]}.{item[1]} is not a namedtuple of this program")
            return tuple.__new__(named, map(self.value, item[2]))
        return {"frozenset": frozenset, "tuple": tuple}[kind](map(self.value, item))

    def definition(self, name: str, kind: type) -> Any:
        """Return a class or a function that the program holds; None if all are left out."""
        if self.held is None:
            return None
        if not isinstance(self.held.get(name), kind):
            raise TypeError(f"this program holds no {name!r:.60} to restore")
        return self.held[name]

    def record(self, name: str, attributes: Mapping[str, Any]) -> Any:
        """Return an object of a class that the program holds, made without the class's code."""
        kind = self.definition(name, type)
        own = {key: self.value(node) for key, node in attributes.items()}
        if kind is None or self.held is None:
            return None
        if not is_record_class(kind, self.held) or any(key.startswith("__") for key in own):
            raise TypeError(f"{name!r:.60} is no class of plain objects")
        made = object.__new__(kind)
        set_attributes(made, own)
        return made

    def container(self, kind: str, item: Any) -> Any:
        if kind == "buffer":
            content = self.packed[str(item[1])].tobytes()
            return array.array(item[0], content) if item[0] else bytearray(content)
        if kind == "generator":
            return _generator(item[0], self.value(item[1]), item[2])
        if kind == "structured":
            content = self.packed[str(item[2])].tobytes()
            dtype = dtype_of(item[0])
            if dtype.hasobject:
                raise TypeError(f"{item[0]!r:.60} is no dtype of numbers")
            return np.ndarray(item[1], dtype, bytearray(content))
        if kind == "masked":
            values, mask = (np.array(self.packed[str(number)]) for number in item)
            return np.ma.MaskedArray(values, mask)  # type: ignore[no-untyped-call]
        if kind == "objects":
            values = np.empty(item[0], object)
            for number, node in enumerate(item[1]):
                values.flat[number] = self.value(node)
            return values
        if kind == "object":
            return self.record(*item)
        if kind in DICTS:
            items = {self.value(key): self.value(entry) for key, entry in item[0]}
            if kind != "defaultdict":
                return DICTS[kind](items)
            factories = {factory and factory.__name__: factory for factory in FACTORIES}
            return collections.defaultdict(factories[item[1]], items)
        if kind == "deque":
            return collections.deque(map(self.value, item[0]), item[1])
        return {"set": set, "list": list}[kind](map(self.value, item))

    def shared(self, number: Any, make: Callable[[np.ndarray], Any]) -> Any:
        if str(number) not in self.shared_values:
            self.shared_values[str(number)] = make(self.packed[str(number)])
        return self.shared_values[str(number)]


def _generator(kind: str, state: Any, bits: str) -> Any:
    """Return a new generator with a state. Raises KeyError for an unknown kind."""
    makers: dict[str, Any] = {maker.__name__: maker for maker in GENERATORS}
    sources = {source: getattr(np.random, source) for source in SOURCES}
    generator = makers[kind](*([sources[bits]()] if kind == "Generator" else []))
    set_generator_state(generator, state)
    return generator
