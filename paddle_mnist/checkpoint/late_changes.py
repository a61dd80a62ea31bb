"""Values that change for the first time after the rehearsal, such as a patience that counts."""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

import paddle
from paddle import nn

from paddle_mnist.checkpoint.places import find, unit
from paddle_mnist.checkpoint.plain_data import is_plain
from paddle_mnist.checkpoint.reachable import Path, describe, identity, is_users
from paddle_mnist.checkpoint.snapshot import Snapshot
from paddle_mnist.errors import listed

ALONE = (bool, str, bytes, type(None))

log = logging.getLogger("paddle_mnist")


class LateChanges:
    """Finds values that differ from those at the first step of this process.

    roots, known: see `Snapshot`. is_known: whether a path is dealt with elsewhere: saved, or found
    not to matter.
    """

    def __init__(
        self, roots: Mapping[str, Any], known: Collection[int], is_known: Callable[[Path], bool]
    ):
        self.roots, self.known, self.is_known = roots, known, is_known
        self._start = Snapshot(roots, known, most_bytes=0, has_internals=False)
        self._told: set[str] = set()

    def values(self) -> dict[Path, Any]:
        """Return the plain data among them, which are saved, and log the names of others once.

        Not saved are switches and texts alone: they may stand for what is not, such as a file that
        is open.
        """
        values: dict[Path, Any] = {}
        layers: list[str] = []
        others: list[str] = []
        for change in self._start.changes():
            lengths = range(2, len(change.path))
            if any(change.path[:length] in values for length in lengths):
                continue  # one of many changes in a value that is saved as a whole
            path = unit(self.roots, change.path, self.known) or change.path
            value = find(self.roots, path)
            is_hook = path[-1][0] == "hook"
            is_ours = is_hook and not is_users(getattr(value, "__module__", type(value).__module__))
            if self.is_known(path) or is_ours:  # such as the hooks of a watch
                continue
            if is_plain(value, self.known) and type(value) not in ALONE:
                values[path] = value
            elif identity(path) not in self._told:
                self._told.add(identity(path))
                is_state = isinstance(value, (nn.Layer, paddle.optimizer.Optimizer))
                (layers if is_state else others).append(describe(path))
        if layers:
            log.warning(
                "%s has been made after the first steps, and checkpoints do not contain it, so a "
                "resumed run may end with other bits; make it before, or give fit state={...}",
                listed(layers),
            )
        if others:
            log.info("changed since the first steps, and not saved: %s", listed(others))
        return values
