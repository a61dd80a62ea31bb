"""Find optimizers, schedules and layers that are not the training's own, and what they change."""

from collections.abc import Collection, Mapping
from typing import Any

import paddle
from paddle.optimizer.lr import LRScheduler

from paddle_mnist.checkpoint.places import find, topmost, unit, walk
from paddle_mnist.checkpoint.plain_data import digest_of, is_plain, is_tensor
from paddle_mnist.checkpoint.reachable import Path, describe, is_registered
from paddle_mnist.checkpoint.snapshot import Snapshot
from paddle_mnist.nn.schedule import schedule_numbers


class FoundState:
    """The optimizers and schedules that some objects hold, and tensors of layers in them.

    optimizer: the training's. roots: objects by name. known: the `id` of tensors that are saved in
        another way. left_out: these, and the `id` of objects that are not looked into.
    optimizers: (attribute) those that were found beside the training's, by path.
    """

    def __init__(
        self,
        optimizer: paddle.optimizer.Optimizer,
        roots: Mapping[str, Any],
        known: Collection[int],
        left_out: Collection[int],
    ):
        self.optimizer, self.roots = optimizer, roots
        self.known, self.left_out = known, left_out
        self._tensors: dict[Path, str] = {}  # digests of what they were when they were found
        self.optimizers: dict[Path, paddle.optimizer.Optimizer] = {}
        self._built: dict[Path, Snapshot] = {}
        self.discover()

    def discover(self) -> None:
        """Find what the roots hold now."""
        kinds = (paddle.optimizer.Optimizer, LRScheduler)
        found: dict[Path, Any] = {}
        tensors: dict[Path, str] = {}
        for place in walk(self.roots, self.left_out):
            path, value = place.path, place.value
            if place.is_alias:
                continue
            if isinstance(value, kinds) and not place.is_internal:
                found[path] = value
            # Tensors of other layers, such as a target network that is updated from time to time.
            is_others = is_tensor(value) and path[0][1] != "model"
            if is_others and is_registered(find(self.roots, path[:-1]), path[-1]):
                tensors[path] = self._tensors.get(path) or digest_of(value)
        self._tensors = {**tensors, **self._tensors}
        self.optimizers = {
            path: value
            for path, value in found.items()
            if isinstance(value, kinds[0]) and value is not self.optimizer
        }
        # As they were built: values that differ later are saved.
        tops = topmost(found)
        own = {id(value) for value in tops.values()}
        for path, value in tops.items():
            if path not in self._built:
                known = {*self.known, *own} - {id(value)}
                self._built[path] = Snapshot({"": value}, known, has_internals=False)

    def tensors(self) -> dict[str, paddle.Tensor]:
        """Return the tensors of layers other than the model and the named ones, by name."""
        found = {describe(path): find(self.roots, path) for path in self._tensors}
        return {name: value for name, value in found.items() if is_tensor(value)}

    def has(self, path: Path) -> bool:
        """Return whether a value is in an optimizer or a schedule, or a tensor of a layer."""
        return path in self._tensors or any(path[: len(built)] == built for built in self._built)

    def is_saved(self, path: Path) -> bool:
        """Return whether a value is saved in any case: an optimizer's value or a layer's tensor."""
        if path in self._tensors:
            return True
        return self.has(path) and unit(self.roots, path, self.known) is not None

    def changed(self) -> dict[Path, Any]:
        """Return the values that differ from those that were found, by path.

        Not those that a checkpoint has as the numbers of the training's schedule.
        """
        numbers = schedule_numbers(self.optimizer)
        values: dict[Path, Any] = {}
        for prefix, built in self._built.items():
            # What is too large to be compared is saved, too.
            for changed in [*(change.path for change in built.changes()), *built.uncopied]:
                path = (*prefix, *changed[1:])
                if prefix[0][1] != "schedule" or not _is_in(numbers, path[1:]):
                    where = unit(self.roots, path, self.known)
                    if where is not None:
                        values[where] = find(self.roots, where)
        for path, digest in self._tensors.items():
            tensor = find(self.roots, path)
            if is_plain(tensor) and digest_of(tensor) != digest:
                values[path] = tensor
        return values


def _is_in(numbers: Any, path: Path) -> bool:
    """Return whether the numbers of a schedule, by name, contain the value at a path."""
    for kind, key in path:
        if not isinstance(numbers, Mapping):
            return True
        if kind != "attribute" or key not in numbers:
            return False
        numbers = numbers[key]
    return not isinstance(numbers, Mapping)
