"""Keep the state before the first step, to restore it after a trial."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Union

import paddle
from paddle import nn

from paddle_mnist.hidden_state.extra_state import ExtraState
from paddle_mnist.hidden_state.object_graph import ObjectPath
from paddle_mnist.hidden_state.plain_data import copied
from paddle_mnist.hidden_state.snapshot import Snapshot, data_snapshot
from paddle_mnist.hidden_state.stateful import set_state, state_of
from paddle_mnist.nn.ema import NO_AVERAGE, WeightAverage
from paddle_mnist.nn.state_dict import load_weights
from paddle_mnist.system.arrays import copied_array


class InitialState:
    """The values of everything that training may change.

    model, average: the net and the moving average of its weights. extra: the rest of the state.
    """

    def __init__(self, model: nn.Layer, extra: ExtraState, average: WeightAverage = NO_AVERAGE):
        self.model, self.average, self.parts = model, average, extra.parts
        others = Snapshot(
            extra.others,
            extra.not_others,
            is_state=lambda place: place.is_internal or extra.is_state(place.path),
        )
        self.snapshots = [others, data_snapshot(extra.data)]
        self._weights = _copies(model.state_dict())
        self._average = {} if average is NO_AVERAGE else _copies(average.weights(model))
        self._states = {name: copied(state_of(p, name)) for name, p in self.parts.items()}

    def changes(self) -> list[ObjectPath]:
        """Return the paths of what has changed, except the weights and the state of parts."""
        return [path for snapshot in self.snapshots for path in snapshot.changes()]

    def restore(self) -> None:
        """Restore all values, and remove the gradients of all parameters."""
        for snapshot in self.snapshots:
            snapshot.restore()  # first: a layer created in a pass has no saved weights
        load_weights(self.model, self._weights, "the rehearsal")
        if self._average:
            self.average.load(self._average)
        for name, part in self.parts.items():
            set_state(part, copied(self._states[name]), "the rehearsal")
        for snapshot in self.snapshots:
            snapshot.restore()  # again: `set_state_dict` may have created new objects

    def iterators(self) -> list[str]:
        """Return the names of the iterators."""
        return [name for snapshot in self.snapshots for name in snapshot.iterators()]

    @property
    def skipped(self) -> list[str]:
        """The names of objects, except data, that are too large to be examined."""
        return self.snapshots[0].skipped


@contextlib.contextmanager
def restored(values: Union[InitialState, Snapshot]) -> Iterator[None]:
    """Restore all values at the end of the context, and remove the gradients of parameters."""
    try:
        yield
    finally:
        values.restore()


def _copies(tensors: Mapping[str, paddle.Tensor]) -> dict[str, Any]:
    return {name: copied_array(tensor) for name, tensor in tensors.items()}
