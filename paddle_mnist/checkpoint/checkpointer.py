"""Saves a training when it is due."""

import paddle
from paddle import nn

from paddle_mnist.checkpoint.contents import parameter_names, saved_bytes
from paddle_mnist.checkpoint.policy import EveryEpochs
from paddle_mnist.checkpoint.store import OPTIMIZER, PARAMS, PREFIX, CheckpointStore
from paddle_mnist.errors import DivergedError
from paddle_mnist.state import TrainState


class EpochCheckpointer:
    """Commits `mnist_epoch{E}` to a store after each epoch E (0-based) that the policy names.

    Raises DivergedError rather than save weights that are not finite.
    """

    def __init__(self, store: CheckpointStore, due: EveryEpochs):
        self.store = store
        self.due = due

    def after_epoch(
        self, state: TrainState, model: nn.Layer, optimizer: paddle.optimizer.Optimizer
    ) -> None:
        if not self.due(state):
            return
        weights = model.state_dict()
        for name, value in weights.items():
            if not paddle.isfinite(value).all().item():
                raise DivergedError(
                    f"{name} is no longer finite after epoch {state.epoch}, step {state.step}; not "
                    "saved; try a lower learning_rate (the checkpoints before it are good)"
                )
        self.store.commit(
            f"{PREFIX}_epoch{state.epoch - 1}",
            {
                PARAMS: saved_bytes(weights),
                OPTIMIZER: saved_bytes(optimizer.state_dict()),
            },
            state,
            {"names": parameter_names(model), "optimizer": type(optimizer).__name__},
        )
