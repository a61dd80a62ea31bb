"""Add up the gradients of a batch's shards, over all processes."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional, Union, cast

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.data.sampler import Shard
from paddle_mnist.errors import ConfigError
from paddle_mnist.interfaces import MetricSums, StepOutputs
from paddle_mnist.nn.layers import (
    KeptBuffers,
    dense_gradient,
    keep_buffers_in_place,
    remove_gradient,
)
from paddle_mnist.parallel.world import SINGLE_PROCESS, World, tree_sum
from paddle_mnist.system import signals
from paddle_mnist.system.arrays import TensorCopies


@dataclass(frozen=True)
class StepResult:
    """Result of a step on a whole batch, over all its shards and processes.

    loss: mean loss []. metrics: sums over the batch's samples, by name. samples: in the batch.
    count: what the loss is a mean over; with 0, `loss` is its total, and there are no gradients.
    """

    loss: paddle.Tensor
    metrics: Mapping[str, MetricSums]
    samples: int
    count: float

    @property
    def mean(self) -> paddle.Tensor:
        """The mean loss []; NaN with a count of 0."""
        return self.loss if self.count else self.loss * float("nan")


class SingleProcessGradients:
    """Replaces `GradientExchange` where a single process has whole batches."""

    world = SINGLE_PROCESS
    _result: StepResult  # of the only shard, once there is one

    def __init__(self, model: nn.Layer):
        self.buffers = KeptBuffers(model)

    def begin_shard(self) -> None:
        """Do nothing: buffers change as the model changes them."""

    def backward(self, shard: Shard, outputs: StepOutputs) -> None:
        """Compute the gradients of the only shard, and keep its result."""
        count = shard.samples if outputs.count is None else outputs.count
        if outputs.count != 0:
            _weighted(outputs.loss, shard.weight).backward()
        self._result = StepResult(outputs.loss.detach(), outputs.metrics, shard.samples, count)

    def reduce(self) -> StepResult:
        """Return the batch's result; `backward` has already set its gradients."""
        return self._result


