"""When to save a checkpoint, and which ones to keep: pure functions, without a disk."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

from paddle_mnist.errors import StoppedError
from paddle_mnist.progress import TrainState


@dataclass(frozen=True)
class SavePolicy:
    """Decides when a checkpoint is due: as soon as any of the triggers fires.

    every_epochs: after every N-th epoch; 0 or None: after none for this reason.
    every_steps: after every N-th step since the run began.
    every_seconds: after the first step that ends N seconds or more after the last save.
    on_error: when an exception ends the training.
    on_best: after an epoch whose evaluation is the best so far.
    inside_epochs: whether a training can resume inside an epoch; else nothing is saved there.

    A training that ends, or is stopped by a signal, always saves.
    """

    every_epochs: Optional[int] = 1
    every_steps: Optional[int] = None
    every_seconds: Optional[float] = None
    on_error: bool = True
    on_best: bool = True
    inside_epochs: bool = True

    def after_epoch(self, state: TrainState) -> bool:
        is_best = self.on_best and state.best is not None and state.best[0] == state.step
        return is_best or bool(self.every_epochs and state.epoch % self.every_epochs == 0)

    def after_step(self, state: TrainState, seconds: float) -> bool:
        """seconds: since the last save, or since the start."""
        if not self.inside_epochs:
            return False
        if self.every_steps and state.step % self.every_steps == 0:
            return True
        return self.every_seconds is not None and seconds >= self.every_seconds

    def after_error(self, error: BaseException) -> bool:
        return self.on_error or isinstance(error, StoppedError)


@dataclass(frozen=True)
class CheckpointInfo:
    """What a `RetentionPolicy` knows of a checkpoint.

    sort_key: greater for later checkpoints of a run.
    time: when it was saved, in seconds since 1970.
    ends_epoch: saved after an epoch, not inside one.
    score: the higher the better; None if it was not evaluated.
    breakpoint: saved because the training was interrupted.
    """

    name: str
    sort_key: tuple[int, int]
    time: float = 0.0
    ends_epoch: bool = False
    score: Optional[float] = None
    breakpoint: bool = False


@dataclass(frozen=True)
class RetentionPolicy:
    """Selects the checkpoints to keep: those that any rule keeps, and always the newest.

    epochs: the end of every epoch.
    last: the newest N of all.
    every_minutes: the newest of each span of N minutes.
    best: the one with the highest score, the earliest of equals.
    breakpoints: every breakpoint.
    """

    epochs: bool = True
    last: int = 3
    every_minutes: Optional[float] = None
    best: bool = True
    breakpoints: bool = True

    def __call__(self, checkpoints: Iterable[CheckpointInfo]) -> set[str]:
        """Return the names of the checkpoints to keep."""
        oldest_first = sorted(checkpoints, key=lambda info: info.sort_key)
        kept = {info.name for info in oldest_first[-max(1, self.last) :]}
        if self.epochs:
            kept |= {info.name for info in oldest_first if info.ends_epoch}
        if self.breakpoints:
            kept |= {info.name for info in oldest_first if info.breakpoint}
        if self.every_minutes:
            newest_of_span = {
                info.time // (60 * self.every_minutes): info.name for info in oldest_first
            }
            kept |= set(newest_of_span.values())
        evaluated = [info for info in oldest_first if info.score is not None]
        if self.best and evaluated:
            kept.add(max(evaluated, key=lambda info: info.score).name)
        return kept
