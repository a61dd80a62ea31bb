"""A snapshot of every value that can be reached: what has changed since, and putting it back."""

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
    copied,
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

MOST_BYTES = 256 * 2**20  # of arrays and tensors that a snapshot copies


class Place(NamedTuple):
    """A value, and the path on which it was found.

    is_internal: Paddle keeps it, and saves and restores it.
    """

    path: Path
    value: Any
    is_internal: bool


@dataclass(frozen=True)
class Change:
    """A value that is another than in a snapshot. before, now: what to show of both."""

    path: Path
    before: str
    now: str


@dataclass
class Snapshot:
    """All values that can be reached from some roots, as they are now.

    roots: objects by name. known: the `id` of tensors that are saved and restored by themselves,
        which are left out.
    most_items, most_bytes: of containers that are looked into, and of arrays that are copied;
        `skipped` names those beyond, and `uncopied` has the paths of the arrays.
    is_state: whether an array is copied whatever its size.
    """

    roots: Mapping[str, Any]
    known: Collection[int] = frozenset()
    most_items: int = MOST_ITEMS
    most_bytes: int = field(default_factory=lambda: MOST_BYTES)
    is_state: Callable[[Place], bool] = lambda place: False
    skipped: list[str] = field(default_factory=list, init=False)
    uncopied: list[Path] = field(default_factory=list, init=False)

    def __post_init__(self):
        self._room = self.most_bytes
        # A list, which keeps the values alive: no `id` is used twice.
        self._found = list(self._walk(self.skipped))
        self._places = {found.path: found for found in self._found}
        self._copies = {found.path: self._copy(found) for found in self._found}

    def iterators(self) -> list[str]:
        """Return the paths of what gives values one by one, and does not tell where it stands."""
        return [
            describe(found.path)
            for found in self._found
            if hasattr(type(found.value), "__next__") and not reachable.is_entered(found.value)
        ]

    def changes(self) -> list[Change]:
        """Return what is another value now, but for what Paddle keeps: the topmost paths."""
        changed: dict[Path, Change] = {}
        for found in self._found:
            now = find(self.roots, found.path)
            if not found.is_internal and self._differs(found, now):
                before = _show(found.value, self._copies[found.path])
                changed[found.path] = Change(found.path, before, _show(now))
        for found in self._walk([]):
            if found.path not in self._places and not found.is_internal:
                changed[found.path] = Change(found.path, "nothing", _show(found.value))
        return [
            change
            for path, change in changed.items()
            if not any(path[:length] in changed for length in range(1, len(path)))
        ]

    def put_back(self, internals: bool = True) -> None:
        """Give everything the value that it had, and parameters no gradients.

        internals: whether to put back what Paddle keeps, too.
        """
        for found in self._found:
            if internals or not found.is_internal:
                self._restore(found)
            if is_tensor(found.value) and not found.value.stop_gradient:
                remove_gradient(found.value)

    def _walk(self, skipped: list[str]) -> Iterator[Place]:
        return walk(self.roots, self.known, self.most_items, skipped)

    def _copy(self, found: Place) -> Any:
        """Return what is needed to compare a value and to put it back."""
        value = found.value
        if isinstance(value, GENERATORS):
            return generator_state(value)
        if isinstance(value, np.ndarray) or is_tensor(value):
            return self._copy_array(found) if is_plain(value) else ABSENT
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
                return is_plain(now) != is_plain(before)
            return not is_plain(now) or not equal(as_array(now), copy)
        if isinstance(before, SETS):
            return set(now) != copy
        return is_leaf(before) and not equal(now, copy)

    def _restore(self, found: Place) -> None:
        value, copy = found.value, self._copies[found.path]
        if isinstance(value, GENERATORS):
            set_generator_state(value, copy)
        elif isinstance(value, np.ndarray) or is_tensor(value):
            if copy is not ABSENT and not (is_plain(value) and equal(as_array(value), copy)):
                new = paddle.to_tensor(copy) if is_tensor(value) else copy
                replace_in_place(value, new)
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
    """Yield every value that can be reached, once, where it is found first.

    For the arguments see `Snapshot`. skipped: a list that takes the names of what is left out.
    """
    seen = set(known)
    stack = [Place((("root", name),), value, False) for name, value in roots.items()]
    stack.reverse()
    while stack:
        place = stack.pop()
        value = place.value
        if value is ABSENT or isinstance(value, types.ModuleType) or id(value) in seen:
            continue
        if not isinstance(value, SCALARS):
            seen.add(id(value))
        yield place
        if isinstance(value, (*CONTAINERS, *SETS)) and len(value) > most_items:
            if skipped is not None:
                skipped.append(f"{describe(place.path)} ({len(value)} items)")
            continue
        below = [
            Place(
                (*place.path, step),
                child(value, step),
                place.is_internal or reachable.is_internal(value, step),
            )
            for step in reachable.steps(value)
        ]
        stack.extend(reversed(below))


def find(roots: Mapping[str, Any], path: Path) -> Any:
    """Return the value at a path; ABSENT if there is none."""
    (_, root), *rest = path
    return functools.reduce(child, rest, roots.get(root, ABSENT))


def put(roots: Mapping[str, Any], path: Path, new: Any) -> bool:
    """Put a copy of plain data at a path; return whether the object is there that is to have it."""
    parent = find(roots, path[:-1])
    if parent is ABSENT:
        return False
    new = copied(new)
    if not replace_in_place(child(parent, path[-1]), new):
        reachable.assign(parent, path[-1], new)
    return True


def unit(roots: Mapping[str, Any], path: Path, known: Collection[int] = ()) -> Optional[Path]:
    """Return the shortest beginning of a path where all is plain data; None if there is none."""
    lengths = range(2, len(path) + 1)
    beginnings = (path[:n] for n in lengths if reachable.can_be_replaced(path[n - 1]))
    return next((part for part in beginnings if is_plain(find(roots, part), known)), None)


def _contents(value: Any) -> Optional[tuple[Mapping, Any]]:
    """Return what a value holds: by the steps to it, and the items of a container."""
    if isinstance(value, nn.Layer):
        return _namespaces(value), None
    items = None
    if isinstance(value, dict):
        items = dict(value)
    elif isinstance(value, (list, collections.deque)):
        items = list(value)
    return {step: child(value, step) for step in reachable.own_steps(value)}, items


def _restore_contents(value: Any, held: Mapping, items: Any) -> None:
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
    """Return the dictionaries, and the set, in which a layer keeps what is assigned to it.

    They belong together: with a tensor an attribute moves from its `__dict__` to its buffers.
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
    """Return what to tell a reader of a value. copy: of what it was, if it is an array."""
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
