"""`build_parts`: build the net, its optimizer and the loader of its data, as `fit` asks for."""

import logging
import random
from collections.abc import Sequence
from typing import Any, Optional, Union

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.data.external import ExternalLoader, open_loader
from paddle_mnist.data.loader import BatchLoader
from paddle_mnist.data.sampler import EpochOrder, ShardSpec
from paddle_mnist.errors import ConfigError
from paddle_mnist.hidden_state.extra_state import (
    LOSS,
    ExtraState,
    has_state,
    require_trained,
)
from paddle_mnist.hidden_state.optimizer_state import optimizer_parameters
from paddle_mnist.interfaces import Loader
from paddle_mnist.nn.ema import NO_AVERAGE, ExponentialMovingAverage
from paddle_mnist.nn.schedule import Schedule, scheduler_of
from paddle_mnist.parallel.world import World
from paddle_mnist.training.arguments import FitArguments
from paddle_mnist.training.initialize import TrainingParts
from paddle_mnist.training.trained_model import build_model

log = logging.getLogger("paddle_mnist")


def build_parts(arguments: FitArguments, world: World) -> TrainingParts:
    """Build the net and its optimizer, seeded, and the loader of the training data."""
    paddle.seed(arguments.seed)
    random.seed(arguments.seed)
    np.random.seed(arguments.seed)
    model = build_model(arguments.model)
    loss = arguments.loss if isinstance(arguments.loss, nn.Layer) else nn.Layer()
    optimizer = arguments.optimizer
    if not isinstance(optimizer, paddle.optimizer.Optimizer):
        optimizer = optimizer([*model.parameters(), *loss.parameters()])
    _check_kind(optimizer)
    # Weights that were drawn before the seed could matter differ from process to process.
    for layer in (model, loss):
        world.broadcast(layer.state_dict().values())
    numerics = arguments.numerics
    schedule = Schedule(optimizer, numerics.schedule_every, arguments.monitored[0])
    average = ExponentialMovingAverage(model, numerics.ema) if numerics.ema else NO_AVERAGE
    loader = _training_loader(arguments, world)
    extra = _extra_state(arguments, model, optimizer, loader.own_order)
    _check_optimizer(optimizer, extra)
    world.broadcast(extra.optimized.values())
    named = {**dict(model.named_parameters()), **dict(loss.named_parameters(LOSS))}
    left = {name: p for name, p in named.items() if not p.stop_gradient}
    require_trained(left, [optimizer, *extra.optimizers.values()])
    return TrainingParts(model, loader, schedule, optimizer, average, extra)


def _extra_state(
    arguments: FitArguments,
    model: nn.Layer,
    optimizer: paddle.optimizer.Optimizer,
    order: Optional[EpochOrder],
) -> ExtraState:
    """Return the state to save beside the weights and the optimizer's state_dict."""
    roots = {
        "schedule": scheduler_of(optimizer),
        "optimizer": optimizer,
        "model": model,
        LOSS: arguments.loss,
        "state": dict(arguments.state or {}),
        "step": arguments.step,
        "metrics": arguments.metrics,
        "callbacks": _by_class(arguments.callbacks),
        "train": arguments.train,
        "valid": arguments.valid,
        "collate_fn": arguments.loading.collate_fn,
        "order": arguments.loading.order,
    }
    named = {f"state[{name!r}]": part for name, part in (arguments.state or {}).items()}
    loss = arguments.loss
    if isinstance(loss, nn.Layer) and not all(one.stop_gradient for one in loss.parameters()):
        named[LOSS] = loss  # of others, tensors are saved that change
    for name, metric in (arguments.metrics or {}).items():
        if has_state(metric):
            named[f"metrics[{name!r}]"] = metric
    optional: dict[str, Any] = {
        f"callbacks[{name!r}]": callback
        for name, callback in _by_class(arguments.callbacks).items()
        if has_state(callback)
    }
    if order:
        optional["order"] = order
    saved_as_optimizers = (paddle.optimizer.Optimizer, paddle.optimizer.lr.LRScheduler)
    return ExtraState(
        model,
        optimizer,
        roots={name: root for name, root in roots.items() if root is not None},
        named={
            name: part for name, part in named.items() if not isinstance(part, saved_as_optimizers)
        },
        optional=optional,
    )


def _by_class(callbacks: Sequence[Any]) -> dict[str, Any]:
    """Return callbacks by their class, with a number where there are several of one."""
    named: dict[str, Any] = {}
    for callback in callbacks:
        kind = type(callback).__name__
        number = sum(type(other).__name__ == kind for other in named.values())
        named[f"{kind} {number + 1}" if number else kind] = callback
    return named


def _check_kind(optimizer: Any) -> None:
    if not isinstance(optimizer, paddle.optimizer.Optimizer):
        raise ConfigError(
            f"the optimizer is a {type(optimizer).__name__}; expected a paddle.optimizer, or a "
            "function of the model's parameters that returns one"
        )
    if isinstance(optimizer, paddle.optimizer.LBFGS):
        raise ConfigError(
            "the optimizer is LBFGS, whose state Paddle does not load again, so that no training "
            "with it could be resumed; expected any other of paddle.optimizer"
        )


def _check_optimizer(optimizer: paddle.optimizer.Optimizer, extra: ExtraState) -> None:
    """Raise ConfigError for an optimizer of other parameters than those that are trained."""
    own = set(map(id, extra.parameters.values()))
    optimized = optimizer_parameters(optimizer)
    if not optimized or any(id(parameter) not in own for parameter in optimized):
        raise ConfigError(
            "the optimizer has parameters that are neither the model's nor the loss's, nor of an "
            "object in state or one that step uses; expected those of the model that is trained: "
            "give both as objects, or both as functions"
        )


def _training_loader(arguments: FitArguments, world: World) -> Loader:
    """Return the loader of the training data, divided into the shards of this process."""
    loading, steps = arguments.loading, arguments.loading.steps_per_epoch
    own = {"shuffle": loading.shuffle, "order": loading.order, "drop_last": loading.drop_last}
    loader = loader_of(arguments.train, arguments, arguments.batch_size, **own)
    grad_shards, accumulate = arguments.processes.grad_shards, arguments.numerics.accumulate
    shards = grad_shards or world.size
    if isinstance(loader, ExternalLoader):
        if shards > 1:
            raise ConfigError(
                f"the training data are a {type(arguments.train).__name__}, which cannot be "
                f"divided between {shards} shards or processes; expected a paddle.io.Dataset"
            )
        loader = ExternalLoader(loader.batches, arguments.seed, accumulate, steps)
        if not loader.resumes_inside_epochs:
            log.info(
                "with this data, a run can resume only from the end of an epoch, where it saves "
                "checkpoints; with a paddle.io.Dataset, ResumableBatchSampler or "
                "Loading(steps_per_epoch=...), it can resume at any step"
            )
            if loader.steps_per_epoch is None:
                log.info("the data have no length; endless ones need Loading(steps_per_epoch=...)")
        return loader
    if grad_shards or shards * accumulate > 1:
        spec = ShardSpec(shards * accumulate, world.rank, world.size)
        loader = loader.sharded(spec, accumulate)
    return loader.ending_after(steps) if steps else loader


def loader_of(
    data: Any, arguments: FitArguments, batch_size: int, **own: Any
) -> Union[BatchLoader, ExternalLoader]:
    """Open data as `loading` says. own: arguments of `open_loader` that splits do not share."""
    loading = arguments.loading
    shared = {name: getattr(loading, name) for name in ("collate_fn", "num_workers", "random")}
    return open_loader(data, batch_size, arguments.seed, **shared, **own)
