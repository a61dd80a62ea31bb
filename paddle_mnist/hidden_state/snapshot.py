"""Take snapshots of all reachable values, list the changes, and restore the values."""

import collections
import operator
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.hidden_state import object_graph
from paddle_mnist.hidden_state.object_graph import Edge, ObjectPath, child, describe_path
from paddle_mnist.hidden_state.object_paths import Place, find, topmost, walk
from paddle_mnist.hidden_state.plain_data import (
    ABSENT,
    ATOMS,
    BUFFERS,
    CONTAINERS,
    GENERATORS,
    MOST_ITEMS,
    SCALARS,
    SETS,
    digest_of,
    equal,
    generator_state,
    is_leaf,
    is_of_objects,
    is_plain,
    nbytes,
    replace_in_place,
    set_generator_state,
)
from paddle_mnist.nn.layers import remove_gradient
from paddle_mnist.system.arrays import as_array, copied_array, is_tensor

MOST_BYTES = 256 * 2**20  # of arrays and tensors that a snapshot copies
LARGE = 2**16  # bytes of an array of which a digest may be kept
# Limits for data, whose arrays may be larger than the free memory.
DATA_ITEMS, DATA_BYTES = 1_000, 2**20
ARRAYS = (np.ndarray, paddle.Tensor, *BUFFERS)


class Change(NamedTuple):
    """A value that differs from the snapshot. before, now: both values, as text."""

    path: ObjectPath
    before: str
    now: str


class _Contents(NamedTuple):
    """The contents of an object: attributes by edge, and its containers, each with a copy."""

    attributes: Mapping[Edge, Any]
    containers: list[tuple[Any, Any]]


class _Saved(NamedTuple):
    """A value in a snapshot.

    copy: a copy to compare with and to restore; the SHA-256 of an array that is not copied; ABSENT
        for an alias, and for an array that is not examined.
    is_frozen: whether it is a tensor with stop_gradient=True.
    """

    place: Place
    copy: Any
    is_frozen: bool


