"""`TrainingJob`: what a process knows about a training before it starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, TypeVar, Union

from paddle import nn

from paddle_mnist.checkpoint.checkpointer import checkpoint_name
from paddle_mnist.hidden_state.extra_state import LOSS
from paddle_mnist.interfaces import Evaluator, MetricSums
from paddle_mnist.parallel.gradients import (
    GradientExchange,
    SingleProcessGradients,
    build_gradient_exchange,
)
from paddle_mnist.parallel.world import World
from paddle_mnist.progress import TrainState
from paddle_mnist.training.arguments import FitArguments
from paddle_mnist.training.callbacks import Callback
from paddle_mnist.training.initialize import TrainingParts
from paddle_mnist.training.resume import ResumeRequest
from paddle_mnist.training.steps import Step

AnyCallback = TypeVar("AnyCallback", bound=Callback)


@dataclass(frozen=True)
class TrainingJob:
    """Everything a process knows about a training before it starts.

    arguments: those of `fit`. parts: what is trained, and on what.
    step, metric_prototypes: see `Trainer`.
    request: how to resume, and what must match. config: the contents of `config.yaml`.
    tags: of the metrics that an evaluation gives. callbacks: with those that are there by default.
    resumes_inside_epochs: whether the data allow it.
    """

    arguments: FitArguments
    parts: TrainingParts
    evaluator: Evaluator
    step: Step
    world: World
    device: str
    request: ResumeRequest
    config: str
    metric_prototypes: Mapping[str, MetricSums] = field(default_factory=dict)
    tags: Sequence[str] = ()
    callbacks: Sequence[Callback] = ()
    resumes_inside_epochs: bool = True

    @property
    def model_name(self) -> str:
        """The prefix of the names of its checkpoints and its weights."""
        return self.arguments.name or checkpoint_name(self.parts.model)

    @property
    def steps(self) -> Optional[int]:
        """The number of steps of the training; None if it is unknown."""
        steps = (self.parts.loader.steps_per_epoch or 0) * self.arguments.epochs
        return min(steps, self.arguments.loading.max_steps or steps) or None

    def is_over(self, state: TrainState) -> bool:
        """Return whether all epochs or steps are trained."""
        max_steps = self.arguments.loading.max_steps
        has_all_steps = max_steps is not None and state.step >= max_steps
        return has_all_steps or state.epoch == self.arguments.epochs

    @property
    def loss(self) -> Optional[nn.Layer]:
        """The loss, if it is a layer, which may have parameters."""
        loss = self.parts.extra.roots.get(LOSS)
        return loss if isinstance(loss, nn.Layer) else None

    @property
    def log_every(self) -> int:
        """The number of steps between log lines."""
        return min(steps for callback in self.callbacks if (steps := callback.log_every))

    def callback(self, kind: type[AnyCallback]) -> Optional[AnyCallback]:
        """Return the first callback of a class; None if there is none."""
        return next((one for one in self.callbacks if isinstance(one, kind)), None)

    def new_state(self, **values: Any) -> TrainState:
        """Return the state before the first step. values: fields that differ."""
        monitor, mode = self.arguments.monitored
        return TrainState(monitor=monitor, mode=mode, **values)

    def gradient_exchange(self) -> Union[SingleProcessGradients, GradientExchange]:
        """Return a new exchange of the gradients of this training's steps."""
        loss, others = self.loss, [*self.parts.extra.optimized.values()]
        if others:
            loss = nn.LayerList([*filter(None, [loss]), nn.ParameterList(others)])
        return build_gradient_exchange(
            self.parts.model,
            self.world,
            self.arguments.processes.grad_shards,
            accumulates=self.parts.loader.passes_per_step > 1,
            loss=loss,
        )
