"""The first batch, tried before anything is written: what is wrong shows now, with the shapes."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.data.collate import leaves
from paddle_mnist.data.loader import Shard, epoch_batches, shards_of
from paddle_mnist.errors import ConfigError, DataError
from paddle_mnist.monitor.hooks import evaluation_mode
from paddle_mnist.nn.seeding import reseed
from paddle_mnist.nn.sparse_gradients import remove_gradient
from paddle_mnist.nn.statistics import layer_buffers, reinstate_buffers
from paddle_mnist.training.batch_errors import describe_batch, explained, located
from paddle_mnist.training.mean_check import check_mean
from paddle_mnist.training.steps import Step, run_step

log = logging.getLogger("paddle_mnist")

# A step with a sparse gradient ends the process in Paddle 3.3.1, with std::bad_alloc.
NOT_FOR_SPARSE_GRADIENTS = ("AdamW",)


@dataclass(frozen=True)
class Rehearsal:
    """What the first batches have shown.

    metric_functions: how each metric of training follows from its sums, by name.
    has_sparse_gradients: whether an embedding gives its gradient by rows.
    """

    metric_functions: Mapping[str, Callable[[np.ndarray], float]]
    has_sparse_gradients: bool


def rehearse(
    step: Step,
    model: nn.Layer,
    optimizer: paddle.optimizer.Optimizer,
    loader: Any,
    seed: int,
    is_divided: bool = False,
    is_low_precision: bool = False,
) -> Rehearsal:
    """Run the first batch through the step and the backward pass, and leave no trace of it.

    is_divided: whether steps are divided into shards, batches or between processes; a loss that
        is no mean over samples is then refused (`check_mean`). is_low_precision: of the forward
        pass.

    Buffers and the layers' modes are as before, and parameters have no gradients; global generators
    are not restored.
    Raises ConfigError, with the shapes in the batch, for an error in the model, the loss or the
    metrics; DataError if there is no batch.
    """
    shard = _first_shard(loader, "the training data")
    reseed(seed, 0)
    place = located([shard], loader, 0, 0, "the training data")
    with place, _untouched(model), explained(shard.batch, "the first batch"):
        model.train()
        unsaved = _unsaved_buffers(model)
        outputs = run_step(step, model, shard.batch, shard.samples)
        outputs.loss.backward()
        _warn_of_changes(unsaved, _unsaved_buffers(model))
        gradients = [parameter.grad for parameter in model.parameters()]
        is_sparse = any(
            gradient is not None and gradient.is_selected_rows() for gradient in gradients
        )
    _check_for_nan(outputs.loss, shard.batch)
    if all(gradient is None for gradient in gradients):
        raise ConfigError(
            "the loss of the first batch has no gradient for any parameter; expected one that is "
            "computed from the model's outputs"
        )
    with _untouched(model), evaluation_mode(model), paddle.no_grad():
        check_mean(step, model, shard.batch, is_divided, is_low_precision)
    name = type(optimizer).__name__
    if is_sparse and name in NOT_FOR_SPARSE_GRADIENTS:
        raise ConfigError(
            f"the optimizer is {name}, and an embedding has sparse=True, a pair with which Paddle "
            "ends the process; expected sparse=False, or Adam with lazy_mode, SGD or Momentum"
        )
    return Rehearsal({name: sums.compute for name, sums in outputs.metrics.items()}, is_sparse)


def rehearse_evaluation(step: Step, model: nn.Layer, loader: Any, split: str) -> list[str]:
    """Run the first batch of an evaluation; return the tags that it gives: "valid/loss", ...

    Raises as `rehearse` does.
    """
    shard = _first_shard(loader, f"the data {split!r}")
    batch = shard.batch
    place = located([shard], loader, 0, 0, f"the data {split!r}")
    explains = explained(batch, f"the first batch of {split}")
    with place, _untouched(model), evaluation_mode(model), paddle.no_grad(), explains:
        values = step(model, batch)
        run_step(lambda *_: values, model, batch, 1)  # checks them
    return [f"{split}/{name}" for name in values]


def _unsaved_buffers(model: nn.Layer) -> dict[str, np.ndarray]:
    """Return the values of the buffers that no checkpoint holds, by name."""
    saved = model.state_dict()
    return {
        name: buffer.numpy()
        for name, buffer in model.named_buffers()
        if name not in saved and buffer._is_initialized()
    }


def _warn_of_changes(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> None:
    changed = [name for name, values in before.items() if (values != after.get(name)).any()]
    if changed:
        log.warning(
            "%s: a step changes them, but checkpoints do not contain buffers with "
            "persistable=False, so a resumed run starts with their initial values",
            ", ".join(changed),
        )


@contextlib.contextmanager
def _untouched(model: nn.Layer) -> Iterator[None]:
    """Give a model its buffers and its layers' modes back, and its parameters no gradients.

    Attributes that have become buffers are attributes again.
    """
    buffers = layer_buffers(model)
    attributes = [(layer, dict(vars(layer))) for layer in buffers]
    fixed = [*model.buffers(), *(p for p in model.parameters() if p.stop_gradient)]
    before = [(tensor, tensor.clone()) for tensor in fixed if tensor._is_initialized()]
    modes = [(layer, layer.training) for layer in model.sublayers(include_self=True)]
    try:
        yield
    finally:
        for parameter in model.parameters():
            remove_gradient(parameter)
        reinstate_buffers(buffers)
        for layer, before_pass in attributes:
            # An attribute to which a pass has assigned a tensor is a buffer instead since.
            lost = before_pass.keys() - vars(layer).keys()
            vars(layer).update({name: before_pass[name] for name in lost})
        for tensor, values in before:
            tensor.set_value(values)
        for layer, training in modes:
            layer.training = training


def _first_shard(loader: Any, what: str) -> Shard:
    batches = epoch_batches(loader, 0)
    with contextlib.closing(batches):
        batch = next(batches, None)
    if batch is None:
        raise DataError(f"{what} have no batches; expected at least one")
    return shards_of(batch)[0]


def _check_for_nan(loss: paddle.Tensor, batch: Any) -> None:
    """Raise DataError if the loss is not finite because the batch is not."""
    floats = [leaf for leaf in leaves(batch) if isinstance(leaf, paddle.Tensor)]
    floats = [leaf for leaf in floats if leaf.is_floating_point()]
    if not np.isfinite(loss.item()) and not all(
        bool(paddle.isfinite(leaf).all()) for leaf in floats
    ):
        raise DataError(
            f"the loss of the first batch is {loss.item()}, and the batch has numbers that are "
            f"not finite; expected finite ones; the batch is {describe_batch(batch)}"
        )
