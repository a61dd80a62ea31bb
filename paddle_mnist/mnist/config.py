"""`TrainConfig`, the configuration of a training, and recipes. Imports no paddle."""

import difflib
import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, get_type_hints

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from paddle_mnist._arguments import accepts_numpy
from paddle_mnist.checkpoint.run_files import FIT, TRAINED_WITH
from paddle_mnist.errors import ConfigError, unknown_name
from paddle_mnist.mnist.option_types import (
    USUAL_PAGES,
    Amounts,
    Batches,
    Count,
    CountOrAuto,
    CountOrNone,
    Names,
    NotNegative,
    Number,
    OffOr,
    Pages,
    Place,
    Positive,
    Precision,
    Share,
    Switch,
    Whole,
)
from paddle_mnist.system.yaml_reader import read_yaml


def _option(default, group: str, help: str, *, binds: bool, bare: Optional[str] = None):
    """Define a field of `TrainConfig`.

    group: the heading under which `--help` lists it.
    binds: whether the value decides the result, so that a resumed run may not change it.
    bare: the value of the option if it is given without one, where that is allowed.
    """
    if isinstance(default, bool):
        bare = "true"
    metadata = {"group": group, "help": help, "binds": binds, "bare": bare}
    return field(default=default, metadata=metadata)


