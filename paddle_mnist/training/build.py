"""Build the job of a training from the arguments of `fit`, and try its first batch."""

import json
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import paddle
import yaml
from paddle import nn

from paddle_mnist._arguments import plain
from paddle_mnist.checkpoint.checkpointer import checkpoint_name
from paddle_mnist.checkpoint.further_state import (
    LOSS,
    FurtherState,
    has_state,
    optimizer_parameters,
)
from paddle_mnist.checkpoint.run_files import FIT, TRAINED_WITH
from paddle_mnist.data.external import ExternalLoader, open_loader
from paddle_mnist.data.sampler import ShardSpec
from paddle_mnist.errors import ConfigError, unknown_name
from paddle_mnist.nn.ema import NO_AVERAGE, ExponentialMovingAverage
from paddle_mnist.nn.schedule import Schedule, scheduler_of
from paddle_mnist.options import Options, flat_values, require_known
from paddle_mnist.parallel.world import World, join
from paddle_mnist.system import signals
from paddle_mnist.system.devices import own_device, select_device
from paddle_mnist.system.program import in_command
from paddle_mnist.training.arguments import FitArguments, compared_defaults, compared_values
from paddle_mnist.training.beginning import data_restored
from paddle_mnist.training.description import (
    describe_data,
    describe_optimizer,
    describe_parameters,
    describe_schedule,
    flattened,
)
from paddle_mnist.training.evaluator import EpochEvaluator
from paddle_mnist.training.first_batch import try_evaluation, try_first_batch
from paddle_mnist.training.initialize import TrainingParts
from paddle_mnist.training.job import TrainingJob
from paddle_mnist.training.resume import DERIVED, ResumeRequest
from paddle_mnist.training.soften import check_softenable
from paddle_mnist.training.steps import Step, build_step
from paddle_mnist.training.trained_model import build_model

log = logging.getLogger("paddle_mnist")


def build_job(arguments: FitArguments) -> TrainingJob:
    """Join the other processes, build the parts, and try the first batch.

    Whatever is wrong with them is raised here, before a file is touched.
    """
    world = join(arguments.processes.hang_timeout, arguments.device)
    device = select_device(own_device(arguments.device) if world.size > 1 else arguments.device)
    numerics = arguments.numerics
    if numerics.deterministic and paddle.is_compiled_with_cuda():
        paddle.set_flags({"FLAGS_cudnn_deterministic": True})
    with signals.interruptible():
        parts = _build_parts(arguments, world)
        if arguments.start and arguments.start.soften:
            check_softenable(parts.model, arguments.start.soften, parts.loader)
        step = build_step(arguments.loss, arguments.metrics, arguments.step, numerics.amp)
        evaluator = _build_evaluator(arguments, step, world)
        if parts.schedule.needs_metric and not arguments.splits:
            raise ConfigError(
                "the schedule is a ReduceOnPlateau, which follows a metric, but nothing is "
                "evaluated; expected valid data too"
            )
        passes = parts.loader.passes_per_step * world.size
        with data_restored(parts.further.data):
            first_batch = try_first_batch(
                step,
                parts.model,
                parts.optimizer,
                parts.loader,
                arguments.seed,
                is_divided=passes > 1,
                is_low_precision=numerics.amp != "off",
                further=parts.further,
            )
            tags = _evaluated_tags(arguments, step, parts, evaluator)
            description = _describe(arguments, parts)
    if first_batch.has_sparse_gradients and passes > 1:
        log.info("sparse gradients are made dense for the exchange between shards and processes")
    inside_epochs = getattr(parts.loader, "resumes_inside_epochs", True)
    _check_saving(arguments, inside_epochs, world)
    config = _compared(arguments, parts, description)
    world.require_same(config, "the arguments or the data")
    job = TrainingJob(
        arguments=arguments,
        parts=parts,
        evaluator=evaluator,
        step=step,
        world=world,
        device=device,
        request=ResumeRequest(
            resume=arguments.resume,
            epochs=arguments.epochs,
            config=config,
            must_match=tuple(flattened(arguments.must_match or {})),
            override=arguments.override,
            defaults=compared_defaults(),
        ),
        config=_as_yaml(arguments, config, description),
        metric_examples=first_batch.metrics,
        tags=tags,
        callbacks=arguments.all_callbacks,
        resumes_inside_epochs=inside_epochs,
    )
    for callback in job.callbacks:
        callback.check_job(job)
    return job


