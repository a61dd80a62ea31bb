"""Describe a run by plain values, which `config.yaml` records and a resume compares."""

import functools
import hashlib
import json
import sys
import types
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, Optional, Union

import numpy as np
import paddle
import yaml
from paddle import nn

from paddle_mnist.checkpoint.run import FIT, TRAINED_WITH
from paddle_mnist.data.collate import read_samples
from paddle_mnist.data.external import own_batch_size
from paddle_mnist.data.loader import known_length
from paddle_mnist.data.seeding import generators_restored, seed_generators
from paddle_mnist.data.structures import content_of, leaves
from paddle_mnist.data.workers import map_in_workers
from paddle_mnist.errors import ConfigError
from paddle_mnist.hidden_state.object_graph import OF_CALLS, describe_path, is_users, own_links
from paddle_mnist.hidden_state.optimizer_state import generated_names
from paddle_mnist.metrics.paddle_metrics import Gathered
from paddle_mnist.nn.schedule import inner_optimizers, schedule_numbers, scheduler_of
from paddle_mnist.options import Options, flat_values, flattened, plain
from paddle_mnist.training.arguments import ARRAYS, CODE, FitArguments, compared_values
from paddle_mnist.training.callbacks import Training
from paddle_mnist.training.own_code import assigned_names, hash_of_code, is_setting, own_code

# Attributes that affect the result of optimizers, but are missing in `_default_dict`: of all, Adam,
# Lamb, ASGD and Rprop.
OTHER_ATTRIBUTES = {
    "_multi_precision": "multi_precision",
    "_amsgrad": "amsgrad",
    "always_adapt": "always_adapt",
    "_n": "batch_num",
    "_etas": "etas",
    "_learning_rate_range": "learning_rate_range",
}

# Entries of `describe_data`: two hashes, and the size of the batches that a loader makes.
SAMPLES, LABELS, BATCH_SIZE = "samples", "labels", "batch_size"
FIRST_BATCH = "first_batch"  # another one: a hash, by how many shards there are

Plain = Union[bool, int, float, str, None]


def describe_parameters(
    model: nn.Layer, others: Mapping[str, paddle.Tensor] = {}
) -> dict[str, str]:
    """Return shape and dtype of every parameter by name, with "frozen" if it is not trained."""
    return {
        name: f"{list(parameter.shape)} {str(parameter.dtype).rpartition('.')[2]}"
        + (" frozen" if parameter.stop_gradient else "")
        for name, parameter in {**dict(model.named_parameters()), **others}.items()
    }


def describe_object(value: Any, state: Collection[str]) -> Optional[str]:
    """Return the class of an object and its settings, as "Focal(gamma=2.0)"; None for None.

    Returns the name of a function, and for a partial function its arguments, too.
    state: the names of attributes that training changes. They are left out, and so are those that a
        class lists in `not_compared`.
    """
    if value is None:
        return None
    if isinstance(value, types.MethodType):
        return f"{describe_object(value.__self__, state)}.{value.__name__}"
    if isinstance(value, Gathered):
        return f"Gathered({describe_object(value.metric, state)})"
    if hasattr(value, "__qualname__"):
        return str(value.__qualname__).rpartition("<locals>.")[2]
    words = [value.extra_repr()] if type(value).__module__.startswith("paddle.nn.") else []
    if isinstance(value, functools.partial):
        words.append(str(describe_object(value.func, state)))
        values = {
            **{str(number): argument for number, argument in enumerate(value.args)},
            **value.keywords,
        }
    else:
        values = {name: held for (_, name), held in own_links(value)}
    left_out = {*state, "training", *OF_CALLS, *getattr(value, "not_compared", ())}
    for name, setting in sorted(values.items()):
        is_shown = f" {name.lstrip('_')}=" in f" {words[0]}" if words else False
        text = repr(plain(setting)) if is_setting(setting) else getattr(setting, "__name__", None)
        if setting is not None and text and name not in left_out and not is_shown:
            words.append(f"{name}={text}")
    return f"{type(value).__name__}({', '.join(filter(None, words))})"


