"""Collaborators of the training loop, as Protocols or base classes, and the values they pass."""

import contextlib
import copy
import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Protocol, Union, runtime_checkable

import numpy as np

from paddle_mnist.errors import ConfigError, unknown_name
from paddle_mnist.system import signals
from paddle_mnist.train_state import TrainState

if TYPE_CHECKING:
    import paddle
    from paddle import nn


class MetricSums(Protocol):
    """The sums of a metric over a batch, K numbers (`paddle_mnist.metrics.sums.Sums`)."""

    def compute(self) -> float:
        """Return the metric."""

    def to_numpy(self) -> np.ndarray:
        """Return the numbers [K]."""

    def to_tensor(self, dtype: Any = "float32") -> "paddle.Tensor":
        """Return the numbers, a tensor [K], by default float32."""

    def with_values(self, values: "Union[np.ndarray, paddle.Tensor]") -> "MetricSums":
        """Return the same metric with other numbers [K]."""


@dataclass(frozen=True)
class StepOutputs:
    """The results of the forward pass of one shard.

    loss: its mean loss []. metrics: sums over its samples, by name.
    count: the number of units that the loss is a mean over; None: the shard's samples. If it is 0,
        `loss` is a total, to be divided by the count of the batch; a NaN then adds nothing.
    """

    loss: "paddle.Tensor"
    metrics: Mapping[str, MetricSums]
    count: Optional[float] = None


class View:
    """Read-only view of a run for observers: its state, its metrics, its net.

    step: steps done. loss: None before the first step. metrics: without those of this step's log
    line, which is written after the observers are called.
    """

    def __init__(
        self,
        state: TrainState,
        loss: "Optional[paddle.Tensor]",
        metrics: Mapping[str, float],
        model: "nn.Layer",
        outputs: Mapping[str, np.ndarray] = {},
    ):
        self.step = state.step
        self._state, self._metrics, self._model = state, metrics, model
        self._outputs = outputs  # of the layers that were recorded in the newest step
        self._loss: Any = loss

    @property
    def state(self) -> TrainState:
        """A copy of the run's state. Raises DivergedError."""
        return copy.deepcopy(self._state)

    @property
    def loss(self) -> Optional[float]:
        """The newest step's mean loss. Reading it waits for the device."""
        return None if self._loss is None else self._loss.item()

    @property
    def metrics(self) -> Mapping[str, float]:
        """The newest values by tag, such as "train/loss" and "valid/acc"."""
        return dict(self._metrics)

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters, as in `state_dict`."""
        return [*self._parameters]

    def parameter(self, name: str) -> np.ndarray:
        """A copy of a parameter's values, in `after_step` those after the step's update.

        Raises ConfigError for an unknown name.
        """
        return self._parameter(name).numpy()

    def gradient(self, name: str) -> Optional[np.ndarray]:
        """A copy of the newest step's gradient of a parameter; None if it has none."""
        gradient = self._parameter(name).grad
        return None if gradient is None else gradient.numpy()

    def output(self, name: str) -> np.ndarray:
        """A copy of a layer's output for the newest step's batch, or this process's first shard.

        Only of layers that an observer's `recorded_layers` has returned for this step. Later calls
        of the same layer in the step are NAME:2, NAME:3. Raises ConfigError for other names.
        """
        if name in self._outputs:
            return self._outputs[name].copy()
        require_layers("view.output", self._model, [name.partition(":")[0]])
        raise ConfigError(
            f"view.output: {name!r} was not recorded in step {self.step}; expected a callback "
            f"whose recorded_layers({self.step}) returns the layer, and a step that calls it"
        )

    @functools.cached_property
    def _parameters(self) -> "dict[str, paddle.Tensor]":
        return dict(self._model.named_parameters())

    def _parameter(self, name: str) -> "paddle.Tensor":
        if name not in self._parameters:
            raise ConfigError(unknown_name("the model", name, self._parameters))
        return self._parameters[name]