def _build_parts(arguments: FitArguments, world: World) -> TrainingParts:
    """Build the net and its optimizer, seeded, and the loader of the training data."""
    paddle.seed(arguments.seed)
    random.seed(arguments.seed)
    np.random.seed(arguments.seed)
    model = build_model(arguments.model)
    loss = arguments.loss if isinstance(arguments.loss, nn.Layer) else nn.Layer()
    optimizer = arguments.optimizer
    if not isinstance(optimizer, paddle.optimizer.Optimizer):
        optimizer = optimizer([*model.parameters(), *loss.parameters()])
    _check_optimizer(optimizer, model, loss)
    # Weights that were drawn before the seed could matter differ from process to process.
    for layer in (model, loss):
        world.broadcast(layer.state_dict().values())
    numerics = arguments.numerics
    schedule = Schedule(optimizer, numerics.schedule_every, arguments.monitored[0])
    average = ExponentialMovingAverage(model, numerics.ema) if numerics.ema else NO_AVERAGE
    further = _further_state(arguments, model, optimizer)
    _check_all_are_trained(model, loss, [optimizer, *further.optimizers.values()])
    loader = _training_loader(arguments, world)
    return TrainingParts(model, loader, schedule, optimizer, average, further)


def _further_state(
    arguments: FitArguments, model: nn.Layer, optimizer: paddle.optimizer.Optimizer
) -> FurtherState:
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
    }
    named = {f"state[{name!r}]": part for name, part in (arguments.state or {}).items()}
    if isinstance(arguments.loss, nn.Layer) and _is_trained(arguments.loss):
        named[LOSS] = arguments.loss  # of others, tensors are saved that change
    for name, metric in (arguments.metrics or {}).items():
        if has_state(metric):
            named[f"metrics[{name!r}]"] = metric
    saved_as_optimizers = (paddle.optimizer.Optimizer, paddle.optimizer.lr.LRScheduler)
    return FurtherState(
        model,
        optimizer,
        roots={name: root for name, root in roots.items() if root is not None},
        named={
            name: part for name, part in named.items() if not isinstance(part, saved_as_optimizers)
        },
        optional={
            f"callbacks[{name!r}]": callback
            for name, callback in _by_class(arguments.callbacks).items()
            if has_state(callback)
        },
    )


def _by_class(callbacks: Sequence[Any]) -> dict[str, Any]:
    """Return callbacks by their class, with a number where there are several of one."""
    named: dict[str, Any] = {}
    for callback in callbacks:
        kind = type(callback).__name__
        number = sum(type(other).__name__ == kind for other in named.values())
        named[f"{kind} {number + 1}" if number else kind] = callback
    return named


def _is_trained(layer: nn.Layer) -> bool:
    return any(not parameter.stop_gradient for parameter in layer.parameters())


def _check_all_are_trained(model: nn.Layer, loss: nn.Layer, optimizers: Sequence[Any]) -> None:
    """Raise ConfigError for trainable parameters that no optimizer has."""
    trained = {id(p) for optimizer in optimizers for p in optimizer_parameters(optimizer)}
    named = [*model.named_parameters()]
    named += [(f"{LOSS}.{name}", parameter) for name, parameter in loss.named_parameters()]
    left = [name for name, p in named if not p.stop_gradient and id(p) not in trained]
    if left:
        names = ", ".join(left[:8]) + (f" and {len(left) - 8} more" if len(left) > 8 else "")
        raise ConfigError(
            f"no optimizer has {names}, so they would never be trained; expected every parameter "
            "to be frozen with stop_gradient=True or to belong to an optimizer: to the one passed "
            "to fit (a function gets the model's parameters, then the loss's) or to one in state"
        )


def _check_optimizer(optimizer: Any, model: nn.Layer, loss: nn.Layer) -> None:
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
    own = {id(parameter) for parameter in [*model.parameters(), *loss.parameters()]}
    optimized = optimizer_parameters(optimizer)
    if not optimized or any(id(parameter) not in own for parameter in optimized):
        raise ConfigError(
            "the optimizer has parameters that are neither the model's nor the loss's; expected "
            "those of the model that is trained: give both as objects, or both as functions"
        )


def _training_loader(arguments: FitArguments, world: World) -> Any:
    """Return the loader of the training data, divided into the shards of this process."""
    loading = arguments.loading
    loader = _loader(
        arguments.train, arguments, arguments.batch_size, loading.shuffle, loading.order
    )
    grad_shards, accumulate = arguments.processes.grad_shards, arguments.numerics.accumulate
    shards = grad_shards or world.size
    if not hasattr(loader, "sharded"):
        if shards > 1:
            raise ConfigError(
                f"the training data are a {type(arguments.train).__name__}, which cannot be "
                f"divided between {shards} shards or processes; expected a paddle.io.Dataset"
            )
        if not loader.resumes_inside_epochs:
            log.info(
                "with this data, a run can resume only from the end of an epoch, where it saves "
                "checkpoints; with a paddle.io.Dataset or ResumableBatchSampler, it can resume at "
                "any step"
            )
        return ExternalLoader(loader.batches, arguments.seed, accumulate)
    if not grad_shards and shards * accumulate == 1:
        return loader
    spec = ShardSpec(shards * accumulate, world.rank, world.size)
    return loader.sharded(spec, accumulate)


def _loader(
    data: Any,
    arguments: FitArguments,
    batch_size: int,
    shuffle: bool,
    order: Optional[Callable[[int], np.ndarray]] = None,
) -> Any:
    return open_loader(
        data,
        batch_size,
        arguments.seed,
        shuffle,
        arguments.loading.collate_fn,
        arguments.loading.num_workers,
        order,
    )


