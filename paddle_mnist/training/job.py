"""`TrainingJob`: what a process knows about a training before it starts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from paddle import nn

from paddle_mnist.checkpoint.checkpointer import checkpoint_name
from paddle_mnist.checkpoint.further_state import LOSS
from paddle_mnist.checkpoint.manifest import Checkpoint
from paddle_mnist.checkpoint.policy import RetentionPolicy, SavePolicy
from paddle_mnist.checkpoint.saved_weights import SavedWeights, find_weights
from paddle_mnist.data.loader import batches_per_epoch
from paddle_mnist.parallel.gradients import (
    GradientExchange,
    SingleProcessGradients,
    build_gradient_exchange,
)
from paddle_mnist.parallel.world import World
from paddle_mnist.state import Evaluator, MetricSums, Observer
from paddle_mnist.training.initialize import TrainingParts
from paddle_mnist.training.resume import ResumeRequest
from paddle_mnist.training.steps import Step


@dataclass(frozen=True)
class TrainingOptions:
    """How a training runs, apart from its parts.

    epochs: how many in all. seed: of what is drawn in a step. grad_shards: parts into which each
        batch is divided, if the order in which their gradients are added is to be fixed.
    monitor, mode: see `TrainState`.
    init_from, incremental_from: another training to start from, its weights alone or its optimizer
        as well. init_partial: take the weights that fit, and leave the others. soften: the layer
        whose outputs are made less confident where they are wrong about the new data.
    new_schedule: whether a resumed training takes the schedule's learning rate instead of the
        saved one.
    ends_with_best: whether the result is the best checkpoint rather than the last weights.
    save_initial: save step 0 too, whose weights may depend on more than the seed.
    log_every, watch: steps between log lines, and between looks at layers and gradients (0: none).
    print_shapes, print_contents: the batches in which shapes and contents are printed, from 0.
    profile: steps to profile. visualdl: pages to write.
    """

    epochs: int
    seed: int
    grad_shards: Optional[int] = None
    monitor: str = "valid/acc"
    mode: str = "max"
    init_from: Optional[str] = None
    init_partial: bool = False
    incremental_from: Optional[str] = None
    soften: Optional[str] = None
    new_schedule: bool = False
    ends_with_best: bool = False
    save_policy: SavePolicy = field(default_factory=SavePolicy)
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    save_initial: bool = False
    log_every: int = 100
    watch: int = 0
    print_shapes: tuple[int, ...] = ()
    print_contents: tuple[int, ...] = ()
    profile: int = 0
    visualdl: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainingJob:
    """Everything a process knows about a training before it starts.

    request: what must not have changed in a run that resumes. config: the contents of
    `config.yaml`. manifest: entries of every manifest that describe the training, such as its data.
    step, metric_examples: see `Trainer`.
    name: the prefix of the checkpoints' names, by default the model's. tags: of the metrics that an
    evaluation gives, if they are known in advance. callbacks: see `Callback`.
    find_weights: looks up `init_from` and `incremental_from`.
    """

    parts: TrainingParts
    options: TrainingOptions
    evaluator: Evaluator
    step: Step
    world: World
    device: str
    request: ResumeRequest
    config: str
    manifest: Mapping[str, Any]
    metric_examples: Mapping[str, MetricSums] = field(default_factory=dict)
    name: str = ""
    tags: Sequence[str] = ()
    callbacks: Sequence[Observer] = ()
    find_weights: Callable[[str], SavedWeights] = find_weights

    @property
    def model_name(self) -> str:
        """What its checkpoints and its weights are called."""
        return self.name or checkpoint_name(self.parts.model)

    @property
    def steps(self) -> Optional[int]:
        """The number of steps in all epochs; None if it is unknown."""
        steps = batches_per_epoch(self.parts.loader)
        return steps and steps * self.options.epochs

    @property
    def loss(self) -> Optional[nn.Layer]:
        """The loss, if it is a layer, which may have parameters."""
        loss = self.parts.further.roots.get(LOSS)
        return loss if isinstance(loss, nn.Layer) else None

    def gradient_exchange(self) -> Union[SingleProcessGradients, GradientExchange]:
        """Return a new exchange of the gradients of this training's steps."""
        return build_gradient_exchange(
            self.parts.model,
            self.world,
            self.options.grad_shards,
            accumulates=self.parts.loader.passes_per_step > 1,
            loss=self.loss,
        )

    def is_complete(self, checkpoint: Checkpoint) -> bool:
        """Return whether nothing is left to train after a checkpoint."""
        state = checkpoint.state
        return state.epoch == self.options.epochs or self.evaluator.should_stop(state)
