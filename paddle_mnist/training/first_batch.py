"""Try the first batch before anything is written, so that errors show at once, with the shapes."""

import logging
from collections.abc import Collection, Mapping
from typing import Any, Optional, Union

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.data.batch_description import describe_batch, explained
from paddle_mnist.data.collate import leaves
from paddle_mnist.data.loader import Shard, shards_of
from paddle_mnist.data.seeding import reseed
from paddle_mnist.errors import ConfigError, DataError
from paddle_mnist.hidden_state.extra_state import ExtraState
from paddle_mnist.hidden_state.snapshot import Snapshot
from paddle_mnist.interfaces import Loader, MetricSums
from paddle_mnist.nn.modes import evaluation_mode
from paddle_mnist.training.batch_errors import located
from paddle_mnist.training.beginning import Beginning, restored
from paddle_mnist.training.mean_check import check_mean
from paddle_mnist.training.rehearsing import rehearsing
from paddle_mnist.training.steps import Step, run_step

log = logging.getLogger("paddle_mnist")

# A step with a sparse gradient ends the process in Paddle 3.3.1, with std::bad_alloc.
NOT_FOR_SPARSE_GRADIENTS = ("AdamW",)


def try_first_batch(
    step: Step,
    model: nn.Layer,
    optimizer: paddle.optimizer.Optimizer,
    loader: Loader,
    seed: int,
    is_divided: bool = False,
    is_low_precision: bool = False,
    extra: Optional[ExtraState] = None,
) -> Mapping[str, MetricSums]:
    """Run the first batch through the step and the backward pass, and undo all changes.

    Return its metrics by name, without the loss.

    is_divided: whether steps are divided into shards, batches or between processes; a loss that
        is no mean over samples is then refused (`check_mean`). is_low_precision: whether the
        forward pass computes in low precision. extra: the state beside the model that a step may
        change.

    Afterwards, all values are as before and no parameter has a gradient. The global generators of
    random numbers are not restored. Raises ConfigError, with the shapes in the batch, for an error
    in the model, the loss or the metrics; DataError if there is no batch.
    """
    shard = _first_shard(loader, "the training data")
    reseed(seed, 0)
    place = located([shard], loader, 0, 0, "the training data")
    explains = explained(shard.batch, "the first batch")
    beginning = _beginning(model, extra)
    with rehearsing(), place, restored(beginning), explains:
        model.train()
        before = [name for name, _ in model.named_parameters()]
        outputs = run_step(step, model, shard.batch, shard.samples)
        outputs.loss.backward()
        _check_for_late_parameters(model, before)
        if extra:
            extra.require_optimizers()
        gradients = [parameter.grad for parameter in model.parameters()]
        is_sparse = any(
            gradient is not None and gradient.is_selected_rows() for gradient in gradients
        )
    _check_for_nan(outputs.loss, shard.batch)
    if outputs.count != 0 and all(gradient is None for gradient in gradients):
        raise ConfigError(
            "the loss of the first batch has no gradient for any parameter; expected one that is "
            "computed from the model's outputs"
        )
    with rehearsing(), restored(beginning), evaluation_mode(model), paddle.no_grad():
        check_mean(step, model, shard.batch, is_divided, is_low_precision)
    name = type(optimizer).__name__
    if is_sparse and name in NOT_FOR_SPARSE_GRADIENTS:
        raise ConfigError(
            f"the optimizer is {name}, and an embedding has sparse=True, a pair with which Paddle "
            "ends the process; expected sparse=False, or Adam with lazy_mode, SGD or Momentum"
        )
    if is_sparse and is_divided:
        log.info("sparse gradients are made dense for the exchange between shards and processes")
    return outputs.metrics


def try_evaluation(
    step: Step,
    model: nn.Layer,
    loader: Loader,
    split: str,
    extra: Optional[ExtraState] = None,
) -> list[str]:
    """Run the first batch of an evaluation; return the tags of its metrics: "valid/loss", ...

    Raises as `try_first_batch` does.
    """
    shard = _first_shard(loader, f"the data {split!r}")
    batch = shard.batch
    place = located([shard], loader, 0, 0, f"the data {split!r}")
    explains = explained(batch, f"the first batch of {split}")
    trial = restored(_beginning(model, extra)), evaluation_mode(model), paddle.no_grad()
    with rehearsing(), place, trial[0], trial[1], trial[2], explains:
        values = step(model, batch)
        run_step(lambda *_: values, model, batch, 1)  # checks them
    return [f"{split}/{name}" for name in values]


def _check_for_late_parameters(model: nn.Layer, before: Collection[str]) -> None:
    """Raise ConfigError for parameters that the first forward pass has created."""
    late = [name for name, _ in model.named_parameters() if name not in before]
    if late:
        raise ConfigError(
            f"the first forward pass has created {', '.join(late)}, which no optimizer has, so "
            "they would never be trained; expected the model's __init__ to create all layers"
        )


def _beginning(model: nn.Layer, extra: Optional[ExtraState]) -> Union[Beginning, Snapshot]:
    """Return the current state of what a pass may change."""
    if extra:
        return Beginning(model, extra)
    trained = [parameter for parameter in model.parameters() if not parameter.stop_gradient]
    return Snapshot({"model": model}, {id(parameter) for parameter in trained})


def _first_shard(loader: Loader, what: str) -> Shard:
    batches = loader.first_batches(1)
    if not batches:
        raise DataError(f"{what} have no batches; expected at least one")
    return shards_of(batches[0])[0]


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
