"""Callbacks that measure a training of `fit`, in any of its processes."""

import contextlib
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from paddle_mnist import Callback


class PartTimer:
    """A profiler for `fit`: the `seconds` of each part of its steps, and of whole steps.

    They are in a file: `fit` would save a list of them with each checkpoint, and what is measured
    would grow with the steps.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.before_epoch()

    @property
    def seconds(self) -> dict[str, list[float]]:
        """The seconds of each call, by part; "step" is a whole step with its batch."""
        seconds: dict[str, list[float]] = defaultdict(list)
        self._file.seek(0)
        for line in self._file:
            name, value = line.split()
            seconds[name].append(float(value))
        return seconds

    def before_epoch(self) -> None:
        self._step_end = time.perf_counter()

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._file.write(f"{name} {time.perf_counter() - began}\n")

    def after_step(self) -> None:
        began = self._step_end
        self.before_epoch()
        self._file.write(f"step {self._step_end - began}\n")


class Timing(Callback):
    """Leaves the seconds of the steps in the run directory; other processes cannot return them."""

    def profiler(self) -> PartTimer:
        self.timer = PartTimer()
        return self.timer

    def after_last_step(self, training: Any) -> None:
        if training.world.is_main_process:
            (training.run.path / "seconds.json").write_text(json.dumps(self.timer.seconds))
