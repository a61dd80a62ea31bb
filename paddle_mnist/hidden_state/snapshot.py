"""Take snapshots of all reachable values, list the changes, and restore the values.

What a snapshot keeps of a value depends on what it is (`_Unexamined` and the classes below it). All
compare the type of a value, and `stop_gradient` of a tensor.
"""

import collections
import operator
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.hidden_state import object_graph
from paddle_mnist.hidden_state.object_graph import Edge, ObjectPath, child, describe_path
from paddle_mnist.hidden_state.object_paths import Place, find, walk
from paddle_mnist.hidden_state.plain_data import (
    ABSENT,
    ATOMS,
    BUFFERS,
    CONTAINERS,
    GENERATORS,
    MOST_ITEMS,
    SCALARS,
    SETS,
    base_of,
    digest_of,
    equal,
    generator_state,
    is_leaf,
    is_of_objects,
    is_plain,
    items_of,
    nbytes,
    replace_in_place,
    set_generator_state,
)
from paddle_mnist.nn.layers import remove_gradient
from paddle_mnist.system.arrays import as_array, copied_array, is_tensor

MOST_COPIED = 256 * 2**20  # bytes of arrays and tensors that a snapshot copies
LARGE = 2**16  # bytes of an array of which a digest may be kept
# Limits for data, whose arrays may be larger than the free memory.
DATA_ITEMS, DATA_BYTES = 1_000, 2**20
ARRAYS = (np.ndarray, paddle.Tensor, *BUFFERS)


# ------------------------------------------------------------------ what is kept of a value


class _Unexamined:
    """An array beyond the limits, or a tensor without memory; the base class of all that is kept.

    place: of the value. is_frozen: whether the value is a tensor with stop_gradient=True.
    attributes: of an object or a tensor, by edge; None for an object that was found before.
    """

    def __init__(self, place: Place):
        self.place, self.value = place, place.value
        self.is_frozen = is_tensor(place.value) and place.value.stop_gradient
        self.attributes: Optional[dict[Edge, Any]] = None
        # The tensors of the model are aliases: their values are saved separately.
        if is_tensor(place.value) or not place.is_alias:
            self.attributes = dict(object_graph.own_links(place.value))

    def differs(self, now: Any) -> bool:
        """Return whether the value that is at the same path now is another one."""
        if type(now) is not type(self.value):
            return True
        return (is_tensor(now) and now.stop_gradient != self.is_frozen) or self._differs(now)

    def _differs(self, now: Any) -> bool:
        return _has_bytes(now) != _has_bytes(self.value)

    def restore(self) -> None:
        """Give the value its former contents, as far as they are kept."""
        if self.attributes is None:
            return
        present = dict(object_graph.own_links(self.value))
        for edge in {**self.attributes, **present}:
            before = self.attributes.get(edge, ABSENT)
            if child(self.value, edge) is not before:
                object_graph.assign(self.value, edge, before)


class _Alias(_Unexamined):
    """A value that was found before, on another path: it is restored there."""

    def differs(self, now: Any) -> bool:
        return now is not self.value


class _Digest(_Unexamined):
    """A large array of a layer or an optimizer, which is compared by its SHA-256, not restored."""

    def __init__(self, place: Place):
        super().__init__(place)
        self.digest = digest_of(self.value)

    def _differs(self, now: Any) -> bool:
        return not _has_bytes(now) or digest_of(now) != self.digest


class _Copy(_Unexamined):
    """Data or an iterator. What can change in place is restored, except an iterator.

    copy: of an array's values, or what `_data` returns for anything else.
    """

    def __init__(self, place: Place):
        super().__init__(place)
        value = place.value
        self.copy: Any
        if is_tensor(value):
            self.copy = copied_array(value)
        elif isinstance(value, np.ndarray):
            self.copy = value.copy()
        else:
            self.copy = value[:] if isinstance(value, BUFFERS) else _data(value)

    def _differs(self, now: Any) -> bool:
        return not _has_bytes(now) or not equal(_data(now), self.copy)

    def restore(self) -> None:
        super().restore()
        value, copy = self.value, self.copy
        if isinstance(value, GENERATORS):
            set_generator_state(value, copy)
        elif isinstance(value, (set, *ARRAYS)) and self._differs(value):
            replace_in_place(value, paddle.to_tensor(copy) if is_tensor(value) else copy)


