"""Saves a training when it is due."""

import paddle
from paddle import nn

from paddle_mnist.checkpoint.contents import parameter_names, saved_bytes
from paddle_mnist.checkpoint.policy import EveryEpochs
from paddle_mnist.checkpoint.store import OPTIMIZER, PARAMS, PREFIX, CheckpointStore
from paddle_mnist.state import TrainState


class EpochCheckpointer:
    """Commits `mnist_epoch{E}` to a store after each epoch E (0-based) that the policy names."""

    def __init__(self, store: CheckpointStore, due: EveryEpochs):
        self.store = store
        self.due = due

    def after_epoch(
        self, state: TrainState, model: nn.Layer, optimizer: paddle.optimizer.Optimizer
    ) -> None:
        if not self.due(state):
            return
        self.store.commit(
            f"{PREFIX}_epoch{state.epoch - 1}",
            {
                PARAMS: saved_bytes(model.state_dict()),
                OPTIMIZER: saved_bytes(optimizer.state_dict()),
            },
            state,
            {"names": parameter_names(model), "optimizer": type(optimizer).__name__},
        )
