"""Writers that hold or hand on metrics; `console`, `jsonl` and `visualdl` show and store them."""

import contextlib
import copy
from collections.abc import Mapping, Sequence

from paddle_mnist.interfaces import Writer
from paddle_mnist.progress import TrainState


class NewestMetrics(Writer):
    """Keeps the newest value of every tag, in `values`."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        self.values.update(values)


class ManyWriters(Writer):
    """Passes every call on to several writers, in order, with copies that each may change."""

    def __init__(self, writers: Sequence[Writer]):
        self.writers = writers

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        for writer in self.writers:
            writer.write(copy.deepcopy(state), dict(values))

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # each, whatever happens to the others
            for writer in reversed(self.writers):
                stack.callback(writer.close)
