"""Measure where the time of a training step goes: a table, and a trace of `paddle.profiler`."""

import contextlib
import io
import logging
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

import paddle
from paddle import profiler

from paddle_mnist.errors import OutputError
from paddle_mnist.system.files import make_folder, write_atomically, writing

log = logging.getLogger("paddle_mnist")

WARM_UP = 10  # steps that are not measured: the first ones allocate buffers and fill caches
NULL_CONTEXT = contextlib.nullcontext()
PARTS = ("reader", "forward", "backward", "exchange", "optimizer", "logging", "saving")


class Profiler:
    """Base class of profilers, which the training loop calls; by itself it measures nothing."""

    def before_epoch(self) -> None:
        """Exclude the time since the last step, such as that of an evaluation."""

    def part(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Within the context, count the time for one of `PARTS`."""
        return NULL_CONTEXT

    def after_step(self) -> None:
        """End a step; the time until the next forward pass is the reader's."""


class StepProfiler(Profiler):
    """Measures some steps of this process, after the first ten, and writes the results.

    `steps.md`, also logged: milliseconds per step, and share, of each part, and of the time between
    them. `trace.json`: every operator, for chrome://tracing or Perfetto. `operators.txt`: Paddle's
    own tables. Tracing slows steps down, so the table is measured before, over the same number of
    steps. On a GPU the table shows the time of the host, which runs ahead of the device.

    If the files cannot be written, training continues with a warning.
    """

    def __init__(self, folder: Path, steps: int):
        """folder: of the files. steps: how many to measure; as many again are traced."""
        self.folder, self.steps = folder, steps
        self._seconds: dict[str, float] = defaultdict(float)
        self._steps_done = -WARM_UP
        self._tracer: Optional[profiler.Profiler] = None
        self._table = ""
        self._event: Optional[profiler.RecordEvent] = None
        self._start = self._step_end = time.perf_counter()
        self._is_reading = True  # from the end of a step to the next forward pass

    def before_epoch(self) -> None:
        now = time.perf_counter()
        self._start += now - self._step_end
        self._step_end, self._is_reading = now, True
        self._end_event()
        self._begin_event("reader")

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        if name == "forward" and self._is_reading:  # the first shard's
            self._is_reading = False
            self._seconds["reader"] += started - self._step_end
            self._end_event()
        self._begin_event(name)
        try:
            yield
        finally:
            self._end_event()
            self._seconds[name] += time.perf_counter() - started

    def after_step(self) -> None:
        self._step_end = time.perf_counter()
        self._steps_done += 1
        if self._steps_done == 0:
            self._seconds.clear()
            self._start = self._step_end
        elif self._steps_done == self.steps:
            self._make_table()
            self._start_tracing()
        elif self._steps_done == 2 * self.steps:
            self._stop_tracing()
        self._step_end, self._is_reading = time.perf_counter(), True
        self._begin_event("reader")

    def close(self) -> None:
        """Write the files if that is still to be done, or warn that the run was too short."""
        self._stop_tracing()
        if self._steps_done < self.steps:
            log.warning(
                "training ended before step %d of this start, so there is no profile; "
                "train longer, or profile fewer steps",
                WARM_UP + self.steps,
            )

    def _stop_tracing(self) -> None:
        self._end_event()
        if self._tracer:
            tracer, self._tracer = self._tracer, None
            tracer.stop()

    def _start_tracing(self) -> None:
        targets = [profiler.ProfilerTarget.CPU]
        if paddle.device.get_device().startswith("gpu"):
            targets.append(profiler.ProfilerTarget.GPU)
        self._tracer = profiler.Profiler(targets=targets, on_trace_ready=self._write)
        self._tracer.start()

    def _begin_event(self, name: str) -> None:
        if self._tracer:
            self._event = profiler.RecordEvent(name)
            self._event.begin()

    def _end_event(self) -> None:
        if self._event:
            self._event.end()
            self._event = None

    def _make_table(self) -> None:
        total = self._step_end - self._start
        seconds = {name: self._seconds[name] for name in PARTS}
        seconds["between them"] = total - sum(seconds.values())
        seconds["a step"] = total
        rows = ["| part | ms a step | share |", "|---|---|---|"]
        for name, value in seconds.items():
            rows.append(f"| {name} | {1000 * value / self.steps:.3f} | {value / total:.1%} |")
        self._table = "\n".join(rows)
        log.info("where the time of %d steps went:\n%s", self.steps, self._table)

    def _write(self, tracer: profiler.Profiler) -> None:
        tables = io.StringIO()
        with contextlib.redirect_stdout(tables):
            tracer.summary(time_unit="ms")
        try:
            make_folder(self.folder)
            write_atomically(self.folder / "steps.md", f"{self._table}\n".encode())
            write_atomically(self.folder / "operators.txt", tables.getvalue().encode())
            trace = self.folder / "trace.json"
            with writing(self.folder):
                trace.unlink(missing_ok=True)  # Paddle would write through a link
                tracer.export(str(trace), format="json")
                trace.stat()  # Paddle raises nothing if it cannot write it
            log.info("trace and operators of %d steps: %s", self.steps, self.folder)
        except OutputError as error:
            log.warning("no profile; training continues: %s", error)
