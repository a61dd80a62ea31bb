"""`TrainState`, the one record of progress, and what the loop asks of its collaborators."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol

from paddle_mnist.errors import DivergedError


@dataclass
class Window:
    """Sums over the samples since the last line of the log, and the newest step's rate."""

    loss_sum: float = 0.0
    right: int = 0
    samples: int = 0
    lr: float = 0.0


@dataclass
class TrainState:
    """Where a training stands. Saved as JSON in every manifest; nothing is read out of a path.

    epoch: the epoch in work, 0-based; between epochs, the one to come.
    position: batches of this epoch that are done.
    step: optimizer steps since the run began.
    samples: samples seen since the run began.
    train_seconds: time spent in training steps since the run began, over all its processes.
    window: sums since the last line of the log, so that a run which goes on here writes it alike.
    metrics: what an evaluation of these very weights gave, by tag; none if there was none.
    """

    epoch: int = 0
    position: int = 0
    step: int = 0
    samples: int = 0
    train_seconds: float = 0.0
    window: Window = field(default_factory=Window)
    metrics: dict[str, float] = field(default_factory=dict)
    _pending: list = field(default_factory=list, repr=False, compare=False)

    def record(self, loss: Any, right: Any, samples: int, lr: float) -> None:
        """The outcome of the step in work: its mean loss and hits, as tensors still.

        They are looked at only by `settle`, so that a step need not wait for its device.
        """
        self._pending.append((self.epoch, self.step + 1, loss, right, samples, lr))

    def settle(self) -> None:
        """Add what was recorded to the window, in order. Raises DivergedError.

        Each step's mean loss weighs as much as its batch is large.
        """
        for epoch, step, loss, right, samples, lr in self._pending:
            value = loss.item()
            if not math.isfinite(value):
                raise DivergedError(
                    f"the loss is {value} at epoch {epoch + 1}, step {step}; expected a finite "
                    "number; try a lower learning_rate (checkpoints before it are good)"
                )
            self.window.loss_sum += value * samples
            self.window.right += right.item()
            self.window.samples += samples
            self.window.lr = lr
        self._pending.clear()

    def advance(self, samples: int) -> None:
        """One more step was done, on so many samples; what it made of the weights is not judged."""
        self.metrics = {}
        self.position += 1
        self.step += 1
        self.samples += samples

    def end_epoch(self) -> None:
        self.epoch += 1
        self.position = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, settled. Raises DivergedError."""
        self.settle()
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "_pending"}
        return {**values, "window": asdict(self.window), "metrics": dict(self.metrics)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TrainState":
        return cls(**{**values, "window": Window(**values["window"])})


class Writer(Protocol):
    """Takes metrics: tags like "train/loss" and their values at a step."""

    def write(self, state: TrainState, values: Mapping[str, float]) -> None: ...

    def advance(self, state: TrainState) -> None:
        """A step was done; called after each one."""

    def close(self) -> None: ...


class Evaluator(Protocol):
    """Judges a model between epochs; gives values by tag, none where no evaluation is due."""

    def after_epoch(self, state: TrainState, model: Any) -> Mapping[str, float]: ...


class Checkpointer(Protocol):
    """Saves what is needed to go on, when it is due."""

    def after_step(self, state: TrainState, model: Any, optimizer: Any) -> None: ...

    def after_epoch(self, state: TrainState, model: Any, optimizer: Any) -> None: ...
