"""Compare the configuration of a run with its checkpoint's, and raise if it has changed."""

import logging
import os
from collections.abc import Collection, Sequence
from typing import Any, Optional

import paddle

from paddle_mnist.checkpoint.manifest import Checkpoint, Manifest
from paddle_mnist.errors import WEIGHTS_ALONE, CheckpointError, ConfigError, listed, spelled
from paddle_mnist.options import Options, flat_values, flattened, require_known
from paddle_mnist.training.arguments import (
    ARRAYS,
    CODE,
    ENGINE_OPTIONS,
    PYTHON,
    TASK,
    compared_defaults,
    compared_values,
)
from paddle_mnist.training.callbacks import Training
from paddle_mnist.training.description import BATCH_SIZE, FIRST_BATCH, LABELS, SAMPLES

log = logging.getLogger("paddle_mnist")

# How a run was started; a run that continues from its checkpoint may have been started otherwise.
START_FIELDS = ("init_from", "incremental_from")
MAX_LINES = 20  # of a diff
DERIVED = ("parameters", "optimizer", "schedule", "data", "valid", *TASK)  # `fit` describes them
EVAL_EVERY = ("eval_every_epochs", "eval_every_steps")  # only count for some callbacks
# Values that are only compared if both runs have them: Paddle's objects have other entries in other
# versions, a new metric is just evaluated, and a loader may have its own batch size.
OPTIONAL = ("optimizer", "schedule", "metrics", *EVAL_EVERY, BATCH_SIZE)
# If one of these has changed, so has the first batch.
OF_BATCHES = (
    f"data batch_size accumulate grad_shards seed shuffle order collate_fn drop_last {CODE}.data"
).split()
# Also optional: the first batch, and arrays of functions, whose code may have changed.
STARTS_OF_OPTIONAL = (
    f"data.{FIRST_BATCH}",
    *(f"{ARRAYS}.{root}" for root in ("step", "metrics", "collate_fn")),
)


def check_override(training: Training) -> None:
    """Raise ConfigError if `override` has a name that neither the arguments nor the run have."""
    override, run = training.arguments.override, training.run
    newest = run.checkpoints.all()[-1:] if override else ()
    stored = [name for checkpoint in newest for name in checkpoint.manifest.get("config") or ()]
    names = [*training.compared, *stored]
    groups = [name.partition(".")[0] for name in names]
    options = {*ENGINE_OPTIONS, *flat_values(training.arguments.groups)}
    require_known(override, dict.fromkeys([*options, *names, *groups, *DERIVED]), "override")


def check_config_unchanged(
    training: Training,
    checkpoint: Checkpoint,
    changed_arrays: Optional[Collection[str]] = None,
    where: Optional[str] = None,
) -> None:
    """Raise ConfigError, with a diff, if the configuration differs from the checkpoint's.

    changed_arrays: the names of arrays that steps have changed, which are not compared; None to
        compare no array. where: the mirror, if the checkpoint is there.
    """
    run, epochs = training.run, training.arguments.epochs
    where = where or str(run.path if run.owns(checkpoint) else checkpoint.label)
    if checkpoint.manifest.get("config") is None or "metrics_lines" not in checkpoint.manifest:
        raise CheckpointError(
            f"{checkpoint.path}: has no configuration, so it does not belong to a run; start from "
            "its weights in your own code, as the tutorial does"
        )
    changes = config_changes(training, checkpoint, changed_arrays)
    if changes:
        names = [name for name, _, _ in changes]
        lines = [f"  {name}: {old!r} in the run, {new!r} now" for name, old, new in changes]
        if len(lines) > MAX_LINES:
            lines[MAX_LINES:] = [f"  and {len(lines) - MAX_LINES} more"]
        if _are_samples(names):
            lines.append(
                "Only data have changed, so the run may end with other bits; they are probably "
                "random or in random order: seed the generators before you create the data, such "
                "as with paddle.seed(0), sort sets and the results of os.listdir() with sorted(), "
                "and use np.zeros in place of np.empty"
            )
        if where == str(checkpoint.path):  # of another run, which must not be replaced
            new_run = []
        elif run.mirror and where == run.mirror.url:  # which refuses a fresh run
            new_run = ["choose another mirror to start over"]
        else:
            new_run = run.to_start_over()
        lines.append(_remedies(changes, new_run, has_other_steps(training, checkpoint)))
        raise ConfigError(
            f"the run in {where} was started with different settings:\n" + "\n".join(lines)
        )
    comparison = code_comparison(training, checkpoint.manifest).items()
    if changed := [name for name, is_same in comparison if not is_same]:
        log.warning(
            "the code of %s, or a value that it uses, has changed since the run began",
            listed(changed),
        )
    started = checkpoint.state.epoch + (checkpoint.state.position > 0)
    if epochs < started:
        raise ConfigError(
            f"epochs={epochs}, but {where} has already started epoch {started}; use at least "
            f"{started}"
        )


