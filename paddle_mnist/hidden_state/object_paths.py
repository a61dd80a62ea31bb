"""Walk to all values that roots hold, find a value by its path, and replace it."""

import functools
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, Optional, TypeVar

import numpy as np
import paddle

from paddle_mnist.hidden_state import object_graph
from paddle_mnist.hidden_state.object_graph import ObjectPath, child, describe_path
from paddle_mnist.hidden_state.plain_data import (
    ABSENT,
    BUFFERS,
    CONTAINERS,
    GENERATORS,
    MOST_ITEMS,
    SCALARS,
    SETS,
    is_plain,
    replace_in_place,
)

DATA = (*SCALARS, *SETS, *BUFFERS, *GENERATORS, np.ndarray, paddle.Tensor)
MOST_EDGES = 60  # on the path to a value

Value = TypeVar("Value")


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

    known: the ids of values not to enter. most_items: larger containers are not entered, and their
    names are added to the list `skipped`.
    """
    seen = set(known)
    stack = [Place((("root", name),), value, False) for name, value in roots.items()]
    stack.reverse()
    # Internal values come last, so that a layer's weights are found in it, not in its optimizer.
    internal: list[Place] = []
    while stack or internal:
        place = (stack or internal).pop()
        value = place.value
        if value is ABSENT or isinstance(value, types.ModuleType):
            continue
        if id(value) in seen:
            yield place._replace(is_alias=True)
            continue
        if not isinstance(value, SCALARS):
            seen.add(id(value))
        yield place
        is_large = isinstance(value, (*CONTAINERS, *SETS)) and len(value) > most_items
        if is_large or len(place.path) > MOST_EDGES:
            if skipped is not None:
                size = f"{len(value)} items" if is_large else "deeply nested"
                skipped.append(f"{describe_path(place.path)} ({size})")
            continue
        try:
            below = [
                Place(
                    (*place.path, edge),
                    child(value, edge),
                    place.is_internal or object_graph.is_internal(value, edge),
                )
                for edge in object_graph.edges(value)
            ]
        except Exception:  # an object that cannot be examined, such as a proxy
            continue
        for held in reversed(below):
            (internal if held.is_internal else stack).append(held)


def find(roots: Mapping[str, Any], path: ObjectPath) -> Any:
    """Return the value at a path; ABSENT if there is none."""
    (_, root), *rest = path
    return functools.reduce(child, rest, roots.get(root, ABSENT))


def may_be_put(places: Mapping[ObjectPath, Place], path: ObjectPath) -> bool:
    """Return whether a file may set the value at a path.

    places: the values that the walk finds, by path. A file must not set any other value, such as a
    global of a function, because that could change what the program does.
    """
    parent = places.get(path[:-1])
    if len(path) < 2 or parent is None or not object_graph.can_be_replaced(path[-1]):
        return False
    if path in places:
        place = places[path]
        return not place.is_internal and isinstance(place.value, (*CONTAINERS, *DATA))
    kind, key = path[-1]
    is_new_item = kind == "item" and isinstance(parent.value, dict)
    is_instance = object_graph.is_entered(parent.value) and not isinstance(parent.value, type)
    # The attribute of the instance would hide one of the class: that may be data, but not a method.
    hidden = getattr(type(parent.value), str(key), None)
    hides_data = isinstance(hidden, (*DATA, functools.cached_property))
    is_public = not str(key).startswith("__")
    is_new_attribute = kind == "attribute" and is_instance and hides_data and is_public
    is_internal = parent.is_internal or object_graph.is_internal(parent.value, path[-1])
    return not is_internal and (is_new_item or is_new_attribute)


def put(roots: Mapping[str, Any], path: ObjectPath, new: Any) -> bool:
    """Put plain data at a path; return False if the object that holds it is missing."""
    parent = find(roots, path[:-1])
    if parent is ABSENT:
        return False
    current = child(parent, path[-1])
    if not replace_in_place(current, new):
        object_graph.assign(parent, path[-1], new)
    elif isinstance(new, paddle.Tensor):
        current.stop_gradient = new.stop_gradient
    return True


def shortest_plain_path(
    roots: Mapping[str, Any], path: ObjectPath, known: Collection[int] = ()
) -> Optional[ObjectPath]:
    """Return the shortest beginning of a path that leads to plain data; None if there is none.

    Plain data is saved as a whole, at this path.
    """
    lengths = range(2, len(path) + 1)
    beginnings = (path[:n] for n in lengths if object_graph.can_be_replaced(path[n - 1]))
    return next((part for part in beginnings if is_plain(find(roots, part), known)), None)


def topmost(values: Mapping[ObjectPath, Value]) -> dict[ObjectPath, Value]:
    """Return the values that are not below another one of them."""
    return {
        path: value
        for path, value in values.items()
        if not any(path[:length] in values for length in range(1, len(path)))
    }
