"""The exchange of gradients: those of a batch's shards become one, whichever process has them."""

from dataclasses import dataclass
from typing import Optional, Union

import paddle
from paddle import nn

from paddle_mnist.data.loader import Shard
from paddle_mnist.parallel.world import ALONE, World, tree_sum
from paddle_mnist.system import signals


@dataclass(frozen=True)
class StepResult:
    """Result of a step on a whole batch, over all its shards and processes.

    loss: mean loss []. num_correct: number of correct predictions []. samples: in the batch.
    """

    loss: paddle.Tensor
    num_correct: paddle.Tensor
    samples: int


def _num_correct(shard: Shard, logits: paddle.Tensor) -> paddle.Tensor:
    return (logits.detach().argmax(axis=1) == shard.labels.flatten()).sum()


class SingleProcessGradients:
    """Takes the place of a `GradientExchange` where this process has whole batches."""

    world = ALONE
    _result: Optional[StepResult] = None

    def add(self, shard: Shard, loss: paddle.Tensor, logits: paddle.Tensor) -> None:
        """Keep the result of the only shard. loss: its mean []; logits: [B, classes]."""
        samples = shard.labels.shape[0]
        self._result = StepResult(loss.detach(), _num_correct(shard, logits), samples)

    def finish(self) -> StepResult:
        """Return the batch's result; its gradient is already where `backward` has put it."""
        return self._result


class GradientExchange:
    """Sums the gradients of a batch's shards, over this process and all others.

    Each shard's gradient, weighted by its share of the batch's samples, travels as one vector with
    its loss, its number of correct predictions, and the signals received: one exchange a step, and
    no mean of means.

    ordered: add in one fixed order, `tree_sum` over all shards, so that the bits do not depend on
    the number of processes; else with Paddle's all-reduce.

    The wrapper `paddle.DataParallel` gives the same gradient for shards of equal size. It is not
    used because it exchanges inside `backward`, where the death of one process ends the others by
    SIGABRT: no error to catch, nothing saved, and no telling which died first. It also takes the
    mean of the processes' means, whatever their shares.
    """

    def __init__(self, model: nn.Layer, world: World, ordered: bool):
        self.world = world
        self._ordered = ordered
        self._parameters = [p for p in model.parameters() if not p.stop_gradient]
        self._shard_vectors: list[paddle.Tensor] = []
        self._batch_samples = 0
        # Of the previous step, per signal: how many shards were of a process that received it.
        self._signal_counts: Optional[paddle.Tensor] = None

    def add(self, shard: Shard, loss: paddle.Tensor, logits: paddle.Tensor) -> None:
        """Take a shard's gradient out of the parameters, after `backward`, to be summed.

        loss: the shard's mean []; logits: [B, classes].
        """
        gradients = [
            (paddle.zeros_like(p) if p.grad is None else p.grad).flatten() for p in self._parameters
        ]
        for parameter in self._parameters:
            parameter.clear_gradient(False)
        weighted_loss = (loss.detach() * shard.weight).reshape([1]).astype("float32")
        # a shard without samples has another's image in it
        num_correct = _num_correct(shard, logits).astype("float32") * float(shard.samples > 0)
        received = [float(signals.received() == signum) for signum in signals.STOP_SIGNALS]
        self._shard_vectors.append(
            paddle.concat(
                [*gradients, weighted_loss, num_correct.reshape([1]), paddle.to_tensor(received)]
            )
        )
        self._batch_samples = shard.batch_size

    def finish(self) -> StepResult:
        """Sum all shards over all processes, and put the gradient into the parameters.

        Returns the whole batch's result. Raises PeerError where another process is gone.
        """
        self._agree_on_signals()
        total = self._sum_shards() + 0.0  # of a zero, whose sign depends on who added it, +0
        self._shard_vectors.clear()
        offset = 0
        for parameter in self._parameters:
            parameter.grad = total[offset : offset + parameter.size].reshape(parameter.shape)
            offset += parameter.size
        figures = total[offset:].clone()  # a slice alone would keep the whole gradient
        self._signal_counts = figures[2:]
        return StepResult(figures[0], figures[1], self._batch_samples)

    def _sum_shards(self) -> paddle.Tensor:
        if not self._ordered:
            return self.world.all_reduce(tree_sum(self._shard_vectors))
        if _is_power_of_two(self.world.size):  # then each process's shards are a whole subtree
            return tree_sum(self.world.all_gather(tree_sum(self._shard_vectors)))
        gathered = self.world.all_gather(paddle.stack(self._shard_vectors))
        return tree_sum([vector for vectors in gathered for vector in vectors])

    def _agree_on_signals(self) -> None:
        """Look at the signals of the previous step: the device need not be waited for."""
        if self._signal_counts is not None:
            counts = self._signal_counts.numpy()
            signals.agree_on(s for s, count in zip(signals.STOP_SIGNALS, counts) if count)


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def build_gradient_exchange(
    model: nn.Layer, world: World, shards: Optional[int]
) -> Union[SingleProcessGradients, GradientExchange]:
    """Return the exchange that a training needs.

    shards: how many shards batches are divided into, if the order of additions is to be fixed.
    """
    if shards is None and world.size == 1:
        return SingleProcessGradients()
    return GradientExchange(model, world, ordered=shards is not None)
