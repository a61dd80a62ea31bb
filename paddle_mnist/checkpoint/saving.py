"""`Saving`: decide when to save a checkpoint and which to keep. Pure functions, without a disk."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from paddle_mnist.errors import ConfigError, RepeatedStepError, StoppedError
from paddle_mnist.options import BOOLEANS, Count, CountOrZero, Options, PathStr, Positive, option
from paddle_mnist.system import signals
from paddle_mnist.system.remote import check_url
from paddle_mnist.train_state import TrainState

if TYPE_CHECKING:
    from paddle_mnist.checkpoint.manifest import Checkpoint


def _truth_as_number(value: Any) -> Any:
    """Read a truth value as 1 or 0."""
    if isinstance(value, str) and not value.isdecimal():
        if value.lower() not in BOOLEANS:
            raise ValueError("expected a whole number, true or false")
        value = BOOLEANS[value.lower()]
    return int(value) if isinstance(value, bool) else value


@dataclass(frozen=True)
class Saving(Options):
    """Options for when to save checkpoints, and which ones to keep.

    A checkpoint is due as soon as any trigger fires:

    every_epochs: after every N-th epoch; 0 or None turns it off.
    every_steps: after every N-th step since the run began.
    every_seconds: after the first step that ends N seconds or more after the last save; None turns
        it off. By default, `kill -9` costs at most about ten minutes of training. The default has
        no effect on data that can resume only from the end of an epoch.
    on_exception: when an exception ends the training.
    at_start: before the first step, so that the initial weights are safe as well.

    rehearse: whether a new run rehearses a resume before its first step. Without it, `fit` neither
        finds nor refuses state beside the weights that a resume would lose; `state` is saved.

    stop_on_difference: whether to end training with RepeatedStepError, and to save nothing more,
        if a resumed run repeats a step and computes another loss, for example, than the interrupted
        run did; otherwise a warning is logged.

    When training ends or is stopped by a signal, it always saves. A checkpoint is kept if any rule
    keeps it; the newest is always kept:

    keep_last: the newest N of all.
    keep_best: the N with the best values of `monitor`, of equal ones the earlier; True means 1,
        False 0. After an evaluation among the N best so far, a checkpoint is always saved.
    keep_epochs: the end of every epoch.
    keep_every_minutes: the newest of each span of N minutes.
    keep_breakpoints: every checkpoint that was saved because training was interrupted.

    break_lock_after: seconds without a heartbeat after which another machine's lock on the run
        directory is broken; by default it never is.
    stop_signals: additional signals that stop training after it has saved, as SIGTERM, SIGINT,
        SIGUSR1, SIGHUP and SIGXCPU do.

    A run whose directory is lost resumes from its mirror:

    mirror: the URL of a folder for fsspec, such as s3://bucket/runs/1, or a folder on another disk.
    mirror_timeout: how many seconds to wait for the mirror before training and at its end.
    """

    heading = "saving"

    every_epochs: Optional[CountOrZero] = option(
        1,
        "epochs between checkpoints; 0: only the best and the last epoch are saved at their ends",
        flat="save_every_epochs",
    )
    every_steps: Optional[Count] = option(
        None, "steps between checkpoints", flat="save_every_steps"
    )
    every_seconds: Optional[Positive] = option(
        600.0, "seconds between checkpoints inside an epoch", flat="save_every_seconds"
    )
    on_exception: bool = option(
        True, "save a checkpoint when an error ends training", flat="save_on_exception"
    )
    at_start: bool = option(True, "save a checkpoint before the first step", flat="save_at_start")
    stop_on_difference: bool = option(
        False, "stop where a repeated step differs from what the interrupted run computed"
    )
    rehearse: bool = option(True, "try a resume before the first step of a new run")
    keep_last: Count = option(3, "keep the newest N checkpoints")
    keep_best: CountOrZero = option(
        1,
        "keep the N checkpoints with the best monitored metric; true is 1, false is 0",
        bare="true",
        parse=_truth_as_number,
    )
    keep_epochs: bool = option(False, "keep the checkpoint at the end of every epoch")
    keep_every_minutes: Optional[Positive] = option(None, "keep one checkpoint every N minutes")
    keep_breakpoints: bool = option(False, "keep checkpoints that were saved on an interruption")
    break_lock_after: Optional[Positive] = option(
        None, "seconds without a heartbeat after which another machine's lock is broken"
    )
    stop_signals: tuple[str, ...] = option(
        (),
        "more signals that stop training after it has saved, as SIGTERM does: USR2,SIGPWR",
        parse=signals.parse_names,
    )
    mirror: Optional[PathStr] = option(
        None, "URL of a copy of the run: s3://, sftp://, ..., or a folder on another disk"
    )
    mirror_timeout: Positive = option(
        600.0, "seconds to wait for the mirror before training starts and at its end"
    )

    def check(self) -> None:
        if self.mirror:
            try:
                check_url(self.mirror)
            except ValueError as error:  # which shows no password
                raise ConfigError(f"mirror: {error}") from None

    def is_due_after_step(self, state: TrainState, seconds: float) -> bool:
        """Return whether to save after a step. seconds: since the last save, or the start."""
        if self._is_among_best(state) or (self.every_steps and state.step % self.every_steps == 0):
            return True
        return self.every_seconds is not None and seconds >= self.every_seconds

    def is_due_after_epoch(self, state: TrainState) -> bool:
        """Return whether to save after an epoch and its evaluation."""
        is_due = self.every_epochs and state.epoch % self.every_epochs == 0
        return bool(is_due) or self._is_among_best(state)

    def _is_among_best(self, state: TrainState) -> bool:
        """Return whether the current weights were evaluated, and are among the best so far."""
        is_evaluated = bool(state.metrics)  # so that few steps sort the scores
        return is_evaluated and any(
            step == state.step for step, _ in state.best_scores(self.keep_best)
        )

    def is_due_after_error(self, error: BaseException) -> bool:
        """Return whether to save when an exception ends the training."""
        if isinstance(error, RepeatedStepError):
            return False
        return self.on_exception or isinstance(error, StoppedError)

    def kept(self, checkpoints: Iterable["Checkpoint"]) -> set[str]:
        """Return the names of the checkpoints to keep."""
        checkpoints = [*checkpoints]
        return self.ranked(checkpoints) | {
            checkpoint.name
            for checkpoint in checkpoints
            if (self.keep_epochs and checkpoint.ends_epoch)
            or (self.keep_breakpoints and checkpoint.is_breakpoint)
        }

    def ranked(self, checkpoints: Iterable["Checkpoint"]) -> set[str]:
        """Return the names of those that are kept only until later ones take their places."""
        oldest_first = sorted(checkpoints, key=lambda checkpoint: checkpoint.sort_key)
        kept = oldest_first[-self.keep_last :]
        kept += best_first(oldest_first)[: self.keep_best]
        if self.keep_every_minutes:
            span = 60 * self.keep_every_minutes
            newest = {c.manifest["saved_at"] // span: c for c in oldest_first}
            kept += newest.values()
        return {checkpoint.name for checkpoint in kept}


def best_first(checkpoints: Iterable["Checkpoint"]) -> list["Checkpoint"]:
    """Return the evaluated checkpoints, the best first; equally good ones stay in their order."""
    evaluated = [checkpoint for checkpoint in checkpoints if checkpoint.score is not None]
    return sorted(evaluated, key=lambda checkpoint: -(checkpoint.score or 0.0))


# For training without `fit`, as in the tutorial: keeps every epoch.
KEEP_EPOCHS = Saving(every_seconds=None, keep_epochs=True, keep_breakpoints=True)
