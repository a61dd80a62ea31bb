"""Save and restore the state beside the weights and the optimizer's state_dict.

Checkpoints save the parts, which are objects with a state_dict (those that the caller names, and
other optimizers), and every reachable plain value that has changed since before this process loaded
a checkpoint. A value that was saved once is saved in every later checkpoint.
"""

import collections
import copy
import logging
import numbers
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.errors import WEIGHTS_ALONE, CheckpointError, ConfigError, listed
from paddle_mnist.hidden_state.object_graph import (
    ObjectPath,
    assign,
    describe_path,
    identity,
    is_registered,
    is_users,
)
from paddle_mnist.hidden_state.object_paths import (
    find,
    held_by,
    may_be_put,
    put,
    walk,
)
from paddle_mnist.hidden_state.optimizer_state import (
    Parameters,
    optimizer_contents,
    optimizer_parameters,
    own_parameters,
)
from paddle_mnist.hidden_state.packing import LATER, pack, unpack
from paddle_mnist.hidden_state.plain_data import (
    ABSENT,
    DEFINED,
    GENERATORS,
    MOST_ITEMS,
    SCALARS,
    copied,
    digest_of,
    is_plain,
    is_record_class,
    nbytes,
)
from paddle_mnist.hidden_state.snapshot import (
    ARRAYS,
    Change,
    Snapshot,
    data_snapshot,
    is_iterator,
)
from paddle_mnist.nn.layers import own_gradient_hooks
from paddle_mnist.nn.schedule import schedule_numbers, scheduler_of
from paddle_mnist.nn.state_dict import load_weights
from paddle_mnist.system.arrays import is_tensor

log = logging.getLogger("paddle_mnist")

LOSS = "loss"  # the root that is the loss
COMPARED_ROOTS = ("model", LOSS, "step", "metrics", "collate_fn")
DATA_ROOTS = ("train", "valid", "collate_fn")
MOST_BYTES = 16 * 2**20  # of a value that only later steps change, not the first ones
# Of what is copied in each step: bytes together, and items of a container of containers.
MOST_KEPT, MOST_NESTED = 2**20, 256
_NOT_KEPT = object()  # stands for a value that is not copied in each step


