"""`TrainConfig`, the configuration of a training on digits, and recipes. Imports no paddle."""

import difflib
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import yaml
from msgspec import Meta

from paddle_mnist.checkpoint.policy import Saving
from paddle_mnist.checkpoint.run_files import FIT, TRAINED_WITH
from paddle_mnist.data.loading import Loading
from paddle_mnist.errors import ConfigError, unknown_name
from paddle_mnist.nn.numerics import Numerics, false_as_off
from paddle_mnist.options import (
    Count,
    CountOrZero,
    FlatOption,
    Fraction,
    NotNegative,
    Options,
    PathStr,
    Positive,
    build_group,
    flat_options,
    option,
    require_known,
    split_names,
)
from paddle_mnist.parallel.processes import Processes, auto_as_zero
from paddle_mnist.system.yaml_reader import read_yaml
from paddle_mnist.training.arguments import FitArguments
from paddle_mnist.training.evaluating import Evaluating
from paddle_mnist.training.standard_callbacks import (
    Console,
    EarlyStopping,
    Figures,
    PrintLayers,
    Profile,
    VisualDL,
    Watch,
)
from paddle_mnist.training.start import StartFrom

if TYPE_CHECKING:
    import paddle

    from paddle_mnist.mnist.model import MNIST

# The amounts that `augment` takes, and what each must stay below: degrees, degrees, pixels, share,
# pixels.
AUGMENT_LIMITS = {"rotate": 180, "shear": 60, "shift": 28, "scale": 1, "elastic": 28}
TRAINER = "paddle_mnist.train_and_evaluate"  # what `config.yaml` says a run was trained with
# What `soften` was until version 0.2: whether to soften the outputs of the tutorial's last layer.
FORMER_SOFTEN = {"true": "fc", "false": None}


def _parse_amounts(value: Any) -> Any:
    """Read `rotate=10,shift=2`, a list of such, or a mapping; return strings in a fixed order."""
    if isinstance(value, Mapping):
        value = [f"{name}={amount}" for name, amount in value.items()]
    amounts: dict[str, Any] = dict(str(item).partition("=")[::2] for item in split_names(value))
    for name, amount in amounts.items():
        if name not in AUGMENT_LIMITS:
            raise ValueError(f"expected {', '.join(f'{known}=N' for known in AUGMENT_LIMITS)}")
        try:
            amounts[name] = float(amount)
        except ValueError:
            amounts[name] = math.nan
        limit = AUGMENT_LIMITS[name]
        if not 0 <= amounts[name] < limit:
            raise ValueError(f"expected {name} as a number, at least 0 and below {limit}")
    return [f"{name}={amounts[name]:g}" for name in AUGMENT_LIMITS if amounts.get(name)]


def _bool_as_switch(value: Any) -> Any:
    """Read true as "on" and false as "off", as YAML has them."""
    return "on" if value is True else false_as_off(value)


@dataclass(frozen=True)
class ImageOptions(Options):
    """The images of a training. What binds its result is their contents, not their path."""

    heading = "data"

    data: str = option("auto", "auto, digits, or a file or folder (JSON, IDX, npz, CSV)")
    train_limit: Optional[Count] = option(
        None, "train on the first N images of the source only", must_match=True
    )
    eval_limit: Optional[Count] = option(
        None, "evaluate on the first N images only", must_match=True
    )
    augment: tuple[str, ...] = option(
        (),
        "random affine and elastic distortion: rotate=10,shear=5,shift=2,scale=0.1,elastic=1",
        heading="training",
        must_match=True,
        parse=_parse_amounts,
    )
    replay_data: Optional[PathStr] = option(
        None, "old images to mix into each epoch, to prevent forgetting", heading="start"
    )
    replay_fraction: Annotated[float, Meta(gt=0, lt=1)] = option(
        0.2, "share of old images in each epoch", heading="start", must_match=True
    )
    final_split: Literal["eval", "valid"] = option(
        "eval",
        "what the trained net is scored on at the end: eval (the test set), or valid instead of it",
        heading="evaluation",
    )


@dataclass(frozen=True)
class NetOptions(Options):
    """The tutorial's net, and how it is computed; called, it builds one."""

    heading = "training"

    dropout: Fraction = option(
        0.0, "share of the last layer's inputs that are dropped in training", must_match=True
    )
    fast_conv: Literal["auto", "on", "off"] = option(
        "auto",
        "compute convolutions in compiled loops; auto: on CPUs only",
        heading="device",
        must_match=True,
        parse=_bool_as_switch,
    )
    threads: CountOrZero = option(
        0,
        "threads of the fast convolution in each process; or auto",
        heading="device",
        parse=auto_as_zero,
    )

    def __call__(self) -> "MNIST":
        from paddle_mnist.mnist.model import MNIST
        from paddle_mnist.parallel.process_count import fast_conv_threads

        model = MNIST()
        model.fast_conv = fast_conv_threads(self)
        model.dropout_rate = self.dropout
        return model


