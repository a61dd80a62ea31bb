"""`TrainState`, the one record of progress, and what the loop asks of its collaborators."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol


@dataclass
class TrainState:
    """Where a training stands. Saved as JSON in every manifest; nothing is read out of a path.

    epoch: the epoch in work, 0-based; between epochs, the one to come.
    position: batches of this epoch that are done.
    step: optimizer steps since the run began.
    samples: samples seen since the run began.
    train_seconds: time spent in training steps since the run began, over all its processes.
    metrics: the values, by tag, of the evaluation after the newest epoch; none if none was due.
    """

    epoch: int = 0
    position: int = 0
    step: int = 0
    samples: int = 0
    train_seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)

    def advance(self, samples: int) -> None:
        """One more step was done, on so many samples."""
        self.position += 1
        self.step += 1
        self.samples += samples

    def end_epoch(self) -> None:
        self.epoch += 1
        self.position = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TrainState":
        return cls(**values)


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

    def after_epoch(self, state: TrainState, model: Any, optimizer: Any) -> None: ...
