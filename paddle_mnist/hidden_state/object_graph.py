"""Find the values that an object holds, directly or through other objects.

The state of a run may be anywhere: in an attribute of a layer, in a closure, in a list in a dict.
Paths therefore lead through attributes, containers, closures, defaults, bound objects, class
attributes and properties of the user's classes, and the globals that the code of a function uses,
also those of the user's other modules. They do not enter objects of the standard library, of NumPy
or of this package. Of Paddle's objects, they only enter layers, optimizers, schedules, metrics, and
those that belong to data.
"""

import dataclasses
import dis
import enum
import functools
import sys
import sysconfig
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import paddle
from paddle import nn
from paddle.optimizer.lr import LRScheduler

from paddle_mnist.hidden_state.plain_data import (
    ABSENT,
    SEQUENCES,
    attributes_of,
    base_of,
    is_leaf,
    items_of,
    slots_of,
)
from paddle_mnist.system.arrays import is_tensor

# An edge from one value to another: its kind, and a name or number. The kinds are "attribute",
# "item" of a container, "variable" of a closure, "default" of an argument, and "global" that the
# code of a function uses, such as "count", or "counters.count" of another module; and two whose
# values cannot be replaced: "hook" of a layer, and "part" of a bound function or an object, such as
# its class.
Edge = tuple[str, Any]
# The first edge, of kind "root", names the object where the path begins.
ObjectPath = tuple[Edge, ...]
Link = tuple[Edge, Any]  # an edge, and the value to which it leads

MOST_MODULES = 3  # between the code and a value, as in `package.module.value`
WITH_INTERNALS = (nn.Layer, LRScheduler, paddle.optimizer.Optimizer)
LAYER_PARTS = ("_parameters", "_buffers", "_sub_layers")  # where a Layer keeps what it registers
_HOOKS = ("_forward_pre_hooks", "_forward_post_hooks")
# What Python's own objects with code consist of.
PARTS: dict[type, tuple[str, ...]] = {
    types.MethodType: ("__self__", "__func__"),
    functools.partial: ("func", "args", "keywords"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func",),
    functools._lru_cache_wrapper: ("__wrapped__",),
}
# Attributes of Paddle's optimizers that their state_dict omits and that a step may change.
_OPEN = ("_learning_rate", "_grad_clip", "regularization")
# Attributes that Paddle's layers set when they are called, some by the device.
OF_CALLS = ("_use_cudnn", "could_use_cudnn", "_op_type", "_device")
# Attributes of parameters that are no part of the state: nothing reads them in training.
_OF_PARAMETERS = ("do_model_average", "is_distributed", "_init_func", "_init_op_creator")
# Parts of Paddle whose objects may hold the user's objects, or count.
_ENTERED = tuple(
    f"paddle.{part}"
    for part in "io vision metric nn optimizer incubate.optimizer regularizer".split()
)


def describe_path(path: ObjectPath) -> str:
    """Return a readable path, such as `model.encoder.calls`, `step.queue` or `callbacks[0].n`."""
    text: str = path[0][1]
    for kind, key in path[1:]:
        if kind == "item":
            text += f"[{key.name if is_tensor(key) else repr(key):.200}]"
        elif kind == "hook":
            text += f".{key[0].lstrip('_')}[{key[1]}]"
        elif kind != "part" or key in ("args", "keywords"):
            text += f".{key}"
    return text


def identity(path: ObjectPath) -> str:
    """Return a text that identifies a path, the same in each process."""
    return " ".join(f"{kind}:{key.name if is_tensor(key) else repr(key)}" for kind, key in path)


def links(value: Any) -> Iterator[Link]:
    """Yield the values that a value holds directly, each with the edge to it."""
    if isinstance(value, enum.Enum):
        yield ("part", "__class__"), type(value)
        return
    if is_tensor(value):
        yield from own_links(value)
        return
    if is_leaf(value):
        return
    if isinstance(value, dict):  # not by its own `items`, which may change it
        yield from ((("item", key), item) for key, item in list(dict.items(value)))
    elif isinstance(value, (np.ndarray, *SEQUENCES)):
        items = list(value.flat) if isinstance(value, np.ndarray) else items_of(value)
        yield from ((("item", number), item) for number, item in enumerate(items))
    elif isinstance(value, nn.Layer):
        for part in LAYER_PARTS:
            yield from _attributes(vars(value)[part])
        for name in _HOOKS:
            hooks = list(getattr(value, name).values())
            yield from ((("hook", (name, number)), hook) for number, hook in enumerate(hooks))
    else:
        for kind, names in PARTS.items():
            if isinstance(value, kind):
                yield from ((("part", name), getattr(value, name)) for name in names)
    yield from own_links(value)
    if isinstance(value, type):
        if is_users(value.__module__):
            yield ("part", "__bases__"), value.__bases__
    elif is_users(type(value).__module__):
        yield ("part", "__class__"), type(value)


def own_links(value: Any) -> Iterator[Link]:
    """Yield the values that have names and can be replaced, but not items, each with its edge."""
    if isinstance(value, types.FunctionType):
        if is_users(value.__module__):
            yield from _links_of_function(value)
    elif isinstance(value, type):
        if is_users(value.__module__) and not issubclass(value, enum.Enum):
            yield from _links_of_class(value)
    elif is_tensor(value):  # what an optimizer reads of a parameter, such as `need_clip`, or a step
        yield from _attributes(getattr(value, "__dict__", {}), _OF_PARAMETERS)
    elif isinstance(value, nn.Layer):
        yield from _attributes(vars(value), _internals(nn.Layer) - {"training"})
    elif is_entered(value):
        yield from _attributes(attributes_of(value), _opened_by_bases(type(value)))


def _attributes(values: Mapping[str, Any], omitted: Collection[str] = ()) -> Iterator[Link]:
    return ((("attribute", k), value) for k, value in list(values.items()) if k not in omitted)


def _links_of_function(function: types.FunctionType) -> Iterator[Link]:
    code = function.__code__
    yield from _attributes(vars(function))
    for name in code.co_freevars:
        yield ("variable", name), child(function, ("variable", name))
    defaults = {**_positional_defaults(function), **(function.__kwdefaults__ or {})}
    yield from ((("default", name), value) for name, value in defaults.items())
    names, attributes = _names_in(code, "GLOBAL"), _names_in(code, "ATTR", "METHOD")
    yield from _globals(function.__globals__, names, attributes)


def _globals(
    namespace: Mapping[str, Any], names: Iterable[str], attributes: Sequence[str], prefix: str = ""
) -> Iterator[Link]:
    """Yield what may hold state in a module, and in the modules that it uses.

    names, attributes: of the module's values that code uses, and of other modules' values.
    """
    for name in names:
        value = namespace.get(name, ABSENT)
        if not isinstance(value, types.ModuleType):
            if value is not ABSENT and _is_of_interest(value):
                yield ("global", prefix + name), value
        elif is_users(value.__name__) and prefix.count(".") < MOST_MODULES:
            yield from _globals(vars(value), attributes, attributes, f"{prefix}{name}.")


def _links_of_class(kind: type) -> Iterator[Link]:
    for name, member in list(vars(kind).items()):
        is_function = isinstance(member, (types.FunctionType, staticmethod, classmethod))
        is_ours = not isinstance(member, (types.MemberDescriptorType, types.GetSetDescriptorType))
        if is_function or (is_ours and not name.startswith("__")):
            yield ("attribute", name), member


def _is_of_interest(value: Any) -> bool:
    """Return whether a global may hold state; definitions of libraries do not."""
    is_definition = isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType))
    return not is_definition or is_users(value.__module__)


