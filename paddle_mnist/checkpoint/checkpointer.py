"""Saves a training when it is due, and lets old checkpoints go."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Optional

import paddle
from paddle import nn

from paddle_mnist.checkpoint.contents import parameter_names, saved_bytes
from paddle_mnist.checkpoint.policy import RetentionPolicy, SavePolicy
from paddle_mnist.checkpoint.store import (
    BREAKPOINT,
    OPTIMIZER,
    PARAMS,
    TRAINING,
    CheckpointStore,
)
from paddle_mnist.errors import DivergedError, OutputError
from paddle_mnist.nn.ema import NO_AVERAGE, Average
from paddle_mnist.state import TrainState

log = logging.getLogger("paddle_mnist")


class StoreCheckpointer:
    """Commits checkpoints to a store when `when` says, then deletes those that `keep` drops.

    After epoch E (0-based) `{NAME}_epoch{E}`, after step S inside it `{NAME}_epoch{E}_step{S}`, and
    when a training is broken off there `{NAME}_epoch{E}_step{S}_breakpoint`.

    A checkpoint that cannot be written is warned of, and tried again when the next one is due; the
    last one, at the end, must be written. Raises OutputError for that one, and DivergedError rather
    than save what is not finite.
    """

    def __init__(
        self,
        store: CheckpointStore,
        when: SavePolicy = SavePolicy(),  # noqa: B008
        keep: RetentionPolicy = RetentionPolicy(),  # noqa: B008
        average: Average = NO_AVERAGE,
        saved: Optional[TrainState] = None,
        manifest_entries: Callable[[], Mapping[str, Any]] = dict,
    ):
        """average: a moving average of the weights, which is saved in their place.

        saved: the state that the training goes on from, if it is in the store already.
        manifest_entries: called at each save; returns further entries of the manifest.
        """
        self.store = store
        self.when = when
        self.keep = keep
        self.average = average
        self.manifest_entries = manifest_entries
        self._tried = time.monotonic()
        self._saved = saved and _place(saved)  # of the newest checkpoint

    def after_step(
        self, state: TrainState, model: nn.Layer, optimizer: paddle.optimizer.Optimizer
    ) -> None:
        if self.when.after_step(state, time.monotonic() - self._tried):
            self._try(_inside(state, model), state, model, optimizer)

    def after_epoch(
        self, state: TrainState, model: nn.Layer, optimizer: paddle.optimizer.Optimizer
    ) -> None:
        if self.when.after_epoch(state):
            self._try(_ended(state, model), state, model, optimizer)

    def at_end(
        self, state: TrainState, model: nn.Layer, optimizer: paddle.optimizer.Optimizer
    ) -> None:
        if self._saved != _place(state):
            self._save(_ended(state, model), state, model, optimizer)

    def after_error(
        self,
        error: BaseException,
        state: TrainState,
        model: nn.Layer,
        optimizer: paddle.optimizer.Optimizer,
    ) -> None:
        """Save where the training was broken off, and say so; the error is not this one's."""
        if isinstance(error, DivergedError) or not self.when.after_error(error):
            return
        if state.step_interrupted:
            log.warning(
                "step %d was broken off half way, so it cannot be saved; the newest checkpoint is "
                "from before it",
                state.step + 1,
            )
        elif self._saved == _place(state):
            log.info("nothing was done since the newest checkpoint; the same command goes on there")
        elif state.step:
            name = (_inside(state, model) if state.position else _ended(state, model)) + BREAKPOINT
            try:
                self._save(name, state, model, optimizer)
                log.info("saved %s; the same command goes on there", name)
            except (OutputError, DivergedError) as failure:
                log.warning("%s is not saved: %s", name, failure)

    def _try(self, name: str, state: TrainState, model, optimizer) -> None:
        self._tried = time.monotonic()
        try:
            self._save(name, state, model, optimizer)
        except OutputError as error:
            log.warning("%s is not saved, training goes on: %s", name, error)

    def _save(self, name: str, state: TrainState, model, optimizer) -> None:
        weights = model.state_dict()
        for key, value in weights.items():
            if not paddle.isfinite(value).all().item():
                raise DivergedError(
                    f"{key} is no longer finite after step {state.step}; expected finite weights; "
                    "not saved; try a lower learning_rate (the checkpoints before it are good)"
                )
        files = {
            PARAMS: saved_bytes(self.average.weights(model)),
            OPTIMIZER: saved_bytes(optimizer.state_dict()),
        }
        if self.average is not NO_AVERAGE:
            files[TRAINING] = saved_bytes(weights)
        more = {
            "names": parameter_names(model),
            "optimizer": type(optimizer).__name__,
            **self.manifest_entries(),
        }
        self.store.commit(name, files, state, more)
        self._saved = _place(state)
        try:
            self.store.prune(self.keep)
        except OutputError as error:
            log.warning("old checkpoints could not be deleted, training goes on: %s", error)


def _place(state: TrainState) -> tuple[int, int]:
    return state.step, state.epoch


def _inside(state: TrainState, model: nn.Layer) -> str:
    return f"{checkpoint_name(model)}_epoch{state.epoch}_step{state.step}"


def _ended(state: TrainState, model: nn.Layer) -> str:
    return f"{checkpoint_name(model)}_epoch{state.epoch - 1}"


def checkpoint_name(model: nn.Layer) -> str:
    """What the names of a model's checkpoints begin with: its `checkpoint_name`, or "model"."""
    return getattr(model, "checkpoint_name", "model")


class _NoCheckpointer:
    """Saves nothing."""

    def after_step(self, state, model, optimizer) -> None: ...

    def after_epoch(self, state, model, optimizer) -> None: ...

    def after_error(self, error, state, model, optimizer) -> None: ...

    def at_end(self, state, model, optimizer) -> None: ...


NO_CHECKPOINTER = _NoCheckpointer()
