"""`Evaluating`: when and how to evaluate during a training."""

from dataclasses import dataclass
from typing import Optional

from paddle_mnist.options import Count, Options, option


@dataclass(frozen=True)
class Evaluating(Options):
    """Options for when and how to evaluate during a training.

    every_epochs: the number of epochs between evaluations; the last epoch is always evaluated.
    every_steps: the number of steps between further evaluations, inside epochs.
    batch_size: of an evaluation; by default that of the training.
    """

    heading = "evaluation"

    every_epochs: Count = option(
        1, "epochs between evaluations on the valid split", flat="eval_every_epochs"
    )
    every_steps: Optional[Count] = option(
        None, "steps between further evaluations", flat="eval_every_steps"
    )
    batch_size: Optional[Count] = option(
        None, "samples per batch of an evaluation; default: batch_size", flat="eval_batch_size"
    )
