"""Record the options of a run and what it trains, and choose what a resume compares of them."""

import json
import sys
from collections.abc import Mapping
from itertools import chain
from typing import Any

import yaml
from paddle import nn

from paddle_mnist._arguments import plain
from paddle_mnist.checkpoint.run import FIT, TRAINED_WITH
from paddle_mnist.errors import ConfigError
from paddle_mnist.hidden_state.object_graph import is_users
from paddle_mnist.options import Options, flat_values
from paddle_mnist.training.arguments import CODE, FitArguments, compared_values
from paddle_mnist.training.callbacks import Training
from paddle_mnist.training.description import (
    describe_data,
    describe_object,
    describe_optimizer,
    describe_order,
    describe_parameters,
    describe_schedule,
    flattened,
)
from paddle_mnist.training.own_code import assigned_names, hash_of_code, own_code


def describe(training: Training) -> dict[str, Any]:
    """Describe the net, its optimizer and the data, by the groups that a resume compares.

    Left out is what `must_match` names, and what a builder says that is a group of options.
    """
    arguments = training.arguments
    seed, num_workers = arguments.seed, arguments.loading.num_workers
    description: dict[str, Any] = {
        "parameters": describe_parameters(training.model, training.extra.optimized),
        "data": describe_data(arguments.train, seed, num_workers),
        "valid": {
            split: describe_data(data, seed, num_workers)
            for split, data in arguments.splits.items()
        },
    }
    if not isinstance(arguments.optimizer, Options):
        description["optimizer"] = describe_optimizer(training.optimizer, training.model)
        description["schedule"] = describe_schedule(training.optimizer)
    if arguments.loading.order is not None:
        description["order"] = describe_order(training.loader.own_order)
    description |= _describe_task(arguments, training.model)
    must_match = arguments.must_match or {}
    replaced = [name for name, value in must_match.items() if (name, value) != (CODE, True)]
    return {name: group for name, group in description.items() if name not in replaced}


def _describe_task(arguments: FitArguments, model: nn.Layer) -> dict[str, Any]:
    """Describe the net, the loss and what else computes the result, and hash the caller's code."""
    loss, step, collate_fn = arguments.loss, arguments.step, arguments.loading.collate_fn
    losses = loss.sublayers(include_self=True) if isinstance(loss, nn.Layer) else [loss]
    metrics = dict(arguments.metrics or {})
    builder = type(model) if isinstance(arguments.model, nn.Layer) else arguments.model
    layers = dict(model.named_sublayers(include_self=True))
    code = {
        "model": own_code([builder, *layers.values()]),
        "loss": own_code(losses),
        "step": own_code([step]),
        "data": own_code([arguments.train, *arguments.splits.values(), collate_fn]),
        **{f"metrics.{n}": own_code([getattr(m, "metric", m)]) for n, m in metrics.items()},
    }
    callbacks = [one for one in arguments.callbacks if is_users(type(one).__module__)]
    state = assigned_names([*chain(*code.values()), *own_code(callbacks)])
    hashes = {name: hash_of_code(part, state) for name, part in code.items()}
    return {
        "layers": {name or "class": describe_object(one, state) for name, one in layers.items()},
        "loss": " ".join(describe_object(one, state) or "" for one in losses) or None,
        "step": describe_object(step, state),
        "collate_fn": describe_object(collate_fn, state),
        "metrics": {name: describe_object(one, state) for name, one in metrics.items()},
        CODE: {"python": "{}.{}".format(*sys.version_info), **hashes},
    }


def compared(training: Training, description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a resume compares. Raises ConfigError for others than plain ones."""
    arguments = training.arguments
    must_match = flattened(arguments.must_match or {})
    must_match = {name: one for name, one in must_match.items() if (name, one) != (CODE, True)}
    values = {**flattened(description), **compared_values(arguments.groups)}
    values["name"] = training.run.name
    if arguments.valid is not None:
        values |= dict(zip(("monitor", "mode"), arguments.monitored))
    if arguments.ends_with_best or training.schedule.needs_metric:  # which count evaluations
        values["eval_every_epochs"] = arguments.evaluating.every_epochs
        values["eval_every_steps"] = arguments.evaluating.every_steps
    return _as_json({**values, **must_match})


def as_yaml(training: Training, description: Mapping[str, Any]) -> str:
    """Return the contents of `config.yaml`: all options, and what a resume compares."""
    arguments = training.arguments
    options = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in flat_values(arguments.groups).items()
        if name not in ("resume", "override")
    }
    entries: dict[str, Any] = {TRAINED_WITH: FIT, **options}
    entries |= {name: value for name, value in training.compared.items() if "." not in name}
    entries |= _as_json({**(arguments.must_match or {}), **description})
    for callback in training.callbacks:
        entries |= plain(callback.config_entries() or {})
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
