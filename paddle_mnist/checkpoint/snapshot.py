"""Take snapshots of every value that can be reached, list what has changed, and restore it."""

import collections
import functools
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.checkpoint import reachable
from paddle_mnist.checkpoint.plain_data import (
    ABSENT,
    CONTAINERS,
    GENERATORS,
    MOST_ITEMS,
    SCALARS,
    SETS,
    equal,
    generator_state,
    is_leaf,
    is_plain,
    is_tensor,
    replace_in_place,
    set_generator_state,
)
from paddle_mnist.checkpoint.reachable import Path, child, describe
from paddle_mnist.nn.sparse_gradients import remove_gradient
from paddle_mnist.system.arrays import as_array, copied_array

DATA = (*SCALARS, *SETS, *GENERATORS, np.ndarray, paddle.Tensor)
MOST_STEPS = 60  # on the way to a value
MOST_BYTES = 256 * 2**20  # of arrays and tensors that a snapshot copies

_SEQUENCES = (list, tuple, collections.deque)
_MUTABLE = (list, collections.deque, set, np.ndarray, bytearray)


class Place(NamedTuple):
    """A value, and the path on which it was found.

    is_internal: whether Paddle itself manages it. is_alias: whether it was found before, on another
    path.
    """

    path: Path
    value: Any
    is_internal: bool
    is_alias: bool = False


@dataclass(frozen=True)
class Change:
    """A value that differs from the snapshot. before, now: both values, as text."""

    path: Path
    before: str
    now: str


@dataclass
class Snapshot:
    """The current state of all values that can be reached from some roots.

    roots: objects by name. known: the `id` of tensors to leave out, because they are saved and
        restored separately.
    most_items, most_bytes: limits on the items of a container and on the bytes of all arrays.
    is_state: whether an array is copied whatever its size.
    has_internals: whether to include values that Paddle itself manages.
    skipped, uncopied: (attributes) the names of objects that exceed the limits, and the paths of
        the arrays among them.
    """

    roots: Mapping[str, Any]
    known: Collection[int] = frozenset()
    most_items: int = MOST_ITEMS
    most_bytes: int = field(default_factory=lambda: MOST_BYTES)
    is_state: Callable[[Place], bool] = lambda place: False
    has_internals: bool = True
    skipped: list[str] = field(default_factory=list, init=False)
    uncopied: list[Path] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._room = self.most_bytes
        # A list keeps the values alive, so that no `id` is used twice.
        places = list(self._walk(self.skipped))
        self._found = [place for place in places if not place.is_alias]
        self._aliases = [place for place in places if place.is_alias and not place.is_internal]
        self._places = {found.path: found for found in self._found}
        self._ids = {id(found.value) for found in self._found if not is_leaf(found.value)}
        tensors = (found for found in self._found if is_tensor(found.value))
        self._is_frozen = {found.path: found.value.stop_gradient for found in tensors}
        self._copies = {found.path: self._copy(found) for found in self._found}

    def iterators(self) -> list[str]:
        """Return the paths of iterators, whose position cannot be read."""
        return [
            describe(found.path)
            for found in self._found
            if hasattr(type(found.value), "__next__") and not reachable.is_entered(found.value)
        ]

    def changes(self) -> list[Change]:
        """Return the values that have changed, except internal ones; only the topmost paths."""
        changed: dict[Path, Change] = {}
        for found in self._found:
            now = find(self.roots, found.path)
            if not found.is_internal and self._differs(found, now):
                before = _show(found.value, self._copies[found.path])
                changed[found.path] = Change(found.path, before, _show(now))
        for alias in self._aliases:
            now = find(self.roots, alias.path)
            if now is not alias.value:
                changed[alias.path] = Change(alias.path, _show(alias.value), _show(now))
        known = {*self._places, *(alias.path for alias in self._aliases)}
        for found in self._walk([]):
            if found.path not in known and not found.is_internal:
                changed[found.path] = Change(found.path, "nothing", _show(found.value))
        return [
            change
            for path, change in changed.items()
            if not any(path[:length] in changed for length in range(1, len(path)))
        ]

    def put_back(self, internals: bool = True) -> None:
        """Restore all values, and remove the gradients of parameters.

        internals: whether to restore values that Paddle itself manages, too.
        """
        for found in self._found:
            if internals or not found.is_internal:
                self._restore(found)
            if is_tensor(found.value):
                found.value.stop_gradient = self._is_frozen[found.path]
                if not found.value.stop_gradient:
                    remove_gradient(found.value)

    def _walk(self, skipped: list[str]) -> Iterator[Place]:
        places = walk(self.roots, self.known, self.most_items, skipped)
        return (place for place in places if self.has_internals or not place.is_internal)

    def _copy(self, found: Place) -> Any:
        """Return what is needed to compare a value and to restore it."""
        value = found.value
        if isinstance(value, GENERATORS):
            return generator_state(value)
        if isinstance(value, np.ndarray) or is_tensor(value):
            return self._copy_array(found) if _has_bytes(value) else ABSENT
        if isinstance(value, bytearray):
            return bytearray(value)
        if is_leaf(value):
            return set(value) if isinstance(value, SETS) else value
        return _contents(value)

    def _copy_array(self, found: Place) -> Any:
        value = found.value
        if self.is_state(found):
            return copied_array(value)
        size = value.size * (value.element_size() if is_tensor(value) else value.itemsize)
        if size > self._room:
            self.skipped.append(f"{describe(found.path)} ({size / 2**20:.0f} MiB)")
            if not found.is_internal:
                self.uncopied.append(found.path)
            return ABSENT
        self._room -= size
        return copied_array(value)

    def _differs(self, found: Place, now: Any) -> bool:
        before, copy = found.value, self._copies[found.path]
        if type(now) is not type(before):
            return True
        if isinstance(before, GENERATORS):
            return not equal(generator_state(now), copy)
        if isinstance(before, np.ndarray) or is_tensor(before):
            if copy is ABSENT:
                return _has_bytes(now) != _has_bytes(before)
            return not _has_bytes(now) or not equal(as_array(now), copy)
        if isinstance(before, SETS):
            return bool(set(now) != copy)
        if is_leaf(before):
            return not equal(now, copy)
        if isinstance(before, dict):  # its items are compared by themselves, but not their order
            return set(now) == set(copy[1]) and list(now) != list(copy[1])
        return now is not before and self._is_another(before, now)

    def _is_another(self, before: Any, now: Any) -> bool:
        """Return whether an object was exchanged for another that is not its equal.

        A new object of a kind that is looked into is compared by what it holds.
        """
        if isinstance(before, types.FunctionType):
            return now.__code__ is not before.__code__
        if isinstance(before, CONTAINERS):
            return False
        if reachable.is_entered(before) or isinstance(before, nn.Layer):
            return id(now) in self._ids
        try:
            return not bool(now == before)
        except Exception:  # whatever the objects raise
            return True

    def _restore(self, found: Place) -> None:
        value, copy = found.value, self._copies[found.path]
        if isinstance(value, GENERATORS):
            set_generator_state(value, copy)
        elif isinstance(value, np.ndarray) or is_tensor(value):
            if copy is not ABSENT and not (_has_bytes(value) and equal(as_array(value), copy)):
                new = paddle.to_tensor(copy) if is_tensor(value) else copy
                replace_in_place(value, new)
        elif isinstance(value, bytearray):
            value[:] = copy
        elif isinstance(value, set):
            if value != copy:
                replace_in_place(value, set(copy))
        elif not is_leaf(value) and copy is not None:
            _restore_contents(value, *copy)


