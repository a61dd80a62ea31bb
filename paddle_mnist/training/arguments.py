"""Declare and check the arguments of `fit`: `FitArguments`, `StartFrom` and `Evaluating`.

Imports no paddle.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Optional

from paddle_mnist.checkpoint.mirror import check_mirror
from paddle_mnist.checkpoint.names import usable_name
from paddle_mnist.checkpoint.saving import Saving
from paddle_mnist.data.loading import Loading
from paddle_mnist.errors import ConfigError, nearest_name
from paddle_mnist.nn.numerics import Numerics
from paddle_mnist.options import (
    Count,
    CountOrZero,
    Options,
    PathStr,
    Seed,
    flat_options,
    flat_values,
    option,
    split_names,
)
from paddle_mnist.parallel.processes import Processes
from paddle_mnist.train_state import HIGHEST_IS_BEST, LOWEST_IS_BEST
from paddle_mnist.training.bundled import BUNDLED, with_defaults
from paddle_mnist.training.callbacks import Callback

if TYPE_CHECKING:
    from paddle_mnist.training.steps import Loss, Metrics, Step


@dataclass(frozen=True)
class StartFrom(Options):
    """Another run to start from: its weights, and by default its optimizer's state, too.

    path: of a run, a checkpoint, or with weights_only a `.pdparams` file.
    weights_only: load only the weights.
    partial: with weights_only, load only the weights that match, and log the names of the others.
    """

    heading = "start"

    path: PathStr = option(
        help={
            "incremental_from": "run or checkpoint whose weights and optimizer state to start from",
            "init_from": "weights to start from: a run, checkpoint or .pdparams file",
        },
        flat={"incremental_from": {"weights_only": False}, "init_from": {"weights_only": True}},
        must_match=True,
    )
    weights_only: bool = option(False, flat="")
    partial: bool = option(
        False,
        "with init_from: load the weights that match, and log the others",
        flat="init_partial",
    )

    def check(self) -> None:
        if self.partial and not self.weights_only:
            raise ConfigError(
                "partial is on without weights_only (as init_partial without init_from); expected "
                "both or neither"
            )


@dataclass(frozen=True)
class Evaluating(Options):
    """Options for when and how to evaluate during training.

    every_epochs: the number of epochs between evaluations; the last epoch is always evaluated.
    every_steps: the number of steps between further evaluations, inside epochs.
    batch_size: of an evaluation; by default the training's.
    """

    heading = "evaluation"

    every_epochs: Count = option(
        1, "epochs between evaluations on the valid split", flat="eval_every_epochs"
    )
    every_steps: Optional[Count] = option(
        None, "steps between further evaluations", flat="eval_every_steps"
    )
    batch_size: Optional[Count] = option(
        None, "samples per batch of an evaluation; default: batch_size", flat="eval_batch_size"
    )


def _parse_resume(value: Any) -> Any:
    value = "off" if value is False else value  # as YAML reads a bare `off`
    if not isinstance(value, str) or not value:
        raise ValueError("expected 'auto', 'off' or a path")
    return value


def _parse_output(value: Any) -> Any:
    if isinstance(value, str) and re.match(r"\w+://", value):
        raise ConfigError(  # without the URL, which may contain a password
            "output is a URL; expected a folder on this machine; mirror keeps a copy at a URL"
        )
    return value


@dataclass(frozen=True)
class FitArguments(Options):
    """The arguments of one call of `fit`, where they are described. Raises ConfigError."""

    heading = ""

    model: Any
    train: Any
    valid: Any
    optimizer: Any
    loss: "Optional[Loss]"
    metrics: "Optional[Metrics]"
    step: "Optional[Step]"
    state: Optional[Mapping[str, object]]
    must_match: Optional[Mapping[str, object]]
    callbacks: Sequence[Callback]
    saving: Saving
    loading: Loading
    evaluating: Evaluating
    start: Optional[StartFrom]
    processes: Processes
    numerics: Numerics

    epochs: Count = option(
        help="passes over the training split", heading="training", must_match=True
    )
    batch_size: Count = option(help="samples per step", heading="training", must_match=True)
    seed: Seed = option(
        help="seed of the initial weights, the order and all random numbers",
        heading="training",
        must_match=True,
    )
    output: PathStr = option(help="run directory", heading="run", parse=_parse_output)
    name: str = option(
        help="first part of the names of checkpoints and weights",
        heading="run",
        parse=lambda value: value if value == "" else usable_name(value),  # "": the model's
    )
    monitor: Optional[str] = option(flat="")
    mode: Optional[Literal["max", "min"]] = option(flat="")
    device: str = option(
        help="cpu, gpu:0, xpu:0, npu:0, ...; auto: the first GPU, or the CPU if there is none",
        heading="device",
    )
    resume: str = option(
        help="auto, off (start at step 0), or the path of a run, a checkpoint, or a .pdparams and "
        ".pdopt of paddle.save",
        heading="run",
        parse=_parse_resume,
    )
    fresh: bool = option(flat="")
    override: tuple[str, ...] = option(
        help="comma-separated fields that may differ from those of the run",
        heading="run",
        parse=split_names,
    )
    start_epoch: Optional[CountOrZero] = option(
        None,
        "epochs done when the .pdparams and .pdopt to resume were saved; default: from their name, "
        "1 after epoch0",
        heading="run",
    )

    def check(self) -> None:
        self._check_types()
        self._check_data()
        self._check_optimizer()
        self._check_state()
        self._check_callbacks()
        check_mirror(self.saving, self.output)
        check_together(self.start, self.resume, self.saving, self.callbacks)
        self._check_evaluation()
        if self.start_epoch is not None and self.resume in ("auto", "off"):
            raise ConfigError(
                f"start_epoch is {self.start_epoch}, but resume is {self.resume!r}; expected the "
                "path of a .pdparams and .pdopt; every checkpoint of a run knows its epoch"
            )
        for name in self.must_match or ():
            if name in (*ENGINE_OPTIONS, "monitor", "mode"):
                raise ConfigError(
                    f"must_match names {name}, which fit already compares if it affects the "
                    "result; use other names"
                )

    def _check_types(self) -> None:
        for name in ("metrics", "must_match", "state"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Mapping):
                raise ConfigError(
                    f"{name} is a {type(value).__name__}; expected a dict keyed by name"
                )
        for name, group in GROUPS.items():
            value = getattr(self, name)
            if not isinstance(value, group) and not (name == "start" and value is None):
                raise ConfigError(
                    f"{name} is a {type(value).__name__}; expected a paddle_mnist.{group.__name__}"
                )
        if isinstance(self.valid, Mapping) and (not self.valid or "train" in self.valid):
            raise ConfigError(
                f"valid is a dict of {', '.join(map(str, self.valid)) or 'nothing'}; expected the "
                'data of at least one split, by a name other than "train"'
            )

    def _check_data(self) -> None:
        from paddle.io import DataLoader, Dataset

        splits: Mapping[str, Any] = {"valid": self.valid}
        if isinstance(self.valid, Mapping):
            splits = {f"valid[{name!r}]": data for name, data in self.valid.items()}
        for name, data in {"train": self.train, **splits}.items():
            first = data[0] if isinstance(data, (list, tuple)) and data else None
            if isinstance(first, (Dataset, DataLoader)) or callable(first):
                is_split = name == "valid"
                remedy = "a dict of them by split name" if is_split else "paddle.io.ConcatDataset"
                raise ConfigError(
                    f"{name} is a {type(data).__name__} of {len(data)} datasets; expected one "
                    f"dataset, a list of samples, or, for several datasets, {remedy}"
                )

    def _check_optimizer(self) -> None:
        import paddle

        is_class = isinstance(self.optimizer, type)
        is_optimizer = isinstance(self.optimizer, paddle.optimizer.Optimizer)
        if is_class or not (is_optimizer or callable(self.optimizer)):
            raise ConfigError(
                f"optimizer is {_what(self.optimizer)}; expected a paddle.optimizer, or a function "
                "of the model's parameters that returns one"
            )

    def _check_state(self) -> None:
        from paddle_mnist.hidden_state.stateful import has_state
        from paddle_mnist.training.steps import check_task

        check_task(self.loss, self.metrics, self.step)
        for name, part in (self.state or {}).items():
            if not has_state(part):
                raise ConfigError(
                    f"state[{name!r}] is a {type(part).__name__}; expected an object with "
                    "state_dict and set_state_dict, such as a Layer or an Optimizer"
                )

    def _check_callbacks(self) -> None:
        if not isinstance(self.callbacks, (list, tuple)):
            raise ConfigError(f"callbacks is {self.callbacks!r:.60}; expected a list")
        kinds = [type(callback) for callback in self.callbacks if isinstance(callback, Options)]
        if repeated := [kind.__name__ for kind in kinds if kinds.count(kind) > 1]:
            raise ConfigError(
                f"callbacks contains {len(repeated)} instances of {repeated[0]}, whose options "
                "belong to the run; expected one"
            )
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise ConfigError(
                    f"callbacks contains {_what(callback)}; expected instances of "
                    "paddle_mnist.Callback"
                )

    def _check_evaluation(self) -> None:
        if self.mode and not self.monitor:
            raise ConfigError(
                f"mode is {self.mode!r} without monitor; set monitor, too, to the metric to "
                f"{self.mode}imize, such as monitor='valid/...'"
            )
        if self.valid is not None:
            return
        if self.monitor:
            raise ConfigError(
                f"monitor is {self.monitor!r}, but nothing is evaluated; pass valid data, too"
            )
        for callback in self.callbacks:
            if callback.ends_with_best:
                raise ConfigError(
                    f"{type(callback).__name__} ends the training with its best checkpoint, but "
                    "nothing is evaluated; pass valid data, too"
                )

    @property
    def all_callbacks(self) -> list[Callback]:
        """The callbacks, including the default ones."""
        return with_defaults(self.callbacks)

    @property
    def ends_with_best(self) -> bool:
        """Whether the result is the best checkpoint, not the last step."""
        return any(callback.ends_with_best for callback in self.callbacks)

    @property
    def groups(self) -> list[Options]:
        """The groups of options among the arguments, including this one."""
        values = [getattr(self, field.name) for field in fields(self)]
        callbacks = self.all_callbacks
        further = [group for callback in callbacks for group in callback.options]
        groups = [group for group in [*values, *callbacks, *further] if isinstance(group, Options)]
        return [self, *groups]

    @property
    def splits(self) -> Mapping[str, Any]:
        """The data to evaluate on, by split."""
        if self.valid is None:
            return {}
        return self.valid if isinstance(self.valid, Mapping) else {"valid": self.valid}

    @property
    def callers_values(self) -> dict[str, object]:
        """The values of `must_match`, but not code=True, for which `fit` hashes the code."""
        return {n: v for n, v in (self.must_match or {}).items() if (n, v) != (CODE, True)}

    @property
    def monitored(self) -> tuple[str, str]:
        """The metric by which evaluations are compared, and whether "min" or "max" is the best.

        Raises ConfigError if mode is missing for a metric whose name does not imply it.
        """
        monitor = self.monitor or f"{next(iter(self.splits), 'valid')}/loss"
        name = monitor.rpartition("/")[2].partition("_top")[0].lower()
        implied = "min" if name in LOWEST_IS_BEST else "max" if name in HIGHEST_IS_BEST else None
        if not (mode := self.mode or implied):
            raise ConfigError(
                f"monitor is {monitor!r}, whose name does not imply which value is the best; "
                "expected the name of a metric, such as 'valid/loss', and for any but a common "
                "one mode='min' or mode='max', too"
            )
        return monitor, mode

    def for_processes(self) -> "FitArguments":
        """Return the arguments for each of several processes that `fit` starts.

        Raises ConfigError, with the argument's name, for one that cannot be sent to them.
        """
        from multiprocessing.reduction import ForkingPickler

        import paddle

        several = f"nprocs is {self.processes.nprocs or 'auto'}"
        remedy = (
            "use functions at the top level of a module, which the new processes import; or "
            "start with python -m paddle.distributed.launch, which accepts everything"
        )
        kinds = (paddle.nn.Layer, paddle.optimizer.Optimizer)
        objects = {"model": self.model, "optimizer": self.optimizer, "state": self.state}
        for name, value in objects.items():
            if isinstance(value, kinds) or (name == "state" and value):
                what = "has objects" if name == "state" else "is an object"
                raise ConfigError(
                    f"{several}, but {name} {what}, which other processes cannot share; {remedy}"
                )
        for field in fields(self):
            try:
                ForkingPickler.dumps(getattr(self, field.name))
            except Exception as error:  # pickle raises what the objects raise
                raise ConfigError(
                    f"{several}, but {field.name} cannot be sent to other processes ({error}); "
                    f"{remedy}"
                ) from error
        return replace(self, processes=replace(self.processes, nprocs=1, gpus=None))


def check_together(
    start: Optional[StartFrom], resume: str, saving: Saving, callbacks: Sequence[Callback]
) -> None:
    """Raise ConfigError for options of several groups that exclude each other."""
    is_path = resume not in ("auto", "off")
    if start and is_path:
        raise ConfigError(
            f"resume is {resume!r}, and start names {start.path}; use at most one of them"
        )
    for callback in callbacks:
        if not callback.ends_with_best:
            continue
        name = type(callback).__name__
        if not saving.keep_best:
            raise ConfigError(
                f"{name} ends the training with its best checkpoint, but keep_best is off; "
                "expected keep_best on"
            )
        if is_path:
            raise ConfigError(
                f"resume is {resume!r} with {name}, which ends the training with its best "
                "checkpoint; use one of them, since the best one may belong to the run that is "
                "resumed; or continue that run in its own output"
            )


def _what(value: Any) -> str:
    """Describe an invalid argument for an error message."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a {type(value).__module__}.{type(value).__name__}".replace("builtins.", "")


