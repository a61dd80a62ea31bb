"""Take snapshots of every value that can be reached, list what has changed, and restore it."""

import collections
import operator
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.hidden_state import object_graph
from paddle_mnist.hidden_state.object_graph import Path, Step, child, describe
from paddle_mnist.hidden_state.places import Place, find, topmost, walk
from paddle_mnist.hidden_state.plain_data import (
    ABSENT,
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
    is_plain,
    is_tensor,
    nbytes,
    replace_in_place,
    set_generator_state,
)
from paddle_mnist.nn.sparse_gradients import remove_gradient
from paddle_mnist.system.arrays import as_array, copied_array

MOST_BYTES = 256 * 2**20  # of arrays and tensors that a snapshot copies
LARGE = 2**16  # bytes of an array of which a digest may be kept
# Limits for data, whose arrays may be larger than the free memory.
DATA_ITEMS, DATA_BYTES = 1_000, 2**20


@dataclass(frozen=True)
class _Digest:
    """The SHA-256 of an array."""

    sha256: str


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
    keeps_digests: keep the SHA-256 of large arrays instead of copies, and no internals; then
        nothing can be restored.
    skipped: (attribute) the names of objects that exceed the limits.
    """

    roots: Mapping[str, Any]
    known: Collection[int] = frozenset()
    most_items: int = MOST_ITEMS
    most_bytes: int = field(default_factory=lambda: MOST_BYTES)
    is_state: Callable[[Place], bool] = lambda place: False
    has_internals: bool = True
    keeps_digests: bool = False
    skipped: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._room = self.most_bytes
        self.has_internals = self.has_internals and not self.keeps_digests
        # A list keeps the values alive, so that no `id` is used twice.
        places = list(self._walk(self.skipped))
        self._found = [place for place in places if not place.is_alias]
        self._aliases = [place for place in places if place.is_alias and not place.is_internal]
        self._ids = {id(found.value) for found in self._found if not is_leaf(found.value)}
        tensors = (found for found in self._found if is_tensor(found.value))
        self._is_frozen = {found.path: found.value.stop_gradient for found in tensors}
        self._copies = {found.path: self._copy(found) for found in self._found}

    def iterators(self) -> list[str]:
        """Return the paths of iterators, whose position cannot be read."""
        return [describe(found.path) for found in self._found if is_iterator(found.value)]

    def places(self) -> dict[Path, Place]:
        """Return the values that there were, and the other names of each, by path."""
        return {place.path: place for place in (*self._found, *self._aliases)}

    def changes(self) -> list[Change]:
        """Return the values that have changed, except internal ones; only the topmost paths."""
        changed: dict[Path, Change] = {}
        for found in self._found:
            now = find(self.roots, found.path)
            if not found.is_internal and (self._differs(found, now) or self._thaws(found, now)):
                before = _show(found.value, self._copies[found.path])
                changed[found.path] = Change(found.path, before, _show(now))
        for alias in self._aliases:
            now = find(self.roots, alias.path)
            if now is not alias.value:
                changed[alias.path] = Change(alias.path, _show(alias.value), _show(now))
        known = {*self._copies, *(alias.path for alias in self._aliases)}
        for found in self._walk([]):
            if found.path not in known and not found.is_internal:
                changed[found.path] = Change(found.path, "nothing", _show(found.value))
        return list(topmost(changed).values())

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
        if _is_array(value):
            return self._copy_array(found) if _has_bytes(value) else ABSENT
        if is_leaf(value):
            return set(value) if isinstance(value, SETS) else value
        return _position(value) if is_iterator(value) else _contents(value)

    def _copy_array(self, found: Place) -> Any:
        value, size = found.value, nbytes(found.value)
        if self.is_state(found):
            is_digest = self.keeps_digests and size > LARGE and not isinstance(value, BUFFERS)
            return _Digest(digest_of(value)) if is_digest else _copied(value)
        if size > self._room:
            self.skipped.append(f"{describe(found.path)} ({size / 2**20:.0f} MiB)")
            return ABSENT
        self._room -= size
        return _copied(value)

    def extend(self) -> None:
        """Take in the values that were not there before, as they are now."""
        known = {found.path for found in (*self._found, *self._aliases)}
        new = [place for place in self._walk(self.skipped) if place.path not in known]
        self._aliases += [one for one in new if one.is_alias and not one.is_internal]
        new = [one for one in new if not one.is_alias]
        self._found += new
        self._ids |= {id(one.value) for one in new if not is_leaf(one.value)}
        self._copies.update({one.path: self._copy(one) for one in new})
        tensors = (one for one in new if is_tensor(one.value))
        self._is_frozen.update({one.path: one.value.stop_gradient for one in tensors})

    def _thaws(self, found: Place, now: Any) -> bool:
        """Return whether a tensor was frozen or unfrozen."""
        return is_tensor(now) and self._is_frozen.get(found.path) != now.stop_gradient

    def _differs(self, found: Place, now: Any) -> bool:
        before, copy = found.value, self._copies[found.path]
        if type(now) is not type(before):
            return True
        if isinstance(before, GENERATORS):
            return not equal(generator_state(now), copy)
        if _is_array(before):
            if copy is ABSENT:
                return _has_bytes(now) != _has_bytes(before)
            if isinstance(copy, _Digest):
                return not _has_bytes(now) or digest_of(now) != copy.sha256
            return not _has_bytes(now) or not equal(_comparable(now), copy)
        if isinstance(before, SETS):
            return bool(set(now) != copy)
        if is_leaf(before):
            return not equal(now, copy)
        if is_iterator(before) and is_iterator(now):
            return bool(_position(now) != copy)
        if isinstance(before, dict):  # its items are compared by themselves, but not their order
            return set(now) == set(copy[1][0]) and list(now) != list(copy[1][0])
        return now is not before and self._is_another(before, now)

    def _is_another(self, before: Any, now: Any) -> bool:
        """Return whether an object was exchanged for another that is not its equal.

        A new object of a kind that is looked into is compared by what it holds.
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

    def _restore(self, found: Place) -> None:
        value, copy = found.value, self._copies[found.path]
        if isinstance(value, GENERATORS):
            set_generator_state(value, copy)
        elif _is_array(value):
            if copy is not ABSENT and not (_has_bytes(value) and equal(_comparable(value), copy)):
                new = paddle.to_tensor(copy) if is_tensor(value) else copy
                replace_in_place(value, new)
        elif isinstance(value, set):
            if value != copy:
                replace_in_place(value, set(copy))
        elif not is_leaf(value) and not is_iterator(value):
            _restore_contents(value, *copy)