def has_other_steps(training: Training, checkpoint: Checkpoint) -> bool:
    """Return whether an epoch has another number of steps than in the checkpoint's run.

    False if the number is unknown, and for data that resume from the end of an epoch, whose number
    may change. An override cannot allow it: the saved position would be wrong.
    """
    state, steps = checkpoint.state, training.loader.steps_per_epoch
    if not training.loader.resumes_inside_epochs:
        return False
    return steps is not None and state.step != state.epoch * steps + state.position


def code_comparison(training: Training, manifest: Manifest) -> dict[str, bool]:
    """Return by name whether older code is unchanged; {} with another version of Python."""
    stored, present = manifest["config"] or {}, training.compared
    if stored.get(PYTHON) != present.get(PYTHON):
        return {}
    names = [name for name in present if name.startswith(f"{CODE}.") and name != PYTHON]
    hashes = {name.partition(".")[2]: (stored.get(name), present[name]) for name in names}
    return {name: old == new for name, (old, new) in hashes.items() if old}


def has_other_schedule(training: Training, checkpoint: Checkpoint) -> bool:
    """Return whether an override has changed the schedule, such as the epochs of a cosine.

    Also True if a function computes the rate, since it may use anything, such as the epochs. False
    for a schedule that follows a metric.
    """
    optimizer = training.arguments.optimizer
    if not training.arguments.override or training.schedule.needs_metric:
        return False
    names = ["schedule", "schedule_every"]
    if isinstance(optimizer, Options):  # which builds a schedule over all steps
        names += [*compared_values([optimizer]), "epochs", "max_steps"]
    changes = config_changes(training, checkpoint, override=())
    return training.schedule.follows_function or any(_is_among(name, names) for name, *_ in changes)


def config_changes(
    training: Training,
    checkpoint: Checkpoint,
    changed_arrays: Optional[Collection[str]] = None,
    override: Optional[Sequence[str]] = None,
) -> list[tuple[str, Any, Any]]:
    """Return (name, value in the run, value now) for each difference that is not overridden.

    changed_arrays: see `check_config_unchanged`. override: by default that of the call.
    """
    arguments, manifest = training.arguments, checkpoint.manifest
    override = arguments.override if override is None else override
    defaults = compared_defaults(arguments.groups)  # a run may be older than the option
    stored = _with_arrays({**defaults, **(manifest["config"] or {})})
    current = _with_arrays({**defaults, **training.compared})
    must_match = flattened(arguments.must_match or {})
    is_own = training.run.owns(checkpoint)
    allowed = override if is_own else (*override, *START_FIELDS)
    # Paddle's objects have other attributes in other versions. A change of code is just a warning.
    is_same_paddle = manifest.get("versions", {}).get("paddle") == paddle.__version__
    skipped = {CODE} if is_same_paddle else {*TASK}
    skipped -= {name.partition(".")[0] for name in must_match}
    skipped |= {ARRAYS} if changed_arrays is None else {f"{ARRAYS}.{n}" for n in changed_arrays}
    if stored.get(PYTHON) != current.get(PYTHON):
        skipped.add(CODE)
    groups = {name.partition(".")[0] for name in stored if "." in name}
    common = stored.keys() & current.keys()
    if not is_same_paddle or any(
        stored[name] != current[name] and _is_among(name, OF_BATCHES) and FIRST_BATCH not in name
        for name in common
    ):
        skipped |= {name for name in common if FIRST_BATCH in name}  # expected to differ
    return [
        (name, stored.get(name), current.get(name))
        for name in dict.fromkeys([*current, *stored])
        if _comparable(name, stored.get(name)) != _comparable(name, current.get(name))
        and (name in stored or name in must_match or name.partition(".")[0] in groups)
        and not _is_among(name, (*allowed, *skipped))
        and (name in common or not _is_optional(name))
    ]