CODE = "code"  # the group of hashes of the caller's code
PYTHON = f"{CODE}.python"  # the version of Python that they belong to
# The groups that describe the net and other code that computes the result; a resume compares them.
ARRAYS = "arrays"  # those that the caller's objects hold
TASK = (ARRAYS, "layers", "loss", "step", "collate_fn", "metrics", CODE)

# The arguments that are groups, by name.
GROUPS: dict[str, type[Options]] = {
    "saving": Saving,
    "loading": Loading,
    "evaluating": Evaluating,
    "start": StartFrom,
    "processes": Processes,
    "numerics": Numerics,
}
# How each group is passed to `fit`.
OWNERS = {kind: f"{name}={{}}" for name, kind in GROUPS.items()}
OWNERS |= dict.fromkeys(BUNDLED, "callbacks=[{}]")
OF_OPTIMIZERS = ("grad_clip", "learning_rate", "lr", "momentum", "weight_decay")
ENGINE_OPTIONS = flat_options([FitArguments, *GROUPS.values(), *BUNDLED])


def where_it_belongs(name: str, value: Any) -> str:
    """Return a hint on what to write instead of an argument that `fit` does not have."""
    for flat, entry in ENGINE_OPTIONS.items():
        if name in (flat, entry.field.name) and entry.group in OWNERS:
            values = {entry.field.name: value, **entry.implied}
            words = ", ".join(f"{key}={value!r:.60}" for key, value in values.items())
            return f"pass {OWNERS[entry.group]}".format(f"{entry.group.__name__}({words})")
    if name in OF_OPTIMIZERS:
        return f"it belongs to the optimizer, as in paddle.optimizer.Adam(..., {name}=...)"
    nearest = nearest_name(name, [field.name for field in fields(FitArguments)])
    return f"did you mean {nearest!r}?" if nearest else "help(fit) lists them"


def compared_defaults(groups: Collection[Options]) -> dict[str, Any]:
    """Return the defaults of the options that a resume compares, by flat name.

    They stand in for options that the manifest of an older run lacks.
    """
    options = {**ENGINE_OPTIONS, **flat_options(type(group) for group in groups)}
    return {
        name: list(entry.default) if isinstance(entry.default, tuple) else entry.default
        for name, entry in options.items()
        if entry.declared.must_match and entry.group is not FitArguments
    }


def compared_values(groups: Collection[Options]) -> dict[str, Any]:
    """Return the values of groups that a resume compares, by flat name."""
    return {**compared_defaults(groups), **flat_values(groups, only_must_match=True)}
