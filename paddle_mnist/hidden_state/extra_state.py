"""Save and restore the state beside the weights and the optimizer's state_dict.

A value is found at an object path that begins at one of the `roots`, such as `step.queue`. It has
changed if it differs from the beginning, the state before this process loads a checkpoint: a
program that is run again has the same beginning, and so the paths that a checkpoint names.

The roots that are data (`DATA_ROOTS`) are examined apart from the `others`, with lower limits on
their size.
"""

import logging
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.errors import WEIGHTS_ALONE, CheckpointError, listed
from paddle_mnist.hidden_state.object_graph import (
    ObjectPath,
    describe_path,
    identity,
    is_registered,
)
from paddle_mnist.hidden_state.object_paths import (
    Place,
    along,
    find,
    held_by,
    may_be_put,
    put,
    walk,
)
from paddle_mnist.hidden_state.optimizer_state import (
    Parameters,
    cleared_parameters,
    optimizer_contents,
    optimizer_parameters,
    require_trained,
)
from paddle_mnist.hidden_state.packing import LATER, pack, unpack
from paddle_mnist.hidden_state.plain_data import (
    ABSENT,
    digest_of,
    is_mutable,
    is_plain,
    is_record_class,
    nbytes,
)
from paddle_mnist.hidden_state.snapshot import ARRAYS, Snapshot, data_snapshot
from paddle_mnist.hidden_state.stateful import require_plain, set_state, state_of
from paddle_mnist.hidden_state.unsaved import (
    GRADIENT,
    ProcessState,
    gradients_of,
    is_made_by_paddle,
    is_shown,
    may_have_gradient,
)
from paddle_mnist.nn.schedule import schedule_numbers, scheduler_of
from paddle_mnist.system.arrays import is_tensor, shared_array

log = logging.getLogger("paddle_mnist")

LOSS = "loss"  # the root that is the loss
COMPARED_ROOTS = ("model", LOSS, "step", "metrics", "collate_fn")
DATA_ROOTS = ("train", "valid", "collate_fn")
LARGE_VALUE = 16 * 2**20  # bytes: a larger value is only saved if the first steps depend on it


@dataclass(frozen=True)
class SavedExtra:
    """The extra state in a checkpoint.

    named: the state_dicts of `parts`, by name. optimizers: their `optimizer_contents`, by name.
    values: plain data, by path. frozen: whether parameters were frozen, by name. left: the
    `identity` of paths whose values are left out. origin: the file, for errors.
    """

    named: Mapping[str, Any]
    optimizers: Mapping[str, Any]
    values: Mapping[ObjectPath, Any]
    frozen: Mapping[str, bool]
    left: Collection[str] = ()
    origin: Optional[Path] = None

    def without(self, is_unwanted: Callable[[ObjectPath], bool]) -> "SavedExtra":
        """Return this without some values."""
        values = {path: v for path, v in self.values.items() if not is_unwanted(path)}
        return replace(self, values=values)


