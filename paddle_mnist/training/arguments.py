"""`FitArguments`: the arguments of `fit`, checked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Optional, Union, get_origin

import paddle
from paddle import nn

from paddle_mnist._arguments import accepts_numpy
from paddle_mnist.checkpoint.checkpointer import usable_name
from paddle_mnist.checkpoint.further_state import has_state
from paddle_mnist.checkpoint.policy import RetentionPolicy, SavePolicy
from paddle_mnist.checkpoint.saved_weights import SavedWeights
from paddle_mnist.errors import ConfigError
from paddle_mnist.nn.schedule import EVERY
from paddle_mnist.progress import MODES
from paddle_mnist.training.callbacks import Callback
from paddle_mnist.training.evaluator import EpochEvaluator
from paddle_mnist.training.job import TrainingOptions
from paddle_mnist.training.steps import check_task

# Metrics whose best value is known by their name; of others `mode` must say.
LOWEST_IS_BEST, HIGHEST_IS_BEST = ("loss",), ("acc", "accuracy")
AMP_LEVELS = ("off", "O1", "O2")
OPTIONAL_NUMBERS = (
    "save_every_epochs save_every_steps early_stop_patience eval_batch_size grad_shards".split()
)  # may be None


@dataclass(frozen=True)
class RunConfig:
    """What a run directory records of a training and compares, where `fit` must not derive it.

    binding: the fields that decide the result. text: what `config.yaml` holds. manifest: further
    entries of every manifest. hashes, defaults: see `ResumeRequest`.
    in_code: whether errors name the arguments of a function, not the options of a command.
    """

    binding: Mapping[str, Any]
    text: str
    manifest: Mapping[str, Any]
    hashes: Mapping[str, Optional[str]]
    defaults: Optional[Mapping[str, Any]] = None
    in_code: bool = False


@accepts_numpy
@dataclass(frozen=True)
class FitArguments:
    """The arguments of one call of `fit`, where they are described. Raises ConfigError."""

    model: Union[nn.Layer, Callable]
    train: Any
    valid: Any
    optimizer: Union[paddle.optimizer.Optimizer, Callable]
    loss: Optional[Callable]
    metrics: Optional[Mapping[str, Any]]
    step: Optional[Callable]
    epochs: int
    batch_size: int
    seed: int
    output: Union[str, Path]
    name: str
    monitor: Optional[str]
    mode: Optional[str]
    shuffle: bool
    collate_fn: Optional[Callable]
    num_workers: int
    eval_batch_size: Optional[int]
    schedule_every: str
    accumulate: int
    ema: float
    amp: str
    deterministic: bool
    fresh: bool
    resume: str
    state: Optional[Mapping[str, Any]]
    override: Sequence[str]
    binding: Optional[Mapping[str, Any]]
    init_from: Optional[str]
    init_partial: bool
    incremental_from: Optional[str]
    soften: Optional[str]
    save_initial: bool
    save_every_epochs: Optional[int]
    save_every_steps: Optional[int]
    save_every_seconds: Optional[float]
    save_on_exception: bool
    keep_epochs: bool
    keep_last: int
    keep_every_minutes: Optional[float]
    keep_best: bool
    keep_breakpoints: bool
    eval_every_epochs: int
    early_stop_patience: Optional[int]
    log_every: int
    watch: int
    profile: int
    check_shape: Sequence[int]
    check_content: Sequence[int]
    visualdl: Sequence[str]
    figures: bool
    device: str
    nprocs: int
    gpus: Optional[str]
    grad_shards: Optional[int]
    hang_timeout: float
    max_restarts: int
    evaluator: Optional[EpochEvaluator]
    callbacks: Sequence[Callback]
    config: Optional[RunConfig]
    find_weights: Callable[[str], SavedWeights]

    def __post_init__(self):
        if isinstance(self.override, str):
            names = tuple(name.strip() for name in self.override.split(",") if name.strip())
            object.__setattr__(self, "override", names)
        self._check_kinds()
        self._check_numbers()
        self._check_choices()

    def _check_kinds(self) -> None:
        """Refuse what would pass for a switch or a list: the text "no", say, which is true."""
        for option in fields(self):
            value = getattr(self, option.name)
            if option.type is bool and not isinstance(value, bool):
                raise ConfigError(f"{option.name} is {value!r:.60}; expected True or False")
            if get_origin(option.type) is Sequence and not isinstance(value, (list, tuple)):
                raise ConfigError(f"{option.name} is {value!r:.60}; expected a list")

    def _check_numbers(self) -> None:
        at_least_one = (
            "epochs batch_size accumulate save_every_steps keep_last log_every "
            "eval_every_epochs early_stop_patience eval_batch_size grad_shards"
        )
        at_least_zero = "seed num_workers save_every_epochs watch profile nprocs max_restarts"
        for names, least in ((at_least_one, 1), (at_least_zero, 0)):
            for name in names.split():
                value = getattr(self, name)
                is_number = isinstance(value, int) and not isinstance(value, bool)
                is_left_out = value is None and name in OPTIONAL_NUMBERS
                if not is_left_out and not (is_number and value >= least):
                    raise ConfigError(f"{name} is {value!r}; expected a whole number >= {least}")
        if self.seed >= 2**32:
            raise ConfigError(f"seed is {self.seed}; expected less than 2**32, as NumPy requires")
        if not (_is_number(self.ema) and 0 <= self.ema < 1):
            raise ConfigError(f"ema is {self.ema!r}; expected at least 0 and less than 1")
        for name in ("save_every_seconds", "keep_every_minutes", "hang_timeout"):
            value = getattr(self, name)
            is_left_out = value is None and name != "hang_timeout"
            if not is_left_out and not (_is_number(value) and value > 0):
                raise ConfigError(f"{name} is {value!r}; expected a number above 0")

    def _check_choices(self) -> None:
        choices = {"mode": (None, *MODES), "schedule_every": EVERY, "amp": AMP_LEVELS}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                words = " or ".join(repr(word) for word in allowed if word)
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected {words}")
        check_task(self.loss, self.metrics, self.step)
        self._check_types()
        if self.init_from and self.incremental_from:
            raise ConfigError("init_from and incremental_from are two ways to start; expected one")
        if self.early_stop_patience and not self.keep_best:
            raise ConfigError(
                "early_stop_patience ends with the best checkpoint, but keep_best is off; expected "
                "keep_best on"
            )
        if self.init_partial and not self.init_from:
            raise ConfigError(
                "init_partial is on without init_from; expected init_from too, or init_partial off"
            )
        if self.soften and not self.incremental_from:
            raise ConfigError(
                f"soften is {self.soften!r} without incremental_from; expected incremental_from "
                "too, or no soften"
            )
        if self.mode and not self.monitor:
            raise ConfigError(
                f"mode is {self.mode!r} without monitor; expected monitor too, the metric to "
                f"{self.mode}imize, as monitor='valid/...'"
            )
        if self.valid is None and not self.evaluator:
            for name in ("monitor", "early_stop_patience"):
                if getattr(self, name):
                    raise ConfigError(
                        f"{name} is {getattr(self, name)!r}, but nothing is evaluated; expected "
                        "valid data too"
                    )

    def _check_types(self) -> None:
        if not isinstance(self.output, (str, Path)) or not str(self.output):
            raise ConfigError(f"output is {self.output!r}; expected the path of a folder")
        if self.name != "":
            usable_name(self.name)
        if not isinstance(self.resume, str):
            raise ConfigError(f"resume is {self.resume!r}; expected 'auto', 'off' or a path")
        for name in ("metrics", "binding", "state"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Mapping):
                raise ConfigError(
                    f"{name} is a {type(value).__name__}; expected a dict keyed by name"
                )
        for name, part in (self.state or {}).items():
            if not has_state(part):
                raise ConfigError(
                    f"state[{name!r}] is a {type(part).__name__}; expected an object with "
                    "state_dict and set_state_dict, such as a Layer, an Optimizer, or one of your "
                    "own"
                )
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise ConfigError(
                    f"callbacks holds a {type(callback).__name__}; expected instances of "
                    "paddle_mnist.Callback"
                )
        is_class = isinstance(self.optimizer, type)
        is_optimizer = isinstance(self.optimizer, paddle.optimizer.Optimizer)
        if is_class or not (is_optimizer or callable(self.optimizer)):
            what = self.optimizer.__name__ if is_class else type(self.optimizer).__name__
            raise ConfigError(
                f"optimizer is {'the class' if is_class else 'a'} {what}; expected a "
                "paddle.optimizer, or a function of the model's parameters that returns one"
            )
        if isinstance(self.valid, Mapping) and (not self.valid or "train" in self.valid):
            raise ConfigError(
                f"valid is a dict of {', '.join(map(str, self.valid)) or 'nothing'}; expected the "
                'data of at least one split, by a name other than "train"'
            )

    @property
    def monitored(self) -> tuple[str, str]:
        """The metric by which evaluations are compared, and whether "min" or "max" is the best.

        Raises ConfigError where its name does not tell.
        """
        split = next(iter(self.valid)) if isinstance(self.valid, Mapping) else "valid"
        monitor = self.monitor or f"{split}/loss"
        mode, name = self.mode, monitor.rpartition("/")[2]
        if mode is None and name in LOWEST_IS_BEST:
            mode = "min"
        if mode is None and name in HIGHEST_IS_BEST:
            mode = "max"
        if mode is None:
            raise ConfigError(
                f"monitor is {monitor!r}, whose name does not tell which value is the best; "
                "expected mode='min' or mode='max' with it"
            )
        return monitor, mode

    def options(self, resumes_inside_epochs: bool = True) -> TrainingOptions:
        """Return the options of the engine that these arguments stand for."""
        monitor, mode = self.monitored
        return TrainingOptions(
            epochs=self.epochs,
            seed=self.seed,
            grad_shards=self.grad_shards,
            monitor=monitor,
            mode=mode,
            init_from=self.init_from,
            init_partial=self.init_partial,
            incremental_from=self.incremental_from,
            soften=self.soften,
            new_schedule=bool(self.override),
            ends_with_best=bool(self.early_stop_patience),
            save_policy=SavePolicy(
                every_epochs=self.save_every_epochs,
                every_steps=self.save_every_steps,
                every_seconds=self.save_every_seconds,
                on_error=self.save_on_exception,
                on_best=self.keep_best,
                inside_epochs=resumes_inside_epochs,
            ),
            retention=RetentionPolicy(
                epochs=self.keep_epochs,
                last=self.keep_last,
                every_minutes=self.keep_every_minutes,
                best=self.keep_best,
                breakpoints=self.keep_breakpoints,
            ),
            save_initial=self.save_initial,
            log_every=self.log_every,
            watch=self.watch,
            print_shapes=tuple(self.check_shape),
            print_contents=tuple(self.check_content),
            profile=self.profile,
            visualdl=tuple(self.visualdl),
        )

    def for_processes(self) -> "FitArguments":
        """Return the arguments for each of several processes that `fit` starts.

        Raises ConfigError, naming the argument, if they cannot be sent there.
        """
        remedy = (
            "expected functions at the top level of a module, which the new processes import; or "
            "start with python -m paddle.distributed.launch, which takes everything"
        )
        objects = {"model": nn.Layer, "optimizer": paddle.optimizer.Optimizer}
        for name, kind in objects.items():
            if isinstance(getattr(self, name), kind):
                raise ConfigError(
                    f"nprocs is {self.nprocs}, but {name} is an object, which other processes "
                    f"cannot share; {remedy}"
                )
        if self.state:
            raise ConfigError(
                f"nprocs is {self.nprocs}, but state has objects, which other processes cannot "
                "share; start with python -m paddle.distributed.launch, which takes everything"
            )
        arguments = replace(self, nprocs=1, gpus=None)
        for option in fields(arguments):
            try:
                ForkingPickler.dumps(getattr(arguments, option.name))
            except Exception as error:  # pickle raises what the objects raise
                raise ConfigError(
                    f"nprocs is {self.nprocs}, but {option.name} cannot be sent to other processes "
                    f"({error}); {remedy}"
                ) from error
        return arguments


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