@dataclass(frozen=True)
class LossOptions(Options):
    """The loss."""

    heading = "training"

    label_smoothing: Fraction = option(
        0.0, "probability that is spread evenly over all classes", must_match=True
    )


@dataclass(frozen=True)
class OptimizerOptions(Options):
    """The optimizer and its schedule; called with the parameters, it builds them.

    total_steps: of the training, over which the schedule goes. names: of the parameters.
    """

    heading = "optimizer"

    optimizer: Literal["sgd", "momentum", "adagrad", "adam", "adamw"] = option(
        "momentum", "the optimizer", must_match=True
    )
    learning_rate: Positive = option(0.1, "learning rate; the peak with onecycle", must_match=True)
    lr_schedule: Literal["constant", "polynomial", "cosine", "onecycle"] = option(
        "onecycle", "learning-rate schedule, stepped every batch", must_match=True
    )
    end_lr: NotNegative = option(
        0.0, "learning rate at the last step (not used by constant)", must_match=True
    )
    momentum: Fraction = option(0.9, "momentum (optimizer momentum only)", must_match=True)
    weight_decay: NotNegative = option(
        5e-4, "L2 coefficient; with adamw decoupled weight decay", must_match=True
    )
    weight_decay_layers: tuple[str, ...] = option(
        (),
        "layers or parameters to decay, such as conv1,fc.weight; default: all",
        must_match=True,
        parse=split_names,
    )
    total_steps: int = 1

    def check(self) -> None:
        if self.lr_schedule != "constant" and self.end_lr > self.learning_rate:
            raise ConfigError(
                f"end_lr is {self.end_lr}; expected at most the learning_rate, {self.learning_rate}"
            )

    def __call__(self, parameters: "list[paddle.Tensor]") -> "paddle.optimizer.Optimizer":
        from paddle_mnist.mnist.model import PARAMETERS
        from paddle_mnist.nn.optim import build_optimizer, build_schedule

        schedule = build_schedule(self, self.total_steps)
        return build_optimizer(self, dict(zip(PARAMETERS, parameters)), schedule)


@dataclass(frozen=True)
class CommandOptions(Options):
    """What the command does beside the training."""

    heading = "run"

    max_restarts: CountOrZero = option(0, "maximum number of restarts when training dies or hangs")