def is_iterator(value: Any) -> bool:
    """Return whether a value is an iterator, whose position no checkpoint can hold."""
    return hasattr(type(value), "__next__") and not object_graph.is_entered(value)


def _position(iterator: Any) -> tuple[Any, ...]:
    """Return what tells some positions of an iterator from others, without moving it."""
    frame = getattr(iterator, "gi_frame", None)  # of a generator
    if frame is not None:
        plain = {name: repr(one) for name, one in frame.f_locals.items() if type(one) in SCALARS}
        return frame.f_lasti, plain
    return operator.length_hint(iterator, -1), repr(iterator)


def data_snapshot(data: Mapping[str, Any]) -> Snapshot:
    """Return a snapshot of data, with low limits on its size."""
    return Snapshot(data, most_items=DATA_ITEMS, most_bytes=DATA_BYTES)


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, *BUFFERS)) or is_tensor(value)


def _copied(value: Any) -> Any:
    return value[:] if isinstance(value, BUFFERS) else copied_array(value)


def _comparable(value: Any) -> Any:
    """Return a tensor as an array, and all else as it is."""
    return as_array(value) if is_tensor(value) else value


def _has_bytes(value: Any) -> bool:
    """Return whether an array, a tensor or a buffer has values that can be copied."""
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    return not is_tensor(value) or is_plain(value)


def _containers(value: Any) -> list[Any]:
    """Return the containers that are an object's contents: itself, or those of a layer.

    A layer's belong together: assigning a tensor moves an attribute from `__dict__` to the buffers.
    """
    if isinstance(value, nn.Layer):
        own = vars(value)
        names = (*object_graph.LAYER_PARTS, "_non_persistable_buffer_names_set")
        return [own, *(own[name] for name in names)]
    return [value] if isinstance(value, (dict, list, collections.deque)) else []


def _contents(value: Any) -> tuple[dict[Step, Any], list[Any]]:
    """Return the values that an object holds by step, and copies of its containers."""
    steps = () if isinstance(value, nn.Layer) else object_graph.own_steps(value)
    copies = [
        dict(one) if isinstance(one, dict) else set(one) if isinstance(one, set) else list(one)
        for one in _containers(value)
    ]
    return {step: child(value, step) for step in steps}, copies


def _restore_contents(value: Any, held: Mapping[Step, Any], copies: Sequence[Any]) -> None:
    steps = () if isinstance(value, nn.Layer) else object_graph.own_steps(value)
    for step in {*held, *steps}:
        if child(value, step) is not held.get(step, ABSENT):
            object_graph.assign(value, step, held.get(step, ABSENT))
    for container, copy in zip(_containers(value), copies):
        now, kept = _parts(container), _parts(copy)
        if len(now) != len(kept) or any(map(operator.is_not, now, kept)):
            container.clear()
            container.update(copy) if hasattr(container, "update") else container.extend(copy)


def _parts(container: Any) -> list[Any]:
    """Return the items of a container, and the keys of a dictionary."""
    return [*container, *container.values()] if isinstance(container, dict) else [*container]


def _show(value: Any, copy: Any = ABSENT) -> str:
    """Return a value as text for messages. copy: its former contents, if it is an array."""
    name = type(value).__name__
    if isinstance(value, np.ndarray) or is_tensor(value):
        if not is_plain(value) or value.size > 6:
            return f"a {name} {list(value.shape)}"
        return repr((as_array(value) if copy is ABSENT else copy).tolist())
    if isinstance(value, SCALARS):
        return f"{value!r:.60}"
    is_sized = isinstance(value, (*CONTAINERS, *SETS, *BUFFERS))
    size = len(value if copy is ABSENT or not isinstance(copy, set) else copy) if is_sized else 0
    return f"a {name} of {size}" if is_sized else f"a {name}"
