"""When to save, and what to keep: pure functions, without a disk."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

from paddle_mnist.errors import StoppedError
from paddle_mnist.state import TrainState


@dataclass(frozen=True)
class SavePolicy:
    """When a checkpoint is due: as soon as any of the triggers says so.

    every_epochs: after every so many epochs.
    every_steps: after every so many steps since the run began.
    every_seconds: at the first step after so many seconds without a checkpoint.
    on_error: when an exception ends the training.
    on_best: after an epoch whose evaluation is the best so far.

    When a signal ends it, and when it is done, a checkpoint is due always.
    """

    every_epochs: int = 1
    every_steps: Optional[int] = None
    every_seconds: Optional[float] = None
    on_error: bool = True
    on_best: bool = True

    def after_epoch(self, state: TrainState) -> bool:
        best = self.on_best and state.best is not None and state.best[0] == state.step
        return best or state.epoch % self.every_epochs == 0

    def after_step(self, state: TrainState, seconds: float) -> bool:
        """seconds: since the newest checkpoint, or since the start."""
        if self.every_steps and state.step % self.every_steps == 0:
            return True
        return self.every_seconds is not None and seconds >= self.every_seconds

    def after_error(self, error: BaseException) -> bool:
        return self.on_error or isinstance(error, StoppedError)


@dataclass(frozen=True)
class CheckpointInfo:
    """What the policy of keeping looks at: one checkpoint, without its contents.

    order: its place in the run, greater if later. time: when it was saved, in seconds since 1970.
    score: the higher the better; None: not judged. breakpoint: saved when a training broke off.
    """

    name: str
    order: tuple[int, int]
    time: float = 0.0
    ends_epoch: bool = False
    score: Optional[float] = None
    breakpoint: bool = False


@dataclass(frozen=True)
class RetentionPolicy:
    """What is kept: what any of the rules keeps, and always the newest.

    epochs: each epoch's end. breakpoints: each breakpoint. last: the newest so many of all.
    every_minutes: of each span of so many minutes, the newest. best: the one with the highest
    score, the earliest of equals.
    """

    epochs: bool = True
    last: int = 3
    every_minutes: Optional[float] = None
    best: bool = True
    breakpoints: bool = True

    def __call__(self, saved: Iterable[CheckpointInfo]) -> set[str]:
        """The names to keep."""
        in_order = sorted(saved, key=lambda one: one.order)
        kept = {one.name for one in in_order[-max(1, self.last) :]}
        if self.epochs:
            kept |= {one.name for one in in_order if one.ends_epoch}
        if self.breakpoints:
            kept |= {one.name for one in in_order if one.breakpoint}
        if self.every_minutes:
            spans = {one.time // (60 * self.every_minutes): one.name for one in in_order}
            kept |= set(spans.values())
        judged = [one for one in in_order if one.score is not None]
        if self.best and judged:
            kept.add(max(judged, key=lambda one: one.score).name)
        return kept