class ExtraState:
    """Saves and restores the state beside the weights and the optimizer's state_dict.

    roots: the objects that may hold state, by name; "optimizer" and "schedule" are the run's. Later
        values are compared with their current ones.
    named, optional: objects with `state_dict` and `set_state_dict`, by name. A checkpoint need not
        contain the state of those in `optional`.
    optimizers: (attribute) the other optimizers that the roots hold, by path.
    saved: (attribute) the paths of values that every later checkpoint saves.
    left_out: (attribute) the `identity` of paths whose values no checkpoint saves.
    logged: (attribute) the `identity` of paths that the log has named as not saved.
    is_later: (attribute) whether version 1.0 would not read the newest state rightly.
    parameters: (attribute) the parameters that the optimizer may have, by structured name: the
        model's, and those of a loss that is a layer, such as "loss/centers"; and `optimized`.
    optimized: (attribute) its other parameters, such as those of objects that step uses, by names
        such as "step/head.weight".
    """

    def __init__(
        self,
        model: nn.Layer,
        optimizer: paddle.optimizer.Optimizer,
        roots: Mapping[str, Any],
        named: Mapping[str, Any],
        optional: Mapping[str, Any],
    ):
        self.optimizer = optimizer
        self.roots = dict(roots)
        self.data = {name: root for name, root in roots.items() if name in DATA_ROOTS}
        self.others = {name: root for name, root in roots.items() if name not in DATA_ROOTS}
        self.named, self.optional = dict(named), dict(optional)
        self.parts = {**self.named, **self.optional}
        self.parameters: Parameters = dict(model.named_parameters())
        loss = roots.get(LOSS)
        if isinstance(loss, nn.Layer):
            own = loss.named_parameters()
            self.parameters.update({f"{LOSS}/{name}": parameter for name, parameter in own})
        layers = [model, *(part for part in self.named.values() if isinstance(part, nn.Layer))]
        # Keep the tensors alive: Python reuses the `id` of a deleted object.
        self._tensors = [value for layer in layers for value in layer.state_dict().values()]
        self.known = set(map(id, self._tensors))
        # Data is examined separately, even if a callback, for example, refers to it.
        self.others_known = self.known | set(map(id, _values_of(self.data)))
        self._optimized = self._optimized_elsewhere()
        self.optimized: Parameters = {
            describe_path(path).replace(".", "/", 1): p for path, p in self._optimized.items()
        }
        self.parameters.update(self.optimized)
        self._names = {id(parameter): name for name, parameter in self.parameters.items()}
        self.saved: dict[ObjectPath, None] = {}  # in the order in which they were found
        self.left_out: set[str] = set()
        self.optimizers: dict[ObjectPath, paddle.optimizer.Optimizer] = {}
        self.logged: set[str] = set()
        self._was_frozen = self._frozen()
        self.is_later = False
        self._probes: collections.Counter[str] = collections.Counter()
        self._find_optimizers()
        self._beginnings = [
            Snapshot(
                self.others,
                self.others_known,
                most_bytes=4 * MOST_BYTES,
                is_state=lambda place: self.is_state(place.path),
                keeps_digests=True,
            ),
            data_snapshot(self.data),
        ]
        self._hold()
        self._hooks = self._count_hooks()
        self._dtype = paddle.get_default_dtype()

    def _hold(self) -> None:
        """Note what is in the beginning: definitions that files may name, and objects to keep."""
        places = [place for beginning in self._beginnings for place in beginning.places().values()]
        self.held = held_by(places)
        objects = [p.value for p in places if is_record_class(type(p.value), self.held)]
        self._apart = self.known | set(map(id, objects))  # which the beginning keeps alive

    def _count_hooks(self) -> dict[str, int]:
        """Count how often hooks of gradients were registered, except by this package, by name."""
        counts = {}
        for name, parameter in self.parameters.items():
            if not parameter.stop_gradient:
                probe = parameter.register_hook(lambda gradient: gradient)
                probe.remove()
                self._probes[name] += 1
                counts[name] = (
                    probe._hook_id + 1 - self._probes[name] - own_gradient_hooks[id(parameter)]
                )
        return counts

    def _find_optimizers(self) -> None:
        self.optimizers = {
            place.path: place.value
            for place in walk(self.others, self.others_known)
            if isinstance(place.value, paddle.optimizer.Optimizer)
            and not (place.is_alias or place.is_internal or place.value is self.optimizer)
        }

    def is_state(self, path: ObjectPath) -> bool:
        """Return whether a value is a tensor of a layer, or belongs to an optimizer or schedule."""
        if path[0][1] in ("optimizer", "schedule"):
            return True
        if any(path[: len(held)] == held for held in self.optimizers):
            return True
        # An attribute of a model that is not among its weights may be a cache.
        return path[0][1] != "model" and is_registered(find(self.roots, path[:-1]), path[-1])

    def begin(self, saves: bool = False) -> None:
        """Find the values that callbacks have created before training.

        saves: whether checkpoints save arrays and tensors among them, also of layers and of any
            size: callbacks may have copied them from the weights of another run, which a resumed
            run does not load. Numbers and strings may belong to a process, such as its start time.
        """
        self._find_optimizers()
        changed = {change.path for change in self.changes()} if saves else set()
        for beginning in self._beginnings:
            before = {*beginning.places()} - changed
            beginning.extend()
            self._hold()
            created = beginning.places().keys() - before if saves else ()
            for path in sorted(created, key=describe_path):
                saved_path = self._plain_path(path)
                if saved_path and isinstance(find(self.roots, path), ARRAYS):
                    self.saved[saved_path] = None

    def _optimized_elsewhere(self) -> dict[ObjectPath, paddle.Tensor]:
        own = set(map(id, self.parameters.values()))
        wanted = set(map(id, optimizer_parameters(self.optimizer))) - own
        places = (
            [place for place in walk(self.others) if id(place.value) in wanted] if wanted else []
        )
        found = {
            place.path: place.value for place in places if not (place.is_alias or place.is_internal)
        }
        # The model's weights do not contain parameters that it does not register.
        return {path: value for path, value in found.items() if path[0][1] != "model"}

    def require_optimizers(self) -> None:
        """Raise ConfigError for parameters with a gradient but no optimizer; call it after a pass.

        Parameters that the pass itself has changed are trained by the caller.
        """
        changed, _ = self.changed(self.changes())
        used = {
            describe_path(place.path): place.value
            for place in walk(self.others)
            if is_tensor(place.value) and not place.is_alias and place.path not in changed
            if hasattr(place.value, "trainable") and place.value.grad is not None  # a parameter
        }
        require_trained(used, [self.optimizer, *self.optimizers.values()])

    def changes(self) -> list[Change]:
        """Return the differences from the initial values."""
        return [change for beginning in self._beginnings for change in beginning.changes()]

    def changed(self, changes: Iterable[Change]) -> tuple[dict[ObjectPath, Any], list[ObjectPath]]:
        """Return the plain values that have changed, and the paths of other changes.

        A change inside plain data counts as a change of the whole (`_plain_path`).
        """
        schedules = {
            id(scheduler_of(optimizer)): schedule_numbers(optimizer, optimizer is self.optimizer)
            for optimizer in (*self.optimizers.values(), self.optimizer)
        }
        values: dict[ObjectPath, Any] = {}
        others: dict[ObjectPath, None] = {}
        for path, _, _ in changes:
            lengths = range(2, len(path) + 1)
            if any(path[:length] in values or path[:length] in others for length in lengths):
                continue  # another change in the same value
            if any(
                _is_in(schedules.get(id(find(self.roots, path[:length])), {}), path[length:])
                for length in range(1, len(path))
            ):
                continue  # saved with its optimizer; of the run's, numbers that JSON has
            saved_path = self._plain_path(path)
            if saved_path is None:
                others[path] = None
            else:
                values[saved_path] = find(self.roots, saved_path)
        return values, list(others)

    def save_changed(self, changes: Iterable[Change], has_limit: bool = True) -> list[ObjectPath]:
        """Make later checkpoints save the values that have changed.

        has_limit: whether to leave out values of more than `MOST_BYTES`, except tensors of layers,
        optimizers and schedules. Returns the paths of changed values that cannot be saved.
        """
        changed, others = self.changed(changes)
        present = {path: find(self.roots, path) for path in self.saved}
        others += [  # not those that are a tensor of a layer again
            path for path, v in present.items() if not (self._is_plain(v) or id(v) in self.known)
        ]
        new = {
            path: value
            for path, value in changed.items()
            if path not in self.saved and identity(path) not in self.left_out
        }
        for path, value in new.items():
            if has_limit and nbytes(value) > MOST_BYTES and not self.is_state(path):
                others.append(path)
            else:
                self.saved[path] = None
        hooks = self._count_hooks().items()
        unseen = [
            f"a gradient hook of {name}"
            for name, count in hooks
            if count > self._hooks.get(name, count)
        ]
        if paddle.get_default_dtype() != self._dtype:
            unseen.append("paddle.get_default_dtype()")
        return others + [(("root", name),) for name in unseen]

    def _plain_path(self, path: ObjectPath) -> Optional[ObjectPath]:
        """Return the shortest beginning of a path that leads to plain data; None if there is none.

        Plain data is saved as a whole, at this path. A restarted program has the places of the
        beginning, and a resume restores no other ones.
        """
        found = None
        for length in range(2, len(path) + 1):
            part, value = path[:length], find(self.roots, path[:length])
            if isinstance(value, types.FunctionType) and length < len(path):
                found = None  # to save a function does not save what it holds
            elif found is None and value is not ABSENT and self._is_plain(value):
                is_put = any(may_be_put(known.places(), part) for known in self._beginnings)
                found = part if is_put else None
        return found

    def log_unsaved(self, paths: Iterable[ObjectPath]) -> None:
        """Warn once of changes that cannot be saved.

        What data keep is only logged, unless it computes samples: these depend on nothing else,
        since the first ones were read twice. So is an attribute of a callback that is of a library,
        such as the time or a progress bar.
        """
        acting: list[str] = []
        others: list[str] = []
        for path in paths:
            name, value = identity(path), find(self.roots, path)
            if name in self.logged or name in self.left_out or is_made_by_paddle(path, value):
                continue
            self.logged.add(name)
            is_kept = path[0][1] in DATA_ROOTS and not (callable(value) or self._is_plain(value))
            is_kept |= path[0][1] == "callbacks" and len(path) == 3 and is_of_a_library(value)
            (others if is_kept else acting).append(describe_path(path))
        if acting:
            log.warning(
                "%s has changed, and checkpoints do not contain it, so a resumed run may end with "
                "other bits; create layers and optimizers before the first step, and change only "
                "numbers, strings, arrays or tensors after it; or pass state={...} to fit",
                listed(acting),
            )
        if others:
            log.info("changed, and not saved: %s", listed(others))

    def contents(self) -> dict[str, Any]:
        """Return the state as plain data. Raises ConfigError for a state_dict that is not plain."""
        return {
            "named": {name: state_of(part, name) for name, part in self.parts.items()},
            "optimizers": {
                describe_path(path): optimizer_contents(optimizer, self.parameters)
                for path, optimizer in self.optimizers.items()
            },
            "values": [[self._packed_path(path), value] for path, value in self._values().items()],
            "frozen": self._frozen(),
            "left": sorted(self.left_out),
        }

    def packed(self) -> dict[str, Any]:
        """Return the state in a form that `paddle.save` can write; {} if there is no state."""
        contents, self.is_later = self.contents(), False
        if self._frozen() == self._was_frozen and not any(
            contents[kind] for kind in ("named", "optimizers", "values")
        ):
            return {}
        packed = pack(contents, self.parameters)
        self.is_later = packed.pop(LATER) or any(map(self._is_later, self.saved))
        return packed

    def _is_later(self, path: ObjectPath) -> bool:
        """Return whether version 1.0 did not restore a value at a path."""
        for length in range(1, len(path)):
            parent, (_, name) = find(self.roots, path[:length]), path[length]
            if is_tensor(parent) or isinstance(parent, np.ndarray):
                return True
            if isinstance(parent, nn.Layer) and not is_registered(parent, path[length]):
                is_paddles = type(parent).__module__.startswith("paddle.")
                if name == "training" or (is_paddles and str(name).startswith("_")):
                    return True
        return False

    # ------------------------------------------------------------ between two whole steps

    @property
    def is_trained_by_steps(self) -> bool:
        """Whether steps may train anything themselves: by other optimizers, or layers in state."""
        return bool(self.optimizers) or any(
            isinstance(part, nn.Layer) for part in self.parts.values()
        )

    def trained(self) -> Iterator[Mapping[str, Any]]:
        """Yield the state_dicts of layers and other optimizers, and all that these train."""
        for part in self.parts.values():
            if isinstance(part, nn.Layer):
                yield part.state_dict()
        for optimizer in self.optimizers.values():
            yield optimizer.state_dict()
            yield own_parameters(optimizer, self.parameters)
        yield self.optimized

    def keep(self) -> Callable[[bool], list[str]]:
        """Copy the state, except what `trained` yields; return a function that puts it back.

        It is told whether the state may have changed. It then returns the names of values that
        later checkpoints save and that were not copied: large ones, and those that were found
        since.
        """
        room = [MOST_KEPT]
        values = {path: self._kept_value(find(self.roots, path), room) for path in self.saved}
        states = {
            name: self._kept_value(state_of(part, name), room)
            for name, part in self.parts.items()
            if not isinstance(part, nn.Layer)
        }
        frozen = self._frozen()
        if self.is_later:  # together, so that what is in two of them stays one object
            small = {p: find(self.roots, p) for p, v in values.items() if v is not _NOT_KEPT}
            small = {path: value for path, value in small.items() if value is not ABSENT}
            values.update(zip(small, copied([*small.values()])))

        def put_back(may_have_changed: bool) -> list[str]:
            for name, state in states.items():
                if state is not _NOT_KEPT and may_have_changed:
                    set_state(self.parts[name], state, name)
            for path, value in values.items():
                if value is ABSENT and find(self.roots, path) is not ABSENT:
                    assign(find(self.roots, path[:-1]), path[-1], ABSENT)
            put(
                self.roots,
                [(p, v) for p, v in values.items() if v is not ABSENT and v is not _NOT_KEPT],
            )
            for name, is_frozen in frozen.items():
                self.parameters[name].stop_gradient = is_frozen
            if not may_have_changed:
                return []
            large = [name for name, state in states.items() if state is _NOT_KEPT]
            changed, _ = self.changed(self.changes())
            return large + [
                describe_path(path)
                for path in {**self.saved, **changed}
                if values.get(path, _NOT_KEPT) is _NOT_KEPT and identity(path) not in self.left_out
            ]

        return put_back

    def _kept_value(self, value: Any, room: list[int]) -> Any:
        """Return a copy of a value, or `_NOT_KEPT`. room: the bytes that are left for copies."""
        if value is ABSENT or type(value) in SCALARS or isinstance(value, DEFINED):
            return value
        if isinstance(value, GENERATORS) and not isinstance(value, np.random.Generator):
            return copy.deepcopy(value)
        if type(value) in (list, dict, collections.deque):
            items = value.values() if isinstance(value, dict) else value
            if {*map(type, items)} <= {*SCALARS, tuple}:  # such as the losses so far
                return copy.copy(value) if len(value) <= MOST_ITEMS else _NOT_KEPT
            if type(value) is dict and len(value) <= MOST_NESTED:  # such as a list of each metric
                kept = {key: self._kept_value(item, room) for key, item in value.items()}
                return _NOT_KEPT if any(v is _NOT_KEPT for v in kept.values()) else kept
            if len(value) > MOST_NESTED:
                return _NOT_KEPT
        if not self._is_plain(value) or nbytes(value) > room[0]:
            return _NOT_KEPT
        room[0] -= nbytes(value)
        return copied(value)

    def changed_arrays(self, saved: Mapping[str, Any]) -> set[str]:
        """Return the names of `arrays` that a checkpoint saves or leaves out, as steps change them.

        saved: its extra state (`unpacked`).
        """
        paths = {self.unpacked_path(path) for path, _ in saved["values"]}
        return {
            describe_path(path)
            for path in self.arrays()
            if identity(path) in saved["left"]
            or any(path[:length] in paths for length in range(1, len(path) + 1))
        }

    def arrays(self) -> dict[ObjectPath, str]:
        """Return hashes of the arrays and tensors that the net, the loss, ... had at first.

        Without those that the checkpoints hold anyway, and those of more than `MOST_BYTES`.
        """
        places = [place for beginning in self._beginnings for place in beginning.places().values()]
        return {
            place.path: digest_of(place.value)[:12]
            for place in places
            if place.path[0][1] in COMPARED_ROOTS
            and isinstance(place.value, (np.ndarray, paddle.Tensor))
            and not (place.is_alias or place.is_internal)
            and self._is_plain(place.value)
            and nbytes(place.value) <= MOST_BYTES
        }

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of each object and value, by name, except the optional ones."""
        contents = self.contents()
        values = {
            describe_path(self.unpacked_path(path)): value for path, value in contents["values"]
        }
        parts = {**contents["named"], **contents["optimizers"], **values}
        return {name: digest_of(part) for name, part in parts.items() if name not in self.optional}

    def _frozen(self) -> dict[str, bool]:
        """Return whether each parameter is frozen."""
        return {name: parameter.stop_gradient for name, parameter in self.parameters.items()}

    def unpacked(self, packed: Mapping[str, Any], path: Path) -> dict[str, Any]:
        """Return the contents of a file, by kind, for `saved_optimizers` and `load_values`.

        packed: what `packed` returned. path: of the file, for errors. Raises CheckpointError.
        """
        empty: dict[str, Any] = {"named": {}, "optimizers": {}, "values": [], "frozen": {}}
        contents = unpack(packed, self.parameters, path, self.held) if packed else empty
        self._check(contents, path)
        return {"left": [], **contents, "path": path}

    def saved_optimizers(
        self, saved: Mapping[str, Any], schedule: bool = True, is_own: bool = True
    ) -> Iterator[tuple[paddle.optimizer.Optimizer, dict[str, Any], str, bool]]:
        """Yield for each other optimizer what `load_optimizer` loads into it, its name, and how.

        schedule, is_own: see `load_values`. Raises CheckpointError if a checkpoint has other
        objects.
        """
        if is_own:
            self._require_names(saved, saved["path"])
        for path, optimizer in self.optimizers.items():
            name, is_inside = describe_path(path), path[0][1] == "optimizer"  # as of LookAhead
            if name in saved["optimizers"] and (is_own or is_inside):
                origin, keeps_schedule = f"{saved['path']}: {name}", is_inside and not schedule
                yield optimizer, saved["optimizers"][name], origin, keeps_schedule

    def load_result(self, saved: Mapping[str, Any]) -> None:
        """Load the state of a finished run, except for optimizers and values of callbacks.

        Skips values of objects that do not exist. Raises CheckpointError.
        """
        values = [entry for entry in saved["values"] if entry[0][0][1] != "callbacks"]
        self.load_values({**saved, "values": values}, is_complete=False)

    def load_values(
        self,
        saved: Mapping[str, Any],
        schedule: bool = True,
        is_own: bool = True,
        is_complete: bool = True,
    ) -> None:
        """Load everything except the optimizers. schedule: whether to load learning rates, too.

        is_complete: whether all objects exist by now; else values of missing ones are skipped.
        Raises CheckpointError if the object to which a value belongs does not exist.
        """
        for name, part in self.parts.items():
            if name in saved["named"] and is_own:
                set_state(part, saved["named"][name], saved["path"])
        self.left_out = {*saved["left"]}
        places = {
            place.path: place
            for roots, known in ((self.others, self.others_known), (self.data, self.known))
            for place in walk(roots, known)
        }
        found = {}
        for packed, value in saved["values"]:
            path = self.unpacked_path(packed)
            root = path[0][1]
            is_rate = root == "schedule" or path[-1] == ("attribute", "_learning_rate")
            if (is_rate and not schedule) or not (is_own or root == "optimizer"):
                continue
            if root == "callbacks" and places.get(path[:2]) is None:
                log.info("%s does not exist now, so its value is not restored", describe_path(path))
                continue
            if may_be_put(places, path):
                found[path] = value
            elif is_complete:
                raise CheckpointError(
                    f"{saved['path']}: holds a value for {describe_path(path)}, which does not "
                    "exist; expected the program that wrote the checkpoint"
                )
        put(self.roots, found.items())
        self.saved = dict.fromkeys(found)
        for name, is_frozen in saved["frozen"].items() if is_own else ():
            self.parameters[name].stop_gradient = is_frozen
        for optimizer in (self.optimizer, *self.optimizers.values()):
            if isinstance(optimizer._learning_rate, float):
                optimizer.set_lr(optimizer._learning_rate)  # also updates Paddle's tensor of it

    def _check(self, saved: Mapping[str, Any], path: Path) -> None:
        """Raise CheckpointError unless the contents of a file have the structure of `contents`."""
        try:
            paths = {self.unpacked_path(packed) for packed, _ in saved["values"]}
            known = all(map(_is_path, paths)) and {*saved["frozen"]} <= {*self.parameters}
            known &= isinstance(saved["named"], dict)
            known &= all(isinstance(is_frozen, bool) for is_frozen in saved["frozen"].values())
            known &= all(isinstance(name, str) for name in saved.get("left", ()))
            for contents in saved["optimizers"].values():
                known &= isinstance(contents["class"], str)
                known &= isinstance(contents["state"], dict)
                known &= isinstance(contents["schedule"], dict)
                known &= isinstance(contents["parameters"], list)
                names = (*contents["state"], *contents["schedule"], *contents["parameters"])
                known &= all(isinstance(name, str) for name in names)
        except (LookupError, TypeError, ValueError, AttributeError):
            known = False
        if not known:
            raise CheckpointError(
                f"{path}: does not fit the model, or is damaged; expected the state of this "
                "training; use another checkpoint"
            )

    def _is_plain(self, value: Any) -> bool:
        return value is ABSENT or is_plain(value, self._apart, self.held)

    def _values(self) -> dict[ObjectPath, Any]:
        """Return the values to save beside named objects and state_dicts, by path."""
        # Always the parameters, since another process may initialize others; those in `known` are
        # saved elsewhere.
        values: dict[ObjectPath, Any] = {
            path: p for path, p in self._optimized.items() if id(p) not in self.known
        }
        values.update({path: find(self.roots, path) for path in self.saved})
        return {
            path: value
            for path, value in values.items()
            if value is not ABSENT and self._is_plain(value)
        }

    def _packed_path(self, path: ObjectPath) -> list[Any]:
        """Return a path as plain data, with names in place of keys that are parameters."""
        packed = []
        for kind, key in path:
            if id(key) in self._names:
                packed.append(["parameter", self._names[id(key)]])
            elif kind == "item" and type(key) is int and key in self._names:
                packed.append(["id of parameter", self._names[key]])
            else:
                packed.append([kind, _plain(key, describe_path(path))])
        return packed

    def unpacked_path(self, packed: Sequence[Any]) -> ObjectPath:
        """Return a path that a checkpoint holds."""
        path: list[Any] = []
        for kind, key in packed:
            if kind == "parameter":
                path.append(("item", self.parameters[key]))
            elif kind == "id of parameter":
                path.append(("item", id(self.parameters[key])))
            else:
                path.append((kind, key))
        return tuple(path)

    def _require_names(self, saved: Mapping[str, Any], path: Path) -> None:
        """Raise CheckpointError unless a checkpoint has exactly the current objects."""
        stored = {*saved["named"], *saved["optimizers"]} - {*self.optional}
        current = {*self.named, *map(describe_path, self.optimizers)}
        stored = {name for name in stored if name in current or not name.startswith("callbacks[")}
        if stored == current:
            return
        differences = []
        if missing := sorted(current - stored):
            differences.append(f"has no state of {', '.join(missing)}")
        if unknown := sorted(stored - current):
            differences.append(f"has the state of {', '.join(unknown)}, which does not exist now")
        raise CheckpointError(
            f"{path}: {'; '.join(differences)}; expected the same objects as in the run; or start "
            f"a new run: {WEIGHTS_ALONE}"
        )


def is_of_a_library(value: Any) -> bool:
    """Return whether a value's class is of an installed library, and steps cannot compute with it.

    They can with numbers, iterators, and what Paddle and NumPy define.
    """
    module = type(value).__module__
    computes = isinstance(value, numbers.Number) or is_iterator(value)
    is_known = module.partition(".")[0] in ("builtins", "paddle", "numpy")
    return not (computes or is_known or is_users(module))


def is_made_by_paddle(path: ObjectPath, value: Any) -> bool:
    """Return whether a value is a hook of a library, or a function that `to_static` has put."""
    kind, name = path[-1]
    if kind == "hook":
        return value is not ABSENT and not is_users(
            getattr(value, "__module__", type(value).__module__)
        )
    is_method = isinstance(value, types.MethodType)
    is_own = is_method and getattr(type(value.__self__), str(name), None) is value.__func__
    return is_own or type(value).__module__.startswith("paddle.jit")


def _is_path(path: ObjectPath) -> bool:
    """Return whether a file's path has a root, and keys of the right types."""
    are_names = all(isinstance(key, str) for kind, key in path if kind not in ("item", "hook"))
    return path[0][0] == "root" and are_names and bool(describe_path(path))


