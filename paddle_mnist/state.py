"""`TrainState`, the one record of progress, and what the loop asks of its collaborators."""

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Optional, Protocol, Union

import numpy as np

from paddle_mnist.errors import ConfigError, DivergedError, unknown_name

BEST = "valid/acc"  # the metric whose highest value is the best
TRAIN_TAGS = ("train/loss", "train/acc", "train/lr")  # what the trainer itself writes of its steps


@dataclass
class Window:
    """Sums over the samples since the last line of the log, and the newest step's rate."""

    loss_sum: float = 0.0
    num_correct: int = 0
    samples: int = 0
    lr: float = 0.0


@dataclass
class TrainState:
    """Where a training stands. Saved as JSON in every manifest; nothing is read out of a path.

    epoch: the epoch in work, 0-based, until it is evaluated; then the one to come.
    position: batches of this epoch that are done.
    step: optimizer steps since the run began.
    samples: samples seen since the run began.
    train_seconds: time spent in training steps since the run began, over all its processes.
    window: sums since the last line of the log, so that a run which goes on here writes it alike.
    metrics: what an evaluation of these very weights gave, by tag; none if there was none.
    scores: [step, valid/acc] of every evaluation of the run.
    torn: a step's change of the weights was broken off; they are no step's now.
    """

    epoch: int = 0
    position: int = 0
    step: int = 0
    samples: int = 0
    train_seconds: float = 0.0
    window: Window = field(default_factory=Window)
    metrics: dict[str, float] = field(default_factory=dict)
    scores: list[list] = field(default_factory=list)
    step_interrupted: bool = False
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
        pending, self._pending = self._pending, []
        for epoch, step, loss, right, samples, lr in pending:
            value = loss.item()
            if not math.isfinite(value):
                raise DivergedError(
                    f"the loss is {value} at epoch {epoch + 1}, step {step}; expected a finite "
                    "number; try a lower learning_rate (checkpoints before it are good)"
                )
            self.window.loss_sum += value * samples
            self.window.num_correct += int(right.item())
            self.window.samples += samples
            self.window.lr = lr

    @contextlib.contextmanager
    def stepping(self, samples: int) -> Iterator[None]:
        """One step, on so many samples: done when left, torn if it is left by an error."""
        self.step_interrupted = True
        yield
        self.metrics = {}  # what the step made of the weights is not judged
        self.position += 1
        self.step += 1
        self.samples += samples
        self.step_interrupted = False

    def record_evaluation(self, metrics: Mapping[str, float]) -> None:
        """What an evaluation gave; done twice at a step, it counts once."""
        self.metrics = dict(metrics)
        if BEST in metrics:
            earlier = [score for score in self.scores if score[0] < self.step]
            self.scores = [*earlier, [self.step, metrics[BEST]]]

    @property
    def best(self) -> Optional[list]:
        """[step, valid/acc] of the highest score, the earliest of equals; None before any."""
        return max(self.scores, key=lambda score: score[1], default=None)

    @property
    def evaluations_since_best(self) -> int:
        return len(self.scores) - 1 - self.scores.index(self.best) if self.scores else 0

    def end_epoch(self) -> None:
        self.epoch += 1
        self.position = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, settled. Raises DivergedError."""
        self.settle()
        names = [f.name for f in fields(self) if f.name not in ("step_interrupted", "_pending")]
        values = {name: getattr(self, name) for name in names}
        return {**values, "window": asdict(self.window), "metrics": dict(self.metrics)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TrainState":
        window = dict(values["window"])
        if "right" in window:  # until format 2
            window["num_correct"] = window.pop("right")
        return cls(**{**values, "window": Window(**window)})


def as_number(value: Any, tag: str, source: str) -> Union[int, float]:
    """A metric's value as a Python number; NumPy's numbers and one-element tensors are taken too.

    source: who gave it, for the error. Raises ConfigError if it is not one number.
    """
    with contextlib.suppress(ValueError, RuntimeError):  # several elements
        number = value.item() if hasattr(value, "item") else value
        if isinstance(number, (int, float)):
            return +number  # True is 1
    raise ConfigError(f"{source} gave {value!r:.60} as {tag!r}; expected one number")


class View:
    """What an observer may look at: where a training stands, its figures, its net. Read-only.

    step: steps done. loss: the newest step's mean loss, in nats; None before any. metrics: the
    newest value of every tag of the log: the line of this very step is written after this.
    """

    def __init__(self, state: TrainState, loss: Any, metrics: Mapping[str, float], model: Any):
        self.step = state.step
        self._state, self._loss, self._metrics, self._model = state, loss, metrics, model

    @property
    def state(self) -> TrainState:
        """A copy of the training's state."""
        self._state.settle()
        return copy.deepcopy(self._state)

    @property
    def loss(self) -> Optional[float]:
        return None if self._loss is None else self._loss.item()

    @property
    def metrics(self) -> Mapping[str, float]:
        return dict(self._metrics)

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters, as in `state_dict`."""
        return [name for name, _ in self._model.named_parameters()]

    def parameter(self, name: str) -> np.ndarray:
        """A copy of a parameter's values. Raises ConfigError for a name that is none."""
        return self._parameter(name).numpy()

    def gradient(self, name: str) -> Optional[np.ndarray]:
        """A copy of the newest step's gradient of a parameter; None if it has none."""
        gradient = self._parameter(name).grad
        return None if gradient is None else gradient.numpy()

    def _parameter(self, name: str) -> Any:
        parameters = dict(self._model.named_parameters())
        if name not in parameters:
            raise ConfigError(unknown_name("the model", name, parameters))
        return parameters[name]


class Observer:
    """Looks on while a `Trainer` trains, and changes nothing; override what is of use.

    Numbers that it returns, by tag, are written where the trainer writes its own: Python's or
    NumPy's, or tensors of one element.
    """

    def after_step(self, view: View) -> Optional[Mapping[str, float]]:
        """Called after each step, before it may be saved."""

    def after_epoch(self, view: View) -> Optional[Mapping[str, float]]:
        """Called after each epoch and its evaluation, before it may be saved."""


class Writer(Protocol):
    """Takes metrics: tags like "train/loss" and their values at a step."""

    def write(self, state: TrainState, values: Mapping[str, float]) -> None: ...

    def advance(self, state: TrainState) -> None:
        """A step was done; called after each one."""

    def close(self) -> None: ...


class Evaluator(Protocol):
    """Judges a model at the end of an epoch, and whether it is worth going on."""

    def after_epoch(self, state: TrainState, model: Any) -> Mapping[str, float]:
        """Values by tag; none where no evaluation is due."""

    def should_stop(self, state: TrainState) -> bool:
        """Whether to stop before the next epoch."""


class Checkpointer(Protocol):
    """Saves what is needed to go on, when it is due."""

    def after_step(self, state: TrainState, model: Any, optimizer: Any) -> None: ...

    def after_epoch(self, state: TrainState, model: Any, optimizer: Any) -> None: ...

    def after_error(
        self, error: BaseException, state: TrainState, model: Any, optimizer: Any
    ) -> None:
        """Called with what ends a training, which is raised on afterwards."""

    def at_end(self, state: TrainState, model: Any, optimizer: Any) -> None: ...