class GradientExchange:
    """Sums the gradients of a batch's shards, over this process and all others.

    One vector holds each shard's gradient, weighted by its share of the batch's samples, its loss,
    its metrics, and the signals received: one exchange a step, and no mean of means. If the loss is
    a mean over other units than samples (`StepOutputs.count`), their number is the weight, and the
    sum is divided by their total; a shard with a count of 0 adds the total of its loss. The sums
    are in float64 if the model has any float64 tensor, else in float32, even of values of lower
    precision.

    The vector also holds the changes to buffers, such as the running statistics of BatchNorm: every
    shard starts from the step's buffers, and their changes are averaged, weighted by samples.

    ordered: add in one fixed order, `tree_sum` over all shards, so that the bits do not depend on
    the number of processes; else with Paddle's all-reduce.
    buffers: (attribute) those that a pass may change; keep them before the first shard.
    loss: a layer with parameters, whose gradients are summed, too.

    The wrapper `paddle.DataParallel` gives the same gradient for shards of equal size. It is not
    used because it exchanges inside `backward`, where the death of one process ends the others by
    SIGABRT: they can neither catch an error nor save, and nobody can tell which died first. It also
    takes the mean of the processes' means, whatever their shares.
    """

    def __init__(
        self, model: nn.Layer, world: World, ordered: bool, loss: Optional[nn.Layer] = None
    ):
        self.world = world
        self._ordered = ordered
        whole = model if loss is None else nn.LayerList([model, loss])
        self._all_parameters = whole.parameters()
        self._parameters = self._trained()
        self.buffers = KeptBuffers(whole, TensorCopies)
        self._buffers = self.buffers.statistics
        dtypes = {tensor.dtype for tensor in [*self._all_parameters, *self._buffers]}
        # Of the sums: the same in every process and step.
        self._precision = paddle.float64 if paddle.float64 in dtypes else paddle.float32
        self._shard_vectors: list[paddle.Tensor] = []
        self._metrics: Mapping[str, MetricSums] = {}
        self._metric_sizes: Sequence[int] = ()
        self._has_all_gradients = True
        self._has_own_count: Optional[bool] = None  # before the first batch
        self._batch_samples = 0
        # Of the previous step, per signal: how many shards were of a process that received it.
        self._signal_counts: Optional[paddle.Tensor] = None

    def _trained(self) -> list[paddle.Tensor]:
        return [parameter for parameter in self._all_parameters if not parameter.stop_gradient]

    def begin_shard(self) -> None:
        """Give the model the buffers with which the step began, before a shard's forward pass."""
        if self._shard_vectors:
            self.buffers.restore()
        else:
            self._parameters = self._trained()  # a callback may have frozen some

    def _weight(self, shard: Shard, outputs: StepOutputs) -> float:
        """Return what to multiply a shard's loss by; 0 if it adds nothing."""
        if outputs.count is None:
            return shard.weight
        if not shard.samples or (outputs.count == 0 and bool(outputs.loss.isnan())):
            return 0.0
        # With a count of 0, the loss is already the total.
        return (outputs.count or 1.0) / shard.batch_size

    def backward(self, shard: Shard, outputs: StepOutputs) -> None:
        """Compute the gradients of a shard, and take them out of the parameters, to be summed."""
        weight = self._weight(shard, outputs)
        if outputs.count != 0 or weight:
            _weighted(outputs.loss, weight).backward()
        gradients = [dense_gradient(parameter) for parameter in self._parameters]
        used = [gradient is not None for gradient in gradients]
        self._has_all_gradients &= all(used)
        parts = [
            paddle.zeros([parameter.size]) if gradient is None else gradient
            for parameter, gradient in zip(self._parameters, gradients)
        ]
        keep_buffers_in_place(self.buffers.places)
        parts += [
            (buffer - self.buffers.before(buffer)).astype(self._precision) * shard.weight
            for buffer in self._buffers
        ]
        share = 0.0 if outputs.count == 0 else weight
        parts.append(outputs.loss.detach() * weight if weight else paddle.zeros([1]))
        self._require_same_kind(outputs)
        metrics = [sums.to_tensor(self._precision) for sums in outputs.metrics.values()]
        # a shard without samples holds one of another shard, which must not count
        parts += [values * float(shard.samples > 0) for values in metrics]
        received = [signals.received() == signum for signum in signals.stop_signals()]
        parts.append(paddle.to_tensor(np.array([share, *used, *received], np.float64)))
        flat = [part.reshape([-1]).astype(self._precision) for part in parts]
        self._shard_vectors.append(paddle.concat(flat))
        for parameter in self._parameters:
            remove_gradient(parameter)
        self._metrics, self._metric_sizes = outputs.metrics, [values.size for values in metrics]
        self._batch_samples = shard.batch_size

    def _require_same_kind(self, outputs: StepOutputs) -> None:
        """Raise ConfigError if only some batches have a count: the weights would differ."""
        has_count = outputs.count is not None
        if self._has_own_count is None:
            self._has_own_count = has_count
        if self._has_own_count != has_count:
            raise ConfigError(
                "the loss is a Mean for some batches and a number for others; expected the same "
                "for all, such as Mean(total, count)"
            )

    def reduce(self) -> StepResult:
        """Sum all shards over all processes; give the sums to the parameters and the buffers.

        Returns the whole batch's result. Raises PeerError where another process is gone.
        """
        # Those of the previous step, so as not to wait for the device.
        if self._signal_counts is not None:
            counts = self._signal_counts.numpy()
            signals.agree_on(s for s, count in zip(signals.stop_signals(), counts) if count)
        sizes = [tensor.size for tensor in (*self._parameters, *self._buffers)]
        sizes += [1, *self._metric_sizes, 1, len(self._parameters), len(signals.stop_signals())]
        # + 0.0: of a zero, whose sign depends on who added it, +0
        parts = iter(paddle.split(self._sum(self._shard_vectors) + 0.0, sizes))
        gradients = list(itertools.islice(parts, len(self._parameters)))
        changes = list(itertools.islice(parts, len(self._buffers)))
        loss, *totals, shares, used, received = parts
        for buffer, change in zip(self._buffers, changes):
            buffer.set_value(self.buffers.before(buffer) + _restored(change, buffer))
        metrics = {
            name: sums.with_values(values)
            for (name, sums), values in zip(self._metrics.items(), totals)
        }
        self._signal_counts = received
        count = float(self._batch_samples)
        if self._has_own_count:
            share = cast(float, shares.item())
            divisor = share or 1 / count  # with a count of 0 the loss is the total
            count *= share
            loss, *gradients = (value / divisor for value in (loss, *gradients))
        if count:
            self._set_gradients(gradients, used)
        self._shard_vectors, self._has_all_gradients = [], True
        return StepResult(loss[0], metrics, self._batch_samples, count)

    def _set_gradients(self, gradients: Sequence[paddle.Tensor], used: paddle.Tensor) -> None:
        """Give the parameters their gradients, but none to one that no shard has used.

        used: how many shards have used each parameter, [number of parameters]. If this process's
        shards have used all of them, it is not read, so as not to wait for the device.
        """
        is_used = [True] * len(gradients) if self._has_all_gradients else used.numpy() > 0
        for parameter, gradient, has_gradient in zip(self._parameters, gradients, is_used):
            if has_gradient:
                parameter.grad = _restored(gradient, parameter)

    def _sum(self, vectors: Sequence[paddle.Tensor]) -> paddle.Tensor:
        """Return the sum of a vector of each shard, over this process's shards and all others."""
        if not self._ordered:
            return self.world.all_reduce(tree_sum(vectors))
        if _is_power_of_two(self.world.size):  # then each process's shards are a whole subtree
            return tree_sum(self.world.all_gather(tree_sum(vectors)))
        gathered = self.world.all_gather(paddle.stack(vectors))
        return tree_sum([vector for stacked in gathered for vector in stacked])


def _weighted(loss: paddle.Tensor, weight: float) -> paddle.Tensor:
    # In a small net, a multiplication by 1 takes a fifth of a step.
    return loss if weight == 1 else loss * weight


def _restored(vector: paddle.Tensor, like: paddle.Tensor) -> paddle.Tensor:
    """Return a part of the sums as a tensor of the shape and dtype of another."""
    values = vector if like.is_floating_point() else vector.round()
    return values.reshape(like.shape).astype(like.dtype)


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def build_gradient_exchange(
    model: nn.Layer,
    world: World,
    shards: Optional[int],
    accumulates: bool = False,
    loss: Optional[nn.Layer] = None,
) -> Union[SingleProcessGradients, GradientExchange]:
    """Return the exchange that a run needs.

    shards: how many shards batches are divided into, if the order of additions is to be fixed.
    accumulates: whether a step adds up the gradients of several batches.
    loss: see `GradientExchange`.
    """
    if shards is None and world.size == 1 and not accumulates:
        return SingleProcessGradients(model if loss is None else nn.LayerList([model, loss]))
    return GradientExchange(model, world, shards is not None, loss)
