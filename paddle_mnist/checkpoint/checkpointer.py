"""Saves a training when it is due, and lets old checkpoints go."""

import time

import paddle
from paddle import nn

from paddle_mnist.checkpoint.contents import parameter_names, saved_bytes
from paddle_mnist.checkpoint.policy import Keep, SaveWhen
from paddle_mnist.checkpoint.store import OPTIMIZER, PARAMS, PREFIX, CheckpointStore
from paddle_mnist.errors import DivergedError
from paddle_mnist.state import TrainState


class StoreCheckpointer:
    """Commits checkpoints to a store when `when` says, then deletes those that `keep` drops.

    After epoch E (0-based) `mnist_epoch{E}`, after step S inside it `mnist_epoch{E}_step{S}`.
    Raises DivergedError rather than save weights that are not finite.
    """

    def __init__(self, store: CheckpointStore, when: SaveWhen, keep: Keep = Keep()):  # noqa: B008
        self.store = store
        self.when = when
        self.keep = keep
        self._saved = time.monotonic()

    def after_step(
        self, state: TrainState, model: nn.Layer, optimizer: paddle.optimizer.Optimizer
    ) -> None:
        if self.when.after_step(state, time.monotonic() - self._saved):
            self._save(f"{PREFIX}_epoch{state.epoch}_step{state.step}", state, model, optimizer)

    def after_epoch(
        self, state: TrainState, model: nn.Layer, optimizer: paddle.optimizer.Optimizer
    ) -> None:
        if self.when.after_epoch(state):
            self._save(f"{PREFIX}_epoch{state.epoch - 1}", state, model, optimizer)

    def _save(self, name: str, state: TrainState, model, optimizer) -> None:
        weights = model.state_dict()
        for key, value in weights.items():
            if not paddle.isfinite(value).all().item():
                raise DivergedError(
                    f"{key} is no longer finite after step {state.step}; expected finite weights; "
                    "not saved; try a lower learning_rate (the checkpoints before it are good)"
                )
        files = {
            PARAMS: saved_bytes(weights),
            OPTIMIZER: saved_bytes(optimizer.state_dict()),
        }
        more = {"names": parameter_names(model), "optimizer": type(optimizer).__name__}
        self.store.commit(name, files, state, more)
        self.store.prune(self.keep)
        self._saved = time.monotonic()


class _NoCheckpointer:
    """Saves nothing."""

    def after_step(self, state, model, optimizer) -> None: ...

    def after_epoch(self, state, model, optimizer) -> None: ...


NO_CHECKPOINTER = _NoCheckpointer()