@functools.cache
def _names_in(code: types.CodeType, *operations: str) -> tuple[str, ...]:
    """Return the names in some operations of code, and of the functions that it defines."""
    names = [
        entry.argval
        for entry in dis.get_instructions(code)
        if any(part in entry.opname for part in operations)
    ]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _names_in(constant, *operations)
    return tuple(dict.fromkeys(names))


def is_registered(value: Any, edge: Edge) -> bool:
    """Return whether an edge leads to a parameter or a buffer of a layer."""
    is_layer = isinstance(value, nn.Layer) and edge[0] == "attribute"
    return is_layer and any(edge[1] in vars(value)[part] for part in LAYER_PARTS)


def child(value: Any, edge: Edge) -> Any:
    """Return the value to which an edge leads; ABSENT if there is none."""
    kind, key = edge
    try:
        if kind == "item":
            if type(value) in SEQUENCES:  # most are; this is called for each path in each step
                return value[key]
            if isinstance(value, dict):
                return dict.get(value, key, ABSENT)  # not by its `__getitem__`, which may change it
            if isinstance(value, SEQUENCES):
                return base_of(value).__getitem__(value, key)
        if kind == "part":
            return getattr(value, key)
        if kind == "variable":
            return _cell(value, key).cell_contents
        namespace, key = _namespace(value, edge)
        is_inherited = kind == "attribute" and key not in namespace and not isinstance(value, type)
        return getattr(value, key) if is_inherited else namespace[key]
    except (LookupError, AttributeError, TypeError, ValueError):  # ValueError: of an empty cell
        return ABSENT


