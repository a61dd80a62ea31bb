"""Build each part of a run, unchecked: net, optimizer, schedule, loaders, evaluator, loop."""

import functools
import logging
import random
from collections.abc import Sequence
from typing import Any, Optional, Union

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.checkpoint.names import checkpoint_name
from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.data.external import ExternalLoader, open_loader
from paddle_mnist.data.loader import BatchLoader
from paddle_mnist.data.sampler import EpochOrder, ShardSpec
from paddle_mnist.data.seeding import VALID, reseed
from paddle_mnist.errors import ConfigError
from paddle_mnist.hidden_state.extra_state import LOSS, ExtraState
from paddle_mnist.hidden_state.optimizer_state import optimizer_parameters, require_trained
from paddle_mnist.hidden_state.stateful import has_state
from paddle_mnist.interfaces import Loader, Writer
from paddle_mnist.nn.ema import NO_AVERAGE, ExponentialMovingAverage
from paddle_mnist.nn.schedule import Schedule, scheduler_of
from paddle_mnist.parallel.gradients import (
    GradientExchange,
    SingleProcessGradients,
    build_gradient_exchange,
)
from paddle_mnist.parallel.world import World
from paddle_mnist.train_state import TrainState
from paddle_mnist.training.arguments import FitArguments
from paddle_mnist.training.callbacks import Training
from paddle_mnist.training.evaluator import EpochEvaluator
from paddle_mnist.training.loop import TrainingLoop
from paddle_mnist.training.plan import Plan, build_optimizer, check_schedule
from paddle_mnist.training.steps import Step, build_step
from paddle_mnist.training.trained_model import build_model

log = logging.getLogger("paddle_mnist")


def new_training(arguments: FitArguments, world: World, device: str = "cpu") -> Training:
    """Build the net and its optimizer, seeded, the loaders of the data, and the evaluator."""
    paddle.seed(arguments.seed)
    random.seed(arguments.seed)
    np.random.seed(arguments.seed)
    model = build_model(arguments.model)
    loss = arguments.loss if isinstance(arguments.loss, nn.Layer) else nn.Layer()
    optimizer, loader = arguments.optimizer, _training_loader(arguments, world)
    plan = _plan(arguments, loader)
    if not isinstance(optimizer, paddle.optimizer.Optimizer):
        optimizer = build_optimizer(optimizer, [*model.parameters(), *loss.parameters()], plan)
    _check_kind(optimizer)
    # Weights initialised before seeding differ between processes.
    for layer in (model, loss):
        world.broadcast(layer.state_dict().values())
    numerics = arguments.numerics
    schedule = Schedule(optimizer, numerics.schedule_every, arguments.monitored[0])
    if world.is_main_process:
        check_schedule(schedule, plan)
    extra = _extra_state(arguments, model, optimizer, loader.own_order)
    _check_optimizer(optimizer, extra)
    world.broadcast(extra.optimized.values())
    named = {**dict(model.named_parameters()), **dict(loss.named_parameters(LOSS))}
    trainable = {name: p for name, p in named.items() if not p.stop_gradient}
    require_trained(trainable, [optimizer, *extra.optimizers.values()])
    step = build_step(arguments.loss, arguments.metrics, arguments.step, numerics.amp)
    return Training(
        arguments=arguments,
        world=world,
        device=device,
        run=RunDirectory(arguments.output, arguments.name or checkpoint_name(model)),
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        loader=loader,
        average=ExponentialMovingAverage(model, numerics.ema) if numerics.ema else NO_AVERAGE,
        extra=extra,
        step=step,
        evaluator=_evaluator(arguments, schedule, step, world),
        callbacks=arguments.all_callbacks,
        state=new_state(arguments),
    )


def _plan(arguments: FitArguments, loader: Loader) -> Optional[Plan]:
    """Return the length of the run; None if the data have no length."""
    if (each := loader.steps_per_epoch) is None:
        return None
    steps = each * arguments.epochs
    return Plan(min(steps, arguments.loading.max_steps or steps), each, arguments.epochs)


def new_state(arguments: FitArguments, step: int = 0) -> TrainState:
    """Return the state before a step of the first epoch. step: its number, from 0."""
    monitor, mode = arguments.monitored
    return TrainState(step=step, position=step, monitor=monitor, mode=mode)


def _evaluator(
    arguments: FitArguments, schedule: Schedule, step: Step, world: World
) -> EpochEvaluator:
    if schedule.needs_metric and not arguments.splits:
        raise ConfigError(
            "the schedule is a ReduceOnPlateau, which follows a metric, but nothing is "
            "evaluated; pass valid data, too"
        )
    evaluating = arguments.evaluating
    batch_size = evaluating.batch_size or arguments.batch_size
    return EpochEvaluator(
        step,
        {
            split: _loader(data, arguments, batch_size, split=VALID)
            for split, data in arguments.splits.items()
        },
        every_epochs=evaluating.every_epochs,
        epochs=arguments.epochs,
        world=world,
        every_steps=evaluating.every_steps,
        max_steps=arguments.loading.max_steps,
    )