class _Contents(_Unexamined):
    """A container, a layer, an object or a function; what it holds has paths of its own.

    containers: those that the object consists of, with copies.
    snapshot: the `id` of all values in the snapshot.
    """

    def __init__(self, place: Place, snapshot: Collection[int]):
        super().__init__(place)
        value, self.snapshot = place.value, snapshot
        containers = []
        if isinstance(value, (dict, list, collections.deque, np.ndarray)):
            containers = [value]
        elif isinstance(value, nn.Layer):
            # Together, since assigning a tensor moves an attribute from one of them to another.
            names = (*object_graph.LAYER_PARTS, "_non_persistable_buffer_names_set")
            containers = [vars(value), *(vars(value)[name] for name in names)]
        self.containers = [(container, _shallow_copy(container)) for container in containers]

    def _differs(self, now: Any) -> bool:
        before = self.value
        if isinstance(before, dict):
            ((_, kept),), keys = self.containers, items_of(now)
            return set(keys) == {*kept} and keys != [*kept]
        if now is before or isinstance(before, CONTAINERS):
            return False
        if isinstance(before, types.FunctionType):
            return now.__code__ is not before.__code__
        # A new object of a type that is entered is compared by its contents; another object of
        # the snapshot in its place is a change.
        if object_graph.is_entered(before) or isinstance(before, nn.Layer):
            return id(now) in self.snapshot
        try:
            return not bool(now == before)
        except Exception:  # whatever the objects raise
            return True

    def restore(self) -> None:
        super().restore()
        for container, copy in self.containers:
            if isinstance(container, np.ndarray):
                container[...] = copy
                continue
            now, kept = _items(container), _items(copy)
            if len(now) != len(kept) or any(map(operator.is_not, now, kept)):
                kind = object_graph.changed_by(container)
                kind.clear(container)
                if kind == collections.OrderedDict:  # its `update` uses a subclass's method
                    for item in copy.items():
                        kind.__setitem__(container, *item)
                else:
                    (kind.update if hasattr(kind, "update") else kind.extend)(container, copy)


def _shallow_copy(container: Any) -> Any:
    if isinstance(container, dict):
        return dict(base_of(container).items(container))
    return container.copy() if isinstance(container, np.ndarray) else items_of(container)


def _items(container: Any) -> list[Any]:
    """Return the items of a container, and the keys of a dictionary."""
    values = base_of(container).values(container) if isinstance(container, dict) else ()
    return [*items_of(container), *values]


def _has_bytes(value: Any) -> bool:
    """Return whether a value has contents that can be copied, unlike a tensor without memory."""
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    return not is_tensor(value) or is_plain(value)


def _data(value: Any) -> Any:
    """Return a comparable value for data or an iterator."""
    if type(value) in ATOMS:
        return value
    if is_tensor(value):
        return as_array(value)
    if isinstance(value, GENERATORS):
        return generator_state(value)
    if isinstance(value, SETS):
        return set(value)
    return _position(value) if is_iterator(value) else value


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


# ------------------------------------------------------------------ the snapshot