def require_layers(origin: str, model: "nn.Layer", names: Iterable[str]) -> dict[str, "nn.Layer"]:
    """Return the named layers of a model. Raises ConfigError for an unknown name."""
    layers = dict(model.named_sublayers())
    for name in names:
        if name not in layers:
            raise ConfigError(unknown_name(origin, name, layers))
    return {name: layers[name] for name in names}


class Observer:
    """Base class for observers of a `Trainer`, which are called around every step and epoch.

    Override the methods you need. They read, return metrics, and may ask to stop; except in
    `on_epoch_start`, they must not change the training in any other way. Metrics are returned by
    tag, and the trainer writes them: Python or NumPy numbers, or tensors of one element.
    """

    def on_epoch_start(self, view: View) -> None:
        """Called before the first step of each epoch, and again by a run that resumes inside it.

        Settings made here, such as which layers are frozen in epoch `view.state.epoch`, thus hold
        after any resume. They should depend on the epoch alone, not on earlier calls.
        """

    def recorded_layers(self, step: int) -> Collection[str]:
        """Return the layers whose outputs `after_step` reads with `view.output`, by name.

        Called before each step, with the number that `view.step` will have after it; steps for
        which no observer returns a layer cost nothing.
        """
        return ()

    def after_step(self, view: View) -> Optional[Mapping[str, float]]:
        """Called after each step, before its checkpoint is saved."""

    def after_epoch(self, view: View) -> Optional[Mapping[str, float]]:
        """Called after each epoch and its evaluation, before its checkpoint is saved."""

    def should_stop(self, view: View) -> bool:
        """Return whether to end the training here; called before each epoch."""
        return False


class Writer(Protocol):
    """Writes metrics: tags like "train/loss" and their values at a step."""

    def write(self, state: TrainState, values: Mapping[str, float]) -> None: ...

    def close(self) -> None:
        return


@runtime_checkable
class Loader(Protocol):
    """Loads batches, epoch by epoch; `paddle_mnist.data.external.open_loader` opens any data.

    A batch is a structure of tensors. If batches are divided, or a step takes several, it is a list
    of this process's shards (`paddle_mnist.data.sampler.Shard`).

    num_workers: the number of this loader's processes that read samples ahead.
    is_indexed: whether samples are read by index, so that processes can share a batch.
    """

    num_workers: int = 0
    is_indexed: bool = False

    @property
    def own_order(self) -> Any:
        """The caller's order of samples, a `paddle_mnist.data.sampler.EpochOrder`, if any."""
        return None

    @property
    def steps_per_epoch(self) -> Optional[int]:
        """The number of steps in an epoch; None if it is unknown."""

    @property
    def is_function(self) -> bool:
        """Whether a function of the caller's yields the batches."""
        return False

    @property
    def resumes_inside_epochs(self) -> bool:
        """Whether an epoch can begin at any batch."""
        return True

    def epoch(self, epoch: int, start: int = 0, stride: int = 1) -> Iterator[Any]:
        """Yield the batches of an epoch from number `start` on, every `stride`-th, as tensors."""

    def first_batches(self, count: int) -> list[Any]:
        """Return the first batches of the first epoch, which will yield them again."""
        with signals.interruptible():
            return list(itertools.islice(self.epoch(0), count))

    def first_batch(self, epoch: int = 0) -> Any:
        """Return the first batch of this process in the first epoch, without this loader's workers.

        epoch: the one whose random numbers are used for samples that are read by index.
        """
        return self.first_batches(1)[0]

    def sample_name(self, epoch: int, number: int, shard: int, row: int) -> str:
        """Return the name of a sample in errors, given its batch, shard and row."""
        return f"its sample {row}"

    def close(self) -> None:
        """Close the resources that stay open from epoch to epoch."""
        return


def as_number(value: Any, tag: str, source: str) -> Union[int, float]:
    """Convert a metric, also a NumPy number or a tensor of one element, to a Python number.

    source: who returned it, for the error. Raises ConfigError if it is not one number.
    """
    with contextlib.suppress(ValueError, RuntimeError):  # several elements
        number = value.item() if hasattr(value, "item") else value
        if isinstance(number, (int, float)):
            return +number  # True is 1
    raise ConfigError(f"{source} gave {value!r:.60} as {tag!r}; expected one number")