def describe_optimizer(optimizer: paddle.optimizer.Optimizer, model: nn.Layer) -> dict[str, Any]:
    """Return the class of an optimizer, its numbers, its clipping and its parameter groups."""
    # Paddle has no public API for them; the names are the same in 2.6.2 and 3.3.1.
    description: dict[str, Any] = {
        "class": type(optimizer).__name__,
        **_plain_values(optimizer._default_dict),
        "grad_clip": _describe_rule(optimizer._grad_clip),
        "regularization": _describe_rule(optimizer.regularization),
    }
    for attribute, name in OTHER_ATTRIBUTES.items():
        if attribute in vars(optimizer):
            value = vars(optimizer)[attribute]
            # Rprop's pairs of numbers become tensors in its first step.
            is_number = isinstance(value, (bool, int))
            description[name] = value if is_number else np.float32(value).ravel().tolist()
    if scheduler_of(optimizer) is None:
        description["learning_rate"] = float(optimizer.get_lr())
    for name, inner in inner_optimizers(optimizer).items():
        description[name] = describe_optimizer(inner, model)
    names = generated_names(dict(model.named_parameters()))
    for number, group in enumerate(getattr(optimizer, "_param_groups", None) or ()):
        if isinstance(group, Mapping):
            description[f"group{number}"] = {
                **_plain_values(group),
                "parameters": [
                    names.get(parameter.name, parameter.name) for parameter in group["params"]
                ],
            }
    return description


