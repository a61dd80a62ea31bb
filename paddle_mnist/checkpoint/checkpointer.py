"""Saves checkpoints when they are due, and prunes old ones."""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

import paddle
from paddle import nn

from paddle_mnist.checkpoint.contents import manifest_entries
from paddle_mnist.checkpoint.further_state import FurtherState
from paddle_mnist.checkpoint.manifest import BREAKPOINT, OPTIMIZER, PARAMS, TRAINING
from paddle_mnist.checkpoint.policy import KEEP_EPOCHS, Saving
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.checkpoint.weights import saved_bytes
from paddle_mnist.errors import ConfigError, DivergedError, OutputError
from paddle_mnist.interfaces import Checkpointer
from paddle_mnist.nn.ema import NO_AVERAGE, WeightAverage
from paddle_mnist.nn.nan_check import require_finite_weights
from paddle_mnist.progress import TrainState

log = logging.getLogger("paddle_mnist")

MAX_NAME_BYTES = 180  # of 255; epoch, step, suffixes and those of temporary files follow


@dataclass(eq=False)
class StoreCheckpointer(Checkpointer):
    """Commits checkpoints to a store when they are due, then prunes old ones.

    Their names, with E the epoch, 0-based, and S the step: after an epoch `{NAME}_epoch{E}`,
    inside one `{NAME}_epoch{E}_step{S}`, where a training was interrupted
    `{NAME}_epoch{E}_step{S}_breakpoint`. NAME is the model's (see `checkpoint_name`).

    A checkpoint that cannot be written is logged as a warning, and tried again when the next one
    is due; only the last one, at the end, must be written, else OutputError is raised.
    Raises DivergedError rather than save weights that are not finite.

    average: a moving average of the weights, which is saved in their place.
    resumed_from: the state of the checkpoint that the training was resumed from, if it is in
        this store: it is not saved twice.
    manifest_entries: called at each save; returns additional entries of the manifest.
    name: NAME, where it is not the model's.
    further: what else to save.
    saves_inside_epochs: whether a training can resume there; else nothing is saved there.
    """

    store: CheckpointStore
    saving: Saving = KEEP_EPOCHS
    average: WeightAverage = NO_AVERAGE
    resumed_from: Optional[TrainState] = None
    manifest_entries: Callable[[], Mapping[str, Any]] = dict
    name: Optional[str] = None
    further: Optional[FurtherState] = None
    saves_inside_epochs: bool = True

    def __post_init__(self) -> None:
        self._last_attempt = time.monotonic()
        # Of the newest checkpoint.
        self._saved_progress = self.resumed_from and _progress(self.resumed_from)

    def at_start(
        self, state: TrainState, model: nn.Layer, optimizer: paddle.optimizer.Optimizer
    ) -> None:
        """Save step 0, so that the initial weights are the same ones after a stop."""
        self._save(state, model, optimizer)

    def after_step(
        self, state: TrainState, model: nn.Layer, optimizer: paddle.optimizer.Optimizer
    ) -> None:
        seconds = time.monotonic() - self._last_attempt
        if self.saves_inside_epochs and self.saving.is_due_after_step(state, seconds):
            self._try_to_save(state, model, optimizer)

    def after_epoch(
        self, state: TrainState, model: nn.Layer, optimizer: paddle.optimizer.Optimizer
    ) -> None:
        if self.saving.is_due_after_epoch(state):
            self._try_to_save(state, model, optimizer)

    def at_end(
        self, state: TrainState, model: nn.Layer, optimizer: paddle.optimizer.Optimizer
    ) -> None:
        if self._saved_progress != _progress(state):
            self._save(state, model, optimizer)

    def after_error(
        self,
        error: BaseException,
        state: TrainState,
        model: nn.Layer,
        optimizer: paddle.optimizer.Optimizer,
    ) -> None:
        """Save a breakpoint if one is wanted and no step was interrupted half way.

        Errors of this save are logged, so that they do not hide `error`.
        """
        if isinstance(error, DivergedError) or not self.saving.is_due_after_error(error):
            return
        if state.step_interrupted:
            log.warning(
                "step %d was interrupted halfway, so it cannot be saved; the newest checkpoint is "
                "from before that step",
                state.step + 1,
            )
        elif self._saved_progress == _progress(state):
            log.info("nothing was done since the newest checkpoint; run again to resume from it")
        elif state.position and not self.saves_inside_epochs:
            log.info(
                "stopped inside an epoch, where this data cannot resume; the newest checkpoint is "
                "from before it"
            )
        elif state.step:
            name = self._name(state, model) + BREAKPOINT
            try:
                self._save(state, model, optimizer, BREAKPOINT)
                log.info("saved %s; run again to resume from it", name)
            except (OutputError, DivergedError) as failure:
                log.warning("%s is not saved: %s", name, failure)

    def _try_to_save(
        self, state: TrainState, model: nn.Layer, optimizer: paddle.optimizer.Optimizer
    ) -> None:
        self._last_attempt = time.monotonic()
        try:
            self._save(state, model, optimizer)
        except OutputError as error:
            name = self._name(state, model)
            log.warning("%s is not saved; training continues: %s", name, error)

    def _save(
        self,
        state: TrainState,
        model: nn.Layer,
        optimizer: paddle.optimizer.Optimizer,
        name_end: str = "",
    ) -> None:
        weights = model.state_dict()
        require_finite_weights(
            weights,
            f"after step {state.step}",
            "not saved; try a lower learning_rate (the checkpoints before it are good)",
        )
        files = {
            PARAMS: saved_bytes(self.average.weights(model)),
            OPTIMIZER: saved_bytes(optimizer.state_dict()),
        }
        if self.average is not NO_AVERAGE:
            files[TRAINING] = saved_bytes(weights)
        if self.further:
            files.update(self.further.files())
        extra_entries = {
            **manifest_entries(model, optimizer, self.further),
            **self.manifest_entries(),
        }
        self.store.commit(self._name(state, model) + name_end, files, state, extra_entries)
        self._saved_progress = _progress(state)
        try:
            self.store.prune(self.saving)
        except OutputError as error:
            log.warning("old checkpoints could not be deleted; training continues: %s", error)

    def _name(self, state: TrainState, model: nn.Layer) -> str:
        return name_of_checkpoint(self.name or checkpoint_name(model), state)


