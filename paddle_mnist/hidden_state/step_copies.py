"""Copy small extra state after each whole step, so that a step that fails can be undone."""

import collections
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from paddle import nn

from paddle_mnist.hidden_state.extra_state import ExtraState
from paddle_mnist.hidden_state.object_graph import describe_path, identity
from paddle_mnist.hidden_state.object_paths import find, put
from paddle_mnist.hidden_state.optimizer_state import own_parameters
from paddle_mnist.hidden_state.plain_data import (
    ABSENT,
    ATOMS,
    CONSTANTS,
    MOST_ITEMS,
    copied,
    nbytes,
)
from paddle_mnist.hidden_state.stateful import set_state, state_of

# Of what is copied in each step: bytes together, and items of a container of containers.
MOST_KEPT, MOST_NESTED = 2**20, 256
_FLAT = ATOMS | {tuple}


def may_train(extra: ExtraState) -> bool:
    """Return whether steps may train anything themselves: by other optimizers, or layers."""
    layers = [part for part in extra.parts.values() if isinstance(part, nn.Layer)]
    return bool(extra.optimizers or layers)


def trained(extra: ExtraState) -> Iterator[Mapping[str, Any]]:
    """Yield the state_dicts of layers and other optimizers, and all that these train."""
    for part in extra.parts.values():
        if isinstance(part, nn.Layer):
            yield part.state_dict()
    for optimizer in extra.optimizers.values():
        yield optimizer.state_dict()
        yield own_parameters(optimizer, extra.parameters)
    yield extra.optimized


def keep(extra: ExtraState) -> Callable[[bool], list[str]]:
    """Copy the extra state, except what `trained` yields; return a function that restores it.

    It is told whether the state may have changed. It then returns the names of values that
    later checkpoints save and that were not copied: large ones, and those that were found since.
    """
    # By path, and the states of parts by name.
    values: dict[Any, Any] = {path: find(extra.roots, path) for path in extra.saved}
    states = {
        name: state_of(part, name)
        for name, part in extra.parts.items()
        if not isinstance(part, nn.Layer)
    }
    values.update(states)
    room = [MOST_KEPT]
    # Together, so that what is in two of them stays one object.
    made: dict[int, Any] = {}
    copies = {
        key: copied(value, made) for key, value in values.items() if _is_small(value, extra, room)
    }
    frozen = extra.frozen()

    def restore(may_have_changed: bool) -> list[str]:
        for name in states:
            if name in copies and may_have_changed:
                set_state(extra.parts[name], copies[name], name)
        kept = {path: value for path, value in copies.items() if path not in states}
        put(extra.roots, kept.items())
        for name, is_frozen in frozen.items():
            extra.parameters[name].stop_gradient = is_frozen
        if not may_have_changed:
            return []
        changed, _ = extra.changed(extra.changes())
        return [name for name in states if name not in copies] + [
            describe_path(path)
            for path in {**extra.saved, **changed}
            if path not in kept and identity(path) not in extra.left_out
        ]

    return restore


def _is_small(value: Any, extra: ExtraState, room: list[int]) -> bool:
    """Return whether to copy a value in each step. room: the bytes that are left for copies."""
    if value is ABSENT or isinstance(value, CONSTANTS):
        return True
    if type(value) in (list, dict, collections.deque):
        items = value.values() if isinstance(value, dict) else value
        if _FLAT.issuperset(map(type, items)):  # such as the losses so far
            return len(value) <= MOST_ITEMS
        if len(value) > MOST_NESTED:
            return False
        if type(value) is dict:  # such as a list of each metric
            return all(_is_small(item, extra, room) for item in items)
    if not extra.is_plain(value) or nbytes(value) > room[0]:
        return False
    room[0] -= nbytes(value)
    return True
