"""Walk to all values that roots hold, find a value by its path, and replace it."""

import enum
import functools
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Optional

from paddle_mnist.hidden_state import object_graph
from paddle_mnist.hidden_state.object_graph import ObjectPath, child, describe_path
from paddle_mnist.hidden_state.plain_data import (
    ABSENT,
    ATOMS,
    CONTAINERS,
    DEFINED,
    LEAVES,
    MOST_ITEMS,
    SCALARS,
    SETS,
    base_of,
    can_replace,
    copied,
    is_leaf,
    is_mutable,
    is_of_objects,
    name_of,
    replace_in_place,
)
from paddle_mnist.system.arrays import is_tensor

MODE = ("attribute", "training")
MOST_EDGES = 60  # on the path to a value


class Place(NamedTuple):
    """A value, and its path.

    is_internal: whether Paddle itself manages it. is_alias: whether it was found before on another
    path, or is known to the caller.
    """

    path: ObjectPath
    value: Any
    is_internal: bool
    is_alias: bool = False


def walk(
    roots: Mapping[str, Any],
    known: Collection[int] = frozenset(),
    most_items: int = MOST_ITEMS,
    skipped: Optional[list[str]] = None,
) -> Iterator[Place]:
    """Yield every reachable value, with the path on which it is found first.

    On other paths, it is an alias, and the values that it holds are not yielded again.

    known: the ids of values not to enter, except that the attributes of a tensor are yielded; the
    modes of the model's layers are internal, since each epoch sets them. most_items: larger
    containers are not entered, and their names are added to the list `skipped`.
    """
    seen: set[int] = set()
    stack = [Place((("root", name),), value, False) for name, value in roots.items()]
    stack.reverse()
    # Internal values come last, so that a layer's weights are found in it, not in its optimizer.
    internal: list[Place] = []
    while stack or internal:
        place = (stack or internal).pop()
        path, value, is_internal, _ = place
        if type(value) in ATOMS:
            yield place
            continue
        if value is ABSENT or isinstance(value, types.ModuleType):
            continue
        is_seen = id(value) in seen
        if is_seen or id(value) in known:
            yield Place(path, value, is_internal, is_alias=True)
            if is_seen or not is_tensor(value):
                continue
        else:
            yield place
        if not isinstance(value, SCALARS):
            seen.add(id(value))
        is_large = _length(value) > most_items
        if is_large or len(path) > MOST_EDGES:
            if skipped is not None:
                size = f"{_length(value)} items" if is_large else "deeply nested"
                skipped.append(f"{describe_path(path)} ({size})")
            continue
        try:
            below = [*object_graph.links(value)]
        except Exception:  # an object that cannot be examined, such as a proxy
            continue
        has_internals = not is_internal and isinstance(value, object_graph.WITH_INTERNALS)
        for edge, held in reversed(below):
            is_below = is_internal
            if has_internals:
                is_mode = edge == MODE and path[0][1] == "model"
                is_below = is_mode or object_graph.is_internal(value, edge)
            (internal if is_below else stack).append(Place((*path, edge), held, is_below))


def _length(value: Any) -> int:
    """Return the number of items of a container; 0 for anything else."""
    if is_of_objects(value):
        return int(value.size)
    return int(base_of(value).__len__(value)) if isinstance(value, (*CONTAINERS, *SETS)) else 0


def find(roots: Mapping[str, Any], path: ObjectPath) -> Any:
    """Return the value at a path; ABSENT if there is none."""
    (_, root), *rest = path
    return functools.reduce(child, rest, roots.get(root, ABSENT))


def along(roots: Mapping[str, Any], path: ObjectPath) -> Iterator[tuple[ObjectPath, Any]]:
    """Yield each beginning of a path, the path itself last, with the value that is there."""
    value = roots.get(path[0][1], ABSENT)
    yield path[:1], value
    for length in range(1, len(path)):
        value = child(value, path[length])
        yield path[: length + 1], value


def may_be_put(places: Mapping[ObjectPath, Place], path: ObjectPath) -> bool:
    """Return whether a file may set the value at a path.

    places: the values that the walk finds, by path. A file must not set any other value, such as a
    global of a function, because that could change what the program does.
    """
    parent = places.get(path[:-1])
    kind, key = path[-1]
    if len(path) < 2 or parent is None or kind in ("hook", "part"):
        return False
    if path in places:
        place = places[path]
        # A function under its own name is a definition, and no value of a variable.
        is_definition = getattr(place.value, "__name__", None) == str(key).rpartition(".")[2]
        is_state = isinstance(place.value, (*CONTAINERS, *LEAVES, *DEFINED))
        return is_state and not (place.is_internal or is_definition)
    is_new_item = kind == "item" and isinstance(parent.value, dict)
    is_object = object_graph.is_entered(parent.value) or is_tensor(parent.value)
    is_instance = is_object and not isinstance(parent.value, type)
    # The attribute of the instance would hide one of the class: that may be data, but not a method.
    hidden = getattr(type(parent.value), str(key), None)
    hides_data = isinstance(hidden, (*LEAVES, enum.Enum, functools.cached_property))
    is_public = not str(key).startswith("__")
    is_new_attribute = kind == "attribute" and is_instance and hides_data and is_public
    is_internal = parent.is_internal or object_graph.is_internal(parent.value, path[-1])
    return not is_internal and (is_new_item or is_new_attribute)


def put(roots: Mapping[str, Any], values: Iterable[tuple[ObjectPath, Any]]) -> None:
    """Put plain data at their paths, whose parents exist; remove what is ABSENT.

    The objects of the program change in place, and an object in several values stays one object.
    """
    values = list(values)
    kept: dict[int, Any] = {}  # the objects that the program keeps, by the `id` of the new ones
    ids: set[int] = set()
    # First the items of tuples, which can only change in place.
    for path, new in sorted(values, key=lambda v: not isinstance(find(roots, v[0][:-1]), tuple)):
        current = find(roots, path)
        is_free = not {id(new), id(current)} & ids
        if is_mutable(new) and is_free and can_replace(current, new):
            kept[id(new)] = current
            ids |= {id(new), id(current)}
    for path, new in values:
        parent, current = find(roots, path[:-1]), kept.pop(id(new), new)
        made = new if is_leaf(new) else copied(new, kept)
        if current is not new:
            replace_in_place(current, made)
            made = current
        if is_mutable(new):
            kept[id(new)] = made
        if child(parent, path[-1]) is not made:
            object_graph.assign(parent, path[-1], made)


def held_by(places: Iterable[Place]) -> dict[str, Any]:
    """Return the classes and functions among some places, by names that only one of them has."""
    found: dict[str, dict[int, Any]] = {}
    for place in places:
        if isinstance(place.value, (type, types.FunctionType)):
            found.setdefault(name_of(place.value), {})[id(place.value)] = place.value
    return {
        name: value for name, same in found.items() if len(same) == 1 for value in same.values()
    }
