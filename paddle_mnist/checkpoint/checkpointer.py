"""Save checkpoints when they are due, and prune old ones."""

import copy
import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Optional

import paddle
from paddle import nn

from paddle_mnist.checkpoint.contents import checkpoint_files, optimizer_entries
from paddle_mnist.checkpoint.manifest import BREAKPOINT, FORMAT, LATER_FORMAT, name_of_checkpoint
from paddle_mnist.checkpoint.mirror import Mirror
from paddle_mnist.checkpoint.names import checkpoint_name
from paddle_mnist.checkpoint.saving import KEEP_EPOCHS, Saving
from paddle_mnist.checkpoint.statefile import SavedState
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.errors import ConfigError, DivergedError, OutputError, RunLockedError, summary
from paddle_mnist.hidden_state.extra_state import ExtraState
from paddle_mnist.metrics.writers import JsonlWriter
from paddle_mnist.nn.ema import NO_AVERAGE, WeightAverage
from paddle_mnist.nn.numerics import require_finite_weights
from paddle_mnist.system.files import warn_once
from paddle_mnist.train_state import TrainState

log = logging.getLogger("paddle_mnist")

# A state of at least this size is written in the background; a smaller one takes less than 0.1 s.
BACKGROUND_BYTES = 32 * 2**20


