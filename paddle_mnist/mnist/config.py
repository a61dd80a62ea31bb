"""`TrainConfig`: everything a training is told, checked when it is made. Imports no paddle."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union, get_type_hints

import yaml
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from paddle_mnist.errors import ConfigError, unknown_name


def _no_bool(value: Any) -> Any:
    """pydantic takes true for 1."""
    if isinstance(value, bool):
        raise ValueError("input should be a number")
    return value


def _split(value: Any) -> Any:
    """Names by comma, as a command line has them."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    return value


def _amounts(value: Any) -> Any:
    """`rotate=10,shift=2`, a list of such, or a mapping; checked, as texts in a fixed order."""
    if isinstance(value, Mapping):
        value = [f"{name}={amount}" for name, amount in value.items()]
    given = dict(str(one).partition("=")[::2] for one in _split(value))
    for name, amount in given.items():
        if name not in AMOUNTS:
            raise ValueError(f"expected {', '.join(f'{known}=N' for known in AMOUNTS)}")
        try:
            given[name] = float(amount)
        except ValueError:
            given[name] = math.nan
        if not 0 <= given[name] < AMOUNTS[name]:
            raise ValueError(f"{name} should be a number, at least 0 and below {AMOUNTS[name]}")
    return [f"{name}={given[name]:g}" for name in AMOUNTS if given.get(name)]


def amounts(augment: tuple[str, ...]) -> dict[str, float]:
    """What a config's `augment` holds, by name; empty: no augmentation."""
    return {name: float(amount) for name, amount in (one.split("=") for one in augment)}


def _batches(value: Any) -> Any:
    """Numbers of batches, by comma; true stands for the tutorial's, false for none."""
    if str(value).lower() in ("true", "false"):
        return True if str(value).lower() == "true" else ()
    return [value] if isinstance(value, int) else _split(value)


def _pages(value: Any) -> Any:
    """Names of pages, by comma; true stands for the usual ones, false for none."""
    named = {"true": USUAL_PAGES, "false": (), "off": (), "all": PAGES}
    if str(value).lower() in named:
        return named[str(value).lower()]
    names = _split(value)
    for name in names:
        if name not in PAGES:
            near = difflib.get_close_matches(str(name), PAGES, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"expected true, false, all, or some of {', '.join(PAGES)}{hint}")
    return [name for name in PAGES if name in names]


def _auto(value: Any) -> Any:
    """0 stands for as many as the machine can run side by side."""
    return 0 if value == "auto" else value


def _off(value: Any) -> Any:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


def _switch(value: Any) -> Any:
    """YAML reads a bare `on` as true."""
    return "on" if value is True else _off(value)


Number = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(_no_bool)]
Count = Annotated[Whole, Field(ge=1)]
# What `augment` takes, each below: degrees, degrees, pixels, share.
AMOUNTS = {"rotate": 180, "shear": 60, "shift": 28, "scale": 1}
# Of VisualDL; the first six are written unless others are asked for.
PAGES = (
    *("scalars", "histograms", "images", "figures", "text", "hparams"),
    *("curves", "embeddings", "graph"),
)
USUAL_PAGES = PAGES[:6]
Pages = Annotated[tuple[str, ...], BeforeValidator(_pages)]
Batches = Annotated[
    Union[tuple[Annotated[Whole, Field(ge=0)], ...], Literal[True]], BeforeValidator(_batches)
]
Amounts = Annotated[tuple[str, ...], BeforeValidator(_amounts)]
Origin = Annotated[str, Field(min_length=1)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split)]


