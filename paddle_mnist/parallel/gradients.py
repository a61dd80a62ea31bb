"""What the shards of a batch come to: one gradient, whoever computed its parts."""

from dataclasses import dataclass
from typing import Optional, Union

import paddle
from paddle import nn

from paddle_mnist.data.loader import Shard
from paddle_mnist.parallel.world import ALONE, World, tree_sum
from paddle_mnist.system import signals


@dataclass(frozen=True)
class StepResult:
    """Of a whole batch: its mean loss [], how many were right [], and how many samples it has."""

    loss: paddle.Tensor
    num_correct: paddle.Tensor
    samples: int


def _right(shard: Shard, logits: paddle.Tensor) -> paddle.Tensor:
    return (logits.detach().argmax(axis=1) == shard.labels.flatten()).sum()


class SingleProcessGradients:
    """The batch is here, whole: its gradient is where `backward` has put it."""

    world = ALONE
    _outcome: Optional[StepResult] = None

    def add(self, shard: Shard, loss: paddle.Tensor, logits: paddle.Tensor) -> None:
        """What a shard gave, after `backward`. loss: its mean []; logits: [B, 10]."""
        self._outcome = StepResult(loss.detach(), _right(shard, logits), shard.labels.shape[0])

    def finish(self) -> StepResult:
        """Put the gradient of the whole batch into the parameters; gives what it came to."""
        return self._outcome


class GradientExchange:
    """Adds up the gradients of a batch's shards, over this process and all others.

    Each shard's gradient, weighted by its share of the batch's samples, travels as one vector with
    its loss, its hits, and the signals that came: one exchange a step, and no mean of means.

    ordered: add in one fixed order, `tree_sum` over all shards, so that the bits do not depend on
    the number of processes; else Paddle's all-reduce.

    The wrapper `paddle.DataParallel` gives the same gradient for shards of one size. It is not used
    because it exchanges inside `backward`, where a process that is gone ends the others by SIGABRT:
    no error to be caught, nothing saved, and no telling who was first. It also takes the mean of
    the processes' means, whatever their shares.
    """

    def __init__(self, model: nn.Layer, world: World, ordered: bool):
        self.world = world
        self._ordered = ordered
        self._parameters = [p for p in model.parameters() if not p.stop_gradient]
        self._leaves: list[paddle.Tensor] = []
        self._samples = 0
        self._stops: Optional[paddle.Tensor] = None  # of the step before

    def add(self, shard: Shard, loss: paddle.Tensor, logits: paddle.Tensor) -> None:
        pieces = [
            (paddle.zeros_like(p) if p.grad is None else p.grad).flatten() for p in self._parameters
        ]
        for parameter in self._parameters:
            parameter.clear_gradient(False)
        asked = [float(signals.received() == signum) for signum in signals.STOP_SIGNALS]
        right = _right(shard, logits).astype("float32") * float(shard.samples > 0)
        figures = [
            (loss.detach() * shard.weight).reshape([1]).astype("float32"),
            right.reshape([1]),
            paddle.to_tensor(asked),
        ]
        self._leaves.append(paddle.concat([*pieces, *figures]))
        self._samples = shard.batch_size

    def finish(self) -> StepResult:
        self._agree()
        total = self._summed() + 0.0  # of a zero, whose sign depends on who added it, +0
        self._leaves.clear()
        at = 0
        for parameter in self._parameters:
            parameter.grad = total[at : at + parameter.size].reshape(parameter.shape)
            at += parameter.size
        figures = total[at:].clone()  # a slice alone would keep the whole gradient
        self._stops = figures[2:]
        return StepResult(figures[0], figures[1], self._samples)

    def _summed(self) -> paddle.Tensor:
        if not self._ordered:
            return self.world.all_reduce(tree_sum(self._leaves))
        if _halves(self.world.size):
            return tree_sum(self.world.all_gather(tree_sum(self._leaves)))
        gathered = self.world.all_gather(paddle.stack(self._leaves))
        return tree_sum([leaf for leaves in gathered for leaf in leaves])

    def _agree(self) -> None:
        """Look at the signals of the step before: a device need not be waited for."""
        if self._stops is not None:
            found = self._stops.numpy()
            signals.agree_on(signum for signum, count in zip(signals.STOP_SIGNALS, found) if count)


def _halves(size: int) -> bool:
    """Whether blocks of so many processes are what halving comes to."""
    return size & (size - 1) == 0


def build_gradient_exchange(
    model: nn.Layer, world: World, shards: Optional[int]
) -> Union[SingleProcessGradients, GradientExchange]:
    """The exchange of a training. shards: what batches are cut into, if their order counts."""
    if shards is None and world.size == 1:
        return SingleProcessGradients()
    return GradientExchange(model, world, ordered=shards is not None)