def describe_data(data: Any, seed: int, num_workers: int = 0) -> dict[str, Any]:
    """Return the length of the data, and a hash of its content.

    data: if it has a `fingerprint`, a value or a method, that stands for its content. Otherwise the
        first, middle and last sample of a map-style dataset are hashed, and their labels once more.
        They are read with seeded generators; objects in them that are neither numbers nor strings
        only count by their class. Any other data counts by its class, and its length if it has one.
    num_workers: if workers read the data, a worker reads these samples, too. A file that a dataset
        opens for its first sample would otherwise be shared, with its position, by all workers
        that are forked later.
    """
    fingerprint = getattr(data, "fingerprint", None)
    length = known_length(data)
    if fingerprint is not None:
        value = fingerprint() if callable(fingerprint) else fingerprint
        return {"length": length, "fingerprint": str(value)}
    is_iterable = isinstance(data, paddle.io.IterableDataset)
    if is_iterable or not hasattr(data, "__getitem__") or not length:
        kind, batch_size = type(data).__name__, own_batch_size(data)
        return {"length": length, "class": kind, BATCH_SIZE: batch_size}
    hash_samples = functools.partial(_hash_samples, data, seed)
    places = [sorted({0, length // 2, length - 1})]
    with generators_restored():
        map_places = functools.partial(map_in_workers, num_workers=1) if num_workers else map
        (hashes,) = map_places(hash_samples, iter(places))
    return {"length": length, **hashes}


def _hash_samples(data: Any, seed: int, indices: Sequence[int]) -> dict[str, str]:
    digests = {SAMPLES: hashlib.sha256(), LABELS: hashlib.sha256()}
    for index in indices:
        seed_generators(seed, index)
        (sample,) = read_samples(data, [index])
        is_pair = isinstance(sample, (tuple, list)) and len(sample) > 1
        for name, part in {SAMPLES: sample, LABELS: sample[-1] if is_pair else ()}.items():
            for leaf in leaves(part):
                digests[name].update(content_of(leaf))
    return {name: digest.hexdigest()[:12] for name, digest in digests.items()}


def _plain_values(values: Mapping[str, Any]) -> dict[str, Plain]:
    """Return those values that are numbers or strings."""
    return {
        name: value
        for name, value in sorted(plain(values).items())
        if value is None or isinstance(value, (bool, int, float, str))
    }


def _describe_rule(rule: Any) -> Any:
    """Return the class and the numbers of a gradient clipping or regularization, or None."""
    if rule is None or isinstance(rule, (int, float, str)):
        return rule
    numbers = {
        name.lstrip("_"): float(value)
        for name, value in sorted(vars(rule).items())
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    words: Sequence[str] = [f"{name}={value:g}" for name, value in numbers.items()]
    return f"{type(rule).__name__}({', '.join(words)})"


def describe_run(training: Training) -> dict[str, Any]:
    """Describe the net, its optimizer and the data, in the groups that a resume compares.

    Leaves out groups that `must_match` replaces, and the optimizer if a group of options builds it.
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
        schedule = scheduler_of(training.optimizer)
        numbers = schedule_numbers(training.optimizer) if schedule else {}
        description["schedule"] = {"class": schedule and type(schedule).__name__, **numbers}
    if arguments.loading.order is not None:
        indices = np.ascontiguousarray(training.loader.own_order(0), np.int64)
        description["order"] = hashlib.sha256(indices.tobytes()).hexdigest()[:12]
    description["data"] |= training.first_batch
    description[ARRAYS] = [
        [describe_path(path), digest] for path, digest in training.extra.arrays().items()
    ]
    description |= _describe_task(arguments, training.model)
    return {n: group for n, group in description.items() if n not in arguments.callers_values}


def _describe_task(arguments: FitArguments, model: nn.Layer) -> dict[str, Any]:
    """Describe the net, the loss and other code that computes the result, and hash that code."""
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
    callbacks = [
        callback for callback in arguments.callbacks if is_users(type(callback).__module__)
    ]
    state = assigned_names([*chain(*code.values()), *own_code(callbacks)])
    hashes = {name: hash_of_code(part, state) for name, part in code.items()}
    return {
        "layers": {
            name or "class": describe_object(layer, state) for name, layer in layers.items()
        },
        "loss": " ".join(describe_object(part, state) or "" for part in losses) or None,
        "step": describe_object(step, state),
        "collate_fn": describe_object(collate_fn, state),
        "metrics": {name: describe_object(metric, state) for name, metric in metrics.items()},
        CODE: {"python": "{}.{}".format(*sys.version_info), **hashes},
    }


def compared(training: Training, description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a resume compares. Raises ConfigError unless they are plain."""
    arguments = training.arguments
    values = {**flattened(description), **compared_values(arguments.groups)}
    if own_batch_size(arguments.train):  # which is compared with the data
        del values[BATCH_SIZE]
    values["name"] = training.run.name
    if arguments.valid is not None:
        values |= dict(zip(("monitor", "mode"), arguments.monitored))
    if arguments.ends_with_best or training.schedule.needs_metric:  # both count evaluations
        values["eval_every_epochs"] = arguments.evaluating.every_epochs
        values["eval_every_steps"] = arguments.evaluating.every_steps
    return _as_json({**values, **flattened(arguments.callers_values)})


def as_yaml(training: Training, description: Mapping[str, Any]) -> str:
    """Return the contents of `config.yaml`: all options, and the values that a resume compares."""
    arguments = training.arguments
    options = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in flat_values(arguments.groups).items()
        if name not in ("resume", "override")
    }
    if own := own_batch_size(arguments.train):  # the other is that of datasets to evaluate
        options["eval_batch_size"] = options["eval_batch_size"] or options[BATCH_SIZE]
        options[BATCH_SIZE] = own
    entries: dict[str, Any] = {TRAINED_WITH: FIT, **options}
    entries |= {name: value for name, value in training.compared.items() if "." not in name}
    entries |= _as_json({**(arguments.must_match or {}), **description})
    for callback in training.callbacks:
        entries |= plain(callback.config_entries() or {})
    return yaml.safe_dump(entries, sort_keys=False, allow_unicode=True)


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as in a manifest, NaN as a string. Raises ConfigError for what that lacks."""

    def as_plain(value: Any) -> Any:
        converted = plain(value)
        if converted is value:
            raise TypeError(f"a {type(value).__name__}")
        return converted

    entries = {}
    for name, value in values.items():
        try:
            entries[name] = json.loads(json.dumps(value, default=as_plain), parse_constant=str)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{name} is {value!r:.60} ({error}), which cannot be compared; expected numbers, "
                "strings, and lists of them"
            ) from error
    return entries