def _option(default, group: str, help: str, *, binds: bool, bare: Optional[str] = None):
    """binds: whether the value decides the result, so that a resumed run may not change it.

    bare: the value of the option given without one, where that is allowed.
    """
    if isinstance(default, bool):
        bare = "true"
    metadata = {"group": group, "help": help, "binds": binds, "bare": bare}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class TrainConfig:
    """The configuration of one training: flat, typed, immutable.

    Raises ConfigError, naming the field, the value and what was expected.
    """

    # The source of the images. Its contents bind the result, by their hash; its path does not.
    data: str = _option("auto", "data", "auto, digits, or a file or folder", binds=False)
    train_limit: Optional[Count] = _option(
        None, "data", "train on the first N images of the source only", binds=True
    )
    eval_limit: Optional[Count] = _option(
        None, "data", "evaluate on the first N images only", binds=True
    )
    shuffle: bool = _option(True, "data", "a new order of samples each epoch", binds=True)

    epochs: Count = _option(5, "training", "passes over the training split", binds=True)
    batch_size: Count = _option(64, "training", "samples a step", binds=True)
    seed: Annotated[Whole, Field(ge=0, lt=2**32)] = _option(
        1, "training", "decides initial weights and order of samples", binds=True
    )
    label_smoothing: Annotated[Number, Field(ge=0, lt=1)] = _option(
        0.0, "training", "share of the label spread over all classes", binds=True
    )
    dropout: Annotated[Number, Field(ge=0, lt=1)] = _option(
        0.0, "training", "share of its 980 inputs that the last layer does without", binds=True
    )

    augment: Amounts = _option(
        (), "training", "random affine, as rotate=10,shear=5,shift=2,scale=0.1", binds=True
    )
    ema: Annotated[Number, Field(ge=0, lt=1)] = _option(
        0.0, "training", "decay of the moving average of the weights; 0: none", binds=True
    )
    early_stop_patience: Optional[Count] = _option(
        None, "training", "evaluations without a better one; ends with the best", binds=True
    )

    init_from: Optional[Origin] = _option(
        None, "start", "weights to start from: a .pdparams, checkpoint or run", binds=True
    )
    incremental_from: Optional[Origin] = _option(
        None, "start", "checkpoint or run to train further: optimizer too", binds=True
    )
    replay_data: Optional[Origin] = _option(
        None, "start", "old images to mix in, against forgetting", binds=False
    )
    replay_fraction: Annotated[Number, Field(gt=0, lt=1)] = _option(
        0.2, "start", "their share of every epoch", binds=True
    )

    optimizer: Literal["sgd", "momentum", "adagrad", "adam", "adamw"] = _option(
        "momentum", "optimizer", "the optimizer", binds=True
    )
    learning_rate: Annotated[Number, Field(gt=0)] = _option(
        0.1, "optimizer", "the rate; with one-cycle its peak", binds=True
    )
    lr_schedule: Literal["constant", "polynomial", "cosine", "onecycle"] = _option(
        "onecycle", "optimizer", "course of the rate, stepped every batch", binds=True
    )
    end_lr: Annotated[Number, Field(ge=0)] = _option(
        0.0, "optimizer", "the rate at the last step (constant: unused)", binds=True
    )
    momentum: Annotated[Number, Field(ge=0, lt=1)] = _option(
        0.9, "optimizer", "momentum (optimizer momentum only)", binds=True
    )
    weight_decay: Annotated[Number, Field(ge=0)] = _option(
        5e-4, "optimizer", "L2 coefficient; adamw: decoupled decay", binds=True
    )
    weight_decay_layers: Names = _option(
        (), "optimizer", "what decays, as conv1,fc.weight; none named: all", binds=True
    )

    device: str = _option("auto", "device", "auto, cpu, gpu:0 or xpu:0", binds=False)
    nprocs: Annotated[Whole, Field(ge=0), BeforeValidator(_auto)] = _option(
        1, "device", "processes, each with its share of every batch; or auto", binds=False
    )
    gpus: Optional[str] = _option(
        None, "device", "the GPUs of these processes, as 0,1; so many are started", binds=False
    )
    amp: Annotated[Literal["off", "O1", "O2"], BeforeValidator(_off)] = _option(
        "off", "device", "bfloat16 on a GPU: O1 where it is safe, O2 nearly everywhere", binds=True
    )
    fast_conv: Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch)] = _option(
        "auto", "device", "convolve by NumPy's matrix products; auto: on a CPU", binds=True
    )
    threads: Annotated[Whole, Field(ge=0), BeforeValidator(_auto)] = _option(
        0, "device", "threads of the fast convolution in each process; or auto", binds=False
    )
    grad_shards: Optional[Count] = _option(
        None, "device", "parts of a batch; the same bits on any number of processes", binds=True
    )

    output: Optional[str] = _option(
        None, "run", "run directory (default: work/output/<recipe>)", binds=False
    )
    resume: Annotated[str, BeforeValidator(_off)] = _option(
        "auto", "run", "auto, off (start at step 0), or a checkpoint", binds=False
    )
    override: Names = _option(
        (), "run", "fields, by comma, that this resume may change", binds=False
    )
    save_every_epochs: Count = _option(1, "saving", "epochs between checkpoints", binds=False)
    save_every_steps: Optional[Count] = _option(
        None, "saving", "steps between checkpoints", binds=False
    )
    save_every_seconds: Optional[Annotated[Number, Field(gt=0)]] = _option(
        None, "saving", "seconds between checkpoints", binds=False
    )
    keep_epochs: bool = _option(True, "saving", "keep every epoch's end", binds=False)
    keep_last: Count = _option(3, "saving", "keep the newest so many of all", binds=False)
    keep_every_minutes: Optional[Annotated[Number, Field(gt=0)]] = _option(
        None, "saving", "keep one of each span of so many minutes", binds=False
    )
    keep_best: bool = _option(True, "saving", "keep the best by valid accuracy", binds=False)
    keep_breakpoints: bool = _option(
        True, "saving", "keep what was saved when a training broke off", binds=False
    )
    save_on_exception: bool = _option(
        True, "saving", "save when an error ends the training", binds=False
    )
    max_restarts: Annotated[Whole, Field(ge=0)] = _option(
        0, "run", "restart a training that died or hangs so often", binds=False
    )
    hang_timeout: Annotated[Number, Field(gt=0)] = _option(
        600.0, "run", "seconds without a step that count as hanging", binds=False
    )
    eval_every_epochs: Count = _option(1, "run", "epochs between validations", binds=False)
    log_every: Count = _option(100, "run", "steps between log lines", binds=False)

    visualdl: Pages = _option(
        *(
            USUAL_PAGES,
            "looking inside",
            "VisualDL pages, by comma; true: usual, all, false",
        ),
        binds=False,
        bare="true",
    )
    figures: bool = _option(True, "looking inside", "draw figures at the end", binds=False)
    watch: Annotated[Whole, Field(ge=0)] = _option(
        100, "looking inside", "steps between looks at layers and gradients; 0: none", binds=False
    )
    check_shape: Batches = _option(
        (), "looking inside", "print shapes in these batches; bare: 0", binds=False, bare="true"
    )
    check_content: Batches = _option(
        *((), "looking inside", "print contents in these batches; bare: 401, or the last"),
        binds=False,
        bare="true",
    )
    profile: Annotated[Whole, Field(ge=0)] = _option(
        0, "looking inside", "profile so many steps; bare: 20", binds=False, bare="20"
    )

    def __post_init__(self):
        for name, adapter in _adapters().items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, adapter.validate_python(value))
            except ValidationError as error:
                raise ConfigError(_explain(name, value, error)) from None
        if self.lr_schedule != "constant" and self.end_lr > self.learning_rate:
            raise ConfigError(
                f"end_lr is {self.end_lr}; expected at most the learning_rate, "
                f"{self.learning_rate}, which it ends"
            )
        starts = [
            *(["resume"] if self.resume not in ("auto", "off") else []),
            *(name for name in ("init_from", "incremental_from") if getattr(self, name)),
        ]
        if len(starts) > 1:
            raise ConfigError(f"{' and '.join(starts)} are given; expected one of them at most")
        if self.early_stop_patience and not self.keep_best:
            raise ConfigError(
                "early_stop_patience ends with the best checkpoint, but keep_best is off; expected "
                "it on"
            )
        if self.early_stop_patience and "resume" in starts:
            raise ConfigError(
                "early_stop_patience and resume PATH are given; expected one of them: the best "
                "checkpoint may be one of the run that PATH is of; go on in its own --output"
            )
        unknown = [name for name in self.override if name not in FIELDS]
        if unknown:
            raise ConfigError(unknown_name("override", unknown[0], FIELDS))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], origin: str = "config") -> "TrainConfig":
        """A config from names and values; `origin` says in errors where they came from."""
        for name in values:
            if name not in FIELDS:
                raise ConfigError(unknown_name(origin, name, FIELDS))
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        """Plain values: what YAML and JSON can hold."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    def as_yaml(self) -> str:
        return yaml.safe_dump(self.as_dict(), sort_keys=False)

    def binding(self) -> dict[str, Any]:
        """The fields that decide the result."""
        values = self.as_dict()
        for name in ("init_from", "incremental_from"):  # the same place, however it is written
            values[name] = values[name] and str(Path(values[name]).expanduser().absolute())
        bound = {f.name: values[f.name] for f in fields(self) if f.metadata["binds"]}
        if self.early_stop_patience:  # which counts evaluations
            bound["eval_every_epochs"] = self.eval_every_epochs
        return bound


FIELDS = {f.name: f for f in fields(TrainConfig)}


def _adapters() -> dict[str, TypeAdapter]:
    if not _ADAPTERS:
        hints = get_type_hints(TrainConfig, include_extras=True)
        _ADAPTERS.update({name: TypeAdapter(hints[name]) for name in FIELDS})
    return _ADAPTERS


_ADAPTERS: dict[str, TypeAdapter] = {}


def _explain(name: str, value: Any, error: ValidationError) -> str:
    reason = error.errors()[0]["msg"]
    reason = reason.removeprefix("Value error, ")
    reason = reason[0].lower() + reason[1:]
    near = difflib.get_close_matches(str(value), choices(name), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{name} is {value!r}; {reason}{hint}"


def choices(name: str) -> tuple[str, ...]:
    """The values a field may take, where they are a fixed list; else nothing."""
    hint = get_type_hints(TrainConfig)[name]
    return hint.__args__ if getattr(hint, "__origin__", None) is Literal else ()


# Common short names, each of which is spelled more like some other field's than its own.
def read_yaml(path: Path) -> dict[str, Any]:
    """The names and values in a YAML file. Raises ConfigError."""
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; expected a YAML file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{path}: not YAML ({reason}); expected lines of 'field: value'"
        ) from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path}: found a {type(values).__name__}; expected a mapping, lines of 'field: value'"
        )
    return values


def recipes() -> dict[str, Path]:
    """The recipes in the package, by name."""
    folder = Path(str(resources.files("paddle_mnist.mnist") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def read_recipe(name: str) -> dict[str, Any]:
    """The names and values of a recipe. Raises ConfigError for a name that is none."""
    known = recipes()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"recipe {name!r} is unknown; {hint}there are: {', '.join(known)}")
    return read_yaml(known[name])