def assign(value: Any, edge: Edge, new: Any) -> None:
    """Replace the value to which an edge leads; with ABSENT, remove it."""
    kind, key = edge
    if kind == "variable":
        cell = _cell(value, key)
        if new is not ABSENT:
            cell.cell_contents = new
        elif child(value, edge) is not ABSENT:
            del cell.cell_contents
    elif kind == "default" and key not in (value.__kwdefaults__ or {}):
        value.__defaults__ = tuple({**_namespace(value, edge)[0], key: new}.values())
    elif kind == "attribute" and (isinstance(value, type) or key in slots_of(type(value))):
        delattr(value, key) if new is ABSENT else setattr(value, key, new)
    else:
        # The dictionary itself: a Layer's __setattr__ would register a tensor.
        namespace, key = _namespace(value, edge)
        kind = changed_by(namespace)
        if new is not ABSENT:
            kind.__setitem__(namespace, key, new)
        elif kind.__contains__(namespace, key):
            kind.__delitem__(namespace, key)


def changed_by(container: Any) -> Any:
    """Return the class whose methods change a container.

    A library's class may keep attributes in step with the items. Of a user's class, the attributes
    are restored by themselves, and its methods could change them, or the items.
    """
    return base_of(container) if is_entered(container) else type(container)


def _namespace(value: Any, edge: Edge) -> tuple[Any, Any]:
    """Return what holds, or would hold, the value to which an edge leads, and its key there."""
    kind, key = edge
    if kind == "item":
        return (value.flat if isinstance(value, np.ndarray) else value), key
    if kind == "hook":
        return list(getattr(value, key[0]).values()), key[1]
    if kind == "default":
        keywords = value.__kwdefaults__ or {}
        return (keywords if key in keywords else _positional_defaults(value)), key
    if kind == "global":
        *modules, name = key.split(".")
        namespace = value.__globals__
        for module in modules:
            namespace = vars(namespace[module])
        return namespace, name
    own = getattr(value, "__dict__", {})
    if isinstance(value, nn.Layer):
        own = next((own[part] for part in LAYER_PARTS if key in own[part]), own)
    return own, key


def _cell(function: Any, name: str) -> Any:
    return function.__closure__[function.__code__.co_freevars.index(name)]


def _positional_defaults(function: Any) -> dict[str, Any]:
    values, code = function.__defaults__ or (), function.__code__
    return dict(zip(code.co_varnames[code.co_argcount - len(values) :], values))


def is_entered(value: Any) -> bool:
    """Return whether the attributes of an object are examined."""
    kind = type(value)
    if isinstance(value, (paddle.optimizer.Optimizer, LRScheduler, types.SimpleNamespace)):
        return True
    if isinstance(value, enum.Enum):  # all code shares its attributes
        return False
    if kind.__module__.partition(".")[0] == "paddle":
        return kind.__module__.startswith(_ENTERED)
    return is_users(kind.__module__)


def is_internal(value: Any, edge: Edge) -> bool:
    """Return whether an edge leads to a value that Paddle itself manages."""
    kind, name = edge
    if kind != "attribute":
        return False
    if isinstance(value, nn.Layer):
        is_paddles = type(value).__module__.startswith("paddle.")
        return is_paddles and name in (*OF_CALLS, "_data_format")
    if isinstance(value, LRScheduler):
        return name in ("_var_name", "keys")
    if not isinstance(value, paddle.optimizer.Optimizer) or name in _OPEN:
        return False
    if isinstance(vars(value).get(name), float):  # such as `_weight_decay` and `_beta1`
        return False
    is_paddles = type(value).__module__.startswith("paddle.optimizer")
    return is_paddles or name in _internals(paddle.optimizer.Optimizer)


@functools.cache
def _internals(kind: type) -> frozenset[str]:
    """Return the names of the internal attributes of one of Paddle's base classes."""
    if kind is nn.Layer:
        return frozenset(vars(nn.Layer()))
    return frozenset(vars(paddle.optimizer.SGD(0.1, parameters=[nn.Linear(1, 1).weight])))


def _opened_by_bases(kind: type) -> set[str]:
    """Return the fields for open files and the like of this package's bases of a user's class.

    `__init__` does not take them; see `paddle_mnist.training.bundled`.
    """
    ours = [base for base in kind.__mro__ if base.__module__.startswith("paddle_mnist.")]
    classes = [base for base in ours if dataclasses.is_dataclass(base)]
    return {field.name for base in classes for field in dataclasses.fields(base) if not field.init}


@functools.cache
def is_users(module: Optional[str]) -> bool:
    """Return whether a module is the user's own, and not part of an installed package."""
    top = (module or "builtins").partition(".")[0]
    if top in ("paddle", "numpy", "paddle_mnist", "visualdl", *sys.builtin_module_names):
        return False
    file = getattr(sys.modules.get(module or "builtins"), "__file__", None) or ""
    paths = sysconfig.get_paths()
    is_installed = "site-packages" in file or "dist-packages" in file
    return not is_installed and not file.startswith((paths["stdlib"], paths["platstdlib"]))