def _is_in(numbers: Any, path: ObjectPath) -> bool:
    """Return whether the numbers of a schedule, by name, contain the value at a path."""
    for kind, key in path:
        if not isinstance(numbers, Mapping):
            return True
        if kind != "attribute" or key not in numbers:
            return False
        numbers = numbers[key]
    return not isinstance(numbers, Mapping)


def _values_of(roots: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the roots, and in place of a dict its values."""
    for root in roots.values():
        yield from root.values() if isinstance(root, Mapping) else [root]


def require_trained(parameters: Parameters, optimizers: Collection[Any]) -> None:
    """Raise ConfigError if there are parameters that no optimizer has."""
    trained = {id(p) for optimizer in optimizers for p in optimizer_parameters(optimizer)}
    untrained = [name for name, parameter in parameters.items() if id(parameter) not in trained]
    if untrained:
        raise ConfigError(
            f"no optimizer has {listed(untrained)}, so they would never be trained; freeze them "
            "with stop_gradient=True, or add them to an optimizer: to the one passed to fit (a "
            "function gets the model's parameters, then the loss's, and may add others) or to one "
            "in state"
        )


def has_state(part: Any) -> bool:
    """Return whether an object can return its state and load it again."""
    takes = hasattr(part, "set_state_dict") or hasattr(part, "load_state_dict")
    return hasattr(part, "state_dict") and takes and not isinstance(part, type)


def set_state(part: Any, state: Any, origin: Any) -> None:
    """Load the state that the object's `state_dict` returned. origin: the file, for errors."""
    if isinstance(part, nn.Layer):
        load_weights(part, state, origin)  # Paddle's own method only warns of a mismatch
        return
    load = getattr(part, "set_state_dict", None) or part.load_state_dict
    load(state)


def state_of(part: Any, name: str) -> Any:
    """Return the state of an object as plain data. Raises ConfigError if it is not plain."""
    return _plain(dict(part.state_dict()), f"the state_dict of {name}")


def _plain(value: Any, what: str) -> Any:
    if not is_plain(value, most_items=None):
        raise ConfigError(
            f"{what} is a {type(value).__name__} that cannot be saved; expected numbers, strings, "
            "arrays, tensors, and lists, dicts and sets of them"
        )
    return value
