"""Pack plain data for `paddle.save`, as a flat dict of arrays and one text, and unpack them."""

import array
import collections
import json
import random
import sys
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
    as_bytes,
    bits_of,
    generator_state,
    is_namedtuple,
    set_generator_state,
    typecode,
)
from paddle_mnist.system.arrays import as_array, is_tensor

STRUCTURE = "structure"  # the entry of packed data that is JSON; the others are its arrays
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
    return {STRUCTURE: text, **{str(number): values for number, values in enumerate(packer.arrays)}}


def unpack(
    packed: Mapping[str, Any], parameters: Optional[Mapping[str, paddle.Tensor]], origin: Any
) -> Any:
    """Return the plain data that `pack` packed, without executing code from the file.

    parameters: by their names in the model; None to keep these names.
    origin: the file, for errors. Raises CheckpointError.
    """
    try:
        return _Unpacker(packed, parameters).value(json.loads(packed[STRUCTURE]))
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise CheckpointError(
            f"{origin}: holds values that cannot be read ({type(error).__name__}: {error!s:.100}); "
            "expected those of this training; use another checkpoint"
        ) from error


def copied(value: Any) -> Any:
    """Return a deep copy of plain data, as saving and loading would.

    An array that is referenced twice is copied once.
    """
    return unpack(pack(value), None, "a copy")


class _Packer:
    """Turns values into nodes of JSON, which refer to `arrays` by number."""

    def __init__(self, parameters: Mapping[str, paddle.Tensor]):
        self.generated = {parameter.name: name for name, parameter in parameters.items()}
        self.ids = {id(parameter): name for name, parameter in parameters.items()}
        self.arrays: list[np.ndarray] = []
        self.numbers: dict[int, int] = {}  # of the arrays, by the `id` of their owner

    def node(self, value: Any) -> Any:
        if isinstance(value, str) and value in self.generated:
            return {"parameter": self.generated[value]}
        if value is None or type(value) in (bool, int, float, str):
            return value
        if is_tensor(value):
            return {"tensor": [self.shared(value), bool(value.stop_gradient)]}
        if isinstance(value, np.ndarray):
            return {"array": self.shared(value)}
        if isinstance(value, np.generic):
            return {"scalar": self.number(as_array(value))}
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if isinstance(value, bytes):
            return {"bytes": value.hex()}
        if isinstance(value, BUFFERS):
            content = np.frombuffer(as_bytes(value), np.uint8)
            return {"buffer": [typecode(value), self.number(content)]}
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
        if not isinstance(value, (*SETS, *CONTAINERS)):
            raise TypeError(f"a {name}")
        nodes = [self.node(item) for item in value]
        if isinstance(value, SETS):  # sorted, since their order depends on the process
            return {name: sorted(nodes, key=json.dumps)}
        if isinstance(value, collections.deque):
            return {"deque": [nodes, value.maxlen]}
        if is_namedtuple(type(value)):
            return {"namedtuple": [type(value).__module__, name, nodes]}
        return {name: nodes}

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
    """Turns nodes of JSON into values. parameters: see `unpack`."""

    def __init__(
        self, packed: Mapping[str, Any], parameters: Optional[Mapping[str, paddle.Tensor]]
    ):
        self.packed, self.parameters = packed, parameters
        self.shared_values: dict[str, Any] = {}  # by number

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
        if kind == "buffer":
            content = self.packed[str(item[1])].tobytes()
            return array.array(item[0], content) if item[0] else bytearray(content)
        if kind == "generator":
            return _generator(item[0], self.value(item[1]), item[2])
        return self.container(kind, item)

    def container(self, kind: str, item: Any) -> Any:
        if kind in DICTS:
            items = {self.value(key): self.value(entry) for key, entry in item[0]}
            if kind != "defaultdict":
                return DICTS[kind](items)
            factories = {factory and factory.__name__: factory for factory in FACTORIES}
            return collections.defaultdict(factories[item[1]], items)
        if kind == "deque":
            return collections.deque(map(self.value, item[0]), item[1])
        if kind == "namedtuple":  # without the class's own code
            return tuple.__new__(_namedtuple(*item[:2]), map(self.value, item[2]))
        makers = {"set": set, "frozenset": frozenset, "tuple": tuple, "list": list}
        return makers[kind](map(self.value, item))

    def shared(self, number: Any, make: Callable[[np.ndarray], Any]) -> Any:
        if str(number) not in self.shared_values:
            self.shared_values[str(number)] = make(self.packed[str(number)])
        return self.shared_values[str(number)]


def _namedtuple(module: str, name: str) -> type:
    """Return a namedtuple class that is already loaded. Raises TypeError for anything else."""
    kind = getattr(sys.modules.get(module), name, None)
    if not isinstance(kind, type) or not is_namedtuple(kind):
        raise TypeError(f"{module}.{name} is not a namedtuple of this program")
    return kind


def _generator(kind: str, state: Any, bits: str) -> Any:
    """Return a new generator with a state. Raises KeyError for an unknown kind."""
    generator: Any
    if kind == "Generator":
        known = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
        makers = {name: getattr(np.random, name) for name in known}
        generator = np.random.Generator(makers[bits]())
    else:
        generator = {"RandomState": np.random.RandomState, "Random": random.Random}[kind]()
    set_generator_state(generator, state)
    return generator