class TrainConfig:
    """The configuration of one training run on digits: groups of options, immutable.

    It is built from flat names, those of the command line and of YAML; what is left out has the
    value of the recipe `default`. A name that is unknown raises ConfigError, and so does a value,
    with what was expected. `options` holds all values by their flat names, as they were read.

    The groups are the attributes, such as `saving.every_steps` for `save_every_steps`; `epochs`,
    `batch_size`, `seed`, `output`, `device`, `resume` and `override` are attributes by themselves.
    """

    images: ImageOptions
    net: NetOptions
    loss: LossOptions
    optimizer: OptimizerOptions
    saving: Saving
    loading: Loading
    evaluating: Evaluating
    start: Optional[StartFrom]
    processes: Processes
    numerics: Numerics
    early_stopping: EarlyStopping
    watch: Watch
    profile: Profile
    print_layers: PrintLayers
    visualdl: VisualDL
    figures: Figures
    console: Console
    command: CommandOptions

    epochs: int
    batch_size: int
    seed: int
    output: Optional[str]
    device: str
    resume: str
    override: tuple[str, ...]

    def __init__(self, **options: object) -> None:
        soften = str(options.get("soften")).lower()
        if soften in FORMER_SOFTEN:
            options["soften"] = FORMER_SOFTEN[soften]
        for name in options:
            if name not in FLAT_OPTIONS:
                raise ConfigError(unknown_name("config", name, FLAT_OPTIONS))
        self.options: dict[str, Any] = {
            **_defaults(),
            **{name: _read(name, value) for name, value in options.items()},
        }
        self._check_start()
        values = self.options
        if values["init_from"] or not values["incremental_from"]:
            values = {**values, "soften": None}
        for name, group in GROUPS.items():
            vars(self)[name] = build_group(group, values)
        for name in OWN:
            vars(self)[name] = values[name]
        self._check_stop()
        require_known(self.override, FLAT_OPTIONS, "override")

    def _check_start(self) -> None:
        """Raise ConfigError for ways to start that exclude each other."""
        starts = [name for name in ("init_from", "incremental_from") if self.options[name]]
        if self.options["resume"] not in ("auto", "off"):
            starts.insert(0, "resume")
        if len(starts) > 1:
            raise ConfigError(f"{' and '.join(starts)} are given; expected at most one of them")
        if self.options["init_partial"] and not self.options["init_from"]:
            raise ConfigError(
                "init_partial is on without init_from; expected init_from too, or init_partial off"
            )

    def _check_stop(self) -> None:
        """Raise ConfigError where early stopping has no best checkpoint to end with."""
        if self.early_stopping.patience and not self.saving.keep_best:
            raise ConfigError(
                "early_stop_patience ends with the best checkpoint, but keep_best is off; expected "
                "keep_best on"
            )
        if self.early_stopping.patience and self.resume not in ("auto", "off"):
            raise ConfigError(
                "early_stop_patience and resume PATH are given; expected one of them: the best "
                "checkpoint may belong to the run of PATH; continue that run in its own --output"
            )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], origin: str = "config") -> "TrainConfig":
        """Build a config from names and values.

        origin: where they come from, for errors. Raises ConfigError.
        """
        trainer = values.get(TRAINED_WITH)
        if trainer == FIT:
            raise ConfigError(
                f"{origin}: the arguments of a call of {FIT}, which trains a net of your own; "
                "expected the configuration of a training on digits; run the script that calls it"
            )
        if trainer == TRAINER:  # with what `fit` records beside the options
            values = {name: value for name, value in values.items() if name in FLAT_OPTIONS}
        for name in values:
            if name not in FLAT_OPTIONS:
                raise ConfigError(unknown_name(origin, name, FLAT_OPTIONS))
        return cls(**values)

    def replace(self, **options: object) -> "TrainConfig":
        """Return a copy with other values, by flat name."""
        return TrainConfig(**{**self.options, **options})

    def as_dict(self) -> dict[str, Any]:
        """Return plain values by flat name, as YAML and JSON can hold them."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self.options.items()}

    def as_yaml(self) -> str:
        return yaml.safe_dump(self.as_dict(), sort_keys=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainConfig) and self.options == other.options

    def __hash__(self) -> int:
        return hash(tuple(self.options.items()))

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, "override"):  # set last
            raise AttributeError(
                f"{name} cannot be set; call replace, which returns another config"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"TrainConfig({', '.join(f'{k}={v!r}' for k, v in self.options.items())})"


# The groups of a configuration, by attribute, in the order of `--help`.
GROUPS: dict[str, type[Options]] = {
    "images": ImageOptions,
    "loading": Loading,
    "net": NetOptions,
    "loss": LossOptions,
    "numerics": Numerics,
    "early_stopping": EarlyStopping,
    "start": StartFrom,
    "optimizer": OptimizerOptions,
    "processes": Processes,
    "saving": Saving,
    "evaluating": Evaluating,
    "command": CommandOptions,
    "console": Console,
    "visualdl": VisualDL,
    "figures": Figures,
    "watch": Watch,
    "print_layers": PrintLayers,
    "profile": Profile,
}
FLAT_OPTIONS: dict[str, FlatOption] = flat_options([ImageOptions, FitArguments, *GROUPS.values()])
OWN = tuple(flat_options([FitArguments]))
CAN_BE_LEFT_OUT = ("output", "init_from", "incremental_from")  # though their groups require them


def _read(name: str, value: object) -> Any:
    one = FLAT_OPTIONS[name]
    if value is None and name in CAN_BE_LEFT_OUT:
        return None
    return one.read(name, value)


@functools.cache
def _defaults() -> dict[str, Any]:
    """Return the values of the recipe `default`; of what it leaves out, those of `fit`."""
    values = {name: one.default for name, one in FLAT_OPTIONS.items()}
    recipe = {name: _read(name, value) for name, value in read_recipe("default").items()}
    return {**values, **recipe}


def distortion_amounts(augment: tuple[str, ...]) -> dict[str, float]:
    """Return the amounts in a config's `augment`, by name; empty: no augmentation."""
    return {name: float(amount) for name, amount in (item.split("=") for item in augment)}


def read_config(path: Path) -> TrainConfig:
    """Return the configuration of a run, from its `config.yaml`. Raises ConfigError."""
    return TrainConfig.from_mapping(read_yaml(path), origin=str(path))


def continued_schedule(schedule: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schedule of continued training in place of a recipe's.

    It falls in a straight line from half the recipe's peak: docs/en/incremental.md has the
    measurements. schedule: the recipe's lr_schedule and learning_rate.
    """
    return {"lr_schedule": "polynomial", "learning_rate": schedule["learning_rate"] / 2}


def recipes() -> dict[str, Path]:
    """Return the files of the package's recipes, by name."""
    folder = Path(str(resources.files("paddle_mnist.mnist") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def read_recipe(name: str) -> dict[str, Any]:
    """Return the names and values of a recipe. Raises ConfigError for an unknown name."""
    known = recipes()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"unknown recipe {name!r}; {hint}available recipes: {', '.join(known)}")
    return read_yaml(known[name])
