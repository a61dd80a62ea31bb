"""Values that change for the first time after the rehearsal, such as a patience that is counted."""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.checkpoint.reachable import Path, describe, identity
from paddle_mnist.checkpoint.snapshot import Snapshot, find, unit
from paddle_mnist.errors import listed

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

    def numbers(self) -> dict[Path, Any]:
        """Return the numbers among them, which are saved, and log the names of the others once."""
        numbers, layers, others = {}, [], []
        for change in self._start.changes():
            path = unit(self.roots, change.path, self.known) or change.path
            value = find(self.roots, path)
            if self.is_known(path):
                continue
            if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
                numbers[path] = value
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
        return numbers