def _progress(state: TrainState) -> tuple[int, int]:
    return state.step, state.epoch


def name_of_checkpoint(name: str, state: TrainState) -> str:
    """Return the name of the checkpoint of a state: after an epoch, or inside one. name: NAME."""
    is_after_epoch = state.step and not state.position
    end = f"epoch{state.epoch - 1}" if is_after_epoch else f"epoch{state.epoch}_step{state.step}"
    return f"{name}_{end}"


def checkpoint_name(model: nn.Layer) -> str:
    """Return the prefix of a model's checkpoint names: its `checkpoint_name`, or "model".

    Raises ConfigError as `usable_name` does.
    """
    return usable_name(getattr(model, "checkpoint_name", "model"))


def usable_name(name: object) -> str:
    """Return a prefix of checkpoint names. Raises ConfigError unless files can be called so."""
    with contextlib.suppress(UnicodeEncodeError):  # no Unicode
        if (
            isinstance(name, str)
            and os.path.basename(name) == name
            and not name.startswith(".")
            and "\0" not in name
            and 0 < len(name.encode()) <= MAX_NAME_BYTES
        ):
            return name
    raise ConfigError(
        f"name is {name!r}; expected the first part of a file's name: without a slash, not "
        f"beginning with a dot, and of at most {MAX_NAME_BYTES} bytes"
    )


NO_CHECKPOINTER = Checkpointer()