def _build_evaluator(arguments: FitArguments, step: Step, world: World) -> EpochEvaluator:
    evaluating = arguments.evaluating
    batch_size = evaluating.batch_size or arguments.batch_size
    return EpochEvaluator(
        step,
        {
            split: _loader(data, arguments, batch_size, shuffle=False)
            for split, data in arguments.splits.items()
        },
        every_epochs=evaluating.every_epochs,
        epochs=arguments.epochs,
        world=world,
    )


def _evaluated_tags(
    arguments: FitArguments, step: Step, parts: TrainingParts, evaluator: EpochEvaluator
) -> list[str]:
    """Evaluate a first batch of each split, and return the tags of its metrics.

    Raises ConfigError if `monitor` is not among them.
    """
    tags = [
        tag
        for split, loader in evaluator.datasets.items()
        for tag in try_evaluation(step, parts.model, loader, split, parts.further)
    ]
    monitor, _ = arguments.monitored
    if tags and monitor not in tags:
        raise ConfigError(f"{unknown_name('monitor', monitor, tags)} ({', '.join(tags)})")
    return tags


def _check_saving(arguments: FitArguments, inside_epochs: bool, world: World) -> None:
    saving = arguments.saving
    is_timed = saving.every_steps or saving.every_seconds
    if not inside_epochs and is_timed:
        raise ConfigError(
            "Saving: every_steps and every_seconds save inside epochs, where this data cannot "
            "resume; expected a paddle.io.Dataset, or every_epochs"
        )
    if saving.every_epochs:
        return
    group, prefix = ("", "save_") if in_command() else ("Saving: ", "")
    found = f"{group}{prefix}every_epochs is {saving.every_epochs}"
    if not inside_epochs:
        raise ConfigError(
            f"{found}, but with this data a run can resume only from the end of an epoch; expected "
            "at least 1, or a paddle.io.Dataset"
        )
    if not is_timed and world.is_main_process:
        has_best = saving.keep_best and arguments.valid is not None
        log.warning(
            "%s, without %severy_steps or %severy_seconds: a run that is killed loses all of its "
            "progress%s",
            found,
            prefix,
            prefix,
            " since its best epoch" if has_best else "",
        )


def _describe(arguments: FitArguments, parts: TrainingParts) -> dict[str, Any]:
    """Describe the net, its optimizer and the data, by the groups that a resume compares.

    Left out is what `must_match` names, and what a builder says that is a group of options.
    """
    seed, num_workers = arguments.seed, arguments.loading.num_workers
    description = {
        "parameters": describe_parameters(parts.model),
        "data": describe_data(arguments.train, seed, num_workers),
        "valid": {
            split: describe_data(data, seed, num_workers)
            for split, data in arguments.splits.items()
        },
    }
    if not isinstance(arguments.optimizer, Options):
        description["optimizer"] = describe_optimizer(parts.optimizer, parts.model)
        description["schedule"] = describe_schedule(parts.optimizer)
    replaced = arguments.must_match or {}
    return {name: group for name, group in description.items() if name not in replaced}


def _compared(
    arguments: FitArguments, parts: TrainingParts, description: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values that a resume compares. Raises ConfigError for unknown ones in override."""
    must_match = flattened(arguments.must_match or {})
    compared = {**flattened(description), **compared_values(arguments.groups)}
    compared["name"] = arguments.name or checkpoint_name(parts.model)
    if arguments.valid is not None:
        compared |= dict(zip(("monitor", "mode"), arguments.monitored))
    if arguments.ends_with_best or parts.schedule.needs_metric:  # which count evaluations
        compared["eval_every_epochs"] = arguments.evaluating.every_epochs
    compared |= must_match
    known = {*compared, *DERIVED, *(name.partition(".")[0] for name in compared)}
    require_known(arguments.override, known, "override")
    return _as_json(compared)


def _as_yaml(
    arguments: FitArguments, compared: Mapping[str, Any], description: Mapping[str, Any]
) -> str:
    """Return the contents of `config.yaml`: all options, and what a resume compares."""
    options = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in flat_values(arguments.groups).items()
        if name not in ("resume", "override")
    }
    entries: dict[str, Any] = {TRAINED_WITH: FIT, **options}
    entries |= {name: value for name, value in compared.items() if "." not in name}
    entries |= _as_json({**description, **(arguments.must_match or {})})
    for callback in arguments.all_callbacks:
        entries |= callback.config_entries()
    return yaml.safe_dump(entries, sort_keys=False, allow_unicode=True)


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as a manifest gives them back. Raises ConfigError for others."""

    def as_plain(value: Any) -> Any:
        converted = plain(value)
        if converted is value:
            raise TypeError(f"a {type(value).__name__}")
        return converted

    entries = {}
    for name, value in values.items():
        try:
            entries[name] = json.loads(json.dumps(value, default=as_plain, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{name} is {value!r:.60} ({error}), which cannot be compared; expected numbers, "
                "strings, and lists of them"
            ) from error
    return entries