@dataclass(eq=False)
class Checkpointer:
    """Commits checkpoints to a store when they are due, then prunes old ones.

    Their names, with E the epoch, 0-based, and S the step, are `{NAME}_epoch{E}` after an epoch,
    `{NAME}_epoch{E}_step{S}` inside one, and `{NAME}_epoch{E}_step{S}_breakpoint` where training
    was interrupted. NAME is the model's (see `checkpoint_name`).

    During training, a large state is only copied, and a thread writes the copy. The next save and
    the end of training wait for that thread.

    A checkpoint that cannot be written costs a warning, which comes after the next step if a thread
    writes it; the next attempt is the next checkpoint that is due. Only the last checkpoint raises
    OutputError. Raises DivergedError rather than save weights that are not finite.

    store: None: nothing is saved, as in all processes but the main one.
    average: a moving average of the weights, which is saved in their place.
    resumed_from: the state of the checkpoint from which training was resumed, if it is in this
        store, so that it is not saved twice.
    run_entries: the entries that describe the run, which every manifest has.
    history: `metrics.jsonl`, whose lines are forced to the disk and counted in the manifest.
    name: NAME, if it is not the model's.
    extra: the state beside the weights and the optimizer's.
    saves_inside_epochs: whether training can resume inside an epoch; otherwise nothing is saved
        there.
    mirror: the mirror of the run, to which each checkpoint is uploaded.
    not_saved: the evaluated steps after which a checkpoint could not be written.
    """

    store: Optional[CheckpointStore]
    model: nn.Layer
    optimizer: paddle.optimizer.Optimizer
    saving: Saving = KEEP_EPOCHS
    average: WeightAverage = NO_AVERAGE
    resumed_from: Optional[TrainState] = None
    run_entries: Mapping[str, Any] = field(default_factory=dict)
    history: Optional[JsonlWriter] = None
    name: Optional[str] = None
    extra: Optional[ExtraState] = None
    saves_inside_epochs: bool = True
    mirror: Optional[Mirror] = None
    not_saved: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.store and self.saving.mirror and not self.mirror:
            raise ConfigError(
                "saving has a mirror, which only fit keeps up to date; expected Saving without it"
            )
        self._last_attempt = time.monotonic()
        self._writing: Optional[tuple[TrainState, Future[None]]] = None  # a state, and its save
        # The progress of the newest checkpoint.
        self._saved_progress = self.resumed_from and _progress(self.resumed_from)

    def at_start(self, state: TrainState) -> None:
        """Save step 0, so that training resumes with the same initial weights."""
        self._save(state)

    def after_step(self, state: TrainState) -> None:
        """Save after a step if that is due."""
        if self.mirror:
            self.mirror.poll()
        self._reap_writer()
        seconds = time.monotonic() - self._last_attempt
        if self.saves_inside_epochs and self.saving.is_due_after_step(state, seconds):
            self._try_to_save(state)

    def after_epoch(self, state: TrainState) -> None:
        """Save after an epoch and its evaluation if that is due."""
        self._reap_writer()
        if self.saving.is_due_after_epoch(state):
            self._try_to_save(state)

    def at_end(self, state: TrainState) -> None:
        """Save after the last epoch, unless it is saved."""
        self._reap_writer(wait=True)
        is_there = self.store is not None and self.store.folder.exists()
        if not is_there or self._saved_progress != _progress(state):
            self._save(state)

    def after_error(
        self, error: BaseException, state: TrainState, problem: Optional[str] = None
    ) -> None:
        """Save a breakpoint if one is wanted and the last whole step could be restored.

        Called with the exception that ends training, before it is raised again. Logs errors of this
        save and of the previous one, so that they do not hide `error`.

        state: of the last whole step. problem: why later changes could not be undone, if so.
        """
        try:
            self._reap_writer(wait=True)
        except RunLockedError:
            if not isinstance(error, RunLockedError):
                raise
        except Exception:  # a mistake in the program
            log.exception("the previous checkpoint is not saved")
        # After a RunLockedError another process saves there.
        if not self.store or isinstance(error, (RunLockedError, DivergedError)):
            return
        if not self.saving.is_due_after_error(error):
            return
        if self._saved_progress == _progress(state):
            log.info("nothing was done since the newest checkpoint; run again to resume from it")
        elif state.position and not self.saves_inside_epochs:
            log.info(
                "stopped inside an epoch, where this data cannot resume; the newest checkpoint is "
                "from before it"
            )
        elif problem:
            newest = self._saved_progress
            log.warning(
                "nothing is saved: the changes since step %d cannot be undone (%s); the run "
                "resumes %s",
                state.step,
                problem,
                f"after step {newest[0]}" if newest else "from the beginning",
            )
        elif state.step:
            name = self._name(state) + BREAKPOINT
            try:
                self._save(state, BREAKPOINT)
                log.info("saved %s; run again to resume from it", name)
            except (OutputError, DivergedError) as failure:
                log.warning("%s is not saved: %s", name, failure)

    def _try_to_save(self, state: TrainState) -> None:
        self._last_attempt = time.monotonic()
        try:
            self._save(state, blocking=False)
        except OutputError as error:
            self._after_failure(state, error)

    def _after_failure(self, state: TrainState, error: OutputError) -> None:
        log.warning("%s is not saved; training continues: %s", self._name(state), error)
        if state.metrics:  # the best may be among them
            self.not_saved.append(state.step)

    def _reap_writer(self, wait: bool = False) -> None:
        """Log the error of the thread that writes a checkpoint, if it has finished with one.

        wait: wait for the thread to finish; otherwise a checkpoint in progress stays in progress.
        """
        if self._writing and (wait or self._writing[1].done()):
            state, future = self._writing
            try:
                future.result()
            except OutputError as error:
                self._after_failure(state, error)
            else:
                if self.mirror:
                    self.mirror.request_upload()
            finally:
                if future.done():  # otherwise, Ctrl-C, for example, has interrupted the wait
                    self._writing = None

    def _save(self, state: TrainState, name_end: str = "", blocking: bool = True) -> None:
        """Save, and prune. blocking: wait until it is written, even if a thread could write it."""
        if not self.store:
            return
        self._reap_writer(wait=True)  # one save at a time
        require_finite_weights(
            self.model.state_dict(),
            f"after step {state.step}",
            "not saved; try a lower learning_rate, or look for NaN in the data (the checkpoints "
            "before it are good)",
        )
        if self.extra:
            self.extra.log_unsaved(self.extra.save_changed(self.extra.changes()))
        files = checkpoint_files(self.model, self.optimizer, self.average, self.extra)
        entries = {**self.run_entries, **optimizer_entries(self.model, self.optimizer, self.extra)}
        if self.history:
            entries["metrics_lines"] = self.history.synced_lines()
        if self.not_saved:
            entries["not_saved"] = self.not_saved
        is_later = self.extra is not None and self.extra.is_later
        others = (state, entries, LATER_FORMAT if is_later else FORMAT)
        name = self._name(state) + name_end
        if blocking or not self._commit_in_background(name, files, *others):
            self._commit(name, files, *others)
            if self.mirror:
                self.mirror.request_upload()

    def _commit_in_background(
        self, name: str, files: Mapping[str, SavedState], *others: Any
    ) -> bool:
        """Have a thread commit a copy of a large state; return whether it does.

        others: the state, and the other arguments of `CheckpointStore.commit`.
        """
        if sum(file.nbytes for file in files.values()) < BACKGROUND_BYTES:
            return False
        try:
            copies = {suffix: contents.copied() for suffix, contents in files.items()}
            executor = ThreadPoolExecutor(max_workers=1)
            later = copy.deepcopy(others)
            self._writing = later[0], executor.submit(self._commit, name, copies, *later)
            executor.shutdown(wait=False)  # the thread ends with its work
        except (MemoryError, RuntimeError) as error:  # no room for the copy, or no thread
            warn_once(
                self.store and self.store.folder,
                "training pauses while checkpoints are written (%s)",
                summary(error),
            )
            return False
        return True

    def _commit(self, *contents: Any) -> None:
        """Write a checkpoint, and delete those that are no longer kept. Raises OutputError.

        contents: the arguments of `CheckpointStore.commit`.
        """
        assert self.store
        self._saved_progress = self.store.commit(*contents).sort_key
        try:
            self.store.prune(self.saving)
        except OutputError as error:
            log.warning("old checkpoints could not be deleted; training continues: %s", error)

    def _name(self, state: TrainState) -> str:
        return name_of_checkpoint(self.name or checkpoint_name(self.model), state)


def _progress(state: TrainState) -> tuple[int, int]:
    """Return the step and the epoch, by which two states of a run differ."""
    return state.step, state.epoch