def walk(
    roots: Mapping[str, Any],
    known: Collection[int] = frozenset(),
    most_items: int = MOST_ITEMS,
    skipped: Optional[list[str]] = None,
) -> Iterator[Place]:
    """Yield every value that can be reached, at the path on which it is found first.

    On other paths, it is an alias, and what it holds is not yielded again.

    For the arguments, see `Snapshot`. skipped: a list to which to add the names of containers that
    are too large.
    """
    seen = set(known)
    stack = [Place((("root", name),), value, False) for name, value in roots.items()]
    stack.reverse()
    # Internal values come last: a layer's weights are to be found in it, not in its optimizer.
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
        if is_large or len(place.path) > MOST_STEPS:
            if skipped is not None:
                size = f"{len(value)} items" if is_large else "deeply nested"
                skipped.append(f"{describe(place.path)} ({size})")
            continue
        try:
            below = [
                Place(
                    (*place.path, step),
                    child(value, step),
                    place.is_internal or reachable.is_internal(value, step),
                )
                for step in reachable.steps(value)
            ]
        except Exception:  # an object that does not let itself be looked into, such as a proxy
            continue
        for one in reversed(below):
            (internal if one.is_internal else stack).append(one)


def find(roots: Mapping[str, Any], path: Path) -> Any:
    """Return the value at a path; ABSENT if there is none."""
    (_, root), *rest = path
    return functools.reduce(child, rest, roots.get(root, ABSENT))


def may_be_put(places: Mapping[Path, Place], path: Path) -> bool:
    """Return whether a file may set the value at a path.

    places: the values that the walk finds, by path. A file must not set any other value, such as a
    global of a function, because it could change what the program does.
    """
    parent = places.get(path[:-1])
    if len(path) < 2 or parent is None or not reachable.can_be_replaced(path[-1]):
        return False
    if path in places:
        place = places[path]
        return not place.is_internal and isinstance(place.value, (*CONTAINERS, *DATA))
    kind, key = path[-1]
    is_new_item = kind == "item" and isinstance(parent.value, dict)
    is_instance = reachable.is_entered(parent.value) and not isinstance(parent.value, type)
    hidden = getattr(type(parent.value), str(key), None)  # by a new attribute of the name
    is_free = isinstance(hidden, DATA) and not str(key).startswith("__")
    is_new_attribute = kind == "attribute" and is_instance and is_free
    is_internal = parent.is_internal or reachable.is_internal(parent.value, path[-1])
    return not is_internal and (is_new_item or is_new_attribute)