@dataclass
class Snapshot:
    """The current state of all values that some roots hold.

    roots: objects by name. known: the `id` of tensors to leave out, because they are saved and
        restored separately.
    most_items, most_bytes: limits on the items of a container and on the bytes of all arrays.
    is_state: whether to copy an array of any size.
    keeps_digests: keep the SHA-256 of large arrays instead of copies, and leave out values that
        Paddle itself manages; then nothing can be restored.
    skipped: (attribute) the names of objects that exceed the limits.
    """

    roots: Mapping[str, Any]
    known: Collection[int] = frozenset()
    most_items: int = MOST_ITEMS
    most_bytes: int = field(default_factory=lambda: MOST_BYTES)
    is_state: Callable[[Place], bool] = lambda place: False
    keeps_digests: bool = False
    skipped: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._room = self.most_bytes
        self._saved: dict[
            ObjectPath, _Saved
        ] = {}  # keeps values alive, so that each `id` is unique
        self._places: dict[ObjectPath, Place] = {}
        self._ids: set[int] = set()
        self.extend()

    def extend(self) -> None:
        """Add the values that did not exist before, as they are now."""
        for place in list(self._walk(self.skipped)):
            path, value, is_internal, is_alias = place
            if path in self._saved or (is_alias and is_internal):
                continue
            if not is_alias:
                self._ids.add(id(value))
            self._places[path] = place
            copy = ABSENT if is_alias else self._copy(place)
            self._saved[path] = _Saved(place, copy, is_tensor(value) and value.stop_gradient)

    def iterators(self) -> list[str]:
        """Return the paths of iterators, whose position cannot be read."""
        found = [place for place in self.places().values() if not place.is_alias]
        return [describe_path(place.path) for place in found if is_iterator(place.value)]

    def places(self) -> dict[ObjectPath, Place]:
        """Return the values in the snapshot by path, including aliases."""
        return self._places

    def changes(self) -> list[Change]:
        """Return the values that have changed, except internal ones; only the topmost paths."""
        current = {place.path: place for place in self._walk([]) if not place.is_internal}
        changed: dict[ObjectPath, Change] = {}
        for path, saved in self._saved.items():
            if saved.place.is_internal:
                continue
            # One that the walk does not yield now is gone, or below an alias.
            place = current.pop(path, None)
            now = place.value if place else find(self.roots, path)
            if now is saved.place.value and type(now) in ATOMS:
                continue
            is_elsewhere = place is not None and place.is_alias and now is not saved.place.value
            if is_elsewhere or self._differs(saved, now):
                changed[path] = Change(path, _show(saved.place.value, saved.copy), _show(now))
        for path, place in current.items():
            changed[path] = Change(path, "nothing", _show(place.value))
        return list(topmost(changed).values())

    def restore(self, internals: bool = True) -> None:
        """Restore all values, and remove the gradients of parameters.

        internals: whether to restore values that Paddle itself manages, too.
        """
        for place, copy, is_frozen in self._saved.values():
            value = place.value
            if not place.is_alias and (internals or not place.is_internal):
                _restore(value, copy)
            if is_tensor(value):
                value.stop_gradient = is_frozen
                if not is_frozen or hasattr(value, "trainable"):  # a parameter
                    remove_gradient(value)

    def _walk(self, skipped: list[str]) -> Iterator[Place]:
        places = walk(self.roots, self.known, self.most_items, skipped)
        return (place for place in places if not (self.keeps_digests and place.is_internal))

    def _copy(self, place: Place) -> Any:
        """Return a copy of a value, to compare it with and to restore it."""
        value = place.value
        if not isinstance(value, ARRAYS) or is_of_objects(value):
            return _data(value) if is_leaf(value) or is_iterator(value) else _contents(value)
        if not _has_bytes(value):
            return ABSENT
        size = nbytes(value)
        if self.is_state(place):
            if self.keeps_digests and size > LARGE and not isinstance(value, BUFFERS):
                return digest_of(value)
        elif size > self._room:
            self.skipped.append(f"{describe_path(place.path)} ({size / 2**20:.0f} MiB)")
            return ABSENT
        else:
            self._room -= size
        if isinstance(value, BUFFERS):
            return value[:]
        return (
            copied_array(value) if type(value) is np.ndarray or is_tensor(value) else value.copy()
        )

    def _differs(self, saved: _Saved, now: Any) -> bool:
        before, copy = saved.place.value, saved.copy
        if saved.place.is_alias:
            return now is not before
        if type(now) is not type(before):
            return True
        if is_tensor(now) and now.stop_gradient != saved.is_frozen:
            return True
        if isinstance(copy, _Contents):
            if isinstance(before, dict):  # its items are compared separately, but not their order
                ((_, kept),) = copy.containers
                return set(now) == set(kept) and list(now) != list(kept)
            return now is not before and self._is_another(before, now)
        if isinstance(before, ARRAYS):
            if copy is ABSENT or not _has_bytes(now):
                return copy is not ABSENT or _has_bytes(now) != _has_bytes(before)
            if isinstance(copy, str):
                return digest_of(now) != copy
        return not equal(_data(now), copy)

    def _is_another(self, before: Any, now: Any) -> bool:
        """Return whether an object was replaced by another that is not equal to it.

        New objects of types that are entered are compared by their contents.
        """
        if isinstance(before, types.FunctionType):
            return now.__code__ is not before.__code__
        if isinstance(before, CONTAINERS):
            return False
        if object_graph.is_entered(before) or isinstance(before, nn.Layer):
            return id(now) in self._ids
        try:
            return not bool(now == before)
        except Exception:  # whatever the objects raise
            return True


def data_snapshot(data: Mapping[str, Any]) -> Snapshot:
    """Return a snapshot of data, with low limits on its size."""
    return Snapshot(data, most_items=DATA_ITEMS, most_bytes=DATA_BYTES)


