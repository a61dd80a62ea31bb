"""What looking into the net costs a training."""

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Optional

from measuring.parts import build_parts

from benchmarks.timing import seconds_of
from benchmarks.trainings import config_of, endless_batches
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session

OFF, REMOVED, SOMETIMES, ALWAYS = "off", "removed again", "every 100 steps", "every step"
WATCHED = {OFF: None, REMOVED: 1, SOMETIMES: 100, ALWAYS: 1}
BLOCK, BLOCKS = 25, 8  # steps of a kind in a row, and how often for each round of the command


def _kinds(session: Session) -> dict[str, Callable[[], Figures]]:
    """Return blocks of steps of one training, which is watched in one way or another.

    Two trainings side by side may differ by 4% without any watch. What is seen goes into
    `metrics.jsonl` and to VisualDL, as in a run.
    """
    from paddle_mnist import Trainer
    from paddle_mnist.metrics.jsonl import JsonlWriter
    from paddle_mnist.metrics.visualdl import VisualDLWriter
    from paddle_mnist.metrics.writers import ManyWriters
    from paddle_mnist.mnist.setup import parts as parts_of

    parts = build_parts(parts_of(config_of("default", data=session.source, epochs=1000)))
    batches = endless_batches(parts.loader)
    trainer = Trainer(session.folder / "mnist.pdparams", parts.model, parts.optimizer)
    files = [
        JsonlWriter(session.folder / "metrics.jsonl"),
        VisualDLWriter(session.folder, ["scalars"]),
    ]
    trainer.writers = ManyWriters(files)

    def step(batch: Any) -> None:
        trainer.train_step(batch)
        for observer in trainer.observers:
            trainer._write_metrics_of(observer, observer.after_step(trainer._view()))

    def block(kind: str) -> Figures:
        with _watched(trainer, kind, WATCHED[kind]):
            step(next(batches))  # finds what another kind has left in the caches
            return {"seconds": [seconds_of(step, next(batches)) for _ in range(BLOCK)]}

    return {kind: partial(block, kind) for kind in WATCHED}


@contextlib.contextmanager
def _watched(trainer: Any, kind: str, every: Optional[int]) -> Iterator[None]:
    """Watch the trainer's net meanwhile in one of these ways."""
    from paddle_mnist.monitor.watch import watch

    trainer.observers = []
    if every is None:
        yield
        return
    handle = watch(trainer.model, every=every, on_finding=lambda finding: None)
    trainer.observers = [handle]
    if kind == REMOVED:
        handle.remove()
    yield
    handle.remove()


def _rows(report: Report) -> Rows:
    seconds = {kind: figures["seconds"] for kind, figures in report.medians.items()}
    shares = {kind: value / seconds[OFF] - 1 for kind, value in seconds.items()}
    shares[SOMETIMES] += shares[ALWAYS] / 100  # the median step there has no look
    return {kind: {"share": share} for kind, share in shares.items()}


BENCHMARK = Benchmark(
    __doc__,
    code=(__name__, "paddle_mnist.monitor", "paddle_mnist.nn"),
    kinds=_kinds,
    head="watch",
    columns={"adds to the time of a step": (".1%", "share")},
    rows=_rows,
    note=lambda report: (
        f"Medians of {len(report.samples[OFF]['seconds'])} steps of each kind, in turns."
    ),
    # None always follows the same other.
    order=lambda kinds, number: random.Random(number).sample(kinds, len(kinds)),
    turns=BLOCKS,
)