def _has_bytes(value: Any) -> bool:
    """Return whether an array or a tensor has values that can be copied."""
    return not value.dtype.hasobject if isinstance(value, np.ndarray) else is_plain(value)


def put(roots: Mapping[str, Any], path: Path, new: Any) -> bool:
    """Put plain data at a path; return False if the object that holds it is missing."""
    parent = find(roots, path[:-1])
    if parent is ABSENT:
        return False
    if not replace_in_place(child(parent, path[-1]), new):
        reachable.assign(parent, path[-1], new)
    return True


def unit(roots: Mapping[str, Any], path: Path, known: Collection[int] = ()) -> Optional[Path]:
    """Return the shortest beginning of a path that leads to plain data; None if there is none."""
    lengths = range(2, len(path) + 1)
    beginnings = (path[:n] for n in lengths if reachable.can_be_replaced(path[n - 1]))
    return next((part for part in beginnings if is_plain(find(roots, part), known)), None)


def replaceable(roots: Mapping[str, Any], path: Path) -> Path:
    """Return a path, without the steps to items of sequences at its end.

    An item cannot be put into a list that is shorter now, or into a tuple; all of them can.
    """
    while path[-1][0] == "item" and isinstance(find(roots, path[:-1]), _SEQUENCES):
        path = path[:-1]
    return path


def with_own_items(value: Any) -> Any:
    """Return a copy of a list, deque or set, with the same items; any other value as it is."""
    return value.copy() if isinstance(value, _MUTABLE) else value


def replace_items(current: Any, new: Any) -> bool:
    """Replace the items of a list, deque or set by those of another; return whether it is one."""
    return isinstance(current, _MUTABLE) and replace_in_place(current, new)


def _contents(value: Any) -> Optional[tuple[Mapping[Any, Any], Any]]:
    """Return the values that an object holds, by step, and the items of a container."""
    if isinstance(value, nn.Layer):
        return _namespaces(value), None
    items: Any = None
    if isinstance(value, dict):
        items = dict(value)
    elif isinstance(value, (list, collections.deque)):
        items = list(value)
    return {step: child(value, step) for step in reachable.own_steps(value)}, items


def _restore_contents(value: Any, held: Mapping[Any, Any], items: Any) -> None:
    if isinstance(value, nn.Layer):
        for name, namespace in _namespaces(value, copy=False).items():
            _restore_items(namespace, held[name])
        return
    for step in {*held, *reachable.own_steps(value)}:
        if child(value, step) is not held.get(step, ABSENT):
            reachable.assign(value, step, held.get(step, ABSENT))
    if items is not None:
        _restore_items(value, items)


def _namespaces(layer: nn.Layer, copy: bool = True) -> dict[str, Any]:
    """Return the dictionaries, and the set, in which a layer keeps its attributes.

    They belong together: assigning a tensor moves an attribute from `__dict__` to the buffers.
    """
    names = (*reachable.LAYER_PARTS, "_non_persistable_buffer_names_set")
    namespaces = {"__dict__": vars(layer), **{name: vars(layer)[name] for name in names}}
    if not copy:
        return namespaces
    return {name: namespace.copy() for name, namespace in namespaces.items()}


def _restore_items(container: Any, items: Any) -> None:
    if isinstance(container, set):
        replace_in_place(container, set(items))
        return
    is_dict = isinstance(container, dict)
    now = list(container.items()) if is_dict else [(None, item) for item in container]
    kept = list(items.items()) if is_dict else [(None, item) for item in items]
    is_same = len(now) == len(kept) and all(
        one[0] is other[0] and one[1] is other[1] for one, other in zip(now, kept)
    )
    if not is_same:
        container.clear()
        container.update(items) if is_dict else container.extend(items)


def _show(value: Any, copy: Any = ABSENT) -> str:
    """Return a value as text for messages. copy: its former contents, if it is an array."""
    name = type(value).__name__
    if isinstance(value, np.ndarray) or is_tensor(value):
        if not is_plain(value) or value.size > 6:
            return f"a {name} {list(value.shape)}"
        return repr((as_array(value) if copy is ABSENT else copy).tolist())
    if isinstance(value, SCALARS):
        return f"{value!r:.60}"
    is_sized = isinstance(value, (*CONTAINERS, *SETS))
    size = len(value if copy is ABSENT or not isinstance(copy, set) else copy) if is_sized else 0
    return f"a {name} of {size}" if is_sized else f"a {name}"