def _with_arrays(values: dict[str, Any]) -> dict[str, Any]:
    """Return values with an entry for each array, and one for whether arrays are recorded."""
    arrays = values.pop(ARRAYS, None)
    try:
        entries = {f"{ARRAYS}.{name}": digest for name, digest in arrays or ()}
    except (TypeError, ValueError):  # of a manifest that was edited
        return {**values, ARRAYS: arrays}
    return {**values, **({} if arrays is None else {f"{ARRAYS}.": True}), **entries}


def _comparable(name: str, value: Any) -> Any:
    """Return a value for a comparison: a path may be written in several ways."""
    is_path = name in START_FIELDS and value and isinstance(value, str)
    return os.path.abspath(os.path.expanduser(value)) if is_path else value


def _is_among(name: str, names: Collection[str]) -> bool:
    """Return whether the name of a value, or of its group, is among some names."""
    parts = name.split(".")
    return any(".".join(parts[:length]) in names for length in range(1, len(parts) + 1))


def _is_optional(name: str) -> bool:
    """Return whether a value is only compared if both runs have it."""
    if name.startswith(STARTS_OF_OPTIONAL):
        return True
    return _is_among(name, OPTIONAL) or _is_of_data(name, LABELS, BATCH_SIZE)


def _is_of_data(name: str, *parts: str) -> bool:
    """Return whether a value is one of these entries of `describe_data`."""
    return name.partition(".")[0] in ("data", "valid") and name.rpartition(".")[2] in parts


def _are_samples(names: Collection[str]) -> bool:
    """Return whether all changed values are hashes of samples, labels, a batch or arrays."""
    others = (f"data.{FIRST_BATCH}", f"{ARRAYS}.")
    return all(_is_of_data(name, SAMPLES, LABELS) or name.startswith(others) for name in names)


def _is_optimizer_class(name: str) -> bool:
    """Return whether a value is the class of an optimizer, or of one that it wraps."""
    return name.startswith("optimizer.") and name.endswith(".class")


def _remedies(
    changes: Sequence[tuple[str, Any, Any]], new_run: Sequence[str], has_other_steps: bool
) -> str:
    """Return a sentence with the remedies for changed values.

    changes: see `config_changes`. new_run: the ways to start a new run with them, if any.
    has_other_steps: whether an epoch now has another number of steps, which cannot be overridden.
    """
    changed = [name for name, _, _ in changes]
    remedies = [*new_run] or ["keep its values"]
    reason = ""
    # No override if the same samples have other labels: the net would have to unlearn.
    are_permuted = _are_samples(changed) and any(_is_of_data(name, LABELS) for name in changed)
    if "batch_size" in changed:
        reason = ": a run keeps its batch size"  # it determines the steps of an epoch
    elif has_other_steps:
        number = "samples" if "data.length" in changed else "steps in an epoch"
        reason = f": a run keeps its number of {number}"
    elif any(
        _is_among(name, ["parameters"])  # to freeze one is possible
        and str(old).removesuffix(" frozen") != str(new).removesuffix(" frozen")
        for name, old, new in changes
    ):
        reason = ": a run keeps its parameters"  # no checkpoint would fit others
    elif any(name == "optimizer" or _is_optimizer_class(name) for name in changed):
        reason = f": a run keeps its optimizer, whose state is saved; {WEIGHTS_ALONE}"
    elif not are_permuted:
        groups = [name.partition(".")[0] for name in changed]
        shortest = [
            name if groups.count(group) == 1 else group for name, group in zip(changed, groups)
        ]
        names = spelled("override", ",".join(dict.fromkeys(shortest)))
        remedies.append(f"to change the run on purpose, use {names}")
    *first, last = remedies
    text = ", ".join([*first, f"or {last}" if first else last]) + reason
    return text[0].upper() + text[1:]