@accepts_numpy
@dataclass(frozen=True)
class TrainConfig:
    """The configuration of one training run: flat, typed, immutable.

    Raises ConfigError, naming the field, the value and what was expected.
    """

    # The source of the images. Its contents bind the result, by their hash; its path does not.
    data: str = _option(
        "auto", "data", "auto, digits, or a file or folder (JSON, IDX, npz, CSV)", binds=False
    )
    train_limit: Optional[Count] = _option(
        None, "data", "train on the first N images of the source only", binds=True
    )
    eval_limit: Optional[Count] = _option(
        None, "data", "evaluate on the first N images only", binds=True
    )
    shuffle: bool = _option(True, "data", "shuffle the samples anew in each epoch", binds=True)

    epochs: Count = _option(5, "training", "passes over the training split", binds=True)
    batch_size: Count = _option(64, "training", "samples per step", binds=True)
    seed: Annotated[Whole, Field(ge=0, lt=2**32)] = _option(
        1, "training", "seed of the initial weights, the order and all random numbers", binds=True
    )
    label_smoothing: Share = _option(
        0.0, "training", "probability that is spread evenly over all classes", binds=True
    )
    dropout: Share = _option(
        0.0, "training", "share of the last layer's inputs that are dropped in training", binds=True
    )

    augment: Amounts = _option(
        (),
        "training",
        "random affine and elastic distortion: rotate=10,shear=5,shift=2,scale=0.1,elastic=1",
        binds=True,
    )
    ema: Share = _option(
        0.0, "training", "decay of the moving average of the weights; 0: no average", binds=True
    )
    early_stop_patience: Optional[Count] = _option(
        None,
        "training",
        "stop after N evaluations without improvement, with the best weights",
        binds=True,
    )

    init_from: Optional[Place] = _option(
        None, "start", "weights to start from: a run, checkpoint or .pdparams file", binds=True
    )
    init_partial: bool = _option(
        False,
        "start",
        "with init_from: load the weights that match, and log the others",
        binds=False,
    )
    incremental_from: Optional[Place] = _option(
        None,
        "start",
        "run or checkpoint whose weights and optimizer state to start from",
        binds=True,
    )
    soften: bool = _option(
        True,
        "start",
        "with incremental_from: make the net less sure where it is wrong about the new data",
        binds=False,
    )
    replay_data: Optional[Place] = _option(
        None, "start", "old images to mix into each epoch, to prevent forgetting", binds=False
    )
    replay_fraction: Annotated[Number, Field(gt=0, lt=1)] = _option(
        0.2, "start", "share of old images in each epoch", binds=True
    )

    optimizer: Literal["sgd", "momentum", "adagrad", "adam", "adamw"] = _option(
        "momentum", "optimizer", "the optimizer", binds=True
    )
    learning_rate: Positive = _option(
        0.1, "optimizer", "learning rate; the peak with onecycle", binds=True
    )
    lr_schedule: Literal["constant", "polynomial", "cosine", "onecycle"] = _option(
        "onecycle", "optimizer", "learning-rate schedule, stepped every batch", binds=True
    )
    end_lr: NotNegative = _option(
        0.0, "optimizer", "learning rate at the last step (not used by constant)", binds=True
    )
    momentum: Share = _option(0.9, "optimizer", "momentum (optimizer momentum only)", binds=True)
    weight_decay: NotNegative = _option(
        5e-4, "optimizer", "L2 coefficient; with adamw decoupled weight decay", binds=True
    )
    weight_decay_layers: Names = _option(
        (),
        "optimizer",
        "layers or parameters to decay, such as conv1,fc.weight; default: all",
        binds=True,
    )

    device: str = _option("auto", "device", "auto, cpu, gpu:0 or xpu:0", binds=False)
    nprocs: CountOrAuto = _option(
        1,
        "device",
        "number of processes, each computing a part of every batch; or auto",
        binds=False,
    )
    gpus: Optional[str] = _option(
        None, "device", "GPUs to train on, such as 0,1, with one process each", binds=False
    )
    amp: Precision = _option(
        "off",
        "device",
        "bfloat16 on a GPU: O1 in safe operations, O2 nearly everywhere",
        binds=True,
    )
    fast_conv: Switch = _option(
        "auto", "device", "compute convolutions in compiled loops; auto: on CPUs only", binds=True
    )
    threads: CountOrAuto = _option(
        0, "device", "threads of the fast convolution in each process; or auto", binds=False
    )
    grad_shards: Optional[Count] = _option(
        None,
        "device",
        "parts of each batch; gives the same bits for any number of processes",
        binds=True,
    )

    output: Optional[str] = _option(
        None, "run", "run directory (default: work/output/<recipe>)", binds=False
    )
    resume: OffOr = _option(
        "auto",
        "run",
        "auto, off (start at step 0), or the path of a run or checkpoint",
        binds=False,
    )
    override: Names = _option(
        (), "run", "comma-separated fields that may differ from those of the run", binds=False
    )
    save_every_epochs: Optional[CountOrNone] = _option(
        1,
        "saving",
        "epochs between checkpoints; 0: only the best and the last epoch are saved at their ends",
        binds=False,
    )
    save_every_steps: Optional[Count] = _option(
        None, "saving", "steps between checkpoints", binds=False
    )
    save_every_seconds: Optional[Positive] = _option(
        None, "saving", "seconds between checkpoints", binds=False
    )
    keep_epochs: bool = _option(
        True, "saving", "keep the checkpoint at the end of every epoch", binds=False
    )
    keep_last: Count = _option(3, "saving", "keep the newest N checkpoints", binds=False)
    keep_every_minutes: Optional[Positive] = _option(
        None, "saving", "keep one checkpoint every N minutes", binds=False
    )
    keep_best: bool = _option(
        True, "saving", "keep the checkpoint with the best valid accuracy", binds=False
    )
    keep_breakpoints: bool = _option(
        True, "saving", "keep checkpoints that were saved on an interruption", binds=False
    )
    save_on_exception: bool = _option(
        True, "saving", "save a checkpoint when an error ends training", binds=False
    )
    max_restarts: CountOrNone = _option(
        0, "run", "maximum number of restarts when training dies or hangs", binds=False
    )
    hang_timeout: Positive = _option(
        600.0, "run", "seconds without a step after which training is considered hung", binds=False
    )
    eval_every_epochs: Count = _option(
        1, "run", "epochs between evaluations on the valid split", binds=False
    )
    final_split: Literal["eval", "valid"] = _option(
        "eval",
        "run",
        "what the trained net is scored on at the end: eval (the test set), or valid instead of it",
        binds=False,
    )
    log_every: Count = _option(100, "run", "steps between log lines", binds=False)

    visualdl: Pages = _option(
        default=USUAL_PAGES,
        group="looking inside",
        help="comma-separated VisualDL pages; or true (the default ones), all, false",
        binds=False,
        bare="true",
    )
    figures: bool = _option(
        True, "looking inside", "draw figures at the end of the run", binds=False
    )
    watch: CountOrNone = _option(
        100, "looking inside", "steps between records of layers and gradients; 0: off", binds=False
    )
    check_shape: Batches = _option(
        default=(),
        group="looking inside",
        help="numbers of batches whose shapes to print; without a value: 0",
        binds=False,
        bare="true",
    )
    check_content: Batches = _option(
        default=(),
        group="looking inside",
        help="numbers of batches whose contents to print; without a value: 401, or the last",
        binds=False,
        bare="true",
    )
    profile: CountOrNone = _option(
        0,
        "looking inside",
        "number of steps to profile; without a value: 20; 0: off",
        binds=False,
        bare="20",
    )

    def __post_init__(self):
        for name, adapter in _adapters().items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, adapter.validate_python(value))
            except ValidationError as error:
                raise ConfigError(_explain(name, value, error)) from None
        self._check_combinations()

    def _check_combinations(self) -> None:
        """Raise ConfigError for fields that exclude each other."""
        if self.lr_schedule != "constant" and self.end_lr > self.learning_rate:
            raise ConfigError(
                f"end_lr is {self.end_lr}; expected at most the learning_rate, {self.learning_rate}"
            )
        starts = [name for name in ("init_from", "incremental_from") if getattr(self, name)]
        if self.resume not in ("auto", "off"):
            starts.insert(0, "resume")
        if len(starts) > 1:
            raise ConfigError(f"{' and '.join(starts)} are given; expected at most one of them")
        if self.init_partial and not self.init_from:
            raise ConfigError(
                "init_partial is on without init_from; expected init_from too, or init_partial off"
            )
        if self.early_stop_patience and not self.keep_best:
            raise ConfigError(
                "early_stop_patience ends with the best checkpoint, but keep_best is off; expected "
                "keep_best on"
            )
        if self.early_stop_patience and "resume" in starts:
            raise ConfigError(
                "early_stop_patience and resume PATH are given; expected one of them: the best "
                "checkpoint may belong to the run of PATH; continue that run in its own --output"
            )
        unknown = [name for name in self.override if name not in FIELDS]
        if unknown:
            raise ConfigError(unknown_name("override", unknown[0], FIELDS))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], origin: str = "config") -> "TrainConfig":
        """Build a config from names and values.

        origin: where they come from, for errors. Raises ConfigError.
        """
        if values.get(TRAINED_WITH) == FIT:
            raise ConfigError(
                f"{origin}: the arguments of a call of {FIT}, which trains a net of your own; "
                "expected the configuration of a training on digits; run the script that calls it"
            )
        for name in values:
            if name not in FIELDS:
                raise ConfigError(unknown_name(origin, name, FIELDS))
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as YAML and JSON can hold them."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    def as_yaml(self) -> str:
        return yaml.safe_dump(self.as_dict(), sort_keys=False)

    def binding(self) -> dict[str, Any]:
        """Return the fields that decide the result, which a resumed run may not change."""
        values = self.as_dict()
        for name in ("init_from", "incremental_from"):
            if values[name]:  # one place may be written in several ways
                values[name] = str(Path(values[name]).expanduser().absolute())
        binding = {f.name: values[f.name] for f in fields(self) if f.metadata["binds"]}
        if self.early_stop_patience:  # which counts evaluations
            binding["eval_every_epochs"] = self.eval_every_epochs
        return binding


FIELDS = {f.name: f for f in fields(TrainConfig)}


@functools.cache
def _adapters() -> dict[str, TypeAdapter]:
    """Return what validates each field; built on first use."""
    hints = get_type_hints(TrainConfig, include_extras=True)
    return {name: TypeAdapter(hints[name]) for name in FIELDS}


def _explain(name: str, value: Any, error: ValidationError) -> str:
    reason = error.errors()[0]["msg"]
    reason = reason.removeprefix("Value error, ")
    reason = reason[0].lower() + reason[1:]
    near = difflib.get_close_matches(str(value), choices(name), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{name} is {value!r}; {reason}{hint}"


def choices(name: str) -> tuple[str, ...]:
    """Return the values a field may take if they are a fixed list; else an empty tuple."""
    hint = get_type_hints(TrainConfig)[name]
    return hint.__args__ if getattr(hint, "__origin__", None) is Literal else ()


def amounts(augment: tuple[str, ...]) -> dict[str, float]:
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