def new_loop(
    training: Training, state: TrainState, writer: Writer, **collaborators: Any
) -> TrainingLoop:
    """Return the loop that trains the net from a state. collaborators: see `TrainingLoop`."""
    return TrainingLoop(
        training.model,
        training.optimizer,
        training.step,
        state,
        writer,
        metric_prototypes=training.metric_prototypes,
        schedule=training.schedule,
        average=training.average,
        reseed=functools.partial(reseed, training.arguments.seed),
        exchange=_gradient_exchange(training),
        **collaborators,
    )


def _gradient_exchange(training: Training) -> Union[SingleProcessGradients, GradientExchange]:
    loss = training.extra.roots.get(LOSS)
    loss = loss if isinstance(loss, nn.Layer) else None
    if others := [*training.extra.optimized.values()]:
        loss = nn.LayerList([*filter(None, [loss]), nn.ParameterList(others)])
    return build_gradient_exchange(
        training.model,
        training.world,
        training.arguments.processes.grad_shards,
        accumulates=shards_per_step(training.arguments, training.world) > training.world.size,
        loss=loss,
    )


def shards_per_step(arguments: FitArguments, world: World) -> int:
    """Return how many shards all processes together compute in a step."""
    return (arguments.processes.grad_shards or world.size) * arguments.numerics.accumulate


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
    saved_as_optimizers = (paddle.optimizer.Optimizer, paddle.optimizer.lr.LRScheduler)
    named = {
        f"state[{name!r}]": part
        for name, part in (arguments.state or {}).items()
        if not isinstance(part, saved_as_optimizers)
    }
    loss = arguments.loss
    if isinstance(loss, nn.Layer) and not all(
        parameter.stop_gradient for parameter in loss.parameters()
    ):
        named[LOSS] = loss  # for a frozen loss, only tensors that change are saved
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
    return ExtraState(
        model,
        optimizer,
        roots={name: root for name, root in roots.items() if root is not None},
        named=named,
        optional=optional,
    )


def _by_class(callbacks: Sequence[Any]) -> dict[str, Any]:
    """Return callbacks by class name, with a number if there are several of one class."""
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
            "the optimizer is LBFGS, whose state Paddle cannot load, so that a run could not be "
            "resumed; use another optimizer"
        )


def _check_optimizer(optimizer: paddle.optimizer.Optimizer, extra: ExtraState) -> None:
    """Raise ConfigError if the optimizer has parameters that do not belong to the run."""
    own = set(map(id, extra.parameters.values()))
    optimized = optimizer_parameters(optimizer)
    if not optimized or any(id(parameter) not in own for parameter in optimized):
        raise ConfigError(
            "the optimizer has parameters that belong neither to the model or the loss, nor to an "
            "object in state or one that step uses; pass model and optimizer both as objects, or "
            "both as functions"
        )


def _training_loader(arguments: FitArguments, world: World) -> Loader:
    """Return the loader of the training data, divided into the shards of this process."""
    loading, steps = arguments.loading, arguments.loading.steps_per_epoch
    own = {"shuffle": loading.shuffle, "order": loading.order, "drop_last": loading.drop_last}
    loader = _loader(arguments.train, arguments, arguments.batch_size, **own)
    grad_shards, accumulate = arguments.processes.grad_shards, arguments.numerics.accumulate
    shards = shards_per_step(arguments, world)
    if isinstance(loader, ExternalLoader):
        if shards > accumulate:
            raise ConfigError(
                f"the training data are a {type(arguments.train).__name__}, which cannot be "
                "divided between shards or processes; expected a paddle.io.Dataset"
            )
        loader = ExternalLoader(loader.batches, arguments.seed, accumulate, steps)
        if not loader.resumes_inside_epochs:
            log.info(
                "with this data, a run can resume only from the end of an epoch, where it saves "
                "checkpoints; with a paddle.io.Dataset, ResumableBatchSampler or "
                "Loading(steps_per_epoch=...), it can resume at any step"
            )
            if loader.steps_per_epoch is None:
                log.info("the data has no length; endless data needs Loading(steps_per_epoch=...)")
        return loader
    if grad_shards or shards > 1:
        spec = ShardSpec(shards, world.rank, world.size)
        loader = loader.sharded(spec, accumulate)
    return loader.ending_after(steps) if steps else loader


def _loader(
    data: Any, arguments: FitArguments, batch_size: int, **own: Any
) -> Union[BatchLoader, ExternalLoader]:
    """Open data with the options of `loading`. own: arguments of `open_loader` for this split."""
    loading = arguments.loading
    shared = {name: getattr(loading, name) for name in ("collate_fn", "num_workers")}
    return open_loader(data, batch_size, arguments.seed, **shared, **own)
