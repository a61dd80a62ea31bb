"""Record the options of a run and what it trains, and choose what a resume compares of them."""

import json
from collections.abc import Mapping
from typing import Any

import yaml

from paddle_mnist._arguments import plain
from paddle_mnist.checkpoint.checkpointer import checkpoint_name
from paddle_mnist.checkpoint.run_files import FIT, TRAINED_WITH
from paddle_mnist.errors import ConfigError
from paddle_mnist.options import Options, flat_values
from paddle_mnist.training.arguments import FitArguments, compared_values
from paddle_mnist.training.description import (
    describe_data,
    describe_optimizer,
    describe_order,
    describe_parameters,
    describe_schedule,
    flattened,
)
from paddle_mnist.training.initialize import TrainingParts


def describe(arguments: FitArguments, parts: TrainingParts) -> dict[str, Any]:
    """Describe the net, its optimizer and the data, by the groups that a resume compares.

    Left out is what `must_match` names, and what a builder says that is a group of options.
    """
    seed, num_workers = arguments.seed, arguments.loading.num_workers
    order = arguments.loading.order
    description: dict[str, Any] = {
        "parameters": describe_parameters(parts.model, parts.further.optimized),
        "data": describe_data(arguments.train, seed, num_workers),
        "valid": {
            split: describe_data(data, seed, num_workers)
            for split, data in arguments.splits.items()
        },
    }
    if not isinstance(arguments.optimizer, Options):
        description["optimizer"] = describe_optimizer(parts.optimizer, parts.model)
        description["schedule"] = describe_schedule(parts.optimizer)
    if order is not None:
        description["order"] = describe_order(order)
    replaced = arguments.must_match or {}
    return {name: group for name, group in description.items() if name not in replaced}


def compared(
    arguments: FitArguments, parts: TrainingParts, description: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values that a resume compares. Raises ConfigError for others than plain ones."""
    must_match = flattened(arguments.must_match or {})
    values = {**flattened(description), **compared_values(arguments.groups)}
    values["name"] = arguments.name or checkpoint_name(parts.model)
    if arguments.valid is not None:
        values |= dict(zip(("monitor", "mode"), arguments.monitored))
    if arguments.ends_with_best or parts.schedule.needs_metric:  # which count evaluations
        values["eval_every_epochs"] = arguments.evaluating.every_epochs
        values["eval_every_steps"] = arguments.evaluating.every_steps
    return _as_json({**values, **must_match})


def as_yaml(
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