def is_iterator(value: Any) -> bool:
    """Return whether a value is an iterator, whose position cannot be saved."""
    return hasattr(type(value), "__next__") and not object_graph.is_entered(value)


def _position(iterator: Any) -> tuple[Any, ...]:
    """Return a value that shows most changes of an iterator's position, without moving it."""
    frame = getattr(iterator, "gi_frame", None)  # of a generator
    if frame is not None:
        plain = {
            name: repr(local) for name, local in frame.f_locals.items() if type(local) in SCALARS
        }
        return frame.f_lasti, plain
    return operator.length_hint(iterator, -1), repr(iterator)


def _has_bytes(array: Any) -> bool:
    """Return whether an array, a tensor or a buffer has values that can be copied."""
    if isinstance(array, np.ndarray):
        return not array.dtype.hasobject
    return not is_tensor(array) or is_plain(array)


def _data(value: Any) -> Any:
    """Return a comparable value for data or an iterator."""
    if is_tensor(value):
        return as_array(value)
    if isinstance(value, GENERATORS):
        return generator_state(value)
    if isinstance(value, SETS):
        return set(value)
    return _position(value) if is_iterator(value) else value


def _contents(value: Any) -> _Contents:
    """Return the contents of an object."""
    attributes = dict(object_graph.own_links(value))
    is_container = isinstance(value, (dict, list, collections.deque)) or is_of_objects(value)
    containers = [value] if is_container else []
    if isinstance(value, nn.Layer):
        # Together, since assigning a tensor moves an attribute from one of them to another.
        names = (*object_graph.LAYER_PARTS, "_non_persistable_buffer_names_set")
        containers = [vars(value), *(vars(value)[name] for name in names)]
    return _Contents(
        attributes, [(container, _copied_container(container)) for container in containers]
    )


def _copied_container(container: Any) -> Any:
    if isinstance(container, dict):
        return dict(container)
    if isinstance(container, (set, np.ndarray)):
        return container.copy()
    return list(container)


def _restore(value: Any, copy: Any) -> None:
    """Restore the contents of a value from its copy."""
    if isinstance(copy, _Contents):
        _restore_contents(value, copy)
    elif isinstance(value, GENERATORS):
        set_generator_state(value, copy)
    elif copy is ABSENT or not isinstance(value, (set, *ARRAYS)):
        return
    elif not _has_bytes(value) or not equal(_data(value), copy):
        replace_in_place(value, paddle.to_tensor(copy) if is_tensor(value) else copy)


def _restore_contents(value: Any, contents: _Contents) -> None:
    for edge in {*contents.attributes, *dict(object_graph.own_links(value))}:
        before = contents.attributes.get(edge, ABSENT)
        if child(value, edge) is not before:
            object_graph.assign(value, edge, before)
    for container, copy in contents.containers:
        now, kept = _items(container), _items(copy)
        if isinstance(container, np.ndarray):
            container[...] = copy
        elif len(now) != len(kept) or any(map(operator.is_not, now, kept)):
            container.clear()
            container.update(copy) if hasattr(container, "update") else container.extend(copy)


def _items(container: Any) -> list[Any]:
    """Return the items of a container, and the keys of a dictionary."""
    return [*container, *container.values()] if isinstance(container, dict) else [*container]


def _show(value: Any, copy: Any = ABSENT) -> str:
    """Return a value as text for messages. copy: its former contents, if it is an array."""
    name = type(value).__name__
    if (isinstance(value, np.ndarray) and not value.dtype.hasobject) or is_tensor(value):
        if not is_plain(value) or value.size > 6:
            return f"a {name} {list(value.shape)}"
        return repr((as_array(value) if copy is ABSENT else copy).tolist())
    if isinstance(value, SCALARS):
        return f"{value!r:.60}"
    is_sized = isinstance(value, (*CONTAINERS, *SETS, *BUFFERS))
    size = len(value if copy is ABSENT or not isinstance(copy, set) else copy) if is_sized else 0
    return f"a {name} of {size}" if is_sized else f"a {name}"