@dataclass
class Snapshot:
    """The current state of all values that some roots hold.

    roots: objects by name. known: the `id` of tensors to leave out, because they are saved and
        restored separately.
    most_items, most_bytes: limits on the items of a container and on the bytes of all arrays.
    is_state: whether to examine an array of any size.
    keeps_digests: keep the SHA-256 of large arrays instead of copies, and leave out values that
        Paddle itself manages; then nothing can be restored.
    skipped: (attribute) the names of objects that exceed the limits.
    places: (attribute) the values by path, including aliases.
    """

    roots: Mapping[str, Any]
    known: Collection[int] = frozenset()
    most_items: int = MOST_ITEMS
    most_bytes: int = MOST_COPIED
    is_state: Callable[[Place], bool] = lambda place: False
    keeps_digests: bool = False
    skipped: list[str] = field(default_factory=list, init=False)
    places: dict[ObjectPath, Place] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._room = self.most_bytes
        self._kept: dict[ObjectPath, _Unexamined] = {}  # keeps values alive: each `id` is unique
        self._ids: set[int] = set()
        self.extend()

    def extend(self) -> None:
        """Add the values that did not exist before, as they are now."""
        for place in list(self._walk(self.skipped)):
            if place.path in self._kept or (place.is_alias and place.is_internal):
                continue
            if not place.is_alias:
                self._ids.add(id(place.value))
            self.places[place.path] = place
            self._kept[place.path] = self._keep(place)

    def _walk(self, skipped: list[str]) -> Iterator[Place]:
        places = walk(self.roots, self.known, self.most_items, skipped)
        return (place for place in places if not (self.keeps_digests and place.is_internal))

    def _keep(self, place: Place) -> _Unexamined:
        value = place.value
        if place.is_alias:
            return _Alias(place)
        if not isinstance(value, ARRAYS) or is_of_objects(value):
            is_data = is_leaf(value) or is_iterator(value)
            return _Copy(place) if is_data else _Contents(place, self._ids)
        if not _has_bytes(value):
            return _Unexamined(place)
        size = nbytes(value)
        if self.is_state(place):
            is_large = size > LARGE and not isinstance(value, BUFFERS)
            return _Digest(place) if self.keeps_digests and is_large else _Copy(place)
        if size > self._room:
            self.skipped.append(f"{describe_path(place.path)} ({size / 2**20:.0f} MiB)")
            return _Unexamined(place)
        self._room -= size
        return _Copy(place)

    def iterators(self) -> list[str]:
        """Return the paths of iterators, whose position cannot be read."""
        return [
            describe_path(path)
            for path, value, _, is_alias in self.places.values()
            if is_iterator(value) and not is_alias
        ]

    def changes(self) -> list[ObjectPath]:
        """Return the topmost paths of the values that have changed, except internal ones."""
        current = {place.path: place for place in self._walk([]) if not place.is_internal}
        changed: list[ObjectPath] = []
        wholes: set[ObjectPath] = set()  # whose change is one of all that is below

        def add(path: ObjectPath, is_whole: bool = True) -> None:
            if not any(path[:length] in wholes for length in range(1, len(path))):
                changed.append(path)
                if is_whole:
                    wholes.add(path)

        for path, kept in self._kept.items():
            if kept.place.is_internal:
                continue
            # One that the walk does not yield now is gone, or below an alias.
            place = current.pop(path, None)
            now = place.value if place else find(self.roots, path)
            if now is kept.value and type(now) in ATOMS:
                continue
            is_elsewhere = place is not None and place.is_alias and now is not kept.value
            if is_elsewhere or kept.differs(now):
                # A parameter that becomes another tensor loses the attributes of parameters.
                add(path, is_whole=not (is_tensor(now) and type(now) is type(kept.value)))
        for path in current:  # the new ones
            add(path)
        return changed

    def restore(self, internals: bool = True) -> None:
        """Restore all values, and remove the gradients of parameters.

        internals: whether to restore values that Paddle itself manages, too.
        """
        for kept in self._kept.values():
            value = kept.value
            if internals or not kept.place.is_internal:
                kept.restore()
            if is_tensor(value):
                value.stop_gradient = kept.is_frozen
                if not kept.is_frozen or hasattr(value, "trainable"):  # a parameter
                    remove_gradient(value)


def data_snapshot(data: Mapping[str, Any]) -> Snapshot:
    """Return a snapshot of data, with low limits on its size."""
    return Snapshot(data, most_items=DATA_ITEMS, most_bytes=DATA_BYTES)
