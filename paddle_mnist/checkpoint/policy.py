"""When to save: pure functions of the state."""

from dataclasses import dataclass

from paddle_mnist.state import TrainState


@dataclass(frozen=True)
class EveryEpochs:
    """After every so many epochs, and after the last one."""

    every: int
    epochs: int

    def __call__(self, state: TrainState) -> bool:
        return state.epoch % self.every == 0 or state.epoch == self.epochs