class ExtraState:
    """Saves and restores the state beside the weights and the optimizer's state_dict.

    roots: the objects that may hold state, by name; "optimizer" and "schedule" are the run's.
    named, optional: objects with `state_dict` and `set_state_dict`, by name. A checkpoint need not
        contain the state of those in `optional`.

    Attributes, of state that checkpoints always hold:

    known: the `id` of the tensors that are saved as weights, or with a layer in state.
    parts: the objects in `named` and `optional`.
    optimizers: the other optimizers, by path.
    parameters: the parameters that the optimizer may have, by structured name: the model's, those
        of a loss that is a layer, such as "loss/centers", and `optimized`.
    optimized: its other parameters, such as those of objects that step uses, by names such as
        "step/head.weight".
    saved: the paths of plain data that have changed.

    Attributes, of other state, by `identity`:

    left_out: plain data that are large, or differ between processes; a checkpoint has their names.
    logged: anything else that has changed, of which a warning or a line in the log has told.

    held: the classes and functions of the program that a checkpoint may name.
    is_later: whether version 1.0 would not read the newest state rightly.
    """

    def __init__(
        self,
        model: nn.Layer,
        optimizer: paddle.optimizer.Optimizer,
        roots: Mapping[str, Any],
        named: Mapping[str, Any],
        optional: Mapping[str, Any],
    ):
        self.optimizer, self.roots = optimizer, dict(roots)
        self.data = {name: root for name, root in roots.items() if name in DATA_ROOTS}
        self.others = {name: root for name, root in roots.items() if name not in DATA_ROOTS}
        self.parts, self._optional = {**named, **optional}, {*optional}
        layers = [model, *(part for part in named.values() if isinstance(part, nn.Layer))]
        # Keep the tensors alive: Python reuses the `id` of a deleted object.
        self._tensors = [value for layer in layers for value in layer.state_dict().values()]
        self.known = set(map(id, self._tensors))
        # Others may refer to data, such as a callback that changes them.
        splits = [r.values() if isinstance(r, Mapping) else [r] for r in self.data.values()]
        self.not_others = self.known | {id(data) for split in splits for data in split}
        self.parameters: Parameters = dict(model.named_parameters())
        if isinstance(loss := roots.get(LOSS), nn.Layer):
            own = loss.named_parameters()
            self.parameters.update({f"{LOSS}/{name}": parameter for name, parameter in own})
        self._optimized = self._optimized_elsewhere()
        self.optimized: Parameters = {
            describe_path(path).replace(".", "/", 1): p for path, p in self._optimized.items()
        }
        self.parameters.update(self.optimized)
        self._names = {id(parameter): name for name, parameter in self.parameters.items()}
        self._was_frozen = self.frozen()
        self.saved: dict[ObjectPath, None] = {}  # in the order in which they were found
        self.left_out: set[str] = set()
        self.logged: set[str] = set()
        self.is_later = False
        self.optimizers = self._other_optimizers()
        others = Snapshot(
            self.others,
            self.not_others,
            most_bytes=4 * LARGE_VALUE,
            is_state=lambda place: self.is_state(place.path),
            keeps_digests=True,
        )
        self._beginnings = [others, data_snapshot(self.data)]
        self._hold()
        self._process = ProcessState(self.parameters, optimizer)

    # ------------------------------------------------------------ what there is in the beginning

    def _hold(self) -> None:
        """Note what is in the beginning: definitions that files may name, and objects to keep."""
        self._places = {path: p for b in self._beginnings for path, p in b.places.items()}
        places = self._places.values()
        self.held = held_by(places)
        objects = [p.value for p in places if is_record_class(type(p.value), self.held)]
        # These change in place, and are no values themselves; the beginning keeps them alive.
        self._kept_objects = self.known | set(map(id, objects))
        cleared = set(map(id, cleared_parameters(self.optimizer)))
        by_value: dict[int, list[Place]] = {}
        for place in places:
            by_value.setdefault(id(place.value), []).append(place)
        self._shared = [
            same
            for same in by_value.values()
            if len(same) > 1 and is_mutable(same[0].value) and self.is_plain(same[0].value)
        ]
        self._uncleared = {
            describe_path(place.path): place.value
            for key, (place, *_) in by_value.items()
            if may_have_gradient(place.value) and key not in cleared
        }

    def _optimized_elsewhere(self) -> dict[ObjectPath, paddle.Tensor]:
        """Return the parameters of the optimizer that neither the model nor the loss has."""
        own = set(map(id, self.parameters.values()))
        wanted = set(map(id, optimizer_parameters(self.optimizer))) - own
        found: dict[int, Place] = {}
        for place in walk(self.others) if wanted else ():
            # The model's weights do not contain parameters that it does not register.
            is_of_model = place.path[0][1] == "model"
            if id(place.value) in wanted and not (place.is_internal or is_of_model):
                found.setdefault(id(place.value), place)
        return {place.path: place.value for place in found.values()}

    def _other_optimizers(self) -> dict[ObjectPath, paddle.optimizer.Optimizer]:
        return {
            place.path: place.value
            for place in walk(self.others, self.not_others)
            if isinstance(place.value, paddle.optimizer.Optimizer)
            and not (place.is_alias or place.is_internal or place.value is self.optimizer)
        }

    def begin(self, saves: bool = False) -> None:
        """Find the values that callbacks have created before training.

        saves: whether checkpoints save arrays and tensors among them, also of layers and of any
            size: callbacks may have copied them from the weights of another run, which a resumed
            run does not load. Numbers and strings may belong to a process, such as its start time.
        """
        self.optimizers = self._other_optimizers()
        before = self._places.keys() - (self.changes() if saves else ())
        for snapshot in self._beginnings:
            snapshot.extend()
        self._hold()
        for path in sorted(self._places.keys() - before, key=describe_path) if saves else ():
            saved_path = self._plain_path(path)
            if saved_path and isinstance(self._places[path].value, ARRAYS):
                self.saved[saved_path] = None

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

    def arrays(self) -> dict[ObjectPath, str]:
        """Return hashes of the arrays and tensors that the net, the loss, ... had at first.

        Without those that the checkpoints hold anyway, and those of more than `LARGE_VALUE`.
        """
        return {
            path: digest_of(value)[:12]
            for path, value, is_internal, is_alias in self._places.values()
            if path[0][1] in COMPARED_ROOTS and isinstance(value, (np.ndarray, paddle.Tensor))
            if not (is_alias or is_internal) and self.is_plain(value)
            if nbytes(value) <= LARGE_VALUE
        }

    def changed_arrays(self, saved: SavedExtra) -> set[str]:
        """Return the names of `arrays` that steps have changed, so that a checkpoint says so."""
        return {
            describe_path(path)
            for path in self.arrays()
            if identity(path) in saved.left
            or any(path[:length] in saved.values for length in range(1, len(path) + 1))
        }

    # ------------------------------------------------------------ what has changed

    def changes(self) -> list[ObjectPath]:
        """Return the paths of the differences from the beginning."""
        return [path for beginning in self._beginnings for path in beginning.changes()]

    def changed(
        self, changes: Iterable[ObjectPath]
    ) -> tuple[dict[ObjectPath, Any], list[ObjectPath]]:
        """Return the plain values that have changed, and the paths of other changes.

        A change inside plain data counts as a change of the whole (`_plain_path`).
        """
        schedules = {
            id(scheduler_of(optimizer)): schedule_numbers(optimizer, optimizer is self.optimizer)
            for optimizer in (*self.optimizers.values(), self.optimizer)
        }
        values: dict[ObjectPath, Any] = {}
        others: dict[ObjectPath, None] = {}
        for path in changes:
            way = [*along(self.roots, path)]
            if any(part in values or part in others for part, v in way[1:] if not is_tensor(v)):
                continue  # another change in the same value
            if any(
                _is_in(schedules.get(id(value), {}), path[len(part) :]) for part, value in way[:-1]
            ):
                continue  # the optimizer saves it; of the run's, the manifest has the numbers
            saved_path = self._plain_path(path)
            if saved_path is None:
                others[path] = None
            else:
                values[saved_path] = find(self.roots, saved_path)
        return values, list(others)

    def _plain_path(
        self, path: ObjectPath, found: Optional[dict[ObjectPath, Optional[ObjectPath]]] = None
    ) -> Optional[ObjectPath]:
        """Return the shortest beginning of a path that leads to plain data; None if there is none.

        Plain data is saved as a whole, at this path. It must be a place of the beginning, which a
        restarted program has, too. found: the results so far, to examine each container only once.
        """
        found = {} if found is None else found
        if len(path) > 1 and path not in found:
            parent, value = find(self.roots, path[:-1]), find(self.roots, path)
            # To save a function or a tensor does not save what it holds.
            is_apart = isinstance(parent, (types.FunctionType, paddle.Tensor))
            whole = None if is_apart else self._plain_path(path[:-1], found)
            if whole is None and value is not ABSENT and may_be_put(self._places, path):
                is_saved = self.is_plain(value) and not self._is_new_weight(path)
                whole = path if is_saved else None
            found[path] = whole
        return found.get(path)

    def _is_new_weight(self, path: ObjectPath) -> bool:
        """Return whether a tensor is a new one in the state_dict of a layer whose state is saved.

        A restarted program does not have it yet, and so could not load the weights.
        """
        layer, edge = find(self.roots, path[:-1]), path[-1]
        is_saved = path[0][1] in ("model", LOSS, "state") and is_registered(layer, edge)
        is_new = is_saved and path not in self._places
        return is_new and edge[1] in layer.state_dict(include_sublayers=False)

    def save_changed(
        self, changes: Iterable[ObjectPath], has_limit: bool = True
    ) -> list[ObjectPath]:
        """Make later checkpoints save the values that have changed.

        has_limit: whether to leave out values of more than `LARGE_VALUE`, except tensors of layers,
        optimizers and schedules. Returns the paths of changed values that cannot be saved.
        """
        changed, unsaved = self.changed(changes)
        changed.update(self._sharing({*self.saved, *changed}))
        for path, value in changed.items():
            if path in self.saved or identity(path) in self.left_out:
                continue
            if has_limit and nbytes(value) > LARGE_VALUE and not self.is_state(path):
                unsaved.append(path)
            else:
                self.saved[path] = None
        unsaved += [(("root", name),) for name in self._process.changes()]
        return [*unsaved, *self.gradients()]

    def _sharing(self, saved: Collection[ObjectPath]) -> dict[ObjectPath, Any]:
        """Return the values that hold an object which saved values held, too, in the beginning.

        A resumed run must know which of them still hold it, unless it changes in place.
        """
        values: dict[ObjectPath, Any] = {}
        found: dict[ObjectPath, Optional[ObjectPath]] = {}
        for places in self._shared:
            is_replaced = any(find(self.roots, p.path) is not p.value for p in places)
            is_inside = any(p.path[:n] in saved for p in places for n in range(1, len(p.path)))
            for place in places if is_replaced or is_inside else ():
                if path := self._plain_path(place.path, found):
                    values[path] = find(self.roots, path)
        return values

    def gradients(self) -> list[ObjectPath]:
        """Return the gradients that were left, and that the next step does not clear."""
        gradients = gradients_of(self._uncleared).items()
        # Cleared ones are zeros. Paddle's own `any` takes no float16 and no bfloat16.
        return [path for path, (_, gradient) in gradients if shared_array(gradient).any()]

    def gradient_digests(self) -> dict[str, str]:
        """Return the SHA-256 of parameters with their gradients, also cleared ones."""
        gradients = gradients_of(self._uncleared).items()
        return {identity(path): digest_of(values) for path, values in gradients}

    def log_unsaved(self, paths: Iterable[ObjectPath]) -> None:
        """Warn once of changes that cannot be saved; only log those without effect."""
        acting: list[str] = []
        inert: list[str] = []
        gradients: list[str] = []
        for path in paths:
            name, value = identity(path), find(self.roots, path)
            if name in self.logged or name in self.left_out or is_made_by_paddle(path, value):
                continue
            self.logged.add(name)
            # Samples depend on nothing else in data, since the first ones were read twice.
            is_of_data = path[0][1] in DATA_ROOTS and not (callable(value) or self.is_plain(value))
            is_inert = is_of_data or is_shown(path, value)
            is_gradient = path[0][1].startswith(GRADIENT)
            names = gradients if is_gradient else inert if is_inert else acting
            names.append(describe_path(path))
        if acting:
            log.warning(
                "%s has changed, and checkpoints do not contain it, so a resumed run may end with "
                "other bits; create layers and optimizers before the first step, and change only "
                "numbers, strings, arrays or tensors after it; or pass state={...} to fit",
                listed(acting),
            )
        if gradients:
            log.warning(
                "%s was left, and checkpoints do not contain it, so a resumed run may end with "
                "other bits, unless clear_grad() is called before it is used",
                listed(gradients),
            )
        if inert:
            log.info("changed, and not saved: %s", listed(inert))

    def is_plain(self, value: Any) -> bool:
        """Return whether a value is plain data that a checkpoint can hold, or ABSENT."""
        return value is ABSENT or is_plain(value, self._kept_objects, self.held)

    def is_state(self, path: ObjectPath) -> bool:
        """Return whether a value is a tensor of a layer, or belongs to an optimizer or schedule."""
        if path[0][1] in ("optimizer", "schedule"):
            return True
        if any(path[: len(held)] == held for held in self.optimizers):
            return True
        # An attribute of a model that is not among its weights may be a cache.
        return path[0][1] != "model" and is_registered(find(self.roots, path[:-1]), path[-1])

    def frozen(self) -> dict[str, bool]:
        """Return whether each parameter is frozen."""
        return {name: parameter.stop_gradient for name, parameter in self.parameters.items()}

    # ------------------------------------------------------------ save

    def contents(self) -> SavedExtra:
        """Return what a checkpoint saves. Raises ConfigError for a state_dict that is not plain."""
        # Always the parameters, since another process may initialize others; those in `known` are
        # saved elsewhere.
        values: dict[ObjectPath, Any] = {
            path: p for path, p in self._optimized.items() if id(p) not in self.known
        }
        values.update({path: find(self.roots, path) for path in self.saved})
        return SavedExtra(
            named={name: state_of(part, name) for name, part in self.parts.items()},
            optimizers={
                describe_path(path): optimizer_contents(optimizer, self.parameters)
                for path, optimizer in self.optimizers.items()
            },
            values={
                path: value
                for path, value in values.items()
                if value is not ABSENT and self.is_plain(value)
            },
            frozen=self.frozen(),
            left=sorted(self.left_out),
        )

    def packed(self) -> dict[str, Any]:
        """Return the state in a form that `paddle.save` can write; {} if there is no state."""
        state, self.is_later = self.contents(), False
        has_any = state.named or state.optimizers or state.values or state.left
        if not has_any and state.frozen == self._was_frozen:
            return {}
        values = [[self._packed_path(path), value] for path, value in state.values.items()]
        contents = {name: value for name, value in vars(state).items() if name != "origin"}
        packed = pack({**contents, "values": values}, self.parameters)
        self.is_later = packed.pop(LATER) or any(map(self._is_later, self.saved))
        return packed

    def _is_later(self, path: ObjectPath) -> bool:
        """Return whether version 1.0 did not restore a value at a path."""
        for part, parent in [*along(self.roots, path)][:-1]:
            edge = path[len(part)]
            if isinstance(parent, (np.ndarray, paddle.Tensor)):
                return True
            if isinstance(parent, nn.Layer) and not is_registered(parent, edge):
                is_paddles = type(parent).__module__.startswith("paddle.")
                if edge[1] == "training" or (is_paddles and str(edge[1]).startswith("_")):
                    return True
        return False

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of each object and value, by name, except the optional ones."""
        state = self.contents()
        values = {describe_path(path): value for path, value in state.values.items()}
        parts = {**state.named, **state.optimizers, **values}
        return {name: digest_of(part) for name, part in parts.items() if name not in self._optional}

    def _packed_path(self, path: ObjectPath) -> list[Any]:
        """Return a path as plain data, with names in place of keys that are parameters."""
        packed = []
        for kind, key in path:
            if id(key) in self._names:
                packed.append(["parameter", self._names[id(key)]])
            elif kind == "item" and type(key) is int and key in self._names:
                packed.append(["id of parameter", self._names[key]])
            else:
                packed.append([kind, require_plain(key, describe_path(path))])
        return packed

    # ------------------------------------------------------------ load

    def unpacked(self, packed: Mapping[str, Any], origin: Path) -> SavedExtra:
        """Return the contents of a file.

        packed: what `packed` returned. origin: the file. Raises CheckpointError unless the contents
        have the structure of `contents`.
        """
        if not packed:
            return SavedExtra({}, {}, {}, {}, origin=origin)
        contents = unpack(packed, self.parameters, origin, self.held)
        try:
            saved = SavedExtra(
                contents["named"],
                contents["optimizers"],
                {self._unpacked_path(path): value for path, value in contents["values"]},
                contents["frozen"],
                contents.get("left", ()),
                origin,
            )
            has_structure = self._has_structure(saved)
        except (LookupError, TypeError, ValueError, AttributeError):
            has_structure = False
        if not has_structure:
            raise CheckpointError(
                f"{origin}: does not fit the model, or is damaged; expected the state of this "
                "training; use another checkpoint"
            )
        return saved

    def _has_structure(self, saved: SavedExtra) -> bool:
        """Return whether a file has what it must; raises LookupError, ... where it cannot tell."""
        kinds: list[tuple[Any, type]] = [(saved.named, dict)]
        kinds += [(is_frozen, bool) for is_frozen in saved.frozen.values()]
        kinds += [(name, str) for name in saved.left]
        for contents in saved.optimizers.values():
            state, schedule, names = (contents[k] for k in ("state", "schedule", "parameters"))
            kinds += [(contents["class"], str), (state, dict), (schedule, dict), (names, list)]
            kinds += [(name, str) for name in (*state, *schedule, *names)]
        are_known = {*saved.frozen} <= {*self.parameters} and all(map(_is_path, saved.values))
        return are_known and all(isinstance(value, kind) for value, kind in kinds)

    def _unpacked_path(self, packed: Sequence[Any]) -> ObjectPath:
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

    def saved_optimizers(
        self, saved: SavedExtra, schedule: bool = True, is_own: bool = True
    ) -> Iterator[tuple[paddle.optimizer.Optimizer, dict[str, Any], str, bool]]:
        """Yield for each other optimizer what `load_optimizer` loads into it, its name, and how.

        schedule, is_own: see `load_values`. Raises CheckpointError if a checkpoint has other
        objects.
        """
        if is_own:
            self._require_names(saved)
        for path, optimizer in self.optimizers.items():
            name, is_inside = describe_path(path), path[0][1] == "optimizer"  # as of LookAhead
            if name in saved.optimizers and (is_own or is_inside):
                origin, keeps_schedule = f"{saved.origin}: {name}", is_inside and not schedule
                yield optimizer, saved.optimizers[name], origin, keeps_schedule

    def _require_names(self, saved: SavedExtra) -> None:
        """Raise CheckpointError unless a checkpoint has exactly the current objects."""
        stored = {*saved.named, *saved.optimizers} - self._optional
        current = {*self.parts, *map(describe_path, self.optimizers)} - self._optional
        stored = {name for name in stored if name in current or not name.startswith("callbacks[")}
        if stored == current:
            return
        differences = []
        if missing := sorted(current - stored):
            differences.append(f"has no state of {', '.join(missing)}")
        if unknown := sorted(stored - current):
            differences.append(f"has the state of {', '.join(unknown)}, which does not exist now")
        raise CheckpointError(
            f"{saved.origin}: {'; '.join(differences)}; expected the same objects as in the run; "
            f"or start a new run: {WEIGHTS_ALONE}"
        )

    def load_values(
        self,
        saved: SavedExtra,
        schedule: bool = True,
        is_own: bool = True,
        is_complete: bool = True,
    ) -> None:
        """Load everything except the optimizers.

        schedule: whether to load learning rates, too. is_own: whether the checkpoint is of the same
        run; of another run's, only what belongs to the optimizer is loaded. is_complete: whether
        all objects exist by now; else values of missing ones are skipped. Raises CheckpointError if
        the object to which a value belongs does not exist.
        """
        for name, part in self.parts.items():
            if name in saved.named and is_own:
                set_state(part, saved.named[name], saved.origin)
        self.left_out = {*saved.left}
        places = {p.path: p for b in self._beginnings for p in walk(b.roots, b.known)}
        found = {}
        for path, value in saved.values.items():
            root = path[0][1]
            is_rate = root == "schedule" or path[-1] == ("attribute", "_learning_rate")
            if (is_rate and not schedule) or not (is_own or root == "optimizer"):
                continue
            if root == "callbacks" and places.get(path[:2]) is None:
                log.info("%s does not exist now, so its value is not restored", describe_path(path))
            elif may_be_put(places, path):
                found[path] = value
            elif is_complete:
                raise CheckpointError(
                    f"{saved.origin}: holds a value for {describe_path(path)}, which does not "
                    "exist; expected the program that wrote the checkpoint"
                )
        put(self.roots, found.items())
        self.saved = dict.fromkeys(found)
        for name, is_frozen in saved.frozen.items() if is_own else ():
            self.parameters[name].stop_gradient = is_frozen
        for optimizer in (self.optimizer, *self.optimizers.values()):
            if isinstance(optimizer._learning_rate, float):
                optimizer.set_lr(optimizer._learning_rate)  # also updates Paddle's tensor of it


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
